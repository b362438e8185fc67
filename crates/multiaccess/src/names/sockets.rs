//! Sockets for DNS, bound to one interface or to none.

use hickory_resolver::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_resolver::net::runtime::{RuntimeProvider, TokioHandle, TokioTime};
use socket2::{Domain, Protocol, Socket, Type};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// For a server that accepts TCP at all.
const CONNECT: Duration = Duration::from_secs(2);

type Boxed<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

/// Makes sockets for DNS. A program has one kind of them for all that it asks: its library of DNS comes once
/// for each kind, 80 KB.
#[derive(Clone)]
pub struct DnsSockets {
    /// Packets leave by this one (SO_BINDTODEVICE), whatever the routes say.
    interface: Option<Arc<str>>,
    handle: TokioHandle,
    made: Arc<AtomicU64>,
}

impl DnsSockets {
    /// Sockets whose packets leave as the host's routes say.
    #[must_use]
    pub fn routed() -> Self {
        Self { interface: None, handle: TokioHandle::default(), made: Arc::default() }
    }

    /// Sockets whose packets leave by this interface.
    pub(super) fn bound_to(interface: &str) -> Self {
        Self { interface: Some(interface.into()), ..Self::routed() }
    }

    /// How many sockets have been made: each question by UDP has its own. An answer for which there was none
    /// is out of a cache.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

impl RuntimeProvider for DnsSockets {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = UdpSocket;
    type Tcp = AsyncIoTokioAsStd<TcpStream>;

    fn create_handle(&self) -> TokioHandle {
        self.handle.clone()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        local: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Boxed<Self::Tcp> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let interface = self.interface.clone();
        Box::pin(async move {
            let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            if let Some(interface) = interface {
                socket.bind_device(Some(interface.as_bytes()))?;
            }
            if let Some(local) = local {
                socket.bind(local)?;
            }
            socket.set_nodelay(true)?;
            let connected = tokio::time::timeout(limit.unwrap_or(CONNECT), socket.connect(server)).await;
            Ok(AsyncIoTokioAsStd(connected.map_err(|_| io::ErrorKind::TimedOut)??))
        })
    }

    fn bind_udp(&self, local: SocketAddr, _server: SocketAddr) -> Boxed<Self::Udp> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let interface = self.interface.clone();
        Box::pin(async move {
            let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
            if let Some(interface) = interface {
                socket.bind_device(Some(interface.as_bytes()))?;
            }
            socket.set_nonblocking(true)?;
            socket.bind(&local.into())?;
            UdpSocket::from_std(socket.into())
        })
    }
}
