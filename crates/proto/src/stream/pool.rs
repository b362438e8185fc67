//! Memory that streams take turns to use. A stream at full speed fills and empties thousands of
//! blocks a second; giving each back to the allocator made it return the pages to the kernel and
//! fault them in again, for up to a third of the time.

use std::sync::{Mutex, PoisonError};

/// Size of the pieces in [`BLOCKS`].
pub(crate) const BLOCK: usize = 64 * 1024;
/// Size of the pieces in [`CHUNKS`].
pub(crate) const CHUNK: usize = 16 * 1024;

/// What was written and is not acknowledged yet.
pub(crate) static BLOCKS: Pool = Pool::new(BLOCK, 32);
/// What arrived and was not read yet.
pub(crate) static CHUNKS: Pool = Pool::new(CHUNK, 128);

/// Unused pieces of memory of one size, for all connections together.
pub(crate) struct Pool {
    size: usize,
    /// So many are kept; the rest goes back to the allocator.
    kept: usize,
    unused: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    const fn new(size: usize, kept: usize) -> Self {
        Self { size, kept, unused: Mutex::new(Vec::new()) }
    }

    /// An empty piece.
    pub(crate) fn take(&self) -> Vec<u8> {
        let unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        unused.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    /// Gives a piece back. Pieces of other sizes are dropped.
    pub(crate) fn give(&self, mut piece: Vec<u8>) {
        if piece.capacity() != self.size {
            return;
        }
        piece.clear();
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() < self.kept {
            unused.push(piece);
        }
    }
}
