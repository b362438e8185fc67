//! Sockets that are open already, as a service manager or another endpoint hands them over.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use socket2::Socket;

/// The sockets of an endpoint, opened by somebody else: for TCP and for UDP at each address, all on one port.
/// Connections come in at these addresses and no others, unless they were [inherited](Self::inherited).
#[derive(Debug)]
pub struct OpenSockets {
    port: u16,
    pairs: HashMap<IpAddr, Pair>,
    is_fixed: bool,
}

#[derive(Debug, Default)]
struct Pair {
    tcp: Option<Socket>,
    udp: Option<Socket>,
}

impl OpenSockets {
    /// Sorts the sockets by address.
    ///
    /// # Errors
    /// [`OpenSocketsError`] when they are not as said above, or cannot be looked at.
    pub fn new(tcp: Vec<TcpListener>, udp: Vec<UdpSocket>) -> Result<Self, OpenSocketsError> {
        let sockets = Self::inherited(tcp, udp, true)?;
        let Self { port, pairs, .. } = &sockets;
        let lonely = pairs.iter().find(|(_, pair)| pair.tcp.is_none() || pair.udp.is_none());
        if let Some((&ip, pair)) = lonely {
            let missing = if pair.tcp.is_none() { "TCP" } else { "UDP" };
            return Err(OpenSocketsError::Missing { missing, address: SocketAddr::new(ip, *port) });
        }
        Ok(sockets)
    }

    /// The sockets of an endpoint that [passed them on](crate::Leaving::pass_on), in another process perhaps:
    /// without those for TCP if it did not listen. Unless they are `fixed`, as they were when a service
    /// manager had opened them, the endpoint opens others where its host has further addresses.
    ///
    /// # Errors
    /// As [`new`](Self::new), but that one of a pair may be missing.
    pub fn inherited(
        tcp: Vec<TcpListener>,
        udp: Vec<UdpSocket>,
        is_fixed: bool,
    ) -> Result<Self, OpenSocketsError> {
        let mut pairs: HashMap<IpAddr, Pair> = HashMap::new();
        let mut port = None;
        let tcp = tcp.into_iter().map(|socket| (Socket::from(socket), true));
        let udp = udp.into_iter().map(|socket| (Socket::from(socket), false));
        for (socket, is_tcp) in tcp.chain(udp) {
            let address = prepared(&socket)?;
            let first = *port.get_or_insert(address.port());
            if address.port() != first {
                return Err(OpenSocketsError::Ports { one: first, other: address.port() });
            }
            let pair = pairs.entry(address.ip()).or_default();
            let place = if is_tcp { &mut pair.tcp } else { &mut pair.udp };
            if place.replace(socket).is_some() {
                return Err(OpenSocketsError::Twice(address));
            }
        }
        let port = port.ok_or(OpenSocketsError::None)?;
        Ok(Self { port, pairs, is_fixed })
    }

    /// Whether connections come in at these addresses and no others.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Those for TCP, to be handed to another process.
    pub fn tcp(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pairs.values().filter_map(|pair| pair.tcp.as_ref()).map(Socket::as_fd)
    }

    /// Those for UDP, to be handed to another process.
    pub fn udp(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pairs.values().filter_map(|pair| pair.udp.as_ref()).map(Socket::as_fd)
    }

    /// The port of all of them.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn ips(&self) -> Vec<IpAddr> {
        self.pairs.keys().copied().collect()
    }

    pub(super) fn take_tcp(&mut self, ip: IpAddr) -> Option<Socket> {
        self.pairs.get_mut(&ip)?.tcp.take()
    }

    pub(super) fn take_udp(&mut self, ip: IpAddr) -> Option<Socket> {
        self.pairs.get_mut(&ip)?.udp.take()
    }
}

/// Where the socket is bound; it does not block from then on.
fn prepared(socket: &Socket) -> Result<SocketAddr, OpenSocketsError> {
    let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    // One socket for both families sees IPv4 addresses in another form.
    if address.is_ipv6() && address.ip().is_unspecified() && !socket.only_v6()? {
        return Err(OpenSocketsError::BothFamilies(address));
    }
    socket.set_nonblocking(true)?;
    Ok(address)
}

/// Why open sockets cannot be an endpoint's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenSocketsError {
    /// There is none.
    #[error("no socket was handed over; open one for TCP and one for UDP")]
    None,
    /// They are on several ports.
    #[error("the sockets are on ports {one} and {other}; open all on one port")]
    Ports {
        /// A port.
        one: u16,
        /// A port that is not the same.
        other: u16,
    },
    /// Two of a kind are at one address.
    #[error("two sockets of one kind are at {0}; open one for TCP and one for UDP")]
    Twice(SocketAddr),
    /// A socket has no partner.
    #[error("no {missing} socket is at {address}; open one for TCP and one for UDP at each address")]
    Missing {
        /// `TCP` or `UDP`.
        missing: &'static str,
        /// Where.
        address: SocketAddr,
    },
    /// A socket for IPv6 takes IPv4 too.
    #[error(
        "the socket at {0} takes IPv4 too; open one for each family (in systemd: BindIPv6Only=ipv6-only, and 0.0.0.0 for IPv4)"
    )]
    BothFamilies(SocketAddr),
    /// The system refused.
    #[error("cannot use an open socket: {0}")]
    Io(#[from] io::Error),
}

impl From<io::ErrorKind> for OpenSocketsError {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io(kind.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn pair(at: &str) -> (TcpListener, UdpSocket) {
        loop {
            let tcp = TcpListener::bind((at, 0)).unwrap();
            // The same port may be taken for UDP.
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                return (tcp, udp);
            }
        }
    }

    #[test]
    fn a_pair_at_each_address_and_one_port_are_needed() {
        let (tcp, udp) = pair("127.0.0.1");
        let port = tcp.local_addr().unwrap().port();
        let open = OpenSockets::new(vec![tcp], vec![udp]).unwrap();
        assert_eq!((open.port(), open.ips()), (port, vec![IpAddr::from([127, 0, 0, 1])]));

        let refused = |tcp, udp| OpenSockets::new(tcp, udp).unwrap_err();
        assert!(matches!(refused(vec![], vec![]), OpenSocketsError::None));
        let (tcp, udp) = pair("127.0.0.1");
        let error = refused(vec![tcp], vec![]);
        assert!(matches!(error, OpenSocketsError::Missing { missing: "UDP", .. }), "{error}");
        let error = refused(vec![], vec![udp]);
        assert!(matches!(error, OpenSocketsError::Missing { missing: "TCP", .. }), "{error}");
        let ((tcp, _), (_, udp)) = (pair("127.0.0.1"), pair("127.0.0.1"));
        let error = refused(vec![tcp], vec![udp]);
        assert!(matches!(error, OpenSocketsError::Ports { .. }), "{error}");
        let (tcp, udp) = pair("127.0.0.1");
        let error = refused(vec![tcp.try_clone().unwrap(), tcp], vec![udp]);
        assert!(matches!(error, OpenSocketsError::Twice(_)), "{error}");
    }

    #[test]
    fn a_socket_for_both_families_is_refused_where_there_are_two() {
        let Ok(tcp) = TcpListener::bind("[::]:0") else {
            assert!(UdpSocket::bind("[::1]:0").is_err(), "the host has IPv6");
            return;
        };
        let error = OpenSockets::new(vec![tcp], vec![]).unwrap_err();
        assert!(error.to_string().contains("BindIPv6Only"), "{error}");
    }
}
