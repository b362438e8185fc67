//! The `quic` carrier: one QUIC connection a path, whose first bidirectional stream is the ordered byte
//! channel, with datagrams beside it. There are no other streams: nobody would read them.

mod bound;
mod config;
mod congestion;
mod datagrams;
mod queue;
mod rate;
mod shortest;
mod socket;
mod startup;
mod window;

use futures_util::FutureExt;
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quinn::{Connection, ReadError, RecvStream, SendStream, VarInt, WriteError, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;
use whimbrel_base::EndpointId;
use whimbrel_proto::PathId;

pub(crate) use config::{Accepting, NO_ERROR, QuicConfig};
pub(crate) use congestion::Observed;
pub use socket::{DatagramFront, Envelope, Outlet};
pub(crate) use socket::{Fronting, Heard, QuicSocket};

use self::datagrams::{Arriving, Leaving};
use self::socket::Hint;
use self::window::{FIRST_WINDOW, Window};
use super::segments::assemble;
use super::{CarrierStats, Extent, Flow, Next, PathError, Segments, Worked, lock, try_lock};

/// Room for one read.
const READ_SIZE: usize = 128 * 1024;
/// Segments handed over together, at most: what QUIC does not take waits.
const WRITE_BATCH: usize = 64 * 1024;
/// A channel whose end was written is kept until the peer has it, but no longer than this.
const LAST_WORDS: Duration = Duration::from_secs(2);

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
    static WRITE_BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(2 * WRITE_BATCH));
}

/// The streams and figures of a QUIC connection that is to be a path.
pub(crate) struct QuicChannel {
    pub(crate) connection: Connection,
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
    pub(crate) observed: Arc<Observed>,
    /// Client: the handshake is not complete; what is written is 0-RTT data.
    pub(crate) early: Option<ZeroRttAccepted>,
    /// What its socket knows of the other end, if it can.
    pub(crate) hint: Option<Hint>,
}

impl QuicChannel {
    /// Whether its socket is bound for it alone.
    pub(crate) fn has_own_socket(&self) -> bool {
        matches!(self.hint, Some(Hint::Own(_)))
    }
}

/// The peer's identity, once its key or ticket was verified.
pub(crate) fn peer(connection: &Connection) -> Option<EndpointId> {
    let keys = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    EndpointId::from_spki_der(keys.first()?).ok()
}

/// One path's QUIC connection. Whoever holds `incoming` may take `outgoing`, not the other way round.
pub(crate) struct QuicCarrier {
    id: PathId,
    connection: Connection,
    observed: Arc<Observed>,
    hint: Option<Hint>,
    /// Wakes the driver.
    waker: Mutex<Waker>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    /// Bytes that QUIC did not take when it was last written to. Beside the lock, because whoever asks may
    /// hold that of the engine, which comes after it.
    held: AtomicUsize,
    /// Bytes that the peer may have QUIC keep.
    window: AtomicU32,
}

/// What came in and is not whole yet. The lock keeps reads in order.
struct Incoming {
    recv: RecvStream,
    /// An incomplete segment.
    partial: Vec<u8>,
    window: Window,
    datagrams: Arriving,
}

/// What QUIC did not take yet. The lock keeps segments in order.
struct Outgoing {
    send: SendStream,
    waiting: Vec<u8>,
    datagrams: Leaving,
    early: Option<Early>,
    /// How many bytes QUIC may hold, as it was told last.
    window: u64,
    ended: bool,
}

/// 0-RTT data whose fate is not known: it is written again if the server does not take it.
struct Early {
    accepted: ZeroRttAccepted,
    written: Vec<u8>,
}

impl QuicCarrier {
    pub(crate) fn new(id: PathId, channel: QuicChannel) -> Self {
        let QuicChannel { connection, send, recv, observed, early, hint } = channel;
        let early = early.map(|accepted| Early { accepted, written: Vec::new() });
        Self {
            id,
            connection,
            observed,
            hint,
            waker: Mutex::new(Waker::noop().clone()),
            incoming: Mutex::new(Incoming {
                recv,
                partial: Vec::new(),
                window: Window::new(),
                datagrams: Arriving::default(),
            }),
            outgoing: Mutex::new(Outgoing {
                send,
                waiting: Vec::new(),
                datagrams: Leaving::default(),
                early,
                window: 0,
                ended: false,
            }),
            held: AtomicUsize::new(0),
            window: AtomicU32::new(FIRST_WINDOW),
        }
    }

    /// The peer's host, or somebody on the way, said last that nobody is reached there (ICMP). Of a path that
    /// was dialled anybody can say so who knows the ports.
    pub(crate) fn is_refused(&self) -> bool {
        self.hint.as_ref().is_some_and(Hint::is_refused)
    }

