//! A segment while it is built.

use smallvec::SmallVec;

use crate::content::Content;
use crate::frame::Frame;
use crate::segment::{LENGTH_SIZE, MAX_SEGMENT};

/// Less room than this is not worth a piece of stream data.
pub(crate) const MIN_PIECE: usize = 64;
/// Type, length and at most three varints: no frame of numbers is longer.
pub(crate) const SMALL_FRAME: usize = 3 + 3 * 8;

/// The segment at the end of a driver's buffer, how long it may become, and what has to be sent
/// again should it be lost.
pub(crate) struct Draft<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    start: usize,
    limit: usize,
    pub(crate) contents: SmallVec<[Content; 1]>,
}

impl<'a> Draft<'a> {
    /// Begins a segment of at most `limit` bytes on the wire.
    pub(crate) fn new(out: &'a mut Vec<u8>, limit: u64) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_SIZE]);
        Self { out, start, limit: limit.min(MAX_SEGMENT as u64) as usize, contents: SmallVec::new() }
    }

    /// Bytes so far, the length included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.out.len() - self.start
    }

    /// Bytes that still fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.limit.saturating_sub(self.len())
    }

    /// Appends a frame and notes what it said.
    pub(crate) fn put(&mut self, frame: &Frame<'_>, content: Option<Content>) {
        frame.encode(self.out);
        self.contents.extend(content);
    }

    /// Notes that a whole message was put in.
    #[inline]
    pub(crate) fn note_message(&mut self, id: u64, reliable: bool) {
        if !self.contents.last_mut().is_some_and(|last| last.is_followed_by(id, reliable)) {
            self.contents.push(Content::message(id, reliable));
        }
    }

    /// Takes back the last frame, and what it said, which was no message: the segment was `len` bytes long
    /// before it.
    pub(crate) fn take_back(&mut self, len: usize) {
        self.out.truncate(self.start + len);
        self.contents.pop();
    }

    /// Leaves the buffer as it was.
    pub(crate) fn discard(self) {
        self.out.truncate(self.start);
    }

    /// Writes the length. Returns the size on the wire and what the segment carries; `None`, and
    /// the buffer is as it was, when nothing was put in.
    pub(crate) fn finish(self) -> Option<(usize, SmallVec<[Content; 1]>)> {
        let size = self.len();
        let length = size - LENGTH_SIZE;
        if length == 0 {
            self.out.truncate(self.start);
            return None;
        }
        let prefix = (length as u16 | 0x4000).to_be_bytes();
        self.out[self.start..self.start + LENGTH_SIZE].copy_from_slice(&prefix);
        Some((size, self.contents))
    }
}
