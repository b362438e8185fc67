//! What is said on a session's streams, both ways.
//!
//! ```text
//! frame = kind (1) length (2, big-endian) body
//! ```

mod reader;
mod writer;

pub(super) use reader::Reader;
pub(super) use writer::Writer;

use bytes::{Bytes, BytesMut};
use std::io::{self, ErrorKind};

/// Of the bytes in one frame.
pub(super) const LONGEST: usize = 16 * 1024;
/// Of a frame's head.
const HEAD: usize = 3;
/// The kind of a frame with bytes of the connection.
const BYTES: u8 = 0;
/// Of the body of any other frame.
const LONGEST_WORD: usize = 17;

/// One thing that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Bytes of the connection.
    Data(Bytes),
    /// This direction has ended.
    End,
    /// How far the other direction was taken: by the program, or by the server.
    Count(u64),
    /// To a device: stop, and say how far the program is.
    Pause,
    /// From a device: the answer to that.
    Paused(Paused),
    /// To a device: go on, it does not move after all.
    Resume,
    /// To a device: the session goes on elsewhere.
    Moved,
    /// What is behind this side broke.
    Broken,
    /// To a device: what follows, up to this offset, came ahead of the answer.
    Ahead(u64),
}

/// How far a device is when it has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paused {
    /// How many bytes the program has taken, or will have when it has read what it was given.
    pub(super) taken: u64,
    /// How many bytes of the program were sent on this stream, in all.
    pub(super) sent: u64,
    /// The program sent nothing that is not among those, until now.
    pub(super) is_whole: bool,
    /// The program has ended its direction behind those: END is said, and may come later than this.
    pub(super) has_ended: bool,
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Data(_) => BYTES,
            Self::End => 1,
            Self::Count(_) => 2,
            Self::Pause => 3,
            Self::Paused(_) => 4,
            Self::Resume => 5,
            Self::Moved => 6,
            Self::Broken => 7,
            Self::Ahead(_) => 8,
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Data(bytes) => put(out, BYTES, bytes),
            Self::Count(offset) | Self::Ahead(offset) => put(out, self.kind(), &offset.to_be_bytes()),
            Self::Paused(Paused { taken, sent, is_whole, has_ended }) => {
                let mut body = [0; LONGEST_WORD];
                body[..8].copy_from_slice(&taken.to_be_bytes());
                body[8..16].copy_from_slice(&sent.to_be_bytes());
                body[16] = u8::from(*is_whole) | u8::from(*has_ended) << 1;
                put(out, self.kind(), &body);
            }
            _ => put(out, self.kind(), &[]),
        }
    }

    /// Reads any but bytes of the connection.
    fn read(kind: u8, body: &[u8]) -> Option<Self> {
        let number = |at: usize| body.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        match (kind, body.len()) {
            (1, 0) => Some(Self::End),
            (2, 8) => number(0).map(Self::Count),
            (3, 0) => Some(Self::Pause),
            (4, LONGEST_WORD) if body[16] < 4 => {
                let (taken, sent) = (number(0)?, number(8)?);
                let (is_whole, has_ended) = (body[16] & 1 != 0, body[16] & 2 != 0);
                Some(Self::Paused(Paused { taken, sent, is_whole, has_ended }))
            }
            (5, 0) => Some(Self::Resume),
            (6, 0) => Some(Self::Moved),
            (7, 0) => Some(Self::Broken),
            (8, 8) => number(0).map(Self::Ahead),
            _ => None,
        }
    }
}

fn put(out: &mut BytesMut, kind: u8, body: &[u8]) {
    put_head(out, kind, body.len());
    out.extend_from_slice(body);
}

fn put_head(out: &mut BytesMut, kind: u8, length: usize) {
    let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    out.extend_from_slice(&[kind, high, low]);
}

