//! A receive half, written down with what arrived and was not read.

use super::{MAX_PIECES, Recv};
use crate::error::DecodeError;
use crate::snapshot;
use crate::stream::pool::Pool;
use crate::stream::window::Window;
use crate::varint::Reader;

impl Recv {
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.consumed, self.highest]);
        snapshot::optional(out, self.final_size);
        snapshot::flag(out, self.fin);
        snapshot::flag(out, self.seen_end);
        snapshot::code(out, self.reset);
        snapshot::code(out, self.stop);
        self.window.write_down(out);
        snapshot::number(out, self.next - self.consumed);
        let mut skip = self.taken;
        for chunk in &self.ready {
            out.extend_from_slice(&chunk[skip..]);
            skip = 0;
        }
        snapshot::number(out, self.later.len() as u64);
        for (offset, piece) in &self.later {
            snapshot::number(out, *offset);
            snapshot::bytes(out, piece);
        }
    }

    /// Bytes that have come, gaps before them included, and were not read.
    pub(crate) fn unread(&self) -> u64 {
        self.highest - self.consumed
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>, pool: &Pool) -> Result<Self, DecodeError> {
        let [consumed, highest] = snapshot::read_numbers(reader)?;
        let mut this = Self::new(0);
        (this.consumed, this.next, this.highest) = (consumed, consumed, highest);
        this.final_size = snapshot::read_optional(reader)?;
        this.fin = snapshot::read_flag(reader)?;
        this.seen_end = snapshot::read_flag(reader)?;
        this.reset = snapshot::read_code(reader)?;
        this.stop = snapshot::read_code(reader)?;
        this.window = Window::read_back(reader)?;
        let ready = reader.prefixed()?;
        if !ready.is_empty() {
            this.append(pool, ready);
        }
        let mut end = this.next;
        for _ in 0..reader.varint()? {
            let (offset, piece) = (reader.varint()?, reader.prefixed()?);
            if offset < end {
                return Err(DecodeError::Invalid("offset of a piece"));
            }
            if this.later.len() > MAX_PIECES {
                return Err(DecodeError::TooLarge("pieces of a stream"));
            }
            end = offset + piece.len() as u64;
            this.later_bytes += piece.len() as u64;
            this.later.insert(offset, piece.to_vec());
        }
        let too_far =
            this.highest > this.window.limit() || this.final_size.is_some_and(|size| size < highest);
        if end > highest || too_far {
            return Err(DecodeError::Invalid("offsets of a stream"));
        }
        Ok(this)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ids::StreamId;
    use crate::stream::RecvRead;

    #[test]
    fn what_arrived_and_was_not_read_is_there_again() {
        let (pool, id) = (Pool::default(), StreamId(0));
        let mut recv = Recv::new(1000);
        recv.insert(&pool, id, 0, b"abcdef", false).unwrap();
        recv.insert(&pool, id, 8, b"ij", true).unwrap();
        assert_eq!(recv.read(&pool, &mut [0; 2]), RecvRead::Data(2));
        let mut bytes = Vec::new();
        recv.write_down(&mut bytes);
        let mut again = Recv::read_back(&mut Reader::new(&bytes), &pool).unwrap();
        again.insert(&pool, id, 6, b"gh", false).unwrap();
        let mut buf = [0; 20];
        assert_eq!(again.read(&pool, &mut buf), RecvRead::Data(8));
        assert_eq!(&buf[..8], b"cdefghij");
        assert_eq!(again.read(&pool, &mut buf), RecvRead::Fin);
    }
}