    /// The peer may have come from elsewhere since: what is said of that place counts from now on.
    pub(crate) fn follow_peer(&self) {
        if let Some(hint) = &self.hint {
            hint.follow(self.connection.remote_address());
        }
    }

    /// Hands what arrived with the path's first flight to the engine.
    pub(crate) fn feed(&self, engine: &impl Segments, plaintext: &[u8]) -> Result<(), PathError> {
        let result = self.take(&mut lock(&self.incoming).partial, plaintext, engine);
        engine.announce();
        result
    }

    fn take(&self, partial: &mut Vec<u8>, plaintext: &[u8], engine: &impl Segments) -> Result<(), PathError> {
        let now = Instant::now();
        assemble(partial, plaintext, |segment| engine.take_segment(now, self.id, segment))
    }

    /// Reads and writes, as far as QUIC goes, and registers for what it does not give now.
    pub(crate) fn drive(&self, engine: &impl Segments, cx: &mut Context<'_>) -> Result<Worked, PathError> {
        lock(&self.waker).clone_from(cx.waker());
        self.settle_early_data(cx)?;
        let mut worked = Worked::default();
        while let Poll::Ready(read) = READ_BUFFER.with_borrow_mut(|buffer| self.read(buffer, engine, cx)) {
            worked.read = true;
            if read? == Flow::More {
                worked.again = true;
                break;
            }
        }
        worked.read |= lock(&self.incoming).datagrams.read(&self.connection, self.id, engine, cx)?;
        if worked.read {
            engine.announce();
        }
        self.flush(engine)?;
        Ok(worked)
    }

    fn read(
        &self,
        buffer: &mut [u8],
        engine: &impl Segments,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Flow, PathError>> {
        let mut incoming = lock(&self.incoming);
        let Incoming { recv, partial, window, .. } = &mut *incoming;
        let n = match std::task::ready!(recv.poll_read(cx, buffer)) {
            Ok(0) | Err(ReadError::Reset(_)) => return Poll::Ready(Err(PathError::Closed)),
            Ok(n) => n,
            // The verdict on early data wakes us too, and gives us another stream.
            Err(ReadError::ZeroRttRejected) => return Poll::Pending,
            // QUIC forgets the stream when it hears the verdict, and tells it when the handshake is complete.
            Err(ReadError::ClosedStream) if lock(&self.outgoing).early.is_some() => return Poll::Pending,
            Err(ReadError::ConnectionLost(error)) => return Poll::Ready(Err(error.into())),
            Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead) => {
                return Poll::Ready(Err(PathError::Protocol));
            }
        };
        if let Some(larger) = window.took(n, Instant::now(), || self.connection.rtt()) {
            self.window.store(larger, Ordering::Relaxed);
            self.connection.set_receive_window(VarInt::from_u32(larger));
        }
        self.take(partial, &buffer[..n], engine)?;
        Poll::Ready(Ok(if n == buffer.len() { Flow::More } else { Flow::Idle }))
    }

    /// Once the handshake is complete: what the server did not take early is written again, before
    /// anything else, on streams that it will see.
    fn settle_early_data(&self, cx: &mut Context<'_>) -> Result<(), PathError> {
        let mut incoming = lock(&self.incoming);
        let mut outgoing = lock(&self.outgoing);
        let Some(early) = &mut outgoing.early else { return Ok(()) };
        match Pin::new(&mut early.accepted).poll(cx) {
            Poll::Pending => return Ok(()),
            Poll::Ready(true) => outgoing.early = None,
            Poll::Ready(false) => {
                let opened = std::pin::pin!(self.connection.open_bi()).poll(cx);
                let Poll::Ready(streams) = opened else { return Err(PathError::Protocol) };
                (outgoing.send, incoming.recv) = streams?;
                if let Some(Early { mut written, .. }) = outgoing.early.take() {
                    tracing::debug!(bytes = written.len(), "early data refused, sending it again");
                    written.append(&mut outgoing.waiting);
                    outgoing.waiting = written;
                }
            }
        }
        Ok(())
    }

