//! The paths of a connection, oldest first: few, and looked up several times for every segment.

use crate::ids::PathId;
use crate::path::Path;

/// In order of their ids. A search from the newest back beats any tree: the newest is nearly always meant.
#[derive(Debug, Default)]
pub(crate) struct PathTable {
    entries: Vec<(PathId, Path)>,
}

impl PathTable {
    pub(crate) fn get(&self, id: PathId) -> Option<&Path> {
        self.entries.iter().rev().find(|entry| entry.0 == id).map(|entry| &entry.1)
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.entries.iter_mut().rev().find(|entry| entry.0 == id).map(|entry| &mut entry.1)
    }

    pub(crate) fn insert(&mut self, id: PathId, path: Path) {
        match self.position(id) {
            Ok(index) => self.entries[index].1 = path,
            Err(index) => self.entries.insert(index, (id, path)),
        }
    }

    pub(crate) fn remove(&mut self, id: PathId) -> Option<Path> {
        let index = self.position(id).ok()?;
        Some(self.entries.remove(index).1)
    }

    fn position(&self, id: PathId) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |entry| entry.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (PathId, &Path)> {
        self.entries.iter().map(|(id, path)| (*id, path))
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (PathId, &mut Path)> {
        self.entries.iter_mut().map(|(id, path)| (*id, path))
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &Path> {
        self.entries.iter().map(|entry| &entry.1)
    }

    pub(crate) fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Path> {
        self.entries.iter_mut().map(|entry| &mut entry.1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::path::First;
    use std::time::Instant;

    #[test]
    fn paths_are_found_and_listed_in_the_order_of_their_ids() {
        let mut table = PathTable::default();
        let now = Instant::now();
        for id in [3, 0, 7] {
            table.insert(PathId(id), Path::new(First::Join, now, None, id));
        }
        let ids = |table: &PathTable| table.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert_eq!(ids(&table), [0, 3, 7]);
        assert_eq!(table.get(PathId(3)).unwrap().early_limit, 3);
        assert!(table.get(PathId(4)).is_none());
        table.insert(PathId(3), Path::new(First::Join, now, None, 33));
        assert_eq!((table.len(), table.get_mut(PathId(3)).unwrap().early_limit), (3, 33));
        assert_eq!(table.remove(PathId(0)).unwrap().early_limit, 0);
        assert!(table.remove(PathId(0)).is_none());
        assert_eq!(ids(&table), [3, 7]);
    }
}
