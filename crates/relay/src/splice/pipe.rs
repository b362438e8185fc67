//! Pipes: bytes pass through them from one socket to another without being copied to this process
//! (splice(2)).

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that are taken at a time: what a pipe holds.
const PIECE: usize = 64 * 1024;
/// Pipes of the process, of two file descriptors each. Where there are no more, bytes are copied.
const MAX_PIPES: usize = 1024;
/// Empty pipes that each thread keeps for the next one that needs one.
const KEPT: usize = 4;

static PIPES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static FREE: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A place among the [`MAX_PIPES`].
struct Seat;

impl Seat {
    fn take() -> Option<Self> {
        let room = |count| (count < MAX_PIPES).then_some(count + 1);
        PIPES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok().map(|_| Self)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        PIPES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pipe, and how many bytes are in it.
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    _seat: Seat,
}

impl Pipe {
    /// An empty one, if there may be another.
    pub(super) fn take() -> Option<Self> {
        FREE.with_borrow_mut(Vec::pop).or_else(|| {
            let seat = Seat::take()?;
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            Some(Self { read, write, held: 0, _seat: seat })
        })
    }

    /// Keeps an empty one for others.
    pub(super) fn give_back(self) {
        FREE.with_borrow_mut(|free| {
            if self.held == 0 && free.len() < KEPT {
                free.push(self);
            }
        });
    }

    /// The bytes that are in it.
    ///
    /// # Errors
    /// Those of read(2).
    pub(super) fn into_bytes(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.held];
        let mut came = 0;
        while came < bytes.len() {
            match rustix::io::read(&self.read, &mut bytes[came..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => came += count,
            }
        }
        self.held = 0;
        self.give_back();
        Ok(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes what the socket has; 0 is the end. Only while empty: a full pipe looks like a socket without
    /// bytes.
    ///
    /// # Errors
    /// Those of splice(2): `InvalidInput` for a socket that can't.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count =
            from.try_io(Interest::READABLE, || Ok(splice(from, None, &self.write, None, PIECE, flags)?))?;
        self.held += count;
        Ok(count)
    }

    /// Gives the socket as much as it takes now.
    ///
    /// # Errors
    /// Those of splice(2).
    pub(super) fn drain(&mut self, to: &TcpStream) -> io::Result<()> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        while self.held > 0 {
            let count =
                to.try_io(Interest::WRITABLE, || Ok(splice(&self.read, None, to, None, self.held, flags)?))?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.held -= count;
        }
        Ok(())
    }
}
