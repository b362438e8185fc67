//! Bytes in chunks, each compressed by itself where that helps.
//!
//! A chunk is a length of four bytes, whose highest bit says that it is compressed (zstd), and that many
//! bytes. It holds at most [`CHUNK`] bytes of the file, so that what comes out is bounded before it is
//! allocated. A length of 0 is the end.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::CHUNK;

const COMPRESSED: u32 = 1 << 31;
/// Fast, and good enough for text.
const LEVEL: i32 = 1;
/// Compression is tried with so many chunks.
const PROBE: u32 = 4;
/// After that many chunks that were not worth it, it is tried again.
const AGAIN: u32 = 64;

/// What a chunk begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    End,
    Stored(usize),
    Compressed(usize),
}

impl Header {
    /// Reads a length.
    ///
    /// # Errors
    /// More than a chunk may have.
    pub(super) fn decode(word: u32) -> io::Result<Self> {
        let length = (word & !COMPRESSED) as usize;
        match (word, length) {
            (0, _) => Ok(Self::End),
            // What does not shrink is stored: a compressed chunk is shorter than what it holds.
            (_, 1..=CHUNK) if word & COMPRESSED != 0 => Ok(Self::Compressed(length)),
            (_, 1..=CHUNK) => Ok(Self::Stored(length)),
            _ => Err(invalid("a chunk is too long")),
        }
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// What a compressed chunk holds: never more than [`CHUNK`] bytes, and nothing is allocated beyond.
pub(super) fn expand(body: &[u8]) -> io::Result<Vec<u8>> {
    zstd::bulk::decompress(body, CHUNK).map_err(|_| invalid("a chunk is damaged, or holds more than it may"))
}

/// Reads the next chunk; `None` is the end.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let header = Header::decode(from.read_u32().await?)?;
    let (Header::Stored(length) | Header::Compressed(length)) = header else { return Ok(None) };
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    match header {
        Header::Compressed(_) => Ok(Some(tokio::task::block_in_place(|| expand(&body))?)),
        _ => Ok(Some(body)),
    }
}

/// The end of all chunks.
pub(super) const END: [u8; 4] = [0; 4];

/// Makes chunks, and stops to compress what does not become smaller.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// Chunks in a row that were not worth it.
    useless: u32,
}

impl Packer {
    /// A chunk with these bytes, of which there are 1 to [`CHUNK`].
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.useless >= PROBE + AGAIN {
            self.useless = 0;
        }
        if self.useless < PROBE
            && let Ok(small) = zstd::bulk::compress(bytes, LEVEL)
            && small.len() < bytes.len() / 10 * 9
        {
            self.useless = 0;
            return chunk(&small, COMPRESSED);
        }
        self.useless += 1;
        chunk(bytes, 0)
    }
}

fn chunk(body: &[u8], flag: u32) -> Vec<u8> {
    debug_assert!((1..=CHUNK).contains(&body.len()), "a chunk of {} bytes", body.len());
    [&(body.len() as u32 | flag).to_be_bytes()[..], body].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn random(size: usize) -> Vec<u8> {
        let mut data = vec![0; size];
        getrandom::fill(&mut data).unwrap();
        data
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn chunks_come_back() {
        let mut packer = Packer::default();
        let inputs = [vec![7; CHUNK], random(CHUNK), vec![1], b"hello ".repeat(1000)];
        let mut bytes: Vec<u8> = inputs.iter().flat_map(|input| packer.pack(input)).collect();
        bytes.extend(END);
        let mut from = &bytes[..];
        for input in &inputs {
            assert_eq!(read(&mut from).await.unwrap().as_ref(), Some(input));
        }
        assert_eq!(read(&mut from).await.unwrap(), None);
        assert!(read(&mut from).await.is_err());
    }

    #[test]
    fn what_does_not_shrink_is_probed_now_and_then_only() {
        let (mut packer, noise, zeros) = (Packer::default(), random(CHUNK), vec![0; CHUNK]);
        assert!(packer.pack(&zeros).len() < 1000);
        for _ in 0..PROBE {
            assert_eq!(packer.pack(&noise).len(), CHUNK + 4);
        }
        let until_again = (1..).find(|_| packer.pack(&zeros).len() < 1000).unwrap();
        assert_eq!(until_again, AGAIN + 1);
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_unpacked() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
        assert!(bomb.len() < CHUNK);
        assert!(expand(&bomb).is_err());
        assert!(expand(&zstd::bulk::compress(&vec![0; CHUNK + 1], 1).unwrap()).is_err());
        assert!(expand(b"nonsense").is_err());
        assert!(Header::decode(CHUNK as u32 + 1).is_err());
        assert!(Header::decode(COMPRESSED).is_err());
    }
}
