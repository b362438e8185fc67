//! The endpoint's own sockets: TCP listeners, and UDP sockets for QUIC and notices, on one port number.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use quinn::{ServerConfig, TokioRuntime};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::carrier::quic::{Fronting, Heard, Outlet, QuicConfig, QuicSocket};
use crate::carrier::{CarrierKind, stream_socket, tune};
use crate::monitor::AddressSet;

mod accepting;
mod open;

pub(crate) use self::accepting::Accepting;
pub use self::open::{OpenSockets, OpenSocketsError};

const BACKLOG: i32 = 4096;
/// Sockets beside these, each of which a gateway shows at a port of its own.
const MAX_BESIDE: usize = 16;
/// One on which no connection has come by then is closed.
const BESIDE_UNUSED: Duration = Duration::from_secs(20);
/// Tries to find one port that is free for all sockets.
const PORT_TRIES: usize = 20;

/// Where an endpoint's sockets are bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindPlan {
    /// Empty: all addresses.
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) port: u16,
}

impl BindPlan {
    /// The addresses to bind for the current set.
    pub(crate) fn addresses(&self, set: &AddressSet, exclusive: bool) -> Vec<IpAddr> {
        match &self.ips[..] {
            [] if exclusive => set.addresses.iter().map(|a| a.ip).collect(),
            [] => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            ips => ips.to_vec(),
        }
    }

    /// The chosen addresses, if no others are used.
    pub(crate) fn only(&self) -> Option<&[IpAddr]> {
        (!self.ips.is_empty() && !self.ips.iter().any(IpAddr::is_unspecified)).then_some(&self.ips)
    }

    /// The addresses at which others may reach the sockets.
    pub(crate) fn reachable(&self, set: &AddressSet) -> Vec<IpAddr> {
        let is_heard = |ip: &IpAddr| {
            let all = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            self.ips.is_empty() || self.ips.contains(&all)
        };
        let chosen = self.ips.iter().copied().filter(|ip| !ip.is_unspecified());
        let others = set.reachable().into_iter().filter(|ip| is_heard(ip) && !self.ips.contains(ip));
        chosen.chain(others).collect()
    }
}

fn tcp_socket(address: SocketAddr, kind: CarrierKind) -> io::Result<Socket> {
    let socket = stream_socket(Domain::for_address(address), kind)?;
    socket.set_reuse_address(true)?;
    bound(socket, address)
}

fn udp_socket(address: SocketAddr) -> io::Result<Socket> {
    bound(Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?, address)
}

fn bound(socket: Socket, address: SocketAddr) -> io::Result<Socket> {
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Listens at an address.
#[cfg(test)]
pub(crate) fn listener(address: SocketAddr, kind: CarrierKind) -> io::Result<Accepting> {
    tcp_socket(address, kind).and_then(|socket| listening(socket, false))
}

/// Listens on a socket, on which somebody may wait already if it was `handed_over`.
fn listening(socket: Socket, handed_over: bool) -> io::Result<Accepting> {
    tune(SockRef::from(&socket))?;
    socket.listen(BACKLOG)?;
    Accepting::new(socket, !handed_over)
}

/// Starts the tasks that serve sockets.
pub(crate) trait Serve {
    /// What sees datagrams first.
    fn front(&self) -> Fronting;

    /// For notices.
    fn hear(&self, socket: Arc<QuicSocket>, heard: mpsc::Receiver<Heard>) -> JoinHandle<()>;

    /// For TCP connections that come in.
    fn accept_tcp(&self, listener: Arc<Accepting>, kind: CarrierKind) -> JoinHandle<()>;

    /// For QUIC connections that come in, at this socket.
    fn accept_quic(
        &self,
        socket: Arc<QuicSocket>,
        quic: quinn::Endpoint,
        config: ServerConfig,
    ) -> JoinHandle<()>;
}

/// One address's sockets. The tasks that serve them own them too; [`close`](Self::close) ends both.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) udp: Arc<QuicSocket>,
    quic: quinn::Endpoint,
    /// Where TCP connections come in; the task that takes them owns it.
    listener: Option<Weak<Accepting>>,
    /// Hears notices.
    hearing: JoinHandle<()>,
    /// Hears what the network says of what was sent.
    heeding: JoinHandle<()>,
    /// Those that let connections in.
    accepting: Vec<JoinHandle<()>>,
}

impl Bound {
    /// Hears notices, and nothing else yet.
    fn new(serve: &impl Serve, quic: &QuicConfig, socket: Socket) -> io::Result<Self> {
        let (udp, heard) = QuicSocket::listening(socket, serve.front())?;
        let config = quic.listening(udp.address());
        let quic =
            quinn::Endpoint::new_with_abstract_socket(config, None, udp.clone(), Arc::new(TokioRuntime))?;
        let hearing = serve.hear(udp.clone(), heard);
        let heeding = tokio::spawn(FutureExt::boxed(udp.heed()));
        Ok(Self { udp, quic, listener: None, hearing, heeding, accepting: Vec::new() })
    }

