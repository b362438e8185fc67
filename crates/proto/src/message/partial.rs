//! A message of which a part has arrived.

use crate::error::ProtocolError;
use crate::frame::MessageHeader;
use crate::ranges::RangeSet;

/// Pieces that lie apart from each other, over all messages of a connection; more would cost more than the
/// credit pays for.
pub(super) const MAX_PIECES: usize = 16_384;

/// The parts of one message that are here.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) header: MessageHeader,
    size: u64,
    data: Vec<u8>,
    here: RangeSet,
}

impl Partial {
    pub(super) fn new(header: MessageHeader, size: u64) -> Self {
        Self { header, size, data: Vec::new(), here: RangeSet::default() }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Pieces that lie apart from each other.
    pub(super) fn pieces(&self) -> usize {
        self.here.len()
    }

    /// Bytes that it holds.
    pub(super) fn held(&self) -> u64 {
        self.data.len() as u64
    }

    /// Takes a piece in, which lies within the size. True if something of it is new.
    ///
    /// # Errors
    /// [`ProtocolError::Message`] if an earlier piece told other things about the message.
    pub(super) fn take(
        &mut self,
        header: &MessageHeader,
        size: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<bool, ProtocolError> {
        if *header != self.header || size != self.size {
            return Err(ProtocolError::Message(
                header.flow,
                "two pieces of one message contradict each other",
            ));
        }
        let range = offset..offset + piece.len() as u64;
        let fresh = self.here.has_gap(&range);
        if fresh {
            if self.data.len() < range.end as usize {
                self.data.resize(range.end as usize, 0);
            }
            self.data[range.start as usize..range.end as usize].copy_from_slice(piece);
            self.here.insert(range);
        }
        Ok(fresh)
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.here.has_gap(&(0..self.size))
    }

    pub(super) fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// The pieces, as they would have to be told again.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.here.iter().map(|range| (range.start, &self.data[range.start as usize..range.end as usize]))
    }
}
