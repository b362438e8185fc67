//! The `tcp` carrier (and `mptcp`, which differs in its socket only): a socket, its TLS channel, and
//! nothing that waits.

mod incoming;
mod pace;
mod socket;

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use whimbrel_proto::{PathId, segment};

use self::incoming::Incoming;
use self::pace::Pace;
pub(crate) use self::socket::{hands_on, kind_of, spread, stream_socket, tune};
use super::sys::{has_unacknowledged, tcp_stats};
use super::{CarrierKind, CarrierStats, Extent, Flow, Next, PathError, Segments, Worked, lock, try_lock};
use crate::locked::asks_the_kernel;
use crate::tls::{Records, Sealer, TlsChannel, TlsError};

thread_local! {
    /// Lent to whichever path is being written, so that idle ones hold no buffer.
    static WRITE_MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SEGMENT: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(segment::MAX_SEGMENT));
}

/// One path's socket and channel.
///
/// Each lock is for one thing only. Once the handshake is over, the two directions share none: the opener is
/// part of `incoming` then, the sealer of `outgoing`, and `tls` is not needed any more. Whoever holds
/// `incoming` or `outgoing` may take `tls`, never the other way round.
pub(crate) struct TcpCarrier {
    id: PathId,
    pub(crate) kind: CarrierKind,
    socket: TcpStream,
    tls: Mutex<TlsChannel>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    /// The socket took no more, and nobody has tried since.
    blocked: AtomicBool,
    /// The TLS channel may have something to say of its own, and nobody has written since.
    owes: AtomicBool,
    /// The last read ended the handshake.
    fresh: AtomicBool,
    /// When the kernel said that it had heard that nobody is reached at the other end, if nothing was
    /// acknowledged since.
    refused: Mutex<Option<Instant>>,
}

/// What the socket did not take yet. The lock keeps records in order.
#[derive(Default)]
struct Outgoing {
    /// Seals records, once the handshake is over.
    sealer: Option<Sealer>,
    records: Records,
    /// Bytes written since the kernel was asked how many it holds unsent.
    unasked: usize,
    pace: Pace,
    /// Nothing may follow: close_notify was queued.
    ended: bool,
}

/// Whether it is what a host or router has said: no port, host or network, or prohibited. (It may be this
/// host, which has no route any more.)
fn is_refusal(error: &io::Error) -> bool {
    let errors = [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::ACCESS];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether it is what ends a connection.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut)
}

impl Outgoing {
    /// From here on records are sealed here, behind those that the channel made.
    fn adopt(&mut self, sealer: Sealer, tls: &mut TlsChannel) {
        self.records.take(tls.outgoing());
        self.sealer = Some(sealer);
    }

    /// Queues an alert, if there is a sealer. One that cannot be sealed goes unsaid.
    fn say(&mut self, alert: impl FnOnce(&mut Sealer, &mut Vec<u8>) -> Result<(), TlsError>) {
        if let Some(sealer) = &mut self.sealer {
            let _ = self.records.append(|out| alert(sealer, out));
        }
    }
}

