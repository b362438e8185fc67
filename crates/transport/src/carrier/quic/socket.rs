//! The UDP sockets under QUIC.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};
use whimbrel_proto::notice::{MAX_NOTICE, is_notice};

use self::enveloped::Piece;
use self::places::Leading;
use self::poller::Poller;
use self::shared::Hearing;
use self::trouble::Trouble;
use crate::stun::is_stun;

mod enveloped;
mod front;
mod hint;
mod outlet;
mod places;
mod poller;
mod refusals;
mod shared;
mod spread;
mod trouble;

pub use self::enveloped::Envelope;
pub use self::front::DatagramFront;
pub(crate) use self::hint::Hint;
pub use self::outlet::Outlet;

/// Notices that wait to be read; more are lost, as datagrams are.
const NOTICE_BACKLOG: usize = 64;

/// A datagram that is a notice, and where it came from.
pub(crate) type Heard = (Vec<u8>, SocketAddr);

/// What recvmsg(2) returned.
type Received = io::Result<usize>;

/// What sees the datagrams first that come to an endpoint's sockets, once it is set.
pub(crate) type Fronting = Arc<OnceLock<Arc<dyn DatagramFront>>>;

/// A UDP socket that QUIC uses, and that can be closed under it.
pub(crate) struct QuicSocket {
    open: RwLock<Option<Arc<Open>>>,
    address: SocketAddr,
    role: Role,
    /// What the network says of many other ends, where there are many.
    hearing: Option<Arc<Hearing>>,
    /// The host at the other end said that nobody listens there (ICMP; connected sockets only).
    refused: Notify,
    /// It, or somebody on the way, said that nobody is reached there, and nothing came from there since. (Not
    /// of sockets that listen.)
    is_refused: AtomicBool,
    trouble: Mutex<Trouble>,
}

/// What a socket is for.
enum Role {
    /// One connection that is dialled.
    Dialling,
    /// All that come in. What is for the front, notices and STUN are taken out.
    Listening { notices: mpsc::Sender<Heard>, front: Fronting },
    /// Peers behind a relay. The socket may be replaced.
    Relayed { envelope: Arc<dyn Envelope>, piece: Mutex<Piece>, reader: Mutex<Option<Waker>> },
}

struct Open {
    io: UdpSocket,
    state: UdpSocketState,
    /// The only other end, if there is one.
    peer: Option<SocketAddr>,
    /// The kernel took no more when it was last asked.
    full: AtomicBool,
    /// What is heard of many other ends.
    hearing: Option<Arc<Hearing>>,
}

impl Open {
    fn new(socket: socket2::Socket, hearing: Option<Arc<Hearing>>) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = UdpSocket::from_std(socket.into())?;
        let peer = io.peer_addr().ok();
        Ok(Self { io, state, peer, full: AtomicBool::new(false), hearing })
    }

    /// Sends a datagram, if the kernel takes it now. It is lost for any other reason, but not for what is
    /// said of others at a socket that listens.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match &self.hearing {
            Some(hearing) => hearing.send(self, transmit),
            None => self.send_or_lose(transmit),
        }
    }

    /// Sends a datagram, if the kernel takes it now; it is lost for any other reason.
    fn send_or_lose(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.send_by(|| self.state.send((&self.io).into(), transmit))
    }

    /// As [`send_or_lose`](Self::send_or_lose), but tells any reason.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.send_by(|| self.state.try_send((&self.io).into(), transmit))
    }

    fn send_by(&self, send: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let result = self.io.try_io(Interest::WRITABLE, send);
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.full.store(true, Ordering::Relaxed);
        }
        result
    }

    /// What came, where that can be read without waiting.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<Received>> {
        std::task::ready!(self.io.poll_recv_ready(cx))?;
        let receive = || self.state.recv((&self.io).into(), bufs, meta);
        Poll::Ready(Ok(self.io.try_io(Interest::READABLE, receive)))
    }
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSocket").field("address", &self.address).finish_non_exhaustive()
    }
}