fn invalid(kind: u8) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("what came is no frame of a session (kind {kind})"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::reader::{Came, Pieces};
    use super::writer::{GATHERED, Taker};
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    impl<R: AsyncRead + Unpin + Send> Pieces for tokio::io::Take<R> {
        async fn next(&mut self) -> io::Result<Option<Bytes>> {
            let mut piece = BytesMut::new();
            Ok((self.read_buf(&mut piece).await? > 0).then(|| piece.freeze()))
        }
    }

    impl Taker for DuplexStream {
        async fn take(&mut self, chunks: &mut VecDeque<Bytes>) -> io::Result<usize> {
            let Some(first) = chunks.front_mut() else { return Ok(0) };
            let n = self.write(first).await?;
            bytes::Buf::advance(first, n);
            if first.is_empty() {
                chunks.pop_front();
            }
            Ok(n)
        }

        async fn end(&mut self) -> io::Result<()> {
            self.shutdown().await
        }
    }

    fn reader<R: AsyncRead + Unpin + Send>(from: R) -> Reader<tokio::io::Take<R>> {
        Reader::new(tokio::io::AsyncReadExt::take(from, u64::MAX))
    }

    /// The next frame; one of bytes as a whole, if all of it comes.
    async fn next(reader: &mut Reader<impl Pieces>, length: usize) -> Option<Frame> {
        let mut all = BytesMut::new();
        while let Some(frame) = reader.next().await.unwrap() {
            let Frame::Data(bytes) = frame else { return Some(frame) };
            all.extend_from_slice(&bytes);
            if all.len() >= length {
                return Some(Frame::Data(all.freeze()));
            }
        }
        None
    }

    fn all() -> Vec<Frame> {
        vec![
            Frame::Data(Bytes::from_static(b"x")),
            Frame::End,
            Frame::Count(u64::MAX),
            Frame::Pause,
            Frame::Paused(Paused { taken: 1 << 40, sent: 7, is_whole: true, has_ended: false }),
            Frame::Paused(Paused { taken: 0, sent: 7, is_whole: false, has_ended: true }),
            Frame::Resume,
            Frame::Moved,
            Frame::Broken,
            Frame::Data(Bytes::from(vec![7; LONGEST])),
        ]
    }

    #[tokio::test]
    async fn what_was_said_is_heard_wherever_it_is_cut() {
        for cut in [1, 2, 3, 5, 4096, usize::MAX] {
            let (to, mut from) = tokio::io::duplex(1 << 20);
            let mut writer = Writer::new(to);
            for frame in all() {
                match frame {
                    Frame::Data(bytes) => writer.say_data(bytes),
                    word => writer.say(&word),
                }
            }
            writer.finish().await.unwrap();
            let mut said = Vec::new();
            from.read_to_end(&mut said).await.unwrap();
            let (mut pipe, there) = tokio::io::duplex(64);
            let saying = tokio::spawn(async move {
                for piece in said.chunks(cut.min(said.len())) {
                    pipe.write_all(piece).await.unwrap();
                }
            });
            let mut reader = reader(there);
            for frame in all() {
                let length = if let Frame::Data(bytes) = &frame { bytes.len() } else { 0 };
                assert_eq!(next(&mut reader, length).await, Some(frame));
            }
            assert_eq!(reader.next().await.unwrap(), None);
            saying.await.unwrap();
        }
    }

    #[tokio::test]
    async fn bytes_are_told_before_their_frame_is_whole_and_the_rest_after_a_halt() {
        let mut said = BytesMut::new();
        Frame::Data(Bytes::from_static(b"first and last")).put(&mut said);
        Frame::Count(7).put(&mut said);
        let rest = said.split_off(HEAD + 6);
        let mut before = reader(&said[..]);
        assert!(before.is_between_frames());
        assert_eq!(before.next().await.unwrap(), Some(Frame::Data(Bytes::from_static(b"first "))));
        assert!(!before.is_between_frames());
        let (_, came) = before.halt();
        let mut after = Reader::going_on(tokio::io::AsyncReadExt::take(&rest[..], u64::MAX), came);
        assert_eq!(next(&mut after, 8).await, Some(Frame::Data(Bytes::from_static(b"and last"))));
        assert!(!after.is_between_frames(), "the next one has come");
        assert_eq!(after.next().await.unwrap(), Some(Frame::Count(7)));
        assert!(after.is_between_frames());
        assert_eq!(after.next().await.unwrap(), None);
        // One that ends within a frame broke.
        let mut broken = reader(&said[..]);
        assert!(broken.next().await.is_ok() && broken.next().await.is_err());
    }

    #[tokio::test]
    async fn bytes_at_hand_are_those_before_the_next_word() {
        let mut said = BytesMut::new();
        let bytes = |text: &'static str| Frame::Data(Bytes::from_static(text.as_bytes()));
        for frame in [bytes("one"), bytes("two"), Frame::Count(7), bytes("three")] {
            frame.put(&mut said);
        }
        let mut reader = reader(&said[..]);
        assert_eq!(reader.bytes_at_hand(), None);
        assert_eq!(reader.next().await.unwrap(), Some(bytes("one")));
        assert_eq!(reader.bytes_at_hand().as_deref(), Some(&b"two"[..]));
        assert_eq!(reader.bytes_at_hand(), None);
        assert_eq!(reader.next().await.unwrap(), Some(Frame::Count(7)));
        assert_eq!(reader.bytes_at_hand().as_deref(), Some(&b"three"[..]));
        assert_eq!(reader.bytes_at_hand(), None);
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let mut out = BytesMut::new();
        Frame::Data(Bytes::from_static(b"hi")).put(&mut out);
        Frame::Count(5).put(&mut out);
        Frame::Paused(Paused { taken: 5, sent: 2, is_whole: true, has_ended: false }).put(&mut out);
        assert_eq!(
            out[..],
            [
                &b"\0\0\x02hi"[..],
                b"\x02\0\x08\0\0\0\0\0\0\0\x05",
                b"\x04\0\x11\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x02\x01"
            ]
            .concat()
        );
    }

    #[tokio::test]
    async fn what_is_no_frame_is_an_error() {
        let wrong: [&[u8]; 7] =
            [b"\x08\0\0", b"\0\0\0", b"\x01\0\x01x", b"\x02\0\x01x", b"\0\xff\xff", b"GET / HTTP", b"\0\0"];
        for bytes in wrong {
            assert!(reader(bytes).next().await.is_err(), "{bytes:?}");
        }
        let mut other = [b"\x04\0\x11".as_slice(), &[0; 16], &[4]].concat();
        assert!(reader(&other[..]).next().await.is_err(), "an unknown flag");
        other[19] = 1;
        assert!(reader(&other[..]).next().await.is_ok());
    }

    #[tokio::test]
    async fn counts_that_nobody_reads_take_no_memory_and_the_newest_one_is_heard() {
        let (pipe, there) = tokio::io::duplex(1);
        let mut writer = Writer::new(pipe);
        for count in 1..=1_000_000 {
            writer.say(&Frame::Count(count));
        }
        assert!(writer.gathered() < GATHERED + HEAD + 8, "{} bytes wait", writer.gathered());
        let saying = tokio::spawn(writer.finish());
        let (mut reader, mut last) = (reader(there), None);
        while let Some(frame) = reader.next().await.unwrap() {
            last = Some(frame);
        }
        assert_eq!(last, Some(Frame::Count(1_000_000)));
        saying.await.unwrap().unwrap();
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error_and_never_more_than_they_say(
            bytes in proptest::collection::vec(0_u8..9, 0..200),
        ) {
            let (mut came, mut again) = (Came::default(), BytesMut::new());
            came.add(Bytes::from(bytes.clone()));
            while let Ok(Some(frame)) = came.take() {
                let before = again.len();
                frame.put(&mut again);
                if let Frame::Data(told) = &frame {
                    // Its head says how much there is to come.
                    let length = u16::try_from(told.len() + came.left).unwrap();
                    again[before + 1..before + HEAD].copy_from_slice(&length.to_be_bytes());
                }
                prop_assert_eq!(&bytes[before..again.len()], &again[before..]);
            }
        }
    }
}
