//! Paths that take over from others between the same places: QUIC opens, TCP carries.

use whimbrel_proto::PathId;

/// Which path is to take over from which. Few, because each pair of interfaces has one at most, and none at a
/// server.
#[expect(clippy::box_collection, reason = "one word where there are none")]
#[derive(Debug, Default)]
pub(crate) struct Takeovers(Option<Box<Vec<Takeover>>>);

#[derive(Debug)]
struct Takeover {
    successor: PathId,
    predecessor: PathId,
}

impl Takeovers {
    pub(crate) fn begin(&mut self, successor: PathId, predecessor: PathId) {
        self.0.get_or_insert_default().push(Takeover { successor, predecessor });
    }

    /// The path that `successor` is to take over from.
    pub(crate) fn predecessor_of(&self, successor: PathId) -> Option<PathId> {
        self.0.iter().flat_map(|all| all.iter()).find(|of| of.successor == successor).map(|of| of.predecessor)
    }

    /// A path is gone: it takes over from no other, and no other from it.
    pub(crate) fn path_gone(&mut self, path: PathId) {
        if let Some(all) = &mut self.0 {
            all.retain(|of| of.successor != path && of.predecessor != path);
        }
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
