//! Paths whose priority was set by hand.

use whimbrel_proto::PathId;

/// Paths whose priority was set by hand, here or by the peer: the path manager leaves them alone. Few
/// connections have any.
#[expect(clippy::box_collection, reason = "one word where there are none")]
#[derive(Debug, Default)]
pub(crate) struct Pins(Option<Box<Vec<PathId>>>);

impl Pins {
    /// Adds `path`; forgets those that are not `there` any more.
    pub(super) fn add(&mut self, path: PathId, there: impl Fn(PathId) -> bool) {
        let pins = self.0.get_or_insert_default();
        pins.retain(|pinned| *pinned != path && there(*pinned));
        pins.push(path);
    }

    pub(crate) fn holds(&self, path: PathId) -> bool {
        self.0.as_ref().is_some_and(|pins| pins.contains(&path))
    }

    /// The mode or the policy was set anew.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_do_not_outlive_their_paths() {
        let mut pins = Pins::default();
        pins.add(PathId(1), |_| true);
        pins.add(PathId(2), |_| true);
        pins.add(PathId(2), |path| path != PathId(1));
        assert!(pins.holds(PathId(2)) && !pins.holds(PathId(1)));
        assert_eq!(pins.0.as_ref().map(|pins| pins.len()), Some(1));
    }
}