    /// Lets QUIC connections in.
    fn accept_quic(&mut self, serve: &impl Serve, quic: &QuicConfig) {
        let config = quic.server();
        self.quic.set_server_config(Some(config.clone()));
        self.accepting.push(serve.accept_quic(self.udp.clone(), self.quic.clone(), config));
    }

    /// Stops the tasks, and returns once the sockets are closed and the port is free again.
    pub(crate) async fn close(self) {
        self.udp.close();
        for task in self.accepting.into_iter().chain([self.hearing, self.heeding]) {
            task.abort();
            // An aborted task reports just that.
            let _ = task.await;
        }
    }

    /// Stops the tasks.
    pub(crate) fn abort(&self) {
        self.udp.close();
        self.hearing.abort();
        self.heeding.abort();
        self.stop_accepting();
    }

    /// Lets nothing in any more. Both sockets stay as they are.
    fn stop_accepting(&self) {
        self.accepting.iter().for_each(JoinHandle::abort);
    }
}

/// All sockets of an endpoint, by the address that they are bound to.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) bound: HashMap<IpAddr, Bound>,
    /// On ports of their own, and since when.
    beside: Vec<(Bound, Instant)>,
    /// The kind of stream sockets that are listened on.
    listening: Option<CarrierKind>,
    /// Used before others are opened.
    open: Option<OpenSockets>,
}

impl Sockets {
    /// None but these, which are open already, so far.
    pub(crate) fn with(open: Option<OpenSockets>) -> Self {
        Self { open, ..Self::default() }
    }

    /// Binds what is missing of `ips`. Families that the host does not have are left out, unless
    /// nothing else is there. One address that fails does not keep the others from being bound.
    pub(crate) fn bind(
        &mut self,
        serve: &impl Serve,
        quic: &QuicConfig,
        ips: &[IpAddr],
        port: u16,
    ) -> Result<(), (SocketAddr, io::Error)> {
        let mut missing = None;
        let mut taken = None;
        for &ip in ips {
            if self.bound.contains_key(&ip) {
                continue;
            }
            let address = SocketAddr::new(ip, port);
            let open = self.open.as_mut().and_then(|open| open.take_udp(ip));
            let socket = open.map_or_else(|| udp_socket(address), Ok);
            match socket.and_then(|socket| self.add(serve, quic, ip, socket)) {
                Ok(()) => {}
                Err(error) if is_missing(&error) => missing = Some((address, error)),
                Err(error) => taken = Some((address, error)),
            }
        }
        let missing = missing.filter(|_| self.bound.is_empty() && !ips.is_empty());
        let deaf = self.listening.and_then(|kind| self.listen(serve, quic, port, kind).err());
        taken.or(missing).or(deaf).map_or(Ok(()), Err)
    }

    fn add(&mut self, serve: &impl Serve, quic: &QuicConfig, ip: IpAddr, socket: Socket) -> io::Result<()> {
        self.bound.insert(ip, Bound::new(serve, quic, socket)?);
        Ok(())
    }

    /// Lets QUIC connections in at one more socket, for as long as some come or are there.
    ///
    /// # Errors
    /// When there are too many of them, or the system refuses.
    pub(crate) fn open_beside(
        &mut self,
        serve: &impl Serve,
        quic: &QuicConfig,
        socket: UdpSocket,
    ) -> io::Result<()> {
        self.close_idle(Instant::now());
        if self.beside.len() >= MAX_BESIDE {
            return Err(io::Error::other("too many sockets beside the endpoint's own are in use"));
        }
        let mut bound = Bound::new(serve, quic, socket.into())?;
        bound.accept_quic(serve, quic);
        self.beside.push((bound, Instant::now()));
        Ok(())
    }

    /// Closes the sockets beside the endpoint's own that no connection uses.
    pub(crate) fn close_idle(&mut self, now: Instant) {
        self.beside.retain(|(bound, since)| {
            let is_new = now.saturating_duration_since(*since) < BESIDE_UNUSED;
            let is_used = is_new || bound.quic.open_connections() > 0;
            if !is_used {
                bound.abort();
            }
            is_used
        });
    }

    /// All sockets, to be closed.
    pub(crate) fn take_all(&mut self) -> Vec<Bound> {
        let beside = self.beside.drain(..).map(|(bound, _)| bound);
        self.bound.drain().map(|(_, bound)| bound).chain(beside).collect()
    }

