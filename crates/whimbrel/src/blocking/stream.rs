//! A stream that is used like [`std::net::TcpStream`].

use std::fmt;
use std::future::Future as _;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use whimbrel_base::{EndpointId, Name};
use whimbrel_transport::{self as transport, CloseCode, Connection};

use super::runtime;
use super::wait::{Turns, block};

/// How long a drop waits for the peer to have everything, unless [told otherwise](Stream::set_linger).
pub const DEFAULT_LINGER: Duration = Duration::from_secs(10);

/// How long a drop waits for the peer to confirm the connection's end, when all else is done: some round
/// trips, within these bounds.
const GOODBYE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// What was read is acknowledged within this. A process that ends sooner would leave the peer waiting for it.
const ACKNOWLEDGED: Duration = Duration::from_millis(40);

/// A stream to a peer, over whatever way leads there. See the [module](super) for what is different from
/// [`std::net::TcpStream`].
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    stream: transport::Stream,
    local_id: EndpointId,
    /// The connection is this stream's own, and ends with it.
    dialled: bool,
    reading: Turns,
    writing: Turns,
    /// Whoever waits to read, to be told of a shutdown.
    reader: Mutex<Option<Waker>>,
    read_shut: AtomicBool,
    write_shut: AtomicBool,
    /// When something, or the end, was last read.
    last_read: Mutex<Option<Instant>>,
    options: Mutex<Options>,
}

#[derive(Clone, Copy)]
struct Options {
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    linger: Option<Duration>,
}

impl Stream {
    pub(super) fn dialled(stream: transport::Stream, local_id: EndpointId) -> Self {
        Self::new(stream, local_id, true)
    }

    pub(super) fn accepted(stream: transport::Stream, local_id: EndpointId) -> Self {
        Self::new(stream, local_id, false)
    }

    fn new(stream: transport::Stream, local_id: EndpointId, dialled: bool) -> Self {
        let options = Options { read_timeout: None, write_timeout: None, linger: Some(DEFAULT_LINGER) };
        let inner = Inner {
            stream,
            local_id,
            dialled,
            reading: Turns::default(),
            writing: Turns::default(),
            reader: Mutex::new(None),
            read_shut: AtomicBool::new(false),
            write_shut: AtomicBool::new(false),
            last_read: Mutex::new(None),
            options: Mutex::new(options),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Another handle to the same stream: what one reads, the other doesn't; timeouts and shutdowns are for
    /// both.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { inner: self.inner.clone() })
    }

    /// Ends one direction, or both, of all handles, at once and without waiting.
    ///
    /// After `Write` the peer reads what was written, and then the end. After `Read` reads give 0, and the
    /// peer's writes fail. Ending what has ended does nothing.
    ///
    /// # Errors
    /// `NotConnected` when the connection is over.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let inner = &self.inner;
        if matches!(how, Shutdown::Read | Shutdown::Both) && !inner.read_shut.swap(true, Ordering::AcqRel) {
            inner.stream.stop(CloseCode::NONE);
            let reader = inner.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) && !inner.write_shut.swap(true, Ordering::AcqRel) {
            inner.stream.finish().map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error))?;
        }
        Ok(())
    }

    /// How long a read waits; `None`, the default, is for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero, as in `std`.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.options().read_timeout = not_zero(timeout)?;
        Ok(())
    }

    /// How long a write waits; `None`, the default, is for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero, as in `std`.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.options().write_timeout = not_zero(timeout)?;
        Ok(())
    }

    /// How long a read waits.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.options().read_timeout)
    }

    /// How long a write waits.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.options().write_timeout)
    }

    /// How long the drop of the last handle waits for the peer to have everything that was written:
    /// [`DEFAULT_LINGER`] at first. With `None` it does not wait; what was written is still sent while the
    /// process lives.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.inner.options().linger = linger;
        Ok(())
    }

    /// How long the drop of the last handle waits.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.inner.options().linger)
    }

    /// Ends the sending direction, and waits until the peer has everything that was written, for at most
    /// `limit`. Other handles can still read.
    ///
    /// # Errors
    /// `TimedOut` after `limit`; what is left is still sent while the process lives. When the connection ends
    /// before, its error.
    pub fn close(self, limit: Duration) -> io::Result<()> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the peer does not have everything yet");
        self.shutdown(Shutdown::Write)?;
        self.inner.wait_drained(Instant::now() + limit).unwrap_or_else(|| Err(late()))?;
        self.inner.wait_acknowledged(limit);
        Ok(())
    }

    /// The peer's identity, proved by its key.
    pub fn peer_id(&self) -> EndpointId {
        self.inner.stream.peer_id()
    }

    /// The name that was connected to; on the accepting side the one that the peer asked for.
    pub fn peer_name(&self) -> Option<Name> {
        self.inner.stream.peer_name().cloned()
    }

    /// Who this side is.
    pub fn local_id(&self) -> EndpointId {
        self.inner.local_id
    }

    /// The connection underneath, for its counters and events.
    pub fn connection(&self) -> Connection {
        self.inner.stream.connection()
    }
}