impl TcpCarrier {
    /// `ciphertext` was read from the socket already and not decrypted.
    pub(crate) fn new(
        id: PathId,
        kind: CarrierKind,
        socket: TcpStream,
        tls: TlsChannel,
        ciphertext: Vec<u8>,
    ) -> Self {
        Self {
            id,
            kind,
            socket,
            tls: Mutex::new(tls),
            incoming: Mutex::new(Incoming::new(ciphertext)),
            outgoing: Mutex::default(),
            blocked: AtomicBool::new(false),
            owes: AtomicBool::new(true),
            fresh: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// Reads and writes once, as far as the socket goes, and registers for what it does not give now.
    pub(crate) fn drive(&self, engine: &impl Segments, cx: &mut Context<'_>) -> Result<Worked, PathError> {
        let mut worked = Worked::default();
        let mut has_segment = None;
        while let Poll::Ready(ready) = self.socket.poll_read_ready(cx) {
            ready?;
            worked.read = true;
            let came = self.read(engine)?;
            has_segment = came.has_segment;
            // A read that finds less than it could take clears the readiness; asking again then
            // registers for more.
            if came.flow == Flow::More {
                worked.again = true;
                break;
            }
        }
        // The end of the handshake leaves together with what the application says now that it is over.
        if self.fresh.swap(false, Ordering::Relaxed) {
            worked.after_others = true;
            return Ok(worked);
        }
        // A full socket will tell when it takes more; asking it meanwhile is a system call for nothing.
        if self.is_blocked() && self.socket.poll_write_ready(cx).is_pending() {
            return Ok(worked);
        }
        let has_segment = || has_segment.unwrap_or_else(|| engine.has_segment(self.id));
        if !self.is_blocked() && !self.owes.load(Ordering::Relaxed) && !has_segment() {
            return Ok(worked);
        }
        if self.flush(engine)? == Flow::Blocked
            && let Poll::Ready(ready) = self.socket.poll_write_ready(cx)
        {
            ready?;
            worked.again = true;
        }
        Ok(worked)
    }

    /// Hands plaintext that arrived with the path's first flight to the engine.
    pub(crate) fn feed(&self, engine: &impl Segments, plaintext: &[u8]) -> Result<(), PathError> {
        let now = Instant::now();
        let take = |segment: &[u8]| engine.take_segment(now, self.id, segment);
        let result = lock(&self.incoming).feed(plaintext, take);
        engine.announce();
        result
    }

    /// The socket took no more when it was last written to: not worth trying until it says so.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Writes what waits, for as long as the socket takes it. `None` if another thread is at it. `now`: the
    /// clock was looked at just now.
    pub(crate) fn try_flush(
        &self,
        engine: &impl Segments,
        now: Option<Instant>,
    ) -> Option<Result<Flow, PathError>> {
        let mut outgoing = try_lock(&self.outgoing)?;
        self.flush_locked(&mut outgoing, engine, now, || try_lock(&self.tls))
    }

    /// Writes what waits, for as long as the socket takes it.
    pub(crate) fn flush(&self, engine: &impl Segments) -> Result<Flow, PathError> {
        let mut outgoing = lock(&self.outgoing);
        // A lock that is waited for is always had.
        self.flush_locked(&mut outgoing, engine, None, || Some(lock(&self.tls))).unwrap_or(Ok(Flow::More))
    }

    fn flush_locked<'a>(
        &'a self,
        outgoing: &mut Outgoing,
        engine: &impl Segments,
        now: Option<Instant>,
        tls: impl Fn() -> Option<MutexGuard<'a, TlsChannel>>,
    ) -> Option<Result<Flow, PathError>> {
        self.blocked.store(false, Ordering::Relaxed);
        self.owes.store(false, Ordering::Relaxed);
        let result = self.flush_all(outgoing, engine, now, tls);
        match &result {
            Some(Ok(Flow::Blocked)) => self.blocked.store(true, Ordering::Relaxed),
            Some(Ok(_)) => {}
            // Whoever comes next shall try again, and meet the error.
            Some(Err(_)) | None => self.owes.store(true, Ordering::Relaxed),
        }
        result
    }

    fn flush_all<'a>(
        &'a self,
        outgoing: &mut Outgoing,
        engine: &impl Segments,
        mut known: Option<Instant>,
        tls: impl Fn() -> Option<MutexGuard<'a, TlsChannel>>,
    ) -> Option<Result<Flow, PathError>> {
        loop {
            // Good for what leaves at once, not for what follows a write to the socket.
            let now = known.take().unwrap_or_else(Instant::now);
            if !self.kernel_has_room(outgoing, now) {
                return Some(Ok(Flow::Blocked));
            }
            // What a full socket left comes first.
            let mut batch = Flow::More;
            if outgoing.records.waiting().is_empty() && !outgoing.ended {
                match self.protect_batch(outgoing, engine, &tls, now)? {
                    Ok(flow) => batch = flow,
                    Err(error) => return Some(Err(error)),
                }
            }
            match self.write_out(outgoing) {
                Ok(Flow::Blocked) => return Some(Ok(Flow::Blocked)),
                Err(error) => return Some(Err(error)),
                _ if outgoing.ended || batch == Flow::Idle => return Some(Ok(Flow::Idle)),
                _ => {}
            }
        }
    }

