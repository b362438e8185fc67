//! The receive half: puts bytes back in order, drops what it has already, enforces the window.

mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use crate::error::{CloseCode, ProtocolError};
use crate::ids::StreamId;
use crate::stream::pool::{CHUNK, Chunk, Pool};
use crate::stream::window::{Pace, Window};

/// More separate pieces than this in one stream's window is an attack on our memory.
pub(super) const MAX_PIECES: usize = 4096;

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecvRead<T = usize> {
    /// Bytes, or how many were copied.
    Data(T),
    /// Nothing now.
    Blocked,
    /// The end.
    Fin,
    /// The peer gave up.
    Reset(CloseCode),
}

/// One direction's incoming bytes.
#[derive(Debug)]
pub(crate) struct Recv {
    ready: VecDeque<Vec<u8>>,
    /// Bytes of `ready[0]` that were read.
    taken: usize,
    /// Offset behind the last in-order byte.
    next: u64,
    /// Offset of the next byte the application reads.
    consumed: u64,
    /// Highest offset seen; what flow control counts.
    highest: u64,
    later: BTreeMap<u64, Vec<u8>>,
    later_bytes: u64,
    final_size: Option<u64>,
    /// The final size is the end that the peer meant, not where it gave up.
    fin: bool,
    reset: Option<CloseCode>,
    /// The application saw the end or the reset, or does not want the rest.
    seen_end: bool,
    /// Credit granted to the peer.
    pub(crate) window: Window,
    pub(crate) stop: Option<CloseCode>,
}

