//! Which other paths stay when a path is answered.

use smallvec::SmallVec;

use crate::ids::PathId;

/// Which other paths stay when a path is answered, where the newest would take the place of all others.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// Paths that were opened before, and stay in its place if they are answered before it.
    gives_way_to: SmallVec<[PathId; 2]>,
    /// A path that becomes a backup path when this one is answered, in mode `single` too.
    keeps: Option<PathId>,
}

impl Succession {
    /// It gives way to this path too.
    pub(crate) fn give_way(&mut self, to: PathId) {
        if !self.gives_way_to.contains(&to) {
            self.gives_way_to.push(to);
        }
    }

    /// The first path to which it gives way that is such a one.
    pub(crate) fn gives_way_to(&self, is: impl Fn(&PathId) -> bool) -> Option<PathId> {
        self.gives_way_to.iter().copied().find(is)
    }

    /// This path becomes a backup path.
    pub(crate) fn keep(&mut self, other: PathId) {
        self.keeps = Some(other);
    }

    /// The path that becomes a backup path.
    pub(crate) fn keeps(&self) -> Option<PathId> {
        self.keeps
    }

    /// Another path takes the place of one that retires.
    pub(crate) fn replace(&mut self, old: PathId, successor: PathId) {
        if self.keeps == Some(old) {
            self.keeps = Some(successor);
        }
        self.gives_way_to.iter_mut().filter(|other| **other == old).for_each(|other| *other = successor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_the_place_of_a_path_is_kept_and_given_way_to_instead() {
        let mut path = Succession::default();
        path.keep(PathId(1));
        for other in [1, 1, 2] {
            path.give_way(PathId(other));
        }
        path.replace(PathId(1), PathId(3));
        assert_eq!(path.keeps(), Some(PathId(3)));
        assert_eq!(path.gives_way_to(|_| true), Some(PathId(3)));
        assert_eq!(path.gives_way_to(|other| *other == PathId(2)), Some(PathId(2)));
        assert_eq!(path.gives_way_to(|other| *other == PathId(1)), None);
        assert_eq!(path.gives_way_to.len(), 2, "each is named once");
    }
}
