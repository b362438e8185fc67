//! All streams, written down.

use super::arrivals::Arrivals;
use super::arriving::MAX_PIECES;
use super::{Counts, Limits, Streams};
use crate::error::DecodeError;
use crate::event::{Event, Events};
use crate::ids::{Side, StreamId};
use crate::params::Params;
use crate::session::credit::Credit;
use crate::session::send_memory::SendMemory;
use crate::session::stream_numbers::StreamNumbers;
use crate::snapshot::{self, WITHOUT_ISLANDS};
use crate::stream::{Omitted, Recv, Send, Stream};
use crate::varint::Reader;

impl Streams {
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.numbers.write_down(out);
        self.arrivals.write_down(out);
        self.credit.write_down(out);
        let Counts { sent, resent, received, duplicate } = self.counts;
        snapshot::numbers(out, [sent, resent, received, duplicate]);
        let mut omitted = Omitted::of_a_connection();
        snapshot::number(out, self.map.len() as u64);
        for (id, stream) in &self.map {
            snapshot::number(out, id.0);
            snapshot::number(out, stream.level.into());
            stream.send.write_down(out, &mut omitted);
            stream.recv.write_down(out);
        }
    }

    /// Reads streams back. Everything waits to be said again, and is to be looked at by the application.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        version: u8,
        side: Side,
        peer_params: Option<&Params>,
        limits: Limits,
        memory: SendMemory,
        events: &mut Events,
    ) -> Result<Self, DecodeError> {
        let numbers = StreamNumbers::read_back(reader)?;
        let arrivals = Arrivals::read_back(reader, side)?;
        let credit = Credit::read_back(reader)?;
        let [sent, resent, received, duplicate] = snapshot::read_numbers(reader)?;
        let pool = limits.pool.clone();
        arrivals.iter().for_each(|id| events.push(Event::StreamOpened(id)));
        let mut this = Self::new(side, limits, numbers, credit, memory);
        this.arrivals = arrivals;
        this.peer_window = peer_params.map(|params| params.max_stream_data);
        this.counts = Counts { sent, resent, received, duplicate };
        let mut unread = this.credit.unread();
        let mut omitted = (version >= WITHOUT_ISLANDS).then(Omitted::of_a_connection);
        for _ in 0..reader.varint()? {
            let id = StreamId(reader.varint()?);
            this.check_known(id)?;
            let level = snapshot::read_urgency(reader)?.level();
            let send = Send::read_back(reader, &pool, omitted.as_mut())?;
            let recv = Recv::read_back(reader, &pool)?;
            this.memory.change(0, send.held());
            unread = unread.checked_sub(recv.unread()).ok_or(DecodeError::Invalid("credit"))?;
            this.pieces += recv.pieces();
            if this.pieces > MAX_PIECES {
                return Err(DecodeError::TooLarge("pieces of streams"));
            }
            let announce = id.opener() == side && send.is_unheard();
            if recv.is_readable() {
                events.push(Event::Readable(id));
            }
            events.push(Event::Writable(id));
            this.marks.about(id, send.owes_reset(), recv.stop.is_some());
            let stream = Stream { send, recv, queued: false, announce, pressing: false, level };
            this.map.insert(id, Box::new(stream));
            this.enqueue(id);
        }
        let of_peer = this.map.keys().filter(|id| id.opener() != side).count() as u64;
        if of_peer > this.numbers.open_of_peer() {
            return Err(DecodeError::TooLarge("streams"));
        }
        this.marks.max_data_if(true);
        this.marks.max_streams_if(true);
        Ok(this)
    }

    /// Each stream was opened, and stands there once: they are in order.
    fn check_known(&self, id: StreamId) -> Result<(), DecodeError> {
        let is_open = match id.opener() == self.side {
            true => self.numbers.is_opened_here(id.index()),
            false => self.numbers.is_opened_by_peer(id.index()),
        };
        let is_next = self.map.last_key_value().is_none_or(|(last, _)| *last < id);
        if is_open && is_next { Ok(()) } else { Err(DecodeError::Invalid("number of a stream")) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::snapshot::VERSION;
    use crate::stream::Pool;

    /// Reads a client's streams with these ids. Each side has opened one, and the peer's may be closed.
    fn read(closed: u64, ids: &[u64]) -> Result<(), DecodeError> {
        read_with(closed, ids, &Recv::new(0), 0)
    }

    /// The same with something that arrived on each, and so much on all.
    fn read_with(closed: u64, ids: &[u64], recv: &Recv, received: u64) -> Result<(), DecodeError> {
        let mut out = Vec::new();
        snapshot::numbers(&mut out, [1, 9, 1, closed, 16, 16, 100]);
        let nothing_arrived = [0; 3];
        snapshot::numbers(&mut out, nothing_arrived);
        let credit = [0, 9, received, 0, 1000, 1000, 1000, 100];
        snapshot::numbers(&mut out, credit);
        let counts = [0; 4];
        snapshot::numbers(&mut out, counts);
        snapshot::number(&mut out, ids.len() as u64);
        for id in ids {
            let level = 3;
            snapshot::numbers(&mut out, [*id, level]);
            Send::new(0).write_down(&mut out, &mut Omitted::of_a_connection());
            recv.write_down(&mut out);
        }
        let limits = Limits { first_window: 1000, window: 1000, unsent: 1000, pool: Pool::default() };
        let (memory, mut events) = (SendMemory::new(1000, 1000), Events::default());
        let reader = &mut Reader::new(&out);
        Streams::read_back(reader, VERSION, Side::Client, None, limits, memory, &mut events).map(drop)
    }

    #[test]
    fn only_streams_that_were_opened_are_read_back_and_each_once() {
        assert_eq!(read(0, &[0, 1]), Ok(()));
        for wrong in [&[2][..], &[3], &[1, 1], &[1, 0]] {
            assert_eq!(read(0, wrong), Err(DecodeError::Invalid("number of a stream")), "{wrong:?}");
        }
        assert_eq!(read(1, &[0]), Ok(()));
        assert_eq!(read(1, &[0, 1]), Err(DecodeError::TooLarge("streams")), "it is over");
    }

    #[test]
    fn streams_hold_no_more_than_has_arrived_on_all() {
        let mut recv = Recv::new(100);
        recv.insert(&Pool::default(), StreamId(0), 3, b"behind a gap", false).unwrap();
        assert_eq!(read_with(0, &[0, 1], &recv, 30), Ok(()));
        assert_eq!(read_with(0, &[0, 1], &recv, 29), Err(DecodeError::Invalid("credit")));
    }
}
