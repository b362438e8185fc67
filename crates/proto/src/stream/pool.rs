//! Memory that streams take turns to use. A stream at full speed fills and empties thousands of
//! blocks a second; giving each back to the allocator made it return the pages to the kernel and
//! fault them in again, for up to a third of the time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the pieces for what was written and is not acknowledged yet.
pub(crate) const BLOCK: usize = 64 * 1024;
/// Size of the pieces for what arrived and was not read yet.
pub(crate) const CHUNK: usize = 16 * 1024;
/// So many unused pieces of each size are kept; the rest goes back to the allocator.
const BLOCKS_KEPT: usize = 32;
const CHUNKS_KEPT: usize = 128;

/// Unused memory for the buffers of streams. Clones share it: the connections of one endpoint should have one
/// pool. It keeps 4 MiB at most.
#[derive(Clone)]
pub struct Pool(Arc<Pieces>);

struct Pieces {
    blocks: Shelf,
    chunks: Shelf,
}

/// Unused pieces of one size.
struct Shelf {
    size: usize,
    kept: usize,
    unused: Mutex<Vec<Vec<u8>>>,
}

impl Shelf {
    const fn new(size: usize, kept: usize) -> Self {
        Self { size, kept, unused: Mutex::new(Vec::new()) }
    }

    fn take(&self) -> Vec<u8> {
        let unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        unused.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    /// Gives a piece back. Pieces of other sizes are dropped.
    fn give(&self, mut piece: Vec<u8>) {
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

impl Pool {
    /// An empty block of [`BLOCK`] bytes.
    pub(crate) fn take_block(&self) -> Vec<u8> {
        self.0.blocks.take()
    }

    /// Gives a block back.
    pub(crate) fn give_block(&self, block: Vec<u8>) {
        self.0.blocks.give(block);
    }

    /// An empty chunk of [`CHUNK`] bytes.
    pub(crate) fn take_chunk(&self) -> Vec<u8> {
        self.0.chunks.take()
    }

    /// Gives a chunk back.
    pub(crate) fn give_chunk(&self, chunk: Vec<u8>) {
        self.0.chunks.give(chunk);
    }
}

/// Bytes of a stream in the order that they were sent, in the memory that they arrived in; it goes back to
/// the endpoint's [`Pool`] when this is dropped.
#[derive(Debug)]
pub struct Chunk {
    data: Vec<u8>,
    /// Bytes that were read before.
    taken: usize,
    pool: Pool,
}

impl Chunk {
    pub(crate) fn new(data: Vec<u8>, taken: usize, pool: &Pool) -> Self {
        Self { data, taken, pool: pool.clone() }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.data[self.taken..]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.give_chunk(std::mem::take(&mut self.data));
    }
}

impl Default for Pool {
    fn default() -> Self {
        let (blocks, chunks) = (Shelf::new(BLOCK, BLOCKS_KEPT), Shelf::new(CHUNK, CHUNKS_KEPT));
        Self(Arc::new(Pieces { blocks, chunks }))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_uses_again_what_was_given_back_and_a_pool_of_its_own_does_not() {
        let pool = Pool::default();
        let block = pool.take_block();
        let address = block.as_ptr();
        pool.clone().give_block(block);
        assert!(Pool::default().0.blocks.unused.lock().is_ok_and(|unused| unused.is_empty()));
        let again = pool.take_block();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn no_more_is_kept_than_the_bound_and_nothing_of_another_size() {
        let pool = Pool::default();
        (0..2 * BLOCKS_KEPT).for_each(|_| pool.give_block(Vec::with_capacity(BLOCK)));
        pool.give_chunk(Vec::with_capacity(BLOCK));
        let count = |shelf: &Shelf| shelf.unused.lock().map_or(0, |unused| unused.len());
        assert_eq!((count(&pool.0.blocks), count(&pool.0.chunks)), (BLOCKS_KEPT, 0));
    }
}
