//! Memory that streams take turns to use. A stream at full speed fills and empties thousands of
//! blocks a second; giving each back to the allocator made it return the pages to the kernel and
//! fault them in again, for up to a third of the time.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size of the pieces for what was written and is not acknowledged yet.
pub(crate) const BLOCK: usize = 64 * 1024;
/// Size of the pieces for what arrived and was not read yet.
pub(crate) const CHUNK: usize = 16 * 1024;
/// So many unused pieces of each size are kept, 2 MiB.
const BLOCKS_KEPT: usize = 32;
const CHUNKS_KEPT: usize = 128;
/// So many, 8 MiB, as long as all of them are used now and then: a kernel holds megabytes of a fast path, and streams
/// as much again. The rest goes back to the allocator.
const MOST_BLOCKS: usize = 128;
const MOST_CHUNKS: usize = 512;
/// Whether all were used is asked each time that so many have come back.
const LOOK: usize = 1024;

/// Unused memory for the buffers of streams. Clones share it: the connections of one endpoint should have one
/// pool. It keeps 4 MiB, and up to 16 MiB after much was in use at once.
#[derive(Clone)]
pub struct Pool(Arc<Pieces>);

struct Pieces {
    blocks: Shelf,
    chunks: Shelf,
}

/// Pieces of one size.
struct Shelf {
    size: usize,
    kept: usize,
    most: usize,
    unused: Mutex<Unused>,
}

#[derive(Default)]
struct Unused {
    pieces: Vec<Vec<u8>>,
    /// Those that lay here all the time since the last look.
    idle: usize,
    /// Pieces that have come back since then.
    back: usize,
}

impl Shelf {
    const fn new(size: usize, kept: usize, most: usize) -> Self {
        Self { size, kept, most, unused: Mutex::new(Unused { pieces: Vec::new(), idle: 0, back: 0 }) }
    }

    fn unused(&self) -> MutexGuard<'_, Unused> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<u8> {
        let piece = {
            let mut unused = self.unused();
            let piece = unused.pieces.pop();
            unused.idle = unused.idle.min(unused.pieces.len());
            piece
        };
        piece.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    /// Gives a piece back. Pieces of other sizes are dropped.
    fn give(&self, mut piece: Vec<u8>) {
        if piece.capacity() != self.size {
            return;
        }
        piece.clear();
        let mut unused = self.unused();
        if unused.pieces.len() < self.most {
            unused.pieces.push(piece);
        }
        unused.back += 1;
        if unused.back >= LOOK {
            unused.back = 0;
            let needed = unused.pieces.len() - unused.idle;
            let surplus = unused.pieces.split_off(needed.max(self.kept).min(unused.pieces.len()));
            unused.idle = unused.pieces.len();
            // The allocator has its own lock.
            drop(unused);
            drop(surplus);
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

/// Bytes of a stream in the order that they were sent, in the memory that they arrived in; it goes back to the
/// endpoint's [`Pool`] when this is dropped.
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
        let (blocks, chunks) =
            (Shelf::new(BLOCK, BLOCKS_KEPT, MOST_BLOCKS), Shelf::new(CHUNK, CHUNKS_KEPT, MOST_CHUNKS));
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

    fn count(shelf: &Shelf) -> usize {
        shelf.unused().pieces.len()
    }

    #[test]
    fn a_clone_uses_again_what_was_given_back_and_a_pool_of_its_own_does_not() {
        let pool = Pool::default();
        let block = pool.take_block();
        let address = block.as_ptr();
        pool.clone().give_block(block);
        assert!(Pool::default().0.blocks.unused().pieces.is_empty());
        let again = pool.take_block();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn no_more_is_kept_than_the_bound_and_nothing_of_another_size() {
        let pool = Pool::default();
        (0..2 * MOST_BLOCKS).for_each(|_| pool.give_block(Vec::with_capacity(BLOCK)));
        pool.give_chunk(Vec::with_capacity(BLOCK));
        assert_eq!((count(&pool.0.blocks), count(&pool.0.chunks)), (MOST_BLOCKS, 0));
    }

    #[test]
    fn what_was_needed_once_goes_back_to_the_allocator_when_less_is_used() {
        let pool = Pool::default();
        let use_at_once = |pieces: usize, times: usize| {
            for _ in 0..times {
                let taken: Vec<_> = (0..pieces).map(|_| pool.take_block()).collect();
                taken.into_iter().for_each(|block| pool.give_block(block));
            }
        };
        use_at_once(100, 3 * LOOK / 100);
        assert_eq!(count(&pool.0.blocks), 100, "all are used again and again");
        use_at_once(40, 2 * LOOK / 40 + 1);
        assert_eq!(count(&pool.0.blocks), 40);
        use_at_once(1, 2 * LOOK);
        assert_eq!(count(&pool.0.blocks), BLOCKS_KEPT);
    }
}