fn not_zero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    if timeout == Some(Duration::ZERO) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
    }
    Ok(timeout)
}

fn timed_out() -> io::Error {
    // As the kernels do it.
    let kind = if cfg!(windows) { io::ErrorKind::TimedOut } else { io::ErrorKind::WouldBlock };
    io::Error::new(kind, "nothing happened within the timeout")
}

impl Inner {
    fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let deadline = self.options().read_timeout.map(|timeout| Instant::now() + timeout);
        let _turn = self.reading.take(deadline).ok_or_else(timed_out)?;
        let read = block(deadline, |cx| {
            // Before the flag is looked at, so that a shutdown in between is not missed.
            *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            if self.read_shut.load(Ordering::Acquire) {
                return Poll::Ready(Ok(0));
            }
            self.stream.poll_read_bytes(cx, buf)
        });
        if read.is_some() {
            *self.last_read.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        read.unwrap_or_else(|| Err(timed_out()))
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        if self.write_shut.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "this direction was shut down"));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let deadline = self.options().write_timeout.map(|timeout| Instant::now() + timeout);
        let _turn = self.writing.take(deadline).ok_or_else(timed_out)?;
        let written = block(deadline, |cx| self.stream.poll_write_bytes(cx, buf));
        written.unwrap_or_else(|| Err(timed_out())).map_err(|error| self.write_error(error))
    }

    /// A peer that has left in order is, to a writer, a broken pipe, as with TCP.
    fn write_error(&self, error: io::Error) -> io::Error {
        let left = match error.kind() {
            io::ErrorKind::NotConnected => true,
            io::ErrorKind::ConnectionAborted => {
                let reason = self.stream.connection().close_reason();
                reason.is_some_and(|reason| reason.code == CloseCode::NONE)
            }
            _ => false,
        };
        if left { io::Error::new(io::ErrorKind::BrokenPipe, error) } else { error }
    }

    /// Waits until the peer has everything; `None` if it doesn't in time.
    fn wait_drained(&self, deadline: Instant) -> Option<io::Result<()>> {
        let _turn = self.writing.take(Some(deadline))?;
        let mut drained = Box::pin(self.stream.drained());
        block(Some(deadline), |cx| drained.as_mut().poll(cx))
    }

    /// Waits until what was read has been acknowledged, or the peer has left. The connection is the peer's to
    /// end.
    fn wait_acknowledged(&self, linger: Duration) {
        let last_read = *self.last_read.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(deadline) = last_read.map(|read| read + ACKNOWLEDGED.min(linger)) else { return };
        let connection = self.stream.connection();
        let mut closed = Box::pin(connection.closed());
        block(Some(deadline), |cx| closed.as_mut().poll(cx));
    }

    /// Ends the connection, and gives the peer a moment to hear of it: otherwise, if the process ends now, it
    /// would keep the connection in case we come back.
    fn say_goodbye(&self, linger: Duration) {
        let connection = self.stream.connection();
        let stats = connection.stats();
        let away = stats.unreachable.is_some();
        let srtt = stats.paths.first().map(|path| path.srtt).filter(|_| !away);
        let patience = srtt.map_or(Duration::ZERO, |srtt| (srtt * 4).clamp(GOODBYE.0, GOODBYE.1).min(linger));
        // Goes on by itself if it takes longer.
        let _ = runtime::run(async move { connection.close(CloseCode::NONE, "", patience).await });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Fails when the stream is over, and then there is nothing to wait for.
        let _ = self.stream.finish();
        let linger = self.options().linger;
        let Some(linger) = linger.filter(|_| !std::thread::panicking()) else { return };
        // A failure can't be told here; `close` tells.
        let drained = self.wait_drained(Instant::now() + linger);
        if !matches!(drained, Some(Ok(()))) {
            return;
        }
        if self.dialled {
            self.say_goodbye(linger);
        } else {
            self.wait_acknowledged(linger);
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buf)
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buf)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.inner.write(buf)
    }

    /// Does nothing: what is written leaves on its own, as with TCP.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.inner.write(buf)
    }

    /// Does nothing: what is written leaves on its own, as with TCP.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("peer", &self.peer_id())
            .field("name", &self.inner.stream.peer_name())
            .finish_non_exhaustive()
    }
}
