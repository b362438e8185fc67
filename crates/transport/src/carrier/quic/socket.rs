//! The UDP sockets under QUIC.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};
use whimbrel_proto::notice::{MAX_NOTICE, is_notice};

/// Notices that wait to be read; more are lost, as datagrams are.
const NOTICE_BACKLOG: usize = 64;

/// A datagram that is a notice, and where it came from.
pub(crate) type Heard = (Vec<u8>, SocketAddr);

/// A UDP socket that QUIC uses, and that can be closed under it. On a socket that notices come to they
/// are taken out.
pub(crate) struct QuicSocket {
    open: RwLock<Option<Arc<Open>>>,
    address: SocketAddr,
    notices: Option<mpsc::Sender<Heard>>,
    /// The host at the other end said that nobody listens there (ICMP; connected sockets only).
    refused: Notify,
}

struct Open {
    io: UdpSocket,
    state: UdpSocketState,
    /// The kernel took no more when it was last asked.
    full: AtomicBool,
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSocket").field("address", &self.address).finish_non_exhaustive()
    }
}

impl QuicSocket {
    /// For one connection that is dialled.
    pub(crate) fn dialling(socket: socket2::Socket) -> io::Result<Arc<Self>> {
        Self::new(socket, None).map(Arc::new)
    }

    /// For all that come in. Notices are handed to the receiver.
    pub(crate) fn listening(socket: socket2::Socket) -> io::Result<(Arc<Self>, mpsc::Receiver<Heard>)> {
        let (sender, receiver) = mpsc::channel(NOTICE_BACKLOG);
        Ok((Arc::new(Self::new(socket, Some(sender))?), receiver))
    }

    fn new(socket: socket2::Socket, notices: Option<mpsc::Sender<Heard>>) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = UdpSocket::from_std(socket.into())?;
        let address = io.local_addr()?;
        let open = Open { io, state, full: AtomicBool::new(false) };
        Ok(Self { open: RwLock::new(Some(Arc::new(open))), address, notices, refused: Notify::new() })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one datagram, if the kernel takes it now.
    pub(crate) fn send_to(&self, datagram: &[u8], target: SocketAddr) -> io::Result<()> {
        match self.open() {
            Some(open) => open.io.try_send_to(datagram, target).map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Frees the port, whoever still holds this socket. What is sent on it then is lost.
    pub(crate) fn close(&self) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Completes when the peer's host has refused a datagram.
    pub(crate) async fn refused(&self) {
        self.refused.notified().await;
    }

    fn open(&self) -> Option<Arc<Open>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes notices out of what was received; true if anything is left in this buffer.
    fn take_notices(&self, buffer: &mut [u8], meta: &mut RecvMeta) -> bool {
        let Some(notices) = &self.notices else { return true };
        let stride = meta.stride.max(1);
        if !buffer[..meta.len].chunks(stride).any(is_notice) {
            return true;
        }
        let mut kept = 0;
        for start in (0..meta.len).step_by(stride) {
            let end = (start + stride).min(meta.len);
            let datagram = &buffer[start..end];
            if is_notice(datagram) {
                if datagram.len() <= MAX_NOTICE {
                    // A full queue loses it, as the network might.
                    let _ = notices.try_send((datagram.to_vec(), meta.addr));
                }
            } else {
                buffer.copy_within(start..end, kept);
                kept += end - start;
            }
        }
        meta.len = kept;
        kept > 0
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(open) = self.open() else { return Ok(()) };
        let result = open.io.try_io(Interest::WRITABLE, || open.state.send((&open.io).into(), transmit));
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            open.full.store(true, Ordering::Relaxed);
        }
        result
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Some(open) = self.open() else { return Poll::Pending };
        loop {
            std::task::ready!(open.io.poll_recv_ready(cx))?;
            let received =
                open.io.try_io(Interest::READABLE, || open.state.recv((&open.io).into(), bufs, meta));
            match received {
                Ok(count) => {
                    for (buffer, meta) in bufs.iter_mut().zip(meta.iter_mut()).take(count) {
                        if !self.take_notices(buffer, meta) {
                            // An empty datagram: nobody minds.
                            (meta.len, meta.stride) = (0, 1);
                        }
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.refused.notify_one();
                }
                // ICMP errors of earlier datagrams are reported here; anybody can send those.
                Err(_) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        self.open().map_or(1, |open| open.state.max_gso_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.open().map_or(1, |open| open.state.gro_segments())
    }

    fn may_fragment(&self) -> bool {
        self.open().is_none_or(|open| open.state.may_fragment())
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits until the socket takes more; asks it only after it took no more.
struct Poller {
    socket: Arc<QuicSocket>,
    waiting: Option<Writable>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(open) = self.socket.open() else { return Poll::Ready(Ok(())) };
        if self.waiting.is_none() && !open.full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let held = open.clone();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(async move { held.io.writable().await }));
        let result = std::task::ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        open.full.store(false, Ordering::Relaxed);
        Poll::Ready(result)
    }
}