    fn write_out(&self, outgoing: &mut Outgoing) -> Result<Flow, PathError> {
        let records = &mut outgoing.records;
        while !records.waiting().is_empty() {
            match self.socket.try_write(records.waiting()) {
                Ok(n) => {
                    records.wrote(n);
                    outgoing.unasked += n;
                    outgoing.pace.written += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outgoing.pace.full = true;
                    return Ok(Flow::Blocked);
                }
                Err(error) => return Err(error.into()),
            }
        }
        WRITE_MEMORY.with_borrow_mut(|memory| records.reclaim(memory));
        Ok(Flow::Idle)
    }

    /// Whether the kernel's unsent queue is short. Asking costs a system call: only when enough was
    /// written since to matter.
    fn kernel_has_room(&self, outgoing: &mut Outgoing, now: Instant) -> bool {
        if let Some(limit) = outgoing.pace.changed_limit(now) {
            // The limit of before does too, only not as well.
            #[cfg(target_os = "linux")]
            let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(limit);
            #[cfg(not(target_os = "linux"))]
            let _ = limit;
        }
        if outgoing.unasked >= outgoing.pace.limit as usize / 4 {
            if !self.kernel_wants_more() {
                outgoing.pace.full = true;
                return false;
            }
            outgoing.unasked = 0;
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

    /// Takes segments from the engine and protects them, one record each. `Idle` if that was all.
    fn protect_batch<'a>(
        &'a self,
        outgoing: &mut Outgoing,
        engine: &impl Segments,
        tls: impl Fn() -> Option<MutexGuard<'a, TlsChannel>>,
        now: Instant,
    ) -> Option<Result<Flow, PathError>> {
        if outgoing.sealer.is_none() {
            let mut tls = tls()?;
            let Some(sealer) = tls.take_sealer() else {
                let batch = outgoing.pace.batch();
                return Some(self.encrypt_batch(&mut tls, &mut outgoing.records, engine, batch, now));
            };
            outgoing.adopt(sealer, &mut tls);
        }
        let Outgoing { sealer, records, pace, .. } = outgoing;
        sealer.as_mut().map(|sealer| self.seal_batch(sealer, records, engine, pace.batch(), now))
    }

    /// Has the engine write segments to where their records shall be, and seals them there.
    fn seal_batch(
        &self,
        sealer: &mut Sealer,
        records: &mut Records,
        engine: &impl Segments,
        batch: usize,
        now: Instant,
    ) -> Result<Flow, PathError> {
        WRITE_MEMORY.with_borrow_mut(|memory| records.lend(memory));
        let mut flow = Flow::More;
        while flow == Flow::More && records.waiting().len() < batch {
            let before = records.waiting().len();
            let segment = |out: &mut Vec<u8>| engine.next_segment(now, self.id, out);
            let next = records.append(|out| sealer.record(out, segment))?;
            // A short segment took all that waited: asking for another is no use. Or the path is slow, and
            // should not be given too much at once.
            let short = records.waiting().len() - before < segment::MAX_SEGMENT / 2;
            match next {
                Next::Nothing => flow = Flow::Idle,
                Next::Last if short => flow = Flow::Idle,
                Next::AndMore if short => break,
                Next::Last | Next::AndMore => {}
            }
        }
        WRITE_MEMORY.with_borrow_mut(|memory| records.reclaim(memory));
        Ok(flow)
    }

    /// Takes segments from the engine and encrypts them, one record each, behind what the TLS
    /// channel has to say itself: a first flight leaves in one piece, be it ClientHello and early
    /// data or the server's handshake and its answer. `Idle` if that was all.
    fn encrypt_batch(
        &self,
        tls: &mut TlsChannel,
        records: &mut Records,
        engine: &impl Segments,
        batch: usize,
        now: Instant,
    ) -> Result<Flow, PathError> {
        WRITE_MEMORY.with_borrow_mut(|memory| tls.outgoing().lend(memory));
        let flow = SEGMENT.with_borrow_mut(|plain| {
            while tls.outgoing().waiting().len() < batch {
                plain.clear();
                // The engine keeps within the early limit that it was given.
                let may_send = tls.is_open() || tls.early_room() > 0;
                let next = if may_send { engine.next_segment(now, self.id, plain) } else { Next::Nothing };
                if next == Next::Nothing {
                    return Ok(Flow::Idle);
                }
                if tls.is_open() {
                    // What follows a short segment, such as the addresses behind an ACCEPT, leaves with it.
                    tls.encrypt(plain)?;
                } else {
                    tls.encrypt_early(plain)?;
                }
            }
            Ok(Flow::More)
        });
        records.take(tls.outgoing());
        WRITE_MEMORY.with_borrow_mut(|memory| records.reclaim(memory));
        flow
    }

    /// Queues the end of the TLS channel and of the TCP stream behind everything written.
    pub(crate) fn end(&self) {
        let mut outgoing = lock(&self.outgoing);
        if !outgoing.ended {
            outgoing.ended = true;
            if outgoing.sealer.is_none() {
                let mut tls = lock(&self.tls);
                match tls.take_sealer() {
                    Some(sealer) => outgoing.adopt(sealer, &mut tls),
                    None => {
                        if tls.is_open() {
                            tls.close();
                        }
                        outgoing.records.take(tls.outgoing());
                    }
                }
            }
            outgoing.say(Sealer::close);
            let _ = self.write_out(&mut outgoing);
            let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write);
        }
    }

