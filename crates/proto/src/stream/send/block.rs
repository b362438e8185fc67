//! A piece of memory with bytes that were written and that the peer may not have.

use std::ops::Range;

use bytes::Bytes;

use crate::stream::pool::{BLOCK, Pool};

/// Less than this is copied: what says where a block is takes some memory too.
pub(super) const LEAST_GIVEN: usize = 2048;

/// Bytes of a stream from one offset on.
#[derive(Debug)]
pub(super) struct Block {
    start: u64,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Of the pool, with room for more, or of the size that one small write needs.
    Own(Vec<u8>),
    /// The application's, which may use it too.
    Given(Bytes),
}

impl Block {
    /// An empty one of [`BLOCK`] bytes; or for so few bytes, if nothing else waits before them.
    pub(super) fn new(start: u64, length: usize, is_lone: bool, pool: &Pool) -> Self {
        let is_small = is_lone && length < BLOCK / 4;
        Self { start, memory: Memory::Own(if is_small { Vec::new() } else { pool.take_block() }) }
    }

    pub(super) fn given(start: u64, bytes: Bytes) -> Self {
        Self { start, memory: Memory::Given(bytes) }
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self.memory, Memory::Given(_))
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.all().len() as u64
    }

    /// How many more bytes may be copied into it.
    pub(super) fn room(&self) -> usize {
        match &self.memory {
            Memory::Own(bytes) => BLOCK - bytes.len(),
            Memory::Given(_) => 0,
        }
    }

    /// Takes no more than there is [room](Self::room) for.
    pub(super) fn extend(&mut self, more: &[u8]) {
        if let Memory::Own(bytes) = &mut self.memory {
            bytes.extend_from_slice(more);
        }
    }

    /// What it has of a range.
    pub(super) fn bytes(&self, range: Range<u64>) -> &[u8] {
        let within = |at: u64| (at.saturating_sub(self.start) as usize).min(self.all().len());
        &self.all()[within(range.start)..within(range.end)]
    }

    fn all(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Given(bytes) => bytes,
        }
    }

    pub(super) fn give_back(self, pool: &Pool) {
        if let Memory::Own(bytes) = self.memory {
            pool.give_block(bytes);
        }
    }
}
