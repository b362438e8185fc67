//! What the kernel holds of a TCP connection of this host: sock_diag(7), asked for one connection.

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use std::net::{IpAddr, SocketAddr};

/// SOCK_DIAG_BY_FAMILY of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST of `linux/netlink.h`.
const REQUEST: u16 = 1;
/// Of `nlmsghdr`, and of `inet_diag_req_v2`.
const HEADER: usize = 16;
const ASKED: usize = 56;
/// Address families, as in `bits/socket.h` of Linux.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// Of one end of a connection.
pub(super) struct Queues {
    /// What came, and was not read.
    pub(super) unread: u32,
    /// What was written, and is not acknowledged.
    pub(super) unsent: u32,
}

/// Of the socket of this host that is bound here and connected there. The kernel answers before the request
/// returns, so this does not wait.
pub(super) fn of(here: SocketAddr, there: SocketAddr) -> Option<Queues> {
    let socket = Socket::new(NETLINK_SOCK_DIAG).ok()?;
    socket.set_non_blocking(true).ok()?;
    socket.send_to(&request(here, there), &NetlinkAddress::new(0, 0), 0).ok()?;
    let mut bytes = Vec::with_capacity(1024);
    socket.recv(&mut bytes, 0).ok()?;
    answer(&bytes)
}

fn request(here: SocketAddr, there: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + ASKED);
    bytes.extend_from_slice(&((HEADER + ASKED) as u32).to_ne_bytes());
    bytes.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    let family = if here.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes.extend_from_slice(&[family, IPPROTO_TCP, 0, 0]);
    // In every state.
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&here.port().to_be_bytes());
    bytes.extend_from_slice(&there.port().to_be_bytes());
    for address in [here, there] {
        let octets = match address.ip() {
            IpAddr::V4(ip) => [&ip.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        bytes.extend_from_slice(&octets);
    }
    // No interface, and no cookie.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[0xff; 8]);
    bytes
}

/// Reads `inet_diag_msg`. `None` if it is an error, or cut short.
fn answer(bytes: &[u8]) -> Option<Queues> {
    let kind = bytes.get(4..)?.first_chunk().map(|kind| u16::from_ne_bytes(*kind))?;
    let told = (kind == BY_FAMILY).then(|| bytes.get(HEADER..)).flatten()?;
    let number = |at: usize| told.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    Some(Queues { unread: number(56)?, unsent: number(60)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_there_has_no_queues() {
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(of(nobody, nobody).is_none());
        for length in 0..76 {
            assert!(answer(&[0; 76][..length]).is_none());
        }
    }
}
