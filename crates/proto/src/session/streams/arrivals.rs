//! Streams that the peer opened and the application has not taken.

use std::collections::{BTreeSet, VecDeque};

use whimbrel_base::order;

use crate::error::DecodeError;
use crate::ids::{Side, StreamId};
use crate::snapshot;
use crate::varint::Reader;

/// What the application takes, apart by whether it may write on them. A stream is known by the first frame
/// that names it: one that was only opened along with a higher one could be of either kind.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    unnamed: BTreeSet<StreamId>,
    two_ways: VecDeque<StreamId>,
    one_way: VecDeque<StreamId>,
}

impl Arrivals {
    /// The peer opened a stream, perhaps by naming a higher one.
    pub(super) fn opened(&mut self, id: StreamId) {
        self.unnamed.insert(id);
    }

    /// A frame names a stream, which goes one way if that is what it says. True if it is the first.
    pub(super) fn named(&mut self, id: StreamId, one_way: bool) -> bool {
        let first = !self.unnamed.is_empty() && self.unnamed.remove(&id);
        if first {
            self.queue(one_way).push_back(id);
        }
        first
    }

    /// Takes the next for the application.
    pub(super) fn accept(&mut self, one_way: bool) -> Option<StreamId> {
        self.queue(one_way).pop_front()
    }

    /// Whether the application has not taken a stream.
    pub(super) fn contains(&self, id: StreamId) -> bool {
        self.unnamed.contains(&id) || self.iter().any(|waiting| waiting == id)
    }

    fn queue(&mut self, one_way: bool) -> &mut VecDeque<StreamId> {
        if one_way { &mut self.one_way } else { &mut self.two_ways }
    }

    pub(super) fn write_down(&self, out: &mut Vec<u8>) {
        let unnamed: Vec<u64> = self.unnamed.iter().map(|id| id.0).collect();
        for ids in [unnamed, numbers(&self.two_ways), numbers(&self.one_way)] {
            snapshot::number(out, ids.len() as u64);
            ids.into_iter().for_each(|id| snapshot::number(out, id));
        }
    }

    /// Reads what was written down at the side `side`.
    pub(super) fn read_back(reader: &mut Reader<'_>, side: Side) -> Result<Self, DecodeError> {
        let mut ids = || -> Result<Vec<StreamId>, DecodeError> {
            let count = reader.varint()?;
            let id = |reader: &mut Reader<'_>| Ok(StreamId(reader.varint()?));
            let ids = (0..count).map(|_| id(reader)).collect::<Result<Vec<_>, DecodeError>>()?;
            let all_of_peer = ids.iter().all(|id| id.opener() != side);
            if all_of_peer { Ok(ids) } else { Err(DecodeError::Invalid("streams that wait")) }
        };
        Ok(Self { unnamed: order::set(ids()?), two_ways: ids()?.into(), one_way: ids()?.into() })
    }

    /// Those that can be taken.
    pub(super) fn iter(&self) -> impl Iterator<Item = StreamId> {
        self.two_ways.iter().chain(&self.one_way).copied()
    }
}

fn numbers(ids: &VecDeque<StreamId>) -> Vec<u64> {
    ids.iter().map(|id| id.0).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_accepted_once_as_what_its_first_frame_says() {
        let mut arrivals = Arrivals::default();
        let ids: Vec<StreamId> = (0..4).map(|index| StreamId::new(Side::Client, index)).collect();
        ids.iter().for_each(|id| arrivals.opened(*id));
        assert!(arrivals.named(ids[3], false) && !arrivals.named(ids[3], true), "the first counts");
        assert!(arrivals.named(ids[0], false) && arrivals.named(ids[2], true));
        let mut bytes = Vec::new();
        arrivals.write_down(&mut bytes);
        assert!(Arrivals::read_back(&mut Reader::new(&bytes), Side::Client).is_err(), "they are its own");
        let mut arrivals = Arrivals::read_back(&mut Reader::new(&bytes), Side::Server).unwrap();
        assert_eq!((arrivals.accept(true), arrivals.accept(true)), (Some(ids[2]), None));
        assert_eq!((arrivals.accept(false), arrivals.accept(false)), (Some(ids[3]), Some(ids[0])));
        assert!(arrivals.named(ids[1], true));
        assert_eq!((arrivals.accept(true), arrivals.accept(false)), (Some(ids[1]), None));
    }
}