impl Recv {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            ready: VecDeque::new(),
            taken: 0,
            next: 0,
            consumed: 0,
            highest: 0,
            later: BTreeMap::new(),
            later_bytes: 0,
            final_size: None,
            fin: false,
            reset: None,
            seen_end: false,
            window: Window::new(window),
            stop: None,
        }
    }

    /// Bytes that arrived, each counted once; of those that nobody wants, the highest offset.
    pub(crate) fn arrived(&self) -> u64 {
        self.next + self.later_bytes
    }

    /// Takes a piece in. Returns by how much the highest offset grew (connection flow control).
    pub(crate) fn insert(
        &mut self,
        pool: &Pool,
        id: StreamId,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<u64, ProtocolError> {
        let end = offset.checked_add(data.len() as u64).ok_or(ProtocolError::FlowControl)?;
        if end > self.window.limit() {
            return Err(ProtocolError::FlowControl);
        }
        self.check_final_size(id, end, fin)?;
        let grown = end.saturating_sub(self.highest);
        self.highest = self.highest.max(end);
        if self.reset.is_some() || self.stop.is_some() {
            self.discard_to(self.highest);
            return Ok(grown);
        }
        if end > self.next {
            let skip = self.next.saturating_sub(offset) as usize;
            let (offset, data) = (offset + skip as u64, &data[skip..]);
            if offset == self.next {
                self.append(pool, data);
                self.gather(pool);
            } else {
                self.keep_for_later(id, offset, data)?;
            }
        }
        Ok(grown)
    }

    fn check_final_size(&mut self, id: StreamId, end: u64, fin: bool) -> Result<(), ProtocolError> {
        match self.final_size {
            Some(size) if end > size || (fin && end != size) => Err(ProtocolError::FinalSize(id)),
            None if fin && end < self.highest => Err(ProtocolError::FinalSize(id)),
            None if fin => {
                self.final_size = Some(end);
                self.fin = true;
                Ok(())
            }
            _ => {
                self.fin |= fin;
                Ok(())
            }
        }
    }

    fn append(&mut self, pool: &Pool, data: &[u8]) {
        self.next += data.len() as u64;
        match self.ready.back_mut() {
            Some(last) if last.capacity() - last.len() >= data.len() => last.extend_from_slice(data),
            last => {
                // Grow towards CHUNK, so that a lone byte costs little and a flood is stored densely.
                let room = last.map_or(0, |l| l.len() * 2).min(CHUNK).max(data.len());
                let mut chunk = if room > CHUNK / 2 && room <= CHUNK {
                    pool.take_chunk()
                } else {
                    Vec::with_capacity(room)
                };
                chunk.extend_from_slice(data);
                self.ready.push_back(chunk);
            }
        }
    }

    fn gather(&mut self, pool: &Pool) {
        while let Some(entry) = self.later.first_entry() {
            if *entry.key() > self.next {
                break;
            }
            let (offset, data) = entry.remove_entry();
            self.later_bytes -= data.len() as u64;
            let skip = (self.next - offset) as usize;
            if skip < data.len() {
                self.append(pool, &data[skip..]);
            }
        }
    }

    fn keep_for_later(&mut self, id: StreamId, offset: u64, data: &[u8]) -> Result<(), ProtocolError> {
        // Keep what no earlier piece covers; pieces that this one covers wholly are replaced.
        let (mut offset, mut data) = (offset, data);
        if let Some((&start, piece)) = self.later.range(..=offset).next_back() {
            let covered = (start + piece.len() as u64).saturating_sub(offset) as usize;
            if covered >= data.len() {
                return Ok(());
            }
            (offset, data) = (offset + covered as u64, &data[covered..]);
        }
        let end = offset + data.len() as u64;
        while let Some((&start, piece)) = self.later.range(offset..end).next() {
            if start + piece.len() as u64 > end {
                data = &data[..(start - offset) as usize];
                break;
            }
            self.later_bytes -= piece.len() as u64;
            self.later.remove(&start);
        }
        self.later_bytes += data.len() as u64;
        match self.later.range_mut(..offset).next_back() {
            Some((&start, piece))
                if start + piece.len() as u64 == offset && piece.len() + data.len() <= CHUNK =>
            {
                piece.extend_from_slice(data);
            }
            _ if data.is_empty() => {}
            _ => drop(self.later.insert(offset, data.to_vec())),
        }
        if self.later.len() > MAX_PIECES {
            return Err(ProtocolError::TooManyGaps(id));
        }
        Ok(())
    }

    /// Copies in-order bytes to `buf`.
    pub(crate) fn read(&mut self, pool: &Pool, buf: &mut [u8]) -> RecvRead {
        let mut copied = 0;
        while copied < buf.len() {
            let Some(chunk) = self.ready.front() else {
                break;
            };
            let rest = &chunk[self.taken..];
            let n = rest.len().min(buf.len() - copied);
            buf[copied..copied + n].copy_from_slice(&rest[..n]);
            copied += n;
            self.taken += n;
            if self.taken == chunk.len() {
                self.ready.pop_front().into_iter().for_each(|chunk| pool.give_chunk(chunk));
                self.taken = 0;
            }
        }
        self.consumed += copied as u64;
        if copied > 0 {
            return RecvRead::Data(copied);
        }
        self.nothing()
    }

    /// Gives the next in-order bytes away: as many as are in one piece.
    pub(crate) fn read_chunk(&mut self, pool: &Pool) -> RecvRead<Chunk> {
        let Some(data) = self.ready.pop_front() else {
            return self.nothing();
        };
        let chunk = Chunk::new(data, std::mem::take(&mut self.taken), pool);
        self.consumed += chunk.as_ref().len() as u64;
        RecvRead::Data(chunk)
    }

    /// Why there is nothing to read.
    fn nothing<T>(&mut self) -> RecvRead<T> {
        if let Some(code) = self.reset {
            self.seen_end = true;
            return RecvRead::Reset(code);
        }
        if self.final_size == Some(self.consumed) {
            self.seen_end = true;
            return RecvRead::Fin;
        }
        RecvRead::Blocked
    }

    /// A read would return something other than [`RecvRead::Blocked`].
    pub(crate) fn is_readable(&self) -> bool {
        !self.ready.is_empty() || self.reset.is_some() || self.final_size == Some(self.consumed)
    }

    /// The peer gave the stream up at `final_size`. Returns the growth of the highest offset.
    pub(crate) fn reset(
        &mut self,
        id: StreamId,
        final_size: u64,
        code: CloseCode,
    ) -> Result<u64, ProtocolError> {
        if final_size < self.highest || self.final_size.is_some_and(|size| size != final_size) {
            return Err(ProtocolError::FinalSize(id));
        }
        if final_size > self.window.limit() {
            return Err(ProtocolError::FlowControl);
        }
        if self.fin && self.next == final_size {
            // All of it is here, and the peer had said that it is all.
            return Ok(0);
        }
        let grown = final_size - self.highest;
        self.highest = final_size;
        self.final_size = Some(final_size);
        self.reset.get_or_insert(code);
        self.discard_to(final_size);
        Ok(grown)
    }

    /// The application does not want the rest.
    pub(crate) fn stop(&mut self, code: CloseCode) {
        if self.stop.is_none() && !self.seen_end {
            self.stop = Some(code);
            self.discard_to(self.highest);
        }
        self.seen_end = true;
    }

    /// The offset up to which bytes were read or discarded: what connection credit is given back for.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Pieces that wait for others before them.
    pub(crate) fn pieces(&self) -> usize {
        self.later.len()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.seen_end && self.final_size.is_some_and(|size| self.highest == size)
    }

    /// Notes when something new arrived. Returns true when the peer's credit grew.
    pub(crate) fn note_arrival(&mut self, pace: &Pace) -> bool {
        let (arrived, readable) = (self.arrived(), !self.ready.is_empty());
        self.final_size.is_none() && self.window.arrived(arrived, self.consumed, readable, pace)
    }

    /// Raises the peer's credit if enough was read. Returns true when it grew.
    pub(crate) fn grant(&mut self, pace: &Pace) -> bool {
        self.final_size.is_none() && self.window.read_to(self.consumed, self.ready.is_empty(), pace)
    }

    fn discard_to(&mut self, offset: u64) {
        self.ready = VecDeque::new();
        self.later = BTreeMap::new();
        self.later_bytes = 0;
        self.taken = 0;
        self.next = self.next.max(offset);
        self.consumed = offset;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: StreamId = StreamId(0);

    fn drain(recv: &mut Recv) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = [0; 7];
        while let RecvRead::Data(n) = recv.read(&Pool::default(), &mut buf) {
            all.extend_from_slice(&buf[..n]);
        }
        all
    }

    #[test]
    fn the_end_is_reported_once_all_bytes_were_read() {
        let mut recv = Recv::new(100);
        recv.insert(&Pool::default(), ID, 0, b"abc", true).unwrap();
        let mut buf = [0; 2];
        assert_eq!(recv.read(&Pool::default(), &mut buf), RecvRead::Data(2));
        assert_eq!(recv.read(&Pool::default(), &mut buf), RecvRead::Data(1));
        assert_eq!(recv.read(&Pool::default(), &mut buf), RecvRead::Fin);
        assert!(recv.is_over());
    }

    #[test]
    fn data_beyond_the_window_or_the_end_is_refused() {
        let mut recv = Recv::new(4);
        assert_eq!(recv.insert(&Pool::default(), ID, 0, b"abcde", false), Err(ProtocolError::FlowControl));
        recv.insert(&Pool::default(), ID, 0, b"abc", true).unwrap();
        assert_eq!(recv.insert(&Pool::default(), ID, 3, b"d", false), Err(ProtocolError::FinalSize(ID)));
        assert_eq!(recv.insert(&Pool::default(), ID, 0, b"ab", true), Err(ProtocolError::FinalSize(ID)));
    }

    #[test]
    fn a_piece_before_one_that_waits_brings_all_that_this_one_does_not_have() {
        let mut recv = Recv::new(100);
        for (from, to) in [(10, 20), (5, 15), (0, 5)] {
            let data: Vec<u8> = (from..to).collect();
            recv.insert(&Pool::default(), ID, from.into(), &data, to == 20).unwrap();
        }
        assert_eq!(drain(&mut recv), (0..20).collect::<Vec<u8>>());
        assert!(recv.is_over());
    }

    #[test]
    fn bytes_that_come_one_by_one_are_stored_in_few_chunks() {
        let (pool, mut recv) = (Pool::default(), Recv::new(u64::MAX));
        for offset in 0..CHUNK as u64 {
            recv.insert(&pool, ID, offset, b"x", false).unwrap();
        }
        assert!(recv.ready.len() <= 16, "{} chunks", recv.ready.len());
        let held: usize = recv.ready.iter().map(Vec::capacity).sum();
        assert!(held <= 3 * CHUNK, "{held} bytes are held");
    }

    #[test]
    fn chunks_and_copies_give_the_bytes_in_turn() {
        let (pool, mut recv) = (Pool::default(), Recv::new(u64::MAX));
        let data: Vec<u8> = (0..3 * CHUNK + 5).map(|i| (i % 251) as u8).collect();
        data.chunks(1000).enumerate().for_each(|(i, piece)| {
            recv.insert(&pool, ID, i as u64 * 1000, piece, false).unwrap();
        });
        recv.insert(&pool, ID, data.len() as u64, &[], true).unwrap();
        let mut got = vec![0; 7];
        assert_eq!(recv.read(&pool, &mut got), RecvRead::Data(7));
        let mut chunks = Vec::new();
        while let RecvRead::Data(chunk) = recv.read_chunk(&pool) {
            got.extend_from_slice(chunk.as_ref());
            chunks.push(chunk);
        }
        assert_eq!(got, data);
        assert_eq!(recv.consumed(), data.len() as u64);
        assert!(matches!(recv.read_chunk(&pool), RecvRead::Fin));
    }

    #[test]
    fn thousands_of_separate_bytes_are_refused() {
        let mut recv = Recv::new(u64::MAX);
        let result =
            (0..10_000).try_for_each(|i| recv.insert(&Pool::default(), ID, 1 + i * 2, b"x", false).map(drop));
        assert_eq!(result, Err(ProtocolError::TooManyGaps(ID)));
    }

    #[test]
    fn single_bytes_are_stored_densely() {
        let mut recv = Recv::new(u64::MAX);
        for i in 0..10_000 {
            recv.insert(&Pool::default(), ID, i, b"x", false).unwrap();
        }
        let stored: usize = recv.ready.iter().map(Vec::capacity).sum();
        assert!(stored < 40_000, "{stored} bytes kept for 10000");
    }

    proptest! {
        #[test]
        fn any_order_and_overlap_gives_the_bytes_back(pieces in prop::collection::vec((0usize..300, 1usize..60), 1..60)) {
            let data: Vec<u8> = (0..400u32).map(|i| (i % 251) as u8).collect();
            let mut recv = Recv::new(1000);
            let mut got = Vec::new();
            for (start, len) in pieces {
                recv.insert(&Pool::default(), ID, start as u64, &data[start..start + len], false).unwrap();
                got.extend(drain(&mut recv));
            }
            recv.insert(&Pool::default(), ID, 0, &data, true).unwrap();
            got.extend(drain(&mut recv));
            prop_assert_eq!(got, data);
            prop_assert_eq!(recv.read(&Pool::default(), &mut [0]), RecvRead::Fin);
        }
    }
}