    /// Tells the peer why its records are not taken, if the socket takes that now.
    fn refuse(&self, why: &TlsError) {
        if let Some(mut outgoing) = try_lock(&self.outgoing).filter(|outgoing| !outgoing.ended) {
            outgoing.say(|sealer, out| sealer.refuse(out, why));
            outgoing.ended = true;
            let _ = self.write_out(&mut outgoing);
        }
    }

    /// The peer's kernel has yet to acknowledge something.
    pub(crate) fn is_unheard(&self) -> bool {
        has_unacknowledged(&self.socket).unwrap_or(false)
    }

    /// Asks the kernel what it has heard of a path that is silent, which it keeps to itself until it gives up
    /// (ICMP; of MPTCP it tells nothing). The last acknowledgement came so long ago.
    ///
    /// Returns the error that has ended the connection, if one has. It is told once: whoever reads now comes
    /// to the end of what has arrived, and does not learn why.
    pub(crate) fn ask_of_silence(&self, now: Instant, since_ack: Option<Duration>) -> Option<PathError> {
        asks_the_kernel();
        let error = self.socket.take_error().ok().flatten();
        let mut refused = lock(&self.refused);
        if error.as_ref().is_some_and(is_refusal) {
            *refused = Some(now);
        } else if since_ack.and_then(|ago| now.checked_sub(ago)) > *refused {
            *refused = None;
        }
        drop(refused);
        // What is kept until the kernel gives up is its reason then.
        error.filter(|error| is_end(error) || self.is_over()).map(PathError::Io)
    }

    /// Nothing comes or goes any more.
    fn is_over(&self) -> bool {
        asks_the_kernel();
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// That nobody is reached at the other end was heard when the path fell silent.
    pub(crate) fn is_refused(&self) -> bool {
        lock(&self.refused).is_some()
    }

    /// `TCP_INFO`; of MPTCP's first subflow.
    pub(crate) fn stats(&self, extent: Extent) -> Option<CarrierStats> {
        tcp_stats(&self.socket, extent).ok()
    }
}
