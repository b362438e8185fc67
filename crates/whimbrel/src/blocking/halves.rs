//! Streams of one direction.

use std::future::Future as _;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use whimbrel_transport as transport;

use super::DEFAULT_LINGER;
use super::wait::block;

/// A stream on which this side alone writes. Dropped, it ends in order, and waits until the peer has
/// everything, for at most [`DEFAULT_LINGER`].
#[derive(Debug)]
pub struct SendHalf {
    half: transport::SendHalf,
}

impl SendHalf {
    pub(super) fn new(half: transport::SendHalf) -> Self {
        Self { half }
    }

    /// Ends the stream, and waits until the peer has everything that was written, for at most `limit`.
    ///
    /// # Errors
    /// `TimedOut` after `limit`; what is left is still sent while the process lives. When the connection ends
    /// before, its error.
    pub fn close(self, limit: Duration) -> io::Result<()> {
        self.half.stream().finish()?;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the peer does not have everything yet");
        self.drained(limit).unwrap_or_else(|| Err(late()))
    }

    fn drained(&self, limit: Duration) -> Option<io::Result<()>> {
        let mut drained = Box::pin(self.half.stream().drained());
        block(Instant::now().checked_add(limit), |cx| drained.as_mut().poll(cx))
    }

    /// The stream itself, to reset it or to set its urgency.
    #[must_use]
    pub fn inner(&self) -> &transport::Stream {
        self.half.stream()
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        // Fails when the stream is over, and then there is nothing to wait for.
        if self.half.stream().finish().is_ok() && !std::thread::panicking() {
            self.drained(DEFAULT_LINGER);
        }
    }
}

impl Write for SendHalf {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let written = block(None, |cx| self.half.stream().poll_write_bytes(cx, buf));
        written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Does nothing: what is written leaves on its own, as with TCP.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream on which only the peer writes. Dropped, it asks the peer to stop.
#[derive(Debug)]
pub struct RecvHalf {
    half: transport::RecvHalf,
}

impl RecvHalf {
    pub(super) fn new(half: transport::RecvHalf) -> Self {
        Self { half }
    }

    /// The stream itself.
    #[must_use]
    pub fn inner(&self) -> &transport::Stream {
        self.half.stream()
    }
}

impl Read for RecvHalf {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let read = block(None, |cx| self.half.stream().poll_read_bytes(cx, buf));
        read.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}
