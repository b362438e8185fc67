//! Bytes from one socket to the other, both ways, until both have ended or one has broken.

use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::RecvFlags;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

pub use self::meter::Meter;
use self::meter::Pause;
#[cfg(target_os = "linux")]
use self::pipe::Pipe;

mod meter;
#[cfg(target_os = "linux")]
mod pipe;

/// What one side has sent and the other has not taken: at most so much is kept, each way, and nothing while both
/// keep up.
const BUFFER: usize = 64 * 1024;
/// When so much came at once, the next bytes are spliced, if the system can: fewer are copied in less time.
#[cfg(target_os = "linux")]
const BULK: usize = 16 * 1024;
/// When one direction has ended, the other one may be idle for so long.
const HALF_CLOSED: Duration = Duration::from_secs(60);
/// An idle peer is asked for a sign of life by its kernel after this, and given up after three that do not come.
const KEEPALIVE: Duration = Duration::from_secs(25);
/// A peer that acknowledges nothing for so long is gone.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(120);

thread_local! {
    /// Lent to whoever reads, so that those who wait hold nothing.
    static PIECE: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Sets what sockets need that are spliced.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_tcp_nodelay(true)?;
    tune_waiting(socket)?;
    pass_on_freely(&SockRef::from(socket))
}

/// The same for a socket that an endpoint has accepted, or the listener that hands it on: both have from the
/// endpoint what is not set here.
pub(crate) fn tune_accepted(socket: SockRef<'_>) -> io::Result<()> {
    keep_alive(&socket)?;
    pass_on_freely(&socket)
}

/// Sets what a socket needs that waits for long, and then becomes an endpoint's, which sets the rest.
pub(crate) fn tune_waiting(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    keep_alive(&socket)
}

fn keep_alive(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 2);
    #[cfg(target_os = "linux")]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}

fn pass_on_freely(socket: &SockRef<'_>) -> io::Result<()> {
    // Accepted sockets inherit a path's limit, which would have us woken for each few packets. Without it the
    // kernel takes twice what is under way.
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(0)?;
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
    Ok(())
}

/// What is under way between two sockets.
#[derive(Default)]
pub struct Underway {
    /// From the one to the other.
    pub there: Direction,
    /// From the other to the one.
    pub back: Direction,
}

/// What is under way in one direction.
#[derive(Default)]
pub struct Direction {
    rest: Rest,
    way: Way,
    has_ended: bool,
    /// Waits for its turn, where there is a limit.
    pause: Option<Pause>,
}

impl Direction {
    /// Begins with bytes that were read already, or at the end.
    pub fn going_on(waiting: Vec<u8>, has_ended: bool) -> Self {
        Self { rest: Rest::Bytes { bytes: waiting, written: 0 }, has_ended, ..Self::default() }
    }

    /// The bytes that were read and not written, and whether the end was passed on.
    ///
    /// # Errors
    /// When they cannot be had back from the system.
    pub fn into_parts(self) -> io::Result<(Vec<u8>, bool)> {
        Ok((self.rest.into_bytes()?, self.has_ended))
    }

