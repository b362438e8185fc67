//! Paths that take over from others between the same places: QUIC opens, TCP carries.

use smallvec::SmallVec;
use whimbrel_proto::PathId;

/// Which path is to take over from which. Few, because each pair of interfaces has one at most.
#[derive(Debug, Default)]
pub(crate) struct Takeovers(SmallVec<[Takeover; 1]>);

#[derive(Debug)]
struct Takeover {
    successor: PathId,
    predecessor: PathId,
}

impl Takeovers {
    pub(crate) fn begin(&mut self, successor: PathId, predecessor: PathId) {
        self.0.push(Takeover { successor, predecessor });
    }

    /// The path that `successor` is to take over from.
    pub(crate) fn predecessor_of(&self, successor: PathId) -> Option<PathId> {
        self.0.iter().find(|of| of.successor == successor).map(|of| of.predecessor)
    }

    /// A path is gone: it takes over from no other, and no other from it.
    pub(crate) fn path_gone(&mut self, path: PathId) {
        self.0.retain(|of| of.successor != path && of.predecessor != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_gone_takes_part_in_no_takeover() {
        let mut takeovers = Takeovers::default();
        takeovers.begin(PathId(2), PathId(1));
        takeovers.begin(PathId(5), PathId(4));
        assert_eq!(takeovers.predecessor_of(PathId(2)), Some(PathId(1)));
        assert_eq!(takeovers.predecessor_of(PathId(1)), None);
        takeovers.path_gone(PathId(1));
        takeovers.path_gone(PathId(5));
        assert_eq!(takeovers.predecessor_of(PathId(2)), None);
        assert_eq!(takeovers.predecessor_of(PathId(5)), None);
    }
}
