//! A send half, written down: what the peer may not have goes again.

use std::ops::Range;

use super::{Fin, ResetState, Send};
use crate::error::DecodeError;
use crate::ranges::RangeSet;
use crate::snapshot;
use crate::stream::pool::Pool;
use crate::varint::Reader;

/// Bytes behind gaps that the peer has: nobody needs them again. They are left out of a snapshot, and come
/// back as zeros that are never sent. These cost memory that nothing in the snapshot pays for, so they are
/// bounded.
#[derive(Debug)]
pub(crate) struct Omitted {
    room: u64,
}

impl Omitted {
    /// As many as a connection may leave out.
    pub(crate) fn of_a_connection() -> Self {
        Self { room: 16 << 20 }
    }

    /// Whether so many more may be left out, which they are then.
    fn takes(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.room;
        self.room -= if fits { bytes } else { 0 };
        fits
    }
}

impl Send {
    /// Writes itself down, with the bytes that the peer may not have.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>, omitted: &mut Omitted) {
        let told = match self.fin {
            Fin::Open => 0,
            Fin::Pending | Fin::Sent => 1,
            Fin::Acked => 2,
        };
        snapshot::numbers(out, [self.acked_to, self.next, self.max_data, told]);
        snapshot::code(out, self.stopped);
        snapshot::code(out, self.reset.map(|(code, _)| code));
        snapshot::flag(out, self.is_reset_acknowledged());
        let gaps = self.acked.gaps(self.acked_to..self.end);
        let islands = gaps.windows(2).map(|gap| (gap[0].end, gap[1].start));
        snapshot::number(out, gaps.len().saturating_sub(1) as u64);
        islands.for_each(|(start, end)| snapshot::numbers(out, [start, end]));
        snapshot::number(out, gaps.last().map_or(self.end, |gap| gap.end));
        let whole = self.end - self.acked_to;
        let omits = omitted.takes(whole - total(&gaps));
        snapshot::flag(out, omits);
        snapshot::number(out, whole);
        match omits {
            true => gaps.into_iter().for_each(|gap| self.copy(gap, out)),
            false => self.copy(self.acked_to..self.end, out),
        }
    }

    /// `omitted` is `None` if the snapshot is of a version that leaves nothing out.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        pool: &Pool,
        omitted: Option<&mut Omitted>,
    ) -> Result<Self, DecodeError> {
        let [acked_to, next] = snapshot::read_counts(reader)?;
        let [max_data, told] = snapshot::read_numbers(reader)?;
        let mut this = Self::new(max_data);
        (this.end, this.acked_to) = (acked_to, acked_to);
        this.fin = match told {
            0 => Fin::Open,
            1 => Fin::Pending,
            2 => Fin::Acked,
            _ => return Err(DecodeError::Invalid("end of a stream")),
        };
        this.stopped = snapshot::read_code(reader)?;
        let reset = snapshot::read_code(reader)?;
        let state = if snapshot::read_flag(reader)? { ResetState::Acked } else { ResetState::Sent };
        this.reset = reset.map(|code| (code, state));
        let mut acked = RangeSet::default();
        for _ in 0..reader.varint()? {
            let [start, end] = snapshot::read_numbers(reader)?;
            acked.insert(start..end);
        }
        let last = reader.varint()?;
        match omitted {
            Some(omitted) if snapshot::read_flag(reader)? => {
                let end = acked_to.saturating_add(reader.varint()?);
                acked.insert(last..end);
                this.fill(pool, reader, acked.gaps(acked_to..end), end, omitted)?;
            }
            _ => {
                this.write(pool, reader.prefixed()?);
                acked.insert(last..this.end);
            }
        }
        // What the peer has from `acked_to` on would count as before it: written down again it would be
        // neither among the bytes nor among those that were left out.
        let beyond =
            acked.overlaps(&(this.end..u64::MAX)) || acked.overlaps(&(0..acked_to.saturating_add(1)));
        // What was given up counts as acknowledged, sent or not.
        let ahead = next < acked_to && this.reset.is_none();
        if ahead || next > this.end || beyond {
            return Err(DecodeError::Invalid("offsets of a stream"));
        }
        this.next = next;
        this.acked = acked;
        if this.reset.is_none() {
            this.acked.gaps(acked_to..next).into_iter().for_each(|gap| this.lost.insert(gap));
        }
        Ok(this)
    }

    /// Takes what is in the gaps, which all lie before `end`; what is between them was left out.
    fn fill(
        &mut self,
        pool: &Pool,
        reader: &mut Reader<'_>,
        gaps: Vec<Range<u64>>,
        end: u64,
        omitted: &mut Omitted,
    ) -> Result<(), DecodeError> {
        let there = total(&gaps);
        if there > reader.rest().len() as u64 {
            return Err(DecodeError::Truncated);
        }
        if !omitted.takes(end - self.acked_to - there) {
            return Err(DecodeError::TooLarge("bytes that were left out"));
        }
        for gap in gaps {
            self.skip_to(pool, gap.start);
            self.write(pool, reader.bytes((gap.end - gap.start) as usize)?);
        }
        self.skip_to(pool, end);
        Ok(())
    }

    /// Writes zeros up to an offset.
    fn skip_to(&mut self, pool: &Pool, offset: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.end < offset {
            let some = (offset - self.end).min(ZEROS.len() as u64);
            self.write(pool, &ZEROS[..some as usize]);
        }
    }

    /// The peer has nothing of the stream, as far as is known.
    pub(crate) fn is_unheard(&self) -> bool {
        self.acked_to == 0 && self.acked.total() == 0
    }

    /// It was given up, and the peer may not know it.
    pub(crate) fn owes_reset(&self) -> bool {
        self.reset.is_some() && !self.is_reset_acknowledged()
    }

    fn is_reset_acknowledged(&self) -> bool {
        matches!(self.reset, Some((_, ResetState::Acked)))
    }
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], room: u64) -> Result<Send, DecodeError> {
        Send::read_back(&mut Reader::new(bytes), &Pool::default(), Some(&mut Omitted { room }))
    }

    /// 200 000 bytes of which the peer has the first 70 000, and those from 90 000 to 100 000.
    fn with_an_island(pool: &Pool, data: &[u8]) -> Send {
        let mut send = Send::new(u64::from(u32::MAX));
        send.write(pool, data);
        send.sent(&(0..150_000), false);
        send.acknowledged(pool, 0..70_000, false);
        send.acknowledged(pool, 90_000..100_000, false);
        send
    }

    #[test]
    fn what_is_not_acknowledged_goes_again_and_nothing_else() {
        let pool = Pool::default();
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        // With room to leave the island out, and without.
        for (room, least) in [(10_000, 120_000), (9_999, 130_000)] {
            let mut bytes = Vec::new();
            with_an_island(&pool, &data).write_down(&mut bytes, &mut Omitted { room });
            assert!((least..least + 100).contains(&bytes.len()), "{} bytes", bytes.len());
            let mut again = read(&bytes, room).unwrap();
            assert_eq!((again.held(), again.unsent(), again.to_repeat()), (130_000, 50_000, 70_000));
            let mut out = Vec::new();
            while let Some((range, fin)) = again.next_piece(9000, 9000) {
                out.clear();
                again.copy(range.clone(), &mut out);
                assert_eq!(out, data[range.start as usize..range.end as usize]);
                again.sent(&range, fin);
                again.acknowledged(&pool, range, fin);
            }
            assert!(again.is_drained());
        }
    }

    /// Another owner may have written it.
    #[test]
    fn what_was_left_out_is_bounded_and_what_was_not_is_there() {
        let (pool, data) = (Pool::default(), vec![7; 200_000]);
        let mut bytes = Vec::new();
        with_an_island(&pool, &data).write_down(&mut bytes, &mut Omitted::of_a_connection());
        let error = read(&bytes, 9_999).err();
        assert_eq!(error, Some(DecodeError::TooLarge("bytes that were left out")));
        for length in (0..bytes.len()).step_by(997) {
            assert!(read(&bytes[..length], 10_000).is_err(), "{length} of {} bytes", bytes.len());
        }
    }

    /// Another owner may have written it, so that what is written down next could not be read.
    #[test]
    fn what_the_peer_has_begins_behind_a_gap() {
        let written = |island: u64| {
            let mut bytes = Vec::new();
            // Acknowledged and sent up to here, the most that may be sent, and no end.
            snapshot::numbers(&mut bytes, [10, 30, 1000, 0]);
            let no_code = 0;
            snapshot::numbers(&mut bytes, [no_code, no_code]);
            snapshot::flag(&mut bytes, false);
            snapshot::numbers(&mut bytes, [1, island, 20, 30]);
            snapshot::flag(&mut bytes, true);
            snapshot::number(&mut bytes, 20);
            bytes.extend_from_slice(&[7; 20]);
            bytes
        };
        assert_eq!(read(&written(11), 100).map(|send| send.held()), Ok(20));
        assert_eq!(read(&written(10), 100).err(), Some(DecodeError::Invalid("offsets of a stream")));
    }

    #[test]
    fn a_version_that_left_nothing_out_is_read_still() {
        let (mut send, pool) = (Send::new(1000), Pool::default());
        send.write(&pool, b"unheard");
        let mut bytes = Vec::new();
        send.write_down(&mut bytes, &mut Omitted::of_a_connection());
        // The flag stands before the length and the bytes.
        let flag = bytes.len() - 1 - b"unheard".len() - 1;
        assert_eq!(bytes.remove(flag), 1);
        let again = Send::read_back(&mut Reader::new(&bytes), &pool, None).unwrap();
        assert_eq!((again.held(), again.unsent()), (7, 7));
    }
}
