//! The paths of a connection, oldest first: few, and looked up several times for every segment. With them,
//! which path ids were used, and what the peer has to be told of paths that are gone.

mod ids;

use crate::error::DecodeError;
use crate::frame::{MAX_REPORTS, PathReport};
use crate::ids::{PathId, Side};
use crate::path::Path;
use crate::snapshot;
use crate::varint::Reader;
use ids::PathIds;

/// In order of their ids. A search from the newest back beats any tree: the newest is nearly always meant.
#[derive(Debug, Default)]
pub(crate) struct PathTable {
    entries: Vec<(PathId, Path)>,
    ids: PathIds,
    /// Our word on paths of which nothing else is left. Mostly the peer spoke of them and this side never saw
    /// them: it is told that nothing was received on them.
    unseen: Vec<PathReport>,
}

impl PathTable {
    pub(crate) fn get(&self, id: PathId) -> Option<&Path> {
        self.entries.iter().rev().find(|entry| entry.0 == id).map(|entry| &entry.1)
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.entries.iter_mut().rev().find(|entry| entry.0 == id).map(|entry| &mut entry.1)
    }

    /// Client: the id of a new path.
    pub(crate) fn give_id(&mut self) -> PathId {
        self.ids.give()
    }

    /// Server: a path may be let in under `id`, which was neither let in nor called lost before.
    pub(crate) fn is_fresh(&self, id: PathId) -> bool {
        self.ids.is_fresh(id)
    }

    /// No id as high as `id` was used.
    pub(crate) fn is_highest(&self, id: PathId) -> bool {
        self.ids.is_highest(id)
    }

    /// From now on no path is let in under `id`.
    pub(crate) fn spend(&mut self, id: PathId) {
        self.ids.spend(id);
    }

    /// Adds a path, whose id is used from now on.
    pub(crate) fn insert(&mut self, id: PathId, path: Path) {
        self.ids.spend(id);
        match self.position(id) {
            Ok(index) => self.entries[index].1 = path,
            Err(index) => self.entries.insert(index, (id, path)),
        }
    }

    pub(crate) fn remove(&mut self, id: PathId) -> Option<Path> {
        let index = self.position(id).ok()?;
        Some(self.entries.remove(index).1)
    }

    /// The peer shall be told that nothing was received on a path that is not here. False if it is being
    /// told, or if there are too many such paths.
    pub(crate) fn note_unseen(&mut self, id: PathId) -> bool {
        let known = self.unseen.iter().any(|report| report.path == id);
        let fresh = !known && self.unseen.len() < MAX_REPORTS;
        if fresh {
            self.unseen.push(PathReport { path: id, received: 0 });
        }
        fresh
    }

    /// The peer knows that nothing was received on a path.
    pub(crate) fn unseen_told(&mut self, id: PathId) {
        self.unseen.retain(|report| report.path != id);
    }

    /// Paths that the peer is told nothing was received on.
    pub(crate) fn unseen(&self) -> usize {
        self.unseen.len()
    }

    /// Our word on a path that is gone, unless the peer has it.
    pub(crate) fn final_report(&self, id: PathId) -> Option<PathReport> {
        match self.get(id) {
            Some(path) => path.owes_final().then(|| report(id, path)),
            None => self.unseen.iter().find(|report| report.path == id).copied(),
        }
    }

    /// Our word on all paths that are gone, as far as the peer may not know it.
    pub(crate) fn final_reports(&self) -> Vec<PathReport> {
        let known = self.iter().filter(|(_, path)| path.owes_final()).map(|(id, path)| report(id, path));
        known.chain(self.unseen.iter().copied()).take(MAX_REPORTS).collect()
    }

    /// Writes down what has to be known when no path is left: which ids were used, and our word on lost
    /// paths.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.ids.write_down(out);
        let reports = self.final_reports();
        snapshot::number(out, reports.len() as u64);
        reports.iter().for_each(|report| snapshot::numbers(out, [report.path.0, report.received]));
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>, side: Side) -> Result<Self, DecodeError> {
        let mut this = Self { ids: PathIds::read_back(reader, side)?, ..Self::default() };
        for _ in 0..reader.varint()?.min(MAX_REPORTS as u64) {
            let [path, received] = snapshot::read_numbers(reader)?;
            this.unseen.push(PathReport { path: PathId(path), received });
        }
        Ok(this)
    }

    /// Lost paths that are not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.values().filter(|path| !path.is_live()).count()
    }

    /// Removes the oldest lost path, if there are more than `most` of them.
    pub(crate) fn forget_oldest_lost(&mut self, most: usize) -> Option<PathId> {
        let oldest = self.iter().find(|(_, path)| !path.is_live()).map(|(id, _)| id);
        let id = oldest.filter(|_| self.unsettled() > most)?;
        self.remove(id);
        Some(id)
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

fn report(id: PathId, path: &Path) -> PathReport {
    PathReport { path: id, received: path.incoming.segments() }
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
        assert_eq!(table.get(PathId(3)).unwrap().early_room(), 3);
        assert!(table.get(PathId(4)).is_none());
        table.insert(PathId(3), Path::new(First::Join, now, None, 33));
        assert_eq!((table.len(), table.get_mut(PathId(3)).unwrap().early_room()), (3, 33));
        assert_eq!(table.remove(PathId(0)).unwrap().early_room(), 0);
        assert!(table.remove(PathId(0)).is_none());
        assert_eq!(ids(&table), [3, 7]);
    }

    #[test]
    fn a_path_that_is_gone_is_reported_until_the_peer_knows() {
        let (mut table, now) = (PathTable::default(), Instant::now());
        for id in 0..3 {
            table.insert(PathId(id), Path::new(First::Accept, now, None, 0));
        }
        table.get_mut(PathId(1)).unwrap().lose();
        assert!(table.note_unseen(PathId(9)) && !table.note_unseen(PathId(9)));
        let reported = |table: &PathTable| table.final_reports().iter().map(|r| r.path.0).collect::<Vec<_>>();
        assert_eq!(reported(&table), [1, 9]);
        assert_eq!(table.final_report(PathId(0)), None);
        table.unseen_told(PathId(9));
        table.get_mut(PathId(1)).unwrap().final_told();
        assert_eq!(reported(&table), [0; 0]);
        assert_eq!(table.forget_oldest_lost(1), None);
        assert_eq!(table.forget_oldest_lost(0), Some(PathId(1)));
        assert!(!table.is_fresh(PathId(1)));
    }
}
