//! What a sender sends, kept until it was used: a transfer that is halted in the middle of a chunk begins
//! that chunk again elsewhere.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use whimbrel_transport::{RecvHalf, Stream};

use super::CHUNK;

/// No source keeps more: a chunk with its length, and the messages at the end.
pub(crate) const MOST: usize = CHUNK + 64 * 1024;

/// The receiving half of a stream, with what came of it and may have to be read again.
#[derive(Debug)]
pub(crate) struct Source {
    read: RecvHalf,
    /// What came since the last [mark](Self::mark).
    kept: Vec<u8>,
    /// Of these, those that were read.
    at: usize,
}

impl Source {
    pub(crate) fn new(read: RecvHalf) -> Self {
        Self::going_on(read, Vec::new())
    }

    /// One that was [kept](Self::unused) elsewhere.
    pub(crate) fn going_on(read: RecvHalf, unused: Vec<u8>) -> Self {
        Self { read, kept: unused, at: 0 }
    }

    /// The whole stream.
    pub(crate) fn stream(&self) -> &Stream {
        self.read.stream()
    }

    /// What was read so far was used, and need not be kept.
    pub(super) fn mark(&mut self) {
        self.kept.drain(..self.at);
        self.at = 0;
    }

    /// Has what came since the last mark read again.
    pub(super) fn again(&mut self) {
        self.at = 0;
    }

    /// What came since the last mark.
    pub(crate) fn unused(&self) -> &[u8] {
        &self.kept
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.at == this.kept.len() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.read).poll_read(cx, buf))?;
            this.kept.extend_from_slice(&buf.filled()[before..]);
            this.at = this.kept.len();
            return Poll::Ready(Ok(()));
        }
        let n = buf.remaining().min(this.kept.len() - this.at);
        buf.put_slice(&this.kept[this.at..this.at + n]);
        this.at += n;
        Poll::Ready(Ok(()))
    }
}
