//! One direction of a tunnel.

use std::io::{self, ErrorKind};
use std::ops::Range;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What a direction reads at once: little while little comes, so that thousands of idle ones cost little.
const LEAST: usize = 2 * 1024;
/// No direction holds more.
pub(crate) const MOST: usize = 64 * 1024;

/// How far one direction is.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    buffer: Vec<u8>,
    /// What was read and not written yet.
    waiting: Range<usize>,
    /// The end was read, and passed on.
    ended: bool,
    /// Bytes that were written.
    written: u64,
}

impl Direction {
    /// One that was here before, with what was read and not written.
    pub(crate) fn going_on(waiting: Vec<u8>, ended: bool) -> Self {
        Self { waiting: 0..waiting.len(), buffer: waiting, ended, written: 0 }
    }

    /// What was read and not written yet.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.buffer[self.waiting.clone()]
    }

    /// The end was read, and passed on.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes that were written since this began here.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Copies until the end, and passes the end on. Cancel-safe: the next call goes on where this was.
    pub(crate) async fn carry(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while !self.ended {
            self.write_out(to).await?;
            let n = from.read(&mut self.buffer).await?;
            if n == 0 {
                to.shutdown().await?;
                self.ended = true;
            }
            self.waiting = 0..n;
        }
        Ok(())
    }

    async fn write_out(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let came = self.waiting.end;
        if self.waiting.is_empty() && !self.buffer.is_empty() {
            return Ok(());
        }
        while !self.waiting.is_empty() {
            let n = to.write(&self.buffer[self.waiting.clone()]).await?;
            if n == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.waiting.start += n;
            self.written += n as u64;
        }
        to.flush().await?;
        let fitting = fitting(self.buffer.len(), came);
        if fitting != self.buffer.len() {
            self.buffer = vec![0; fitting];
        }
        Ok(())
    }
}

/// The size of the next buffer, after `n` bytes came into one of `size`.
fn fitting(size: usize, n: usize) -> usize {
    if n <= LEAST && n < size.max(1) {
        // What comes in small pieces, or has just ended, needs no more.
        LEAST
    } else if n == size {
        (size * 4).clamp(LEAST, MOST)
    } else {
        size.clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_buffer_grows_with_what_comes_and_shrinks_when_little_does() {
        let mut size = fitting(0, 0);
        assert_eq!(size, LEAST);
        for _ in 0..8 {
            size = fitting(size, size);
        }
        assert_eq!(size, MOST);
        assert_eq!(fitting(MOST, MOST / 2), MOST);
        assert_eq!(fitting(MOST, 100), LEAST);
        assert_eq!(fitting(LEAST, 100), LEAST);
        assert_eq!(fitting(100, 100), LEAST, "what was handed over");
    }

    /// Takes three bytes at a time, every other time.
    #[derive(Default)]
    struct Slow {
        taken: Vec<u8>,
        turn: bool,
        ended: u32,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.turn = !self.turn;
            if self.turn {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let n = buf.len().min(3);
            self.taken.extend_from_slice(&buf[..n]);
            Poll::Ready(Ok(n))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.ended += 1;
            Poll::Ready(Ok(()))
        }
    }

    /// Halted after every poll, and each time another direction goes on from what it says.
    #[tokio::test]
    async fn a_direction_that_is_halted_anywhere_goes_on_at_the_same_byte_and_ends_once() {
        let all: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        let (mut from, mut to) = (&all[..], Slow::default());
        let mut direction = Direction::default();
        let mut halts = 0;
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if pin!(direction.carry(&mut from, &mut to)).poll(&mut context).is_ready() {
                break;
            }
            halts += 1;
            direction = Direction::going_on(direction.waiting().to_vec(), direction.has_ended());
        }
        assert!(halts > 1000, "{halts}");
        assert_eq!(to.taken, all);
        direction = Direction::going_on(Vec::new(), direction.has_ended());
        direction.carry(&mut from, &mut to).await.unwrap();
        assert_eq!(to.ended, 1);
    }
}
