//! What a stream carries after `Meet` was answered: opaque frames to the other side's stream.
//!
//! ```text
//! length: u16, big-endian, 1 to 1024 | that many bytes
//! ```

use bytes::{Buf as _, BytesMut};

use super::{MAX_MEETING_FRAME, ProtocolError};

/// Meeting slots have numbers below this.
pub const MEETING_SLOTS: u16 = 2048;

/// Frames that the service keeps for a side that has not taken them yet.
pub const MEETING_FRAMES: usize = 16;

const LENGTH_BYTES: usize = 2;

/// Puts a frame behind its length.
///
/// # Errors
/// [`ProtocolError::MeetingFrame`] when it is empty or has more than [`MAX_MEETING_FRAME`] bytes.
pub fn encode_frame(frame: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let size = checked(frame.len())?;
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + frame.len());
    bytes.extend_from_slice(&size.to_be_bytes());
    bytes.extend_from_slice(frame);
    Ok(bytes)
}

fn checked(size: usize) -> Result<u16, ProtocolError> {
    match u16::try_from(size) {
        Ok(length) if (1..=MAX_MEETING_FRAME).contains(&size) => Ok(length),
        _ => Err(ProtocolError::MeetingFrame(size)),
    }
}

/// Finds the frames of a meeting in a stream that comes in pieces.
///
/// Holds at most one incomplete frame and what was [pushed](Self::push) last. After an error the stream is of
/// no more use.
#[derive(Debug, Default)]
pub struct MeetingFrames {
    buffer: BytesMut,
}

impl MeetingFrames {
    /// Begins with what was read behind the message that began the meeting.
    pub fn new(rest: BytesMut) -> Self {
        Self { buffer: rest }
    }

    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Returns the next frame, if it is there as a whole.
    ///
    /// # Errors
    /// [`ProtocolError::MeetingFrame`] as soon as a length is announced that no frame has.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, ProtocolError> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let size = usize::from(checked(usize::from(u16::from_be_bytes(*length)))?);
        if self.buffer.len() < LENGTH_BYTES + size {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        Ok(Some(self.buffer.split_to(size).to_vec()))
    }

    /// Whether the stream may end here: between frames.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_round_trip_in_any_pieces(
            sent in vec(vec(any::<u8>(), 1..=MAX_MEETING_FRAME), 0..6),
            size in 1..700usize,
        ) {
            let stream: Vec<u8> = sent.iter().flat_map(|frame| encode_frame(frame).unwrap()).collect();
            let (mut frames, mut came) = (MeetingFrames::default(), Vec::new());
            for piece in stream.chunks(size) {
                frames.push(piece);
                while let Some(frame) = frames.next_frame().unwrap() {
                    came.push(frame);
                }
            }
            prop_assert!(frames.is_empty());
            prop_assert_eq!(came, sent);
        }

        #[test]
        fn any_bytes_are_survived_and_frames_are_bounded(stream in vec(any::<u8>(), 0..3000)) {
            let mut frames = MeetingFrames::default();
            frames.push(&stream);
            while let Ok(Some(frame)) = frames.next_frame() {
                prop_assert!((1..=MAX_MEETING_FRAME).contains(&frame.len()));
            }
        }
    }

    #[test]
    fn empty_and_large_frames_are_refused_when_announced() {
        for size in [0, MAX_MEETING_FRAME + 1, 70_000] {
            assert_eq!(encode_frame(&vec![7; size]), Err(ProtocolError::MeetingFrame(size)));
        }
        for length in [0, MAX_MEETING_FRAME as u16 + 1, u16::MAX] {
            let mut frames = MeetingFrames::default();
            frames.push(&length.to_be_bytes());
            assert_eq!(frames.next_frame(), Err(ProtocolError::MeetingFrame(length.into())));
        }
    }
}