impl QuicSocket {
    /// For one connection that is dialled.
    pub(crate) fn dialling(socket: socket2::Socket) -> io::Result<Arc<Self>> {
        refusals::ask_for(&socket);
        Self::new(socket, Role::Dialling, None).map(Arc::new)
    }

    /// For all that come in. Notices are handed to the receiver, and what the front takes to nobody.
    pub(crate) fn listening(
        socket: socket2::Socket,
        front: Fronting,
    ) -> io::Result<(Arc<Self>, mpsc::Receiver<Heard>)> {
        let (notices, receiver) = mpsc::channel(NOTICE_BACKLOG);
        let hearing = Hearing::ask_for(&socket);
        let socket = Self::new(socket, Role::Listening { notices, front }, Some(hearing))?;
        Ok((Arc::new(socket), receiver))
    }

    /// For peers behind a relay, which the socket is connected to.
    pub(crate) fn relayed(socket: socket2::Socket, envelope: Arc<dyn Envelope>) -> io::Result<Arc<Self>> {
        let role = Role::Relayed { envelope, piece: Mutex::default(), reader: Mutex::default() };
        Self::new(socket, role, None).map(Arc::new)
    }

    fn new(socket: socket2::Socket, role: Role, hearing: Option<Arc<Hearing>>) -> io::Result<Self> {
        let open = Open::new(socket, hearing.clone())?;
        let address = open.io.local_addr()?;
        Ok(Self {
            open: RwLock::new(Some(Arc::new(open))),
            address,
            role,
            hearing,
            refused: Notify::new(),
            is_refused: AtomicBool::new(false),
            trouble: Mutex::default(),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that it sends from now.
    pub(crate) fn bound_to(&self) -> io::Result<SocketAddr> {
        self.open().ok_or(io::ErrorKind::NotConnected)?.io.local_addr()
    }

    /// Goes on with another socket, in place of this one: the same relay is at its other end.
    pub(crate) fn replace(&self, socket: socket2::Socket) -> io::Result<()> {
        let open = Arc::new(Open::new(socket, self.hearing.clone())?);
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = Some(open);
        if let Role::Relayed { reader, .. } = &self.role
            && let Some(reader) = lock(reader).take()
        {
            reader.wake();
        }
        Ok(())
    }

    /// Sends one datagram to the only other end, if the kernel takes it now.
    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self.open() {
            // The runtime takes a socket that was opened just now for full.
            Some(open) => socket2::SockRef::from(&open.io).send(datagram).map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends one datagram, if the kernel takes it now; it is lost for any other reason.
    pub(crate) fn send_to(&self, datagram: &[u8], target: SocketAddr) -> io::Result<()> {
        match self.open() {
            Some(open) => {
                let (destination, contents) = (target, datagram);
                open.send(&Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None })
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Frees the port, whoever still holds this socket. What is sent on it then is lost.
    pub(crate) fn close(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The same socket once more; `None` if it is closed.
    pub(crate) fn copy(&self) -> io::Result<Option<OwnedFd>> {
        self.open().map(|open| open.io.as_fd().try_clone_to_owned()).transpose()
    }

    /// Sends from this socket, and from `source` if it is bound to several addresses. `None` if it is closed.
    pub(crate) fn outlet(&self, source: Option<IpAddr>) -> Option<Outlet> {
        self.open().map(|open| Outlet::new(&open, self.address, source))
    }

    /// Completes when the peer's host has refused a datagram.
    pub(crate) async fn refused(&self) {
        self.refused.notified().await;
    }

    /// The peer's host has refused a datagram, or somebody on the way, and nothing came from there since.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// What this socket will know of a place that a path leads to from it.
    pub(crate) fn hint(self: &Arc<Self>, to: SocketAddr) -> Option<Hint> {
        match (&self.role, &self.hearing) {
            (Role::Dialling, _) => Some(Hint::Own(self.clone())),
            (_, hearing) => {
                let places = hearing.as_ref()?.places().clone();
                Some(Hint::Shared(Leading::new(places, to)))
            }
        }
    }

    /// Hears what the network says of what was sent to many other ends, until its task is aborted. The socket
    /// is open until then.
    pub(crate) fn heed(&self) -> impl Future<Output = ()> + Send + use<> {
        let heard = self.open().zip(self.hearing.clone());
        async move {
            if let Some((open, hearing)) = heard {
                shared::heed(open, hearing).await;
            }
        }
    }

    fn open(&self) -> Option<Arc<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Receives, and goes on after an error: those of earlier datagrams are reported here (ICMP), and anybody
    /// can send those. If there is nothing but errors, this pauses. An error of `receive` itself is final:
    /// the runtime is gone.
    fn poll_recv_with(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
        mut receive: impl FnMut(
            &mut Context<'_>,
            &mut [IoSliceMut<'_>],
            &mut [RecvMeta],
        ) -> Poll<io::Result<Received>>,
    ) -> Poll<io::Result<usize>> {
        let mut trouble = lock(&self.trouble);
        loop {
            std::task::ready!(trouble.poll_over(cx));
            let before = self.hearing.as_ref().map_or(0, |hearing| hearing.heard());
            match std::task::ready!(receive(cx, bufs, meta))? {
                Ok(count) => {
                    trouble.end();
                    self.note_senders(&meta[..count]);
                    for (buffer, meta) in bufs.iter_mut().zip(meta.iter_mut()).take(count) {
                        if !self.take_others(buffer, meta) {
                            // An empty datagram: nobody minds.
                            (meta.len, meta.stride) = (0, 1);
                        }
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if self.is_of_others(&error, before) => {}
                Err(error) => trouble.note(&error),
            }
        }
    }

    /// Something came from there.
    fn note_senders(&self, meta: &[RecvMeta]) {
        if let Some(hearing) = &self.hearing {
            meta.iter().for_each(|meta| hearing.places().hear(meta.addr));
        } else if self.is_refused() {
            self.is_refused.store(false, Ordering::Relaxed);
        }
    }

    /// Takes what receiving came to. True if that only tells what is said of some of many other ends: how
    /// much of it is heard is bounded. `before` is what was heard before.
    fn is_of_others(&self, error: &io::Error, before: u64) -> bool {
        let open = self.open();
        if let Some(hearing) = &self.hearing {
            return open.is_some_and(|open| hearing.explains(&open, before));
        }
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.refused.notify_one();
        }
        if open.is_some_and(|open| refusals::is_said_by(&open, error)) {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        false
    }

    /// Takes out of what was received what is not QUIC's; true if anything is left in this buffer.
    fn take_others(&self, buffer: &mut [u8], meta: &mut RecvMeta) -> bool {
        let Role::Listening { notices, front } = &self.role else { return true };
        let stride = meta.stride.max(1);
        let is_other = |datagram: &[u8]| is_notice(datagram) || is_stun(datagram);
        let front = front.get();
        if front.is_none() && !buffer[..meta.len].chunks(stride).any(is_other) {
            return true;
        }
        let front = front.zip(self.open().map(|open| Outlet::new(&open, self.address, meta.dst_ip)));
        let mut kept = 0;
        for start in (0..meta.len).step_by(stride) {
            let end = (start + stride).min(meta.len);
            let datagram = &buffer[start..end];
            if is_other(datagram) {
                if datagram.len() <= MAX_NOTICE {
                    // A full queue loses it, as the network might.
                    let _ = notices.try_send((datagram.to_vec(), meta.addr));
                }
            } else if !front.as_ref().is_some_and(|(front, outlet)| front.take(datagram, meta.addr, outlet)) {
                buffer.copy_within(start..end, kept);
                kept += end - start;
            }
        }
        meta.len = kept;
        kept > 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller::new(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(open) = self.open() else { return Ok(()) };
        match &self.role {
            Role::Listening { .. } => {
                if let Some(hearing) = &self.hearing {
                    hearing.places().send(transmit.destination, transmit.contents);
                }
                open.send(transmit)
            }
            Role::Dialling => refusals::send(&open, transmit, &self.is_refused),
            Role::Relayed { envelope, .. } => {
                // What cannot be sent is lost, as datagrams are.
                let wrapped = enveloped::wrap(transmit, &**envelope).zip(open.peer);
                wrapped.map_or(Ok(()), |(wrapped, relay)| open.send(&wrapped.transmit(relay)))
            }
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if let Role::Relayed { reader, .. } = &self.role {
            // It is woken when the socket is replaced, too.
            *lock(reader) = Some(cx.waker().clone());
        }
        let Some(open) = self.open() else { return Poll::Pending };
        self.poll_recv_with(cx, bufs, meta, |cx, bufs, meta| match &self.role {
            Role::Listening { .. } => open.poll_receive(cx, bufs, meta),
            Role::Dialling => {
                std::task::ready!(open.io.poll_recv_ready(cx))?;
                let receive = |bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]| {
                    open.state.recv((&open.io).into(), bufs, meta)
                };
                let result = open.io.try_io(Interest::READABLE, || spread::receive(bufs, meta, receive));
                Poll::Ready(Ok(result))
            }
            Role::Relayed { envelope, piece, .. } => {
                let mut piece = lock(piece);
                if piece.is_used_up() {
                    let mut whole = [RecvMeta::default()];
                    let room = &mut [IoSliceMut::new(piece.room())];
                    match std::task::ready!(open.poll_receive(cx, room, &mut whole))? {
                        Ok(_) => piece.filled(&whole[0]),
                        Err(error) => return Poll::Ready(Ok(Err(error))),
                    }
                }
                match piece.hand_over(&**envelope, bufs, meta) {
                    // None of it was for QUIC: the next piece.
                    0 => Poll::Ready(Ok(Err(io::ErrorKind::WouldBlock.into()))),
                    count => Poll::Ready(Ok(Ok(count))),
                }
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.open().map_or(1, |open| open.state.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        // quinn makes its receive buffer from this, once and for each dialled path.
        match self.role {
            Role::Dialling => spread::SEGMENTS,
            Role::Relayed { .. } => 1,
            Role::Listening { .. } => self.open().map_or(1, |open| open.state.gro_segments()),
        }
    }

    fn may_fragment(&self) -> bool {
        self.open().is_none_or(|open| open.state.may_fragment())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::trouble::{ERRORS_AT_ONCE, LONGEST_PAUSE};
    use super::*;

    #[tokio::test]
    async fn a_dialled_path_has_quinn_keep_a_small_buffer() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = QuicSocket::dialling(socket).unwrap();
        let payload = usize::try_from(quinn::EndpointConfig::default().get_max_udp_payload_size()).unwrap();
        assert!(socket.max_receive_segments() * payload * quinn::udp::BATCH_SIZE <= 128 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_only_fails_costs_no_processor_and_is_read_again_once_it_works() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = QuicSocket::dialling(socket).unwrap();
        let mut tries = 0;
        let began = tokio::time::Instant::now();
        let received = poll_fn(|cx| {
            socket.poll_recv_with(cx, &mut [], &mut [], |_, _, _| {
                tries += 1;
                assert!(tries < 1000, "it spins");
                let works = began.elapsed() > Duration::from_secs(60);
                Poll::Ready(Ok(if works { Ok(0) } else { Err(io::ErrorKind::NetworkDown.into()) }))
            })
        });
        assert_eq!(received.await.unwrap(), 0);
        assert!(tries > ERRORS_AT_ONCE && tries < ERRORS_AT_ONCE + 100, "{tries}");
        assert!(began.elapsed() < Duration::from_secs(60) + 2 * LONGEST_PAUSE);
    }
}
