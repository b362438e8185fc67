//! What the kernel holds of a TCP connection of this host: sock_diag(7), asked for one connection.

use super::Queues;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use std::cell::RefCell;
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
/// INET_DIAG_INFO of `linux/inet_diag.h`: the attribute that is the structure `tcp_info`.
const INFO: u16 = 2;
/// Where `tcpi_bytes_received` is in that, since Linux 4.1.
const RECEIVED: usize = 128;
/// Where `tcpi_snd_wnd` is, since Linux 5.4.
const WINDOW: usize = 228;
/// Where the queues and the user are in `inet_diag_msg`.
const UNREAD: usize = 56;
const UNSENT: usize = 60;
const USER: usize = 64;
/// The length of `inet_diag_msg`, which attributes follow.
const MESSAGE: usize = 72;

/// Of the socket of this host that is bound here and connected there. The kernel answers before the request
/// returns, so this does not wait.
pub(super) fn of(here: SocketAddr, there: SocketAddr) -> Option<Queues> {
    told(here, there).and_then(|bytes| answer(&bytes))
}

/// The user whose socket that is.
pub(super) fn owner_of(here: SocketAddr, there: SocketAddr) -> Option<u32> {
    told(here, there).and_then(|bytes| number(message(&bytes)?, USER))
}

thread_local! {
    /// Asks, for as long as nothing goes wrong with it.
    static ASKING: RefCell<Option<Socket>> = const { RefCell::new(None) };
}

fn told(here: SocketAddr, there: SocketAddr) -> Option<Vec<u8>> {
    ASKING.with_borrow_mut(|kept| {
        let socket = match kept.take() {
            Some(socket) => socket,
            None => {
                let socket = Socket::new(NETLINK_SOCK_DIAG).ok()?;
                socket.set_non_blocking(true).ok()?;
                socket
            }
        };
        socket.send_to(&request(here, there), &NetlinkAddress::new(0, 0), 0).ok()?;
        let mut bytes = Vec::with_capacity(1024);
        socket.recv(&mut bytes, 0).ok()?;
        *kept = Some(socket);
        Some(bytes)
    })
}

fn request(here: SocketAddr, there: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + ASKED);
    bytes.extend_from_slice(&((HEADER + ASKED) as u32).to_ne_bytes());
    bytes.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    let family = if here.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes.extend_from_slice(&[family, IPPROTO_TCP, 1 << (INFO - 1), 0]);
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
    let told = message(bytes)?;
    let info = attribute(told.get(MESSAGE..)?).unwrap_or_default();
    let received = info.get(RECEIVED..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_ne_bytes(*bytes));
    let window = info.get(WINDOW..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_ne_bytes(*bytes));
    Some(Queues { unread: number(told, UNREAD)?, unsent: number(told, UNSENT)?, received, window })
}

/// What is behind the header of netlink.
fn message(bytes: &[u8]) -> Option<&[u8]> {
    let kind = bytes.get(4..)?.first_chunk().map(|kind| u16::from_ne_bytes(*kind))?;
    (kind == BY_FAMILY).then(|| bytes.get(HEADER..)).flatten()
}

fn number(told: &[u8], at: usize) -> Option<u32> {
    told.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The structure `tcp_info` among attributes.
fn attribute(mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == INFO {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_there_has_no_queues() {
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(of(nobody, nobody).is_none() && owner_of(nobody, nobody).is_none());
        for length in 0..200 {
            assert!(answer(&[0; 200][..length]).is_none());
        }
    }
}
