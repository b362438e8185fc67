//! Frames, as they come.

use super::{BYTES, Frame, HEAD, LONGEST, LONGEST_WORD, invalid};
use bytes::{Buf as _, Bytes};
use std::io::{self, ErrorKind};
use whimbrel_transport::RecvHalf;

/// Where frames come from: bytes in pieces of any length.
pub(in crate::sessions) trait Pieces {
    /// The next piece; `None` at the end. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> + Send;
}

impl Pieces for RecvHalf {
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> + Send {
        // In the memory that they arrived in.
        self.read_chunk()
    }
}

/// Reads frames from a stream. Bytes of the connection are told as they come: one frame of them may be heard
/// as several.
pub(in crate::sessions) struct Reader<R> {
    from: R,
    came: Came,
}

/// What came, and was not told yet.
#[derive(Default)]
pub(super) struct Came {
    bytes: Bytes,
    /// Of the frame of bytes that is being told, so many are not.
    pub(super) left: usize,
}

impl<R: Pieces> Reader<R> {
    pub(in crate::sessions) fn new(from: R) -> Self {
        Self { from, came: Came::default() }
    }

    /// One that was halted behind these bytes.
    pub(in crate::sessions) fn going_on(from: R, came: Vec<u8>) -> Self {
        Self { from, came: Came { bytes: came.into(), left: 0 } }
    }

    /// Halts: what came of the next frame is returned.
    pub(in crate::sessions) fn halt(self) -> (R, Vec<u8>) {
        (self.from, self.came.rest())
    }

    /// The next frame; `None` at the end. Cancel-safe.
    pub(in crate::sessions) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.came.take()? {
                return Ok(Some(frame));
            }
            match self.from.next().await? {
                Some(piece) => self.came.add(piece),
                None if self.came.is_between_frames() => return Ok(None),
                None => return Err(ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

impl<R> Reader<R> {
    /// Whether all that came was told, and the last frame is whole.
    pub(in crate::sessions) fn is_between_frames(&self) -> bool {
        self.came.is_between_frames()
    }

    /// More bytes of the connection, if they are what comes next and have come already.
    pub(in crate::sessions) fn bytes_at_hand(&mut self) -> Option<Bytes> {
        let is_next = self.came.left > 0 || self.came.bytes.first() == Some(&BYTES);
        match is_next.then(|| self.came.take()) {
            Some(Ok(Some(Frame::Data(bytes)))) => Some(bytes),
            // What is wrong is found again.
            _ => None,
        }
    }
}

impl Came {
    pub(super) fn add(&mut self, piece: Bytes) {
        self.bytes = match self.bytes.is_empty() {
            true => piece,
            // The beginning of a head, or of a frame that is told as a whole.
            false => [&self.bytes[..], &piece[..]].concat().into(),
        };
    }

    /// Takes a frame out, or the bytes of one as far as they came.
    pub(super) fn take(&mut self) -> io::Result<Option<Frame>> {
        if self.left == 0 {
            let Some([kind, high, low]) = self.bytes.first_chunk::<HEAD>().copied() else {
                self.let_go();
                return Ok(None);
            };
            let length = usize::from(u16::from_be_bytes([high, low]));
            if kind != BYTES {
                return self.take_word(kind, length);
            }
            if !(1..=LONGEST).contains(&length) {
                return Err(invalid(kind));
            }
            self.bytes.advance(HEAD);
            self.left = length;
        }
        if self.bytes.is_empty() {
            self.let_go();
            return Ok(None);
        }
        let told = self.bytes.split_to(self.left.min(self.bytes.len()));
        self.left -= told.len();
        Ok(Some(Frame::Data(told)))
    }

    fn take_word(&mut self, kind: u8, length: usize) -> io::Result<Option<Frame>> {
        if length > LONGEST_WORD {
            return Err(invalid(kind));
        }
        if self.bytes.len() < HEAD + length {
            self.let_go();
            return Ok(None);
        }
        let body = &self.bytes[HEAD..HEAD + length];
        let frame = Frame::read(kind, body).ok_or_else(|| invalid(kind))?;
        self.bytes.advance(HEAD + length);
        if self.bytes.is_empty() {
            self.let_go();
        }
        Ok(Some(frame))
    }

    /// Keeps a copy of the few bytes that are left, or nothing: any part of a piece, also an empty one, holds
    /// all of its memory, and a connection at rest waits for long.
    fn let_go(&mut self) {
        self.bytes = Bytes::copy_from_slice(&self.bytes);
    }

    fn is_between_frames(&self) -> bool {
        self.left == 0 && self.bytes.is_empty()
    }

    /// What is left, as if the frame that is being told began here.
    fn rest(self) -> Vec<u8> {
        let mut rest = Vec::new();
        if self.left > 0 {
            let [high, low] = u16::try_from(self.left).unwrap_or(u16::MAX).to_be_bytes();
            rest.extend_from_slice(&[BYTES, high, low]);
        }
        rest.extend_from_slice(&self.bytes);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    #[test]
    fn a_few_bytes_that_wait_do_not_hold_the_memory_that_they_came_in() {
        for few in [0, 1, HEAD - 1, HEAD, HEAD + 7] {
            let mut said = BytesMut::new();
            Frame::Data(Bytes::from_static(b"something long before")).put(&mut said);
            let length = said.len() + few;
            Frame::Count(7).put(&mut said);
            let whole = said.split_off(length);
            let (piece, mut came) = (Bytes::copy_from_slice(&said), Came::default());
            came.add(piece.clone());
            assert!(matches!(came.take(), Ok(Some(Frame::Data(_)))));
            assert!(matches!(came.take(), Ok(None)), "{few} bytes are no frame");
            assert!(piece.is_unique(), "{few} bytes hold {}", piece.len());
            came.add(whole.freeze());
            assert!(matches!(came.take(), Ok(Some(Frame::Count(7)))));
        }
    }
}
