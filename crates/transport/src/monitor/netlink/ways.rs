//! Whether a route leads to a peer: asked of the kernel where one was taken away.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::netdevice::name_to_index;

use super::super::LocalAddress;
use super::messages::{AF_INET, AF_INET6, ERROR, HEADER, NEW_ROUTE, ROUTE, TYPE, attribute, message, number};

/// RTM_GETROUTE, of `linux/rtnetlink.h`, and NLM_F_REQUEST.
const GET_ROUTE: u16 = 26;
const REQUEST: u16 = 1;
/// Where `rtmsg` has the family, the lengths of both addresses, and the flags.
const DESTINATION_LENGTH: usize = 1;
const SOURCE_LENGTH: usize = 2;
const FLAGS: usize = 8;
/// RTM_F_FIB_MATCH: the entry of the table is asked for. Without it a device without any route to a peer
/// counts as one on whose link the peer is.
const ENTRY: u32 = 0x2000;
/// RTA_DST, RTA_SRC and RTA_OIF.
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const INTERFACE: u16 = 4;
/// ENETUNREACH and EHOSTUNREACH. Other errors say nothing of routes, such as that of a source that is not
/// ours.
const NO_ROUTE: [i32; 2] = [libc::ENETUNREACH, libc::EHOSTUNREACH];

/// What the kernel says of the way to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// There is one, by this interface.
    Way(Option<u32>),
    NoWay,
    /// Nothing of use.
    Unknown,
}

/// False if the kernel says that no route leads from one address to the other, or none by the address'
/// interface, where that is named. What it does not say counts as a route.
pub(super) fn has_way(from: &LocalAddress, to: IpAddr) -> bool {
    if from.ip.is_ipv4() != to.is_ipv4() {
        return true;
    }
    ask(from, to).unwrap_or(true)
}

fn ask(from: &LocalAddress, to: IpAddr) -> io::Result<bool> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The answer is there when the question is.
    socket.set_non_blocking(true)?;
    let says = |from: Option<IpAddr>, interface: Option<u32>| -> io::Result<Answer> {
        socket.send(&question(from, to, interface), 0)?;
        Ok(read(&socket.recv_from_full()?.0))
    };
    let Some(name) = &from.interface else {
        return Ok(says(Some(from.ip), None)? != Answer::NoWay);
    };
    let index = name_to_index(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?, name)?;
    let answer = says(Some(from.ip), Some(index))?;
    if to.is_ipv4() || answer == Answer::Way(Some(index)) || answer == Answer::Unknown {
        return Ok(answer != Answer::NoWay);
    }
    // Of IPv6, an interface is a wish where a source is named, and a better route by another one wins.
    Ok(says(None, Some(index))? != Answer::NoWay)
}

fn question(from: Option<IpAddr>, to: IpAddr, interface: Option<u32>) -> Vec<u8> {
    let mut body = vec![0; ROUTE];
    body[0] = if to.is_ipv4() { AF_INET } else { AF_INET6 };
    let length = if to.is_ipv4() { 32 } else { 128 };
    body[DESTINATION_LENGTH] = length;
    body[FLAGS..FLAGS + 4].copy_from_slice(&ENTRY.to_ne_bytes());
    put_address(&mut body, DESTINATION, to);
    if let Some(from) = from {
        body[SOURCE_LENGTH] = length;
        put_address(&mut body, SOURCE, from);
    }
    if let Some(index) = interface {
        put(&mut body, INTERFACE, &index.to_ne_bytes());
    }
    message(GET_ROUTE, REQUEST, 1, &body)
}

fn put_address(body: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => put(body, kind, &address.octets()),
        IpAddr::V6(address) => put(body, kind, &address.octets()),
    }
}

/// An attribute of four or sixteen bytes.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
}

fn read(answer: &[u8]) -> Answer {
    let kind = answer.get(TYPE..).and_then(|rest| rest.first_chunk()).map(|kind| u16::from_ne_bytes(*kind));
    match kind {
        Some(NEW_ROUTE) => {
            let attributes = answer.get(HEADER + ROUTE..).unwrap_or_default();
            Answer::Way(attribute(attributes, INTERFACE).and_then(|index| number(index, 0)))
        }
        Some(ERROR) => match number(answer, HEADER).map(|code| (code as i32).wrapping_neg()) {
            Some(code) if NO_ROUTE.contains(&code) => Answer::NoWay,
            _ => Answer::Unknown,
        },
        _ => Answer::Unknown,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_both_ends_and_the_interface() {
        let (from, to) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 7]));
        let asked = question(Some(from), to, Some(7));
        assert_eq!(asked.len(), HEADER + ROUTE + 3 * 8);
        assert_eq!(asked[..4], (asked.len() as u32).to_ne_bytes());
        assert_eq!(asked[HEADER + DESTINATION_LENGTH..HEADER + FLAGS], [32, 32, 0, 0, 0, 0, 0]);
        assert!(asked.ends_with(&[[8, 0, 4, 0], 7u32.to_ne_bytes()].concat()) || cfg!(target_endian = "big"));
        assert_eq!(question(Some(from), to, None).len(), HEADER + ROUTE + 2 * 8);
        assert_eq!(question(None, to, None).len(), HEADER + ROUTE + 8);
        let v6 = question(Some("2001:db8::1".parse().unwrap()), "2001:db8::2".parse().unwrap(), None);
        assert_eq!(v6.len(), HEADER + ROUTE + 2 * 20);
    }

    #[test]
    fn only_an_error_that_speaks_of_routes_says_that_there_is_none() {
        let error = |code: i32| read(&message(ERROR, 0, 1, &(-code).to_ne_bytes()));
        assert_eq!([error(libc::ENETUNREACH), error(libc::EHOSTUNREACH)], [Answer::NoWay; 2]);
        assert_eq!([error(libc::EINVAL), error(libc::EPERM), read(&[])], [Answer::Unknown; 3]);
        assert_eq!(read(&message(NEW_ROUTE, 0, 1, &[0; ROUTE])), Answer::Way(None));
        let mut route = vec![0; ROUTE];
        put(&mut route, INTERFACE, &7u32.to_ne_bytes());
        assert_eq!(read(&message(NEW_ROUTE, 0, 1, &route)), Answer::Way(Some(7)));
    }

    /// Every host has one to itself.
    #[test]
    fn the_kernel_knows_the_way_to_the_host_itself() {
        let local = |interface: Option<&str>| LocalAddress {
            ip: [127, 0, 0, 1].into(),
            interface: interface.map(Into::into),
        };
        assert!(ask(&local(None), [127, 0, 0, 1].into()).unwrap());
        assert!(ask(&local(Some("lo")), [127, 0, 0, 1].into()).unwrap());
        assert!(ask(&local(Some("no-such-link")), [127, 0, 0, 1].into()).is_err());
        assert!(has_way(&local(Some("no-such-link")), [127, 0, 0, 1].into()), "nothing is known");
    }
}
