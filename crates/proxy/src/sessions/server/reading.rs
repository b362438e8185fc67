//! Reads what a server says: all that there is room for with one call. Each call that makes room in a full
//! buffer of the kernel has it tell the server so, which costs more than the call itself.

use crate::sessions::frame::LONGEST;
use bytes::Bytes;
use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use tokio::net::TcpStream;

/// How many pieces are read at once, of a frame each: a piece is held until all of it was taken.
const PIECES: usize = 8;
/// What is read at once.
pub(in crate::sessions) const READ: usize = PIECES * LONGEST;

thread_local! {
    /// What was not filled by the last read is used for the next, whichever session's that is.
    static MEMORY: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Reads from the system itself, at most so many bytes (which is not 0): pieces in memory of the size of what
/// came, and none at the end.
pub(super) fn read(socket: &TcpStream, most: usize) -> io::Result<Vec<Bytes>> {
    MEMORY.with_borrow_mut(|memory| {
        let mut left = most.min(READ);
        let wanted = left.div_ceil(LONGEST);
        memory.resize_with(memory.len().max(wanted), || vec![0; LONGEST]);
        let read = {
            let pieces = memory.iter_mut().take(wanted).map(|piece| {
                let room = left.min(LONGEST);
                left -= room;
                IoSliceMut::new(&mut piece[..room])
            });
            let mut pieces: Vec<IoSliceMut<'_>> = pieces.collect();
            rustix::io::readv(socket, &mut pieces)?
        };
        Ok(take(memory, read))
    })
}

/// Takes out what was filled, and a copy of what was filled in part.
fn take(memory: &mut Vec<Vec<u8>>, read: usize) -> Vec<Bytes> {
    let (whole, rest) = (read / LONGEST, read % LONGEST);
    let mut pieces: Vec<Bytes> = memory.drain(..whole).map(Bytes::from).collect();
    let rest = memory.first().map_or(&[][..], |piece| &piece[..rest]);
    if !rest.is_empty() {
        pieces.push(Bytes::copy_from_slice(rest));
    }
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(20);

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (one, listener.accept().await.unwrap().0)
    }

    /// Waits until so many bytes can be read.
    async fn come(reader: &TcpStream, bytes: usize) {
        let mut room = vec![std::mem::MaybeUninit::<u8>::uninit(); bytes];
        let came = async {
            while socket2::SockRef::from(reader).peek(&mut room).unwrap_or(0) < bytes {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, came).await.unwrap();
    }

    #[tokio::test]
    async fn one_read_brings_all_that_there_is_room_for_in_pieces_that_hold_no_more_memory() {
        let (mut writer, reader) = pair().await;
        let said: Vec<u8> = (0..=250).cycle().take(7 * LONGEST).collect();
        let (mut wrote, mut heard) = (0, Vec::<u8>::new());
        for (more, most, lengths) in [
            (100, READ, &[100][..]),
            (LONGEST, LONGEST, &[LONGEST][..]),
            (2 * LONGEST, LONGEST + 4000, &[LONGEST, 4000][..]),
            // What is left of that, and what came behind it.
            (900, READ, &[LONGEST - 3100][..]),
            (3 * LONGEST + 5000, READ, &[LONGEST, LONGEST, LONGEST, 5000][..]),
        ] {
            writer.write_all(&said[wrote..wrote + more]).await.unwrap();
            wrote += more;
            come(&reader, wrote - heard.len()).await;
            let pieces = read(&reader, most).unwrap();
            assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), lengths);
            for piece in pieces {
                heard.extend_from_slice(&piece);
                let length = piece.len();
                assert_eq!(Vec::from(piece).capacity(), length);
            }
        }
        assert!(heard == said[..wrote]);
    }

    #[tokio::test]
    async fn nothing_comes_at_the_end_and_an_error_while_there_is_nothing_yet() {
        let (writer, reader) = pair().await;
        assert_eq!(read(&reader, READ).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        let ends = async {
            while read(&reader, READ).is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, ends).await.unwrap();
        assert!(read(&reader, READ).unwrap().is_empty());
    }

    #[test]
    fn memory_that_was_not_filled_serves_the_next_read() {
        let mut memory = vec![vec![7; LONGEST]; PIECES];
        assert_eq!(take(&mut memory, LONGEST + 5).iter().map(Bytes::len).collect::<Vec<_>>(), [LONGEST, 5]);
        assert_eq!(memory.len(), PIECES - 1);
        assert!(take(&mut memory, 0).is_empty());
        assert_eq!(take(&mut memory, (PIECES - 1) * LONGEST).len(), PIECES - 1);
        assert!(memory.is_empty());
    }
}