    /// Writes what was read. Cancel-safe.
    ///
    /// # Errors
    /// When the socket breaks.
    pub async fn flush(&mut self, to: &TcpStream) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx, to)).await
    }

    /// Writes as much of what was read as the socket takes now. Returns whether that is all.
    ///
    /// # Errors
    /// When the socket breaks.
    pub(crate) fn try_flush(&mut self, to: &TcpStream) -> io::Result<bool> {
        match self.rest.write(to) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(self.rest.is_empty()),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            ready!(to.poll_write_ready(cx))?;
            match self.rest.write(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
        std::mem::take(&mut self.rest).done();
        Poll::Ready(Ok(()))
    }

    /// Passes on what there is. Ready when the end was passed on.
    fn poll_pass_on(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        meter: &Meter<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(cx, to))?;
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            ready!(from.poll_read_ready(cx))?;
            ready!(meter.poll_turn(&mut self.pause, cx));
            match self.way.pass_on(from, to) {
                Ok((0, _)) => {
                    SockRef::from(to).shutdown(Shutdown::Write)?;
                    self.has_ended = true;
                }
                Ok((count, rest)) => {
                    self.rest = rest;
                    meter.passed(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Passes bytes on in both directions; an end of one direction is passed on as such. `meter` counts. Cancel-safe: what
/// is under way is in `underway`.
///
/// # Errors
/// When either breaks, or is idle for long after the other direction has ended.
pub async fn splice(
    one: &TcpStream,
    other: &TcpStream,
    underway: &mut Underway,
    meter: &Meter<'_>,
) -> io::Result<()> {
    let Underway { there, back } = underway;
    let (mut idle, mut back_first) = (Idle::default(), false);
    // By hand: one future for both directions, without one for each wait in it.
    poll_fn(|cx| {
        // Each goes first in turn: the runtime lets a task do so much at a time, which one could use up.
        back_first = !back_first;
        let (is_there, is_back) = if back_first {
            let is_back = back.poll_pass_on(cx, other, one, meter)?;
            (there.poll_pass_on(cx, one, other, meter)?, is_back)
        } else {
            let is_there = there.poll_pass_on(cx, one, other, meter)?;
            (is_there, back.poll_pass_on(cx, other, one, meter)?)
        };
        match (is_there, is_back) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            (Poll::Pending, Poll::Ready(())) => idle.poll(cx, there, meter),
            (Poll::Ready(()), Poll::Pending) => idle.poll(cx, back, meter),
        }
    })
    .await
}

/// How long one direction has been idle since the other one ended.
#[derive(Default)]
struct Idle {
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes that had been passed on when it was set.
    passed: u64,
}

impl Idle {
    /// Ready when it was idle for too long.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        direction: &Direction,
        meter: &Meter<'_>,
    ) -> Poll<io::Result<()>> {
        if !direction.rest.is_empty() || direction.pause.is_some() {
            // It waits for the one who takes it, whom the kernel watches, or for its turn.
            self.limit = None;
            return Poll::Pending;
        }
        let passed = meter.count();
        if passed != self.passed {
            (self.passed, self.limit) = (passed, None);
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// How the next bytes are passed on.
#[derive(Default)]
enum Way {
    /// Through this process.
    #[default]
    Copy,
    /// Through a pipe.
    #[cfg(target_os = "linux")]
    Splice,
    /// Through this process, whatever comes: the socket can't be spliced.
    #[cfg(target_os = "linux")]
    Plain,
}

impl Way {
    /// Reads once, and writes as much of it as `to` takes now. Returns how much was read, and what was not taken.
    fn pass_on(&mut self, from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
        #[cfg(target_os = "linux")]
        if let Self::Splice = self
            && let Some(pipe) = Pipe::take()
        {
            match splice_on(pipe, from, to) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => *self = Self::Plain,
                passed => {
                    if passed.as_ref().is_ok_and(|(count, _)| *count < BULK) {
                        *self = Self::Copy;
                    }
                    return passed;
                }
            }
        }
        let passed = copy_on(from, to)?;
        #[cfg(target_os = "linux")]
        if let Self::Copy = self
            && passed.0 >= BULK
        {
            *self = Self::Splice;
        }
        Ok(passed)
    }
}

/// What was read and not written yet.
enum Rest {
    Bytes {
        bytes: Vec<u8>,
        written: usize,
    },
    #[cfg(target_os = "linux")]
    Pipe(Pipe),
}

impl Default for Rest {
    fn default() -> Self {
        Self::Bytes { bytes: Vec::new(), written: 0 }
    }
}

impl Rest {
    fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes { mut bytes, written } => Ok(bytes.split_off(written)),
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.into_bytes(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Bytes { bytes, written } => *written == bytes.len(),
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.is_empty(),
        }
    }

    /// Writes as much of it as `to` takes now.
    fn write(&mut self, to: &TcpStream) -> io::Result<()> {
        match self {
            Self::Bytes { bytes, written } => *written += to.try_write(&bytes[*written..])?,
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.drain(to)?,
        }
        Ok(())
    }

    /// Lets others have what it took to keep it.
    fn done(self) {
        #[cfg(target_os = "linux")]
        if let Self::Pipe(pipe) = self {
            pipe.give_back();
        }
    }
}

/// Reads once. A read that finds less than it could take has had all that there is: the runtime is told so,
/// as by one that would block, or it would have us ask once more for nothing.
fn read(from: &TcpStream, piece: &mut [u8]) -> io::Result<usize> {
    let mut short = None;
    let result = from.try_io(Interest::READABLE, || {
        // Not read(2), whose way through the kernel is longer.
        let (count, _) = rustix::net::recv(from, &mut *piece, RecvFlags::empty())?;
        if (1..piece.len()).contains(&count) {
            short = Some(count);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    });
    short.map_or(result, Ok)
}

fn copy_on(from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
    PIECE.with_borrow_mut(|piece| {
        let count = read(from, piece)?;
        let written = match to.try_write(&piece[..count]) {
            _ if count == 0 => 0,
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok((count, Rest::Bytes { bytes: piece[written..count].to_vec(), written: 0 }))
    })
}

#[cfg(target_os = "linux")]
fn splice_on(mut pipe: Pipe, from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
    let count = match pipe.fill(from) {
        Ok(count) => count,
        Err(error) => {
            pipe.give_back();
            return Err(error);
        }
    };
    match pipe.drain(to) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok((count, Rest::Pipe(pipe))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
