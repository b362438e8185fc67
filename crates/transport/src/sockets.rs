//! The endpoint's own sockets: TCP listeners, and UDP sockets for notices, on one port number.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

use crate::accept::accept_loop;
use crate::carrier::tune;
use crate::endpoint::EndpointInner;
use crate::monitor::AddressSet;
use crate::notices::hear;

const BACKLOG: i32 = 4096;
/// Tries to find one port that is free for all sockets.
const PORT_TRIES: usize = 20;

/// Where an endpoint's sockets are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BindPlan {
    /// `None`: all addresses.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
}

impl BindPlan {
    /// The addresses to bind for the current set.
    pub(crate) fn addresses(&self, set: &AddressSet, exclusive: bool) -> Vec<IpAddr> {
        match self.ip {
            Some(ip) => vec![ip],
            None if exclusive => set.addresses.iter().map(|a| a.ip).collect(),
            None => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
        }
    }
}

fn socket(address: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

pub(crate) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, Type::STREAM, Protocol::TCP)?;
    tune(SockRef::from(&socket))?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn notice_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::from_std(socket(address, Type::DGRAM, Protocol::UDP)?.into())
}

/// One address's sockets. The tasks that serve them own them too; [`close`](Self::close) ends both.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) notices: Arc<UdpSocket>,
    listener: bool,
    tasks: Vec<JoinHandle<()>>,
}

impl Bound {
    /// Stops the tasks, and returns once the sockets are closed and the port is free again.
    pub(crate) async fn close(self) {
        let Self { notices, tasks, .. } = self;
        drop(notices);
        for task in tasks {
            task.abort();
            // An aborted task reports just that.
            let _ = task.await;
        }
    }

    /// Stops the tasks.
    pub(crate) fn abort(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// All sockets of an endpoint, by the address that they are bound to.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    pub(crate) bound: HashMap<IpAddr, Bound>,
    pub(crate) listening: bool,
}

impl Sockets {
    /// Binds what is missing of `ips`. Families that the host does not have are left out, unless
    /// nothing else is there. One address that fails does not keep the others from being bound.
    pub(crate) fn bind(
        &mut self,
        endpoint: &Arc<EndpointInner>,
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
            match notice_socket(address) {
                Ok(socket) => self.add(endpoint, ip, socket),
                Err(error) if is_missing(&error) => missing = Some((address, error)),
                Err(error) => taken = Some((address, error)),
            }
        }
        let missing = missing.filter(|_| self.bound.is_empty() && !ips.is_empty());
        let deaf = if self.listening { self.listen(endpoint, port).err() } else { None };
        taken.or(missing).or(deaf).map_or(Ok(()), Err)
    }

    fn add(&mut self, endpoint: &Arc<EndpointInner>, ip: IpAddr, socket: UdpSocket) {
        let notices = Arc::new(socket);
        let task = tokio::spawn(hear(endpoint.clone(), notices.clone()));
        self.bound.insert(ip, Bound { notices, listener: false, tasks: vec![task] });
    }

    /// Adds TCP listeners where there are none.
    pub(crate) fn listen(
        &mut self,
        endpoint: &Arc<EndpointInner>,
        port: u16,
    ) -> Result<(), (SocketAddr, io::Error)> {
        let mut failure = None;
        for (&ip, bound) in self.bound.iter_mut().filter(|(_, bound)| !bound.listener) {
            let address = SocketAddr::new(ip, port);
            match listener(address) {
                Ok(listener) => {
                    bound.tasks.push(tokio::spawn(accept_loop(endpoint.clone(), Arc::new(listener))));
                    bound.listener = true;
                }
                Err(error) => failure = Some((address, error)),
            }
        }
        self.listening |= failure.is_none();
        failure.map_or(Ok(()), Err)
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
        let tcp = match socket(address, Type::STREAM, Protocol::TCP) {
            Err(error) if is_missing(&error) => continue,
            tcp => tcp.map_err(|error| (address, error))?,
        };
        let bound = tcp.local_addr().map_err(|error| (address, error))?;
        port = bound.as_socket().map_or(port, |a| a.port());
        let address = SocketAddr::new(ip, port);
        let udp = socket(address, Type::DGRAM, Protocol::UDP).map_err(|error| (address, error))?;
        held.push((tcp, udp));
    }
    Ok(port)
}

/// The host does not have this family or address (any more).
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}
