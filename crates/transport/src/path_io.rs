//! The `tcp` carrier of one path: a socket, its TLS channel, and nothing that waits.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use whimbrel_proto::{PathId, segment};

use crate::shared::Shared;
use crate::sys::{TcpStats, tcp_stats};
use crate::tls::{TlsChannel, TlsError};

/// Room for one read: many records at once.
const READ_SIZE: usize = 256 * 1024;
/// Encrypt so much before writing.
const WRITE_BATCH: usize = 128 * 1024;
/// The kernel should not hold more unsent bytes than this: they are stuck if the path dies.
const UNSENT_LIMIT: u32 = 128 * 1024;
/// The kernel gives a connection up that acknowledges nothing for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(120);

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
    /// Lent to whichever path is being written, so that idle ones hold no buffer.
    static WRITE_MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SEGMENT: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(segment::MAX_SEGMENT));
}

/// Sets what every path's socket needs.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_notsent_lowat(UNSENT_LIMIT)?;
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    }
    Ok(())
}

/// Why a path ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the peer closed it")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the peer broke the protocol")]
    Protocol,
}

/// Where reading or writing stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// There may be more to do right away.
    More,
    /// Nothing more to do.
    Idle,
    /// The socket is not ready.
    Blocked,
}

/// One path.
pub(crate) struct PathIo {
    pub(crate) id: PathId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) since: Instant,
    pub(crate) socket: TcpStream,
    io: Mutex<Io>,
}

struct Io {
    tls: TlsChannel,
    /// An incomplete record.
    ciphertext: Vec<u8>,
    /// An incomplete segment.
    plaintext: Vec<u8>,
    /// Bytes written since the kernel was asked how many it holds unsent.
    unasked: usize,
    /// Nothing was written by us yet.
    fresh: bool,
    /// Nothing may follow: close_notify was queued.
    ended: bool,
}

