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

    /// The paths that `successor` is to take over from: several where QUIC was dialled again.
    pub(crate) fn predecessors_of(&self, successor: PathId) -> impl Iterator<Item = PathId> {
        let all = self.0.iter().flat_map(|all| all.iter());
        all.filter(move |of| of.successor == successor).map(|of| of.predecessor)
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
        takeovers.begin(PathId(3), PathId(1));
        takeovers.begin(PathId(3), PathId(2));
        takeovers.begin(PathId(5), PathId(4));
        let before = |takeovers: &Takeovers, id| takeovers.predecessors_of(PathId(id)).collect::<Vec<_>>();
        assert_eq!(before(&takeovers, 3), [PathId(1), PathId(2)]);
        assert_eq!(before(&takeovers, 1), []);
        takeovers.path_gone(PathId(1));
        takeovers.path_gone(PathId(5));
        assert_eq!(before(&takeovers, 3), [PathId(2)]);
        assert_eq!(before(&takeovers, 5), []);
    }
}