    /// Stops the tasks of all.
    pub(crate) fn abort(&self) {
        self.all().for_each(Bound::abort);
    }

    fn all(&self) -> impl Iterator<Item = &Bound> {
        self.bound.values().chain(self.beside.iter().map(|(bound, _)| bound))
    }

    /// Lets TCP and QUIC connections in where that is not so yet.
    pub(crate) fn listen(
        &mut self,
        serve: &impl Serve,
        quic: &QuicConfig,
        port: u16,
        kind: CarrierKind,
    ) -> Result<(), (SocketAddr, io::Error)> {
        let mut failure = None;
        for (&ip, bound) in self.bound.iter_mut().filter(|(_, bound)| bound.listener.is_none()) {
            let address = SocketAddr::new(ip, port);
            let open = self.open.as_mut().and_then(|open| open.take_tcp(ip));
            let handed_over = open.is_some();
            let socket = open.map_or_else(|| tcp_socket(address, kind), Ok);
            match socket.and_then(|socket| listening(socket, handed_over)) {
                Ok(listener) => {
                    let listener = Arc::new(listener);
                    bound.listener = Some(Arc::downgrade(&listener));
                    bound.accepting.push(serve.accept_tcp(listener, kind));
                    bound.accept_quic(serve, quic);
                }
                Err(error) => failure = Some((address, error)),
            }
        }
        if failure.is_none() {
            self.listening = Some(kind);
        }
        failure.map_or(Ok(()), Err)
    }

    /// The address that the socket of the target's family is bound to.
    pub(crate) fn address_for(&self, at: SocketAddr) -> Option<IpAddr> {
        let mut addresses = self.bound.values().map(|bound| bound.udp.address());
        addresses.find(|address| address.is_ipv4() == at.is_ipv4()).map(|address| address.ip())
    }

    /// What sends from the socket that is bound there.
    pub(crate) fn outlet(&self, bound: SocketAddr, source: Option<IpAddr>) -> Option<Outlet> {
        let socket = &self.bound.get(&bound.ip())?.udp;
        socket.outlet(source).filter(|_| socket.address() == bound)
    }

    /// What can dial there from a socket that listens, and that socket.
    pub(crate) fn quic_for(&self, at: SocketAddr) -> Option<(quinn::Endpoint, Arc<QuicSocket>)> {
        let fits = |bound: &&Bound| bound.udp.address().is_ipv4() == at.is_ipv4();
        self.bound.values().find(fits).map(|bound| (bound.quic.clone(), bound.udp.clone()))
    }

    /// The same sockets once more, for an endpoint that goes on with them. `None` if there are none.
    pub(crate) fn copies(&self) -> Result<Option<OpenSockets>, OpenSocketsError> {
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for bound in self.bound.values() {
            if let Some(listener) = bound.listener.as_ref().and_then(Weak::upgrade) {
                tcp.push(listener.as_fd().try_clone_to_owned()?.into());
            }
            udp.extend(bound.udp.copy()?.map(UdpSocket::from));
        }
        if udp.is_empty() {
            return Ok(None);
        }
        let is_fixed = self.open.as_ref().is_some_and(OpenSockets::is_fixed);
        OpenSockets::inherited(tcp, udp, is_fixed).map(Some)
    }

    /// Lets nothing in any more. Whoever comes waits in the sockets for who listens next.
    pub(crate) fn stop_accepting(&self) {
        self.all().for_each(Bound::stop_accepting);
    }
}

/// Finds a port that is free for UDP and TCP on all of `ips`.
pub(crate) fn free_port(ips: &[IpAddr]) -> Result<u16, (SocketAddr, io::Error)> {
    let mut failure = (SocketAddr::from(([0, 0, 0, 0], 0)), io::ErrorKind::AddrNotAvailable.into());
    for _ in 0..PORT_TRIES {
        match try_port(ips) {
            Ok(port) => return Ok(port),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn try_port(ips: &[IpAddr]) -> Result<u16, (SocketAddr, io::Error)> {
    let mut port = 0;
    let mut held = Vec::new();
    for &ip in ips {
        let address = SocketAddr::new(ip, port);
        let tcp = match tcp_socket(address, CarrierKind::Tcp) {
            Err(error) if is_missing(&error) => continue,
            tcp => tcp.map_err(|error| (address, error))?,
        };
        let bound = tcp.local_addr().map_err(|error| (address, error))?;
        port = bound.as_socket().map_or(port, |a| a.port());
        let address = SocketAddr::new(ip, port);
        let udp = udp_socket(address).map_err(|error| (address, error))?;
        held.push((tcp, udp));
    }
    Ok(port)
}

/// The host does not have this family or address (any more).
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