impl PathIo {
    pub(crate) fn new(
        id: PathId,
        socket: TcpStream,
        tls: TlsChannel,
        ciphertext: Vec<u8>,
    ) -> io::Result<Self> {
        Ok(Self {
            id,
            local: canonical(socket.local_addr()?),
            remote: canonical(socket.peer_addr()?),
            since: Instant::now(),
            socket,
            io: Mutex::new(Io {
                tls,
                ciphertext,
                plaintext: Vec::new(),
                unasked: 0,
                fresh: true,
                ended: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Io> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands plaintext that arrived with the path's first flight to the engine.
    pub(crate) fn feed(&self, shared: &Shared, plaintext: &[u8]) -> Result<(), PathError> {
        let mut io = self.lock();
        let result = assemble(&mut io.plaintext, plaintext, |segment| shared.take_segment(self.id, segment));
        shared.announce();
        result
    }

    /// Reads once, and hands whole segments to the engine.
    pub(crate) fn read(&self, shared: &Shared) -> Result<Flow, PathError> {
        let result = READ_BUFFER.with_borrow_mut(|buffer| self.read_into(buffer, shared));
        shared.announce();
        result
    }

    fn read_into(&self, buffer: &mut [u8], shared: &Shared) -> Result<Flow, PathError> {
        let mut io = self.lock();
        let held = io.ciphertext.len();
        buffer[..held].copy_from_slice(&io.ciphertext);
        let (n, flow) = match self.read_socket(&mut buffer[held..])? {
            Some((0, _)) => return Err(PathError::Closed),
            Some(read) => read,
            None => return Ok(Flow::Blocked),
        };
        let end = held + n;
        let Io { tls, plaintext, ciphertext, .. } = &mut *io;
        let mut result = Ok(());
        let used = tls.receive(&mut buffer[..end], &mut |plain| {
            if result.is_ok() {
                result = assemble(plaintext, plain, |segment| shared.take_segment(self.id, segment));
            }
        })?;
        result?;
        ciphertext.clear();
        ciphertext.extend_from_slice(&buffer[used..end]);
        if ciphertext.is_empty() {
            *ciphertext = Vec::new();
        }
        if ciphertext.len() >= READ_SIZE / 2 {
            return Err(TlsError::Internal("record without end").into());
        }
        Ok(flow)
    }

    /// Reads once; `None` if nothing is there. A short read has emptied the socket: saying so to the
    /// runtime at once (as its own reads do) spares the call that would only tell that.
    fn read_socket(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Flow)>> {
        let mut short = None;
        let result = self.socket.try_io(Interest::READABLE, || {
            let n = rustix::io::read(&self.socket, &mut *buffer)?;
            if n > 0 && n < buffer.len() {
                short = Some(n);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        });
        match (result, short) {
            (_, Some(n)) => Ok(Some((n, Flow::Idle))),
            (Ok(n), None) => Ok(Some((n, Flow::More))),
            (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            (Err(error), None) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            (Err(error), None) => Err(error),
        }
    }

    /// Writes what waits, for as long as the socket takes it. `None` if another thread is at it.
    pub(crate) fn try_flush(&self, shared: &Shared) -> Option<Result<Flow, PathError>> {
        match self.io.try_lock() {
            Ok(mut io) => Some(self.flush_locked(&mut io, shared)),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(self.flush_locked(&mut poisoned.into_inner(), shared))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Writes what waits, for as long as the socket takes it.
    pub(crate) fn flush(&self, shared: &Shared) -> Result<Flow, PathError> {
        self.flush_locked(&mut self.lock(), shared)
    }

    fn flush_locked(&self, io: &mut Io, shared: &Shared) -> Result<Flow, PathError> {
        WRITE_MEMORY.with_borrow_mut(|memory| {
            io.tls.outgoing().lend(memory);
            let result = self.flush_lent(io, shared);
            io.tls.outgoing().reclaim(memory);
            result
        })
    }

    fn flush_lent(&self, io: &mut Io, shared: &Shared) -> Result<Flow, PathError> {
        loop {
            if !self.kernel_has_room(io) {
                return Ok(Flow::Blocked);
            }
            // A first flight leaves in one piece: ClientHello and early data, or the server's
            // handshake and its answer. Later on, what a full socket left comes first.
            let first = io.fresh || io.tls.outgoing().waiting().is_empty();
            if first && !io.ended {
                self.encrypt_batch(&mut io.tls, shared)?;
            }
            io.fresh = false;
            if io.tls.outgoing().waiting().is_empty() {
                return Ok(Flow::Idle);
            }
            if self.write_out(io)? == Flow::Blocked {
                return Ok(Flow::Blocked);
            }
        }
    }

    fn write_out(&self, io: &mut Io) -> Result<Flow, PathError> {
        let records = io.tls.outgoing();
        while !records.waiting().is_empty() {
            match self.socket.try_write(records.waiting()) {
                Ok(n) => {
                    records.wrote(n);
                    io.unasked += n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flow::Blocked),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Flow::Idle)
    }

    /// Whether the kernel's unsent queue is short. Asking costs a system call: only when enough was
    /// written since to matter.
    fn kernel_has_room(&self, io: &mut Io) -> bool {
        if io.unasked >= UNSENT_LIMIT as usize / 4 {
            if !self.kernel_wants_more() {
                return false;
            }
            io.unasked = 0;
        }
        true
    }

    /// Asks the kernel whether its unsent queue is short (`TCP_NOTSENT_LOWAT`). A write alone never
    /// says so; poll(2) does, and makes the kernel wake us when it has become short again.
    fn kernel_wants_more(&self) -> bool {
        let result = self.socket.try_io(Interest::WRITABLE, || {
            let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
            let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if ready == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        result.is_ok()
    }

    /// Takes segments from the engine and encrypts them, one record each.
    fn encrypt_batch(&self, tls: &mut TlsChannel, shared: &Shared) -> Result<(), PathError> {
        SEGMENT.with_borrow_mut(|plain| {
            while tls.outgoing().waiting().len() < WRITE_BATCH {
                plain.clear();
                if tls.is_open() {
                    if !shared.next_segment(self.id, plain) {
                        break;
                    }
                    tls.encrypt(plain)?;
                } else {
                    // The engine keeps within the early limit that it was given.
                    if tls.early_room() == 0 || !shared.next_segment(self.id, plain) {
                        break;
                    }
                    tls.encrypt_early(plain)?;
                }
            }
            Ok(())
        })
    }

    /// Queues the end of the TLS channel and of the TCP stream behind everything written.
    pub(crate) fn end(&self) {
        let mut io = self.lock();
        if !io.ended {
            io.ended = true;
            if io.tls.is_open() {
                io.tls.close();
            }
            let _ = self.write_out(&mut io);
            let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
        }
    }

    pub(crate) fn tcp_stats(&self) -> Option<TcpStats> {
        tcp_stats(&self.socket).ok()
    }
}

/// Joins plaintext to whole segments.
fn assemble(
    partial: &mut Vec<u8>,
    plain: &[u8],
    mut take: impl FnMut(&[u8]) -> Result<(), PathError>,
) -> Result<(), PathError> {
    if partial.is_empty() {
        let used = take_segments(plain, &mut take)?;
        partial.extend_from_slice(&plain[used..]);
    } else {
        partial.extend_from_slice(plain);
        let used = take_segments(partial, &mut take)?;
        partial.drain(..used);
        if partial.is_empty() {
            *partial = Vec::new();
        }
    }
    Ok(())
}

fn take_segments(
    mut bytes: &[u8],
    take: &mut impl FnMut(&[u8]) -> Result<(), PathError>,
) -> Result<usize, PathError> {
    let all = bytes.len();
    while let Some((body, used)) = segment::split(bytes).map_err(|_| PathError::Protocol)? {
        take(body)?;
        bytes = &bytes[used..];
    }
    Ok(all - bytes.len())
}

/// IPv4 addresses on dual-stack sockets are shown as what they are.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
