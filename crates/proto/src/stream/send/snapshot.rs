//! A send half, written down: what the peer may not have goes again.

use super::{Fin, ResetState, Send};
use crate::error::DecodeError;
use crate::ranges::RangeSet;
use crate::snapshot;
use crate::stream::pool::Pool;
use crate::varint::Reader;

impl Send {
    /// Writes itself down, with all bytes from the first unacknowledged one on.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
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
        snapshot::number(out, self.end - self.acked_to);
        self.copy(self.acked_to..self.end, out);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>, pool: &Pool) -> Result<Self, DecodeError> {
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
        this.write(pool, reader.prefixed()?);
        acked.insert(last..this.end);
        let beyond = acked.overlaps(&(this.end..u64::MAX)) || acked.overlaps(&(0..acked_to));
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acknowledged_goes_again_and_nothing_else() {
        let pool = Pool::default();
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let mut send = Send::new(u64::from(u32::MAX));
        send.write(&pool, &data);
        send.sent(&(0..150_000), false);
        send.acknowledged(&pool, 0..70_000, false);
        send.acknowledged(&pool, 90_000..100_000, false);
        let mut bytes = Vec::new();
        send.write_down(&mut bytes);
        let mut again = Send::read_back(&mut Reader::new(&bytes), &pool).unwrap();
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