    /// QUIC took no more when it was last written to: it wakes the driver when it does.
    pub(crate) fn is_blocked(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Bytes that QUIC holds at most, beside those that it has sent: it does not tell what it holds.
    pub(crate) fn buffered(&self) -> u64 {
        self.held.load(Ordering::Relaxed) as u64 + u64::from(self.window.load(Ordering::Relaxed))
    }

    /// Writes what waits, for as long as QUIC takes it. `None` if another thread is at it.
    pub(crate) fn try_flush(&self, engine: &impl Segments) -> Option<Result<Flow, PathError>> {
        Some(self.flush_locked(try_lock(&self.outgoing)?, engine))
    }

    /// Writes what waits, for as long as QUIC takes it.
    pub(crate) fn flush(&self, engine: &impl Segments) -> Result<Flow, PathError> {
        self.flush_locked(lock(&self.outgoing), engine)
    }

    fn flush_locked(
        &self,
        mut outgoing: MutexGuard<'_, Outgoing>,
        engine: &impl Segments,
    ) -> Result<Flow, PathError> {
        let waker = lock(&self.waker).clone();
        let mut cx = Context::from_waker(&waker);
        self.observed.set_short(engine.wants_short_queues());
        self.follow_window(&mut outgoing);
        let batch = WRITE_BATCH.min(usize::try_from(self.observed.unsent_limit()).unwrap_or(WRITE_BATCH));
        let result = WRITE_BUFFER.with_borrow_mut(|buffer| {
            loop {
                if outgoing.early.is_none() && !outgoing.ended {
                    let blocked = !outgoing.waiting.is_empty();
                    let connection = &self.connection;
                    outgoing.datagrams.send(connection, self.id, engine, blocked, buffer, &mut cx)?;
                }
                buffer.clear();
                // What QUIC did not take before comes first.
                buffer.append(&mut outgoing.waiting);
                if buffer.is_empty() && (outgoing.ended || !self.gather(buffer, batch, engine)) {
                    return Ok(Flow::Idle);
                }
                let taken = outgoing.write(buffer, &mut cx)?;
                if taken < buffer.len() {
                    outgoing.waiting = buffer[taken..].to_vec();
                    return Ok(Flow::Blocked);
                }
            }
        });
        self.held.store(outgoing.waiting.len(), Ordering::Relaxed);
        result
    }

    /// Takes segments from the engine until they fill a batch; false if it has none.
    fn gather(&self, buffer: &mut Vec<u8>, batch: usize, engine: &impl Segments) -> bool {
        let now = Instant::now();
        while buffer.len() < batch && engine.next_segment(now, self.id, buffer) != Next::Nothing {}
        !buffer.is_empty()
    }

    /// Has QUIC hold what fits in flight and a little more: what waits in it is stuck if the path dies.
    fn follow_window(&self, outgoing: &mut Outgoing) {
        let window = self.observed.send_window(Instant::now());
        // Telling it takes a lock and a thread switch.
        if window.abs_diff(outgoing.window) > outgoing.window / 8 {
            outgoing.window = window;
            self.connection.set_send_window(window);
        }
    }

    /// Queues the end of the channel behind everything written.
    pub(crate) fn end(&self) {
        let mut outgoing = lock(&self.outgoing);
        if !outgoing.ended && outgoing.send.finish().is_ok() {
            outgoing.ended = true;
            let (arrived, connection) = (outgoing.send.stopped(), self.connection.clone());
            // Dropping the connection would drop what is still on its way.
            tokio::spawn(FutureExt::boxed(async move {
                let _ = tokio::time::timeout(LAST_WORDS, arrived).await;
                drop(connection);
            }));
        }
    }

    pub(crate) fn stats(&self) -> CarrierStats {
        let path = self.connection.stats().path;
        let figures = self.observed.figures();
        CarrierStats {
            extent: Extent::EndToEnd,
            srtt: path.rtt,
            rttvar: figures.rttvar,
            cwnd: path.cwnd,
            unsent: self.held.load(Ordering::Relaxed) as u64,
            delivery_rate: figures.delivery_rate,
            lost: path.lost_packets,
            since_ack: figures.last_ack.map(|at| at.elapsed()),
            since_heard: figures.last_ack.map(|at| at.elapsed()),
            // QUIC acknowledges what is new only.
            timeouts: 0,
        }
    }
}

impl Outgoing {
    /// How many bytes QUIC took.
    fn write(&mut self, mut bytes: &[u8], cx: &mut Context<'_>) -> Result<usize, PathError> {
        let all = bytes.len();
        while !bytes.is_empty() {
            match Pin::new(&mut self.send).poll_write(cx, bytes) {
                Poll::Ready(Ok(n)) => {
                    if let Some(early) = &mut self.early {
                        early.written.extend_from_slice(&bytes[..n]);
                    }
                    bytes = &bytes[n..];
                }
                // The verdict on early data wakes the driver too, which then writes everything again.
                Poll::Pending | Poll::Ready(Err(WriteError::ZeroRttRejected)) => break,
                // As when reading: forgotten, and not yet called refused.
                Poll::Ready(Err(WriteError::ClosedStream)) if self.early.is_some() => break,
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Err(error.into()),
                Poll::Ready(Err(WriteError::Stopped(_) | WriteError::ClosedStream)) => {
                    return Err(PathError::Closed);
                }
            }
        }
        Ok(all - bytes.len())
    }
}
