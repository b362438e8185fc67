//! The messages of rtnetlink(7): those that ask for links and addresses, and what is read of those that tell
//! of them and of routes. They say much more, newer kernels ever more, in forms that a general reader may not
//! know: it is passed over.

use std::net::IpAddr;

/// Types of messages, of `linux/netlink.h` and `linux/rtnetlink.h`.
pub(super) const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DEL_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
pub(super) const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
/// NLM_F_REQUEST and NLM_F_DUMP: all that there are.
const DUMP: u16 = 0x301;
/// The length of `nlmsghdr`, which begins with the length of the message and its type.
pub(super) const HEADER: usize = 16;
pub(super) const TYPE: usize = 4;
/// Where it has the flags, and NLM_F_REPLACE: what is told of took the place of another.
const HEADER_FLAGS: usize = 6;
const REPLACES: u16 = 0x100;

/// The length of `ifinfomsg`, which attributes follow, and where it has the interface and the flags.
const LINK: usize = 16;
const LINK_INDEX: usize = 4;
const LINK_FLAGS: usize = 8;
/// IFF_UP and IFF_RUNNING of `linux/if.h`.
const RUNS: u32 = 0x1 | 0x40;
/// IFLA_IFNAME.
const NAME: u16 = 3;

/// The length of `ifaddrmsg`, which attributes follow, and where it has the flags and the interface.
const ADDRESS: usize = 8;
const ADDRESS_FLAGS: usize = 2;
const ADDRESS_INDEX: usize = 4;
/// IFA_ADDRESS, IFA_LOCAL and IFA_FLAGS. The last has what does not fit into the header.
const ANY: u16 = 1;
const LOCAL: u16 = 2;
const FLAGS: u16 = 8;
/// IFA_F_DADFAILED and IFA_F_TENTATIVE: an IPv6 address cannot be used before duplicate detection has ended
/// (another message).
const UNUSABLE: u32 = 0x08 | 0x40;

/// The length of `rtmsg`, and where it has what set the route up, its type and its flags.
pub(super) const ROUTE: usize = 12;
const ROUTE_PROTOCOL: usize = 5;
const ROUTE_TYPE: usize = 7;
const ROUTE_FLAGS: usize = 8;
/// RTN_UNICAST, and RTM_F_CLONED: a copy for one destination.
const UNICAST: u8 = 1;
const CLONED: u32 = 0x200;
/// RTPROT_BOOT, RTPROT_STATIC, RTPROT_RA and RTPROT_DHCP: by hand, or told by the network.
const SET_UP: [u8; 4] = [3, 4, 9, 16];

/// Address families, as in `bits/socket.h` of Linux.
pub(super) const AF_INET: u8 = 2;
const AF_BRIDGE: u8 = 7;
pub(super) const AF_INET6: u8 = 10;

/// What the kernel is asked for: all that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Links,
    Addresses,
}

impl Question {
    /// The message, with this number.
    pub(super) fn message(self, sequence: u32) -> Vec<u8> {
        match self {
            Self::Links => message(GET_LINK, DUMP, sequence, &[0; LINK]),
            Self::Addresses => message(GET_ADDRESS, DUMP, sequence, &[0; ADDRESS]),
        }
    }
}

/// What a message tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// An interface, and whether packets can leave by it.
    Link { index: u32, name: String, is_usable: bool },
    /// An interface is gone.
    NoLink { index: u32 },
    /// An interface has an address, which may not be usable yet.
    Address { index: u32, ip: IpAddr, is_usable: bool },
    /// An interface has an address no more.
    NoAddress { index: u32, ip: IpAddr },
    /// There is a route that somebody set up, by hand or told by the network. Those that come with an address
    /// are no news, and those of routing daemons come too often.
    Way,
    /// Such a route is gone.
    NoWay,
    /// Such a route took the place of another one, which may have led elsewhere.
    OtherWay,
    /// The answer to a question ends here, or is an error.
    End,
}

/// One message.
pub(super) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    // The kernel fills in who asks.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}

/// What the messages of a datagram tell. What comes behind one that cannot be read still counts.
pub(super) fn read(datagram: &[u8]) -> impl Iterator<Item = Told> {
    let mut rest = datagram;
    let next = move || {
        let bytes = rest;
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        rest = &bytes[length.next_multiple_of(4).clamp(4, bytes.len())..];
        Some(bytes.get(..length).and_then(told))
    };
    std::iter::from_fn(next).flatten()
}

fn told(message: &[u8]) -> Option<Told> {
    let kind = u16::from_ne_bytes(*message.get(TYPE..)?.first_chunk()?);
    let body = message.get(HEADER..)?;
    match kind {
        DONE | ERROR => Some(Told::End),
        NEW_LINK | DEL_LINK => link(body, kind == NEW_LINK),
        NEW_ADDRESS | DEL_ADDRESS => address(body, kind == NEW_ADDRESS),
        DEL_ROUTE => is_way(body)?.then_some(Told::NoWay),
        NEW_ROUTE => {
            let flags = u16::from_ne_bytes(*message.get(HEADER_FLAGS..)?.first_chunk()?);
            is_way(body)?.then_some(if flags & REPLACES == 0 { Told::Way } else { Told::OtherWay })
        }
        _ => None,
    }
}

fn link(body: &[u8], is_there: bool) -> Option<Told> {
    let attributes = body.get(LINK..)?;
    // A bridge tells of its ports: an interface that is none any more is still there.
    if body[0] == AF_BRIDGE {
        return None;
    }
    let index = number(body, LINK_INDEX)?;
    if !is_there {
        return Some(Told::NoLink { index });
    }
    let name = attribute(attributes, NAME).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8(name.to_vec()).ok()?;
    Some(Told::Link { index, name, is_usable: number(body, LINK_FLAGS)? & RUNS == RUNS })
}

fn address(body: &[u8], is_there: bool) -> Option<Told> {
    let attributes = body.get(ADDRESS..)?;
    let index = number(body, ADDRESS_INDEX)?;
    // On point-to-point links IFA_ADDRESS is the peer's; IFA_LOCAL is ours where it exists.
    let ip = ip(body[0], attribute(attributes, LOCAL).or_else(|| attribute(attributes, ANY))?)?;
    if !is_there {
        return Some(Told::NoAddress { index, ip });
    }
    let more = attribute(attributes, FLAGS).and_then(|flags| number(flags, 0)).unwrap_or_default();
    let flags = u32::from(body[ADDRESS_FLAGS]) | more;
    Some(Told::Address { index, ip, is_usable: flags & UNUSABLE == 0 })
}

fn is_way(body: &[u8]) -> Option<bool> {
    let header: &[u8; ROUTE] = body.first_chunk()?;
    Some(
        header[ROUTE_TYPE] == UNICAST
            && number(header, ROUTE_FLAGS)? & CLONED == 0
            && SET_UP.contains(&header[ROUTE_PROTOCOL]),
    )
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A number of 32 bits.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// What a kernel says, for tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Which question a message is.
    pub(crate) fn question(message: &[u8]) -> Option<Question> {
        let is = |question: &Question| message[TYPE..8] == question.message(0)[TYPE..8];
        [Question::Links, Question::Addresses].into_iter().find(is)
    }

    fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
        bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    /// With IFLA_MTU before the name, as of a link that runs.
    pub(crate) fn link(kind: u16, family: u8, index: u32, name: &[u8]) -> Vec<u8> {
        let mut body = vec![0; LINK];
        body[0] = family;
        body[LINK_INDEX..LINK_FLAGS].copy_from_slice(&index.to_ne_bytes());
        body[LINK_FLAGS..LINK_FLAGS + 4].copy_from_slice(&RUNS.to_ne_bytes());
        put(&mut body, 4, &1500u32.to_ne_bytes());
        put(&mut body, NAME, &[name, &[0]].concat());
        message(kind, 0, 0, &body)
    }

    /// With these attributes.
    pub(crate) fn address(kind: u16, index: u32, flags: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; ADDRESS];
        body[0] = if attributes.iter().any(|(_, value)| value.len() == 16) { AF_INET6 } else { AF_INET };
        body[ADDRESS_FLAGS] = flags;
        body[ADDRESS_INDEX..].copy_from_slice(&index.to_ne_bytes());
        attributes.iter().for_each(|(kind, value)| put(&mut body, *kind, value));
        message(kind, 0, 0, &body)
    }

    /// With an attribute that names a congestion control (RTAX_CC_ALGO in RTA_METRICS).
    pub(crate) fn route(protocol: u8, kind: u8, flags: u32) -> Vec<u8> {
        route_of(NEW_ROUTE, 0, protocol, kind, flags)
    }

    /// As [`route`], one that took the place of another.
    pub(crate) fn other_route(protocol: u8, kind: u8, flags: u32) -> Vec<u8> {
        route_of(NEW_ROUTE, REPLACES, protocol, kind, flags)
    }

    /// As [`route`], one that is gone.
    pub(crate) fn no_route(protocol: u8, kind: u8, flags: u32) -> Vec<u8> {
        route_of(DEL_ROUTE, 0, protocol, kind, flags)
    }

    fn route_of(told: u16, how: u16, protocol: u8, kind: u8, flags: u32) -> Vec<u8> {
        let mut body = vec![0; ROUTE];
        body[0] = AF_INET;
        (body[ROUTE_PROTOCOL], body[ROUTE_TYPE]) = (protocol, kind);
        body[ROUTE_FLAGS..].copy_from_slice(&flags.to_ne_bytes());
        let mut metrics = Vec::new();
        put(&mut metrics, 16, b"cubic\0");
        put(&mut body, 8, &metrics);
        message(told, how, 0, &body)
    }

    pub(crate) fn new_link(index: u32, name: &str) -> Vec<u8> {
        link(NEW_LINK, 0, index, name.as_bytes())
    }

    pub(crate) fn new_address(index: u32, ip: [u8; 4]) -> Vec<u8> {
        address(NEW_ADDRESS, index, 0, &[(LOCAL, &ip)])
    }

    pub(crate) fn done() -> Vec<u8> {
        message(DONE, 0, 0, &[0; 4])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn one(datagram: &[u8]) -> Option<Told> {
        let mut all = read(datagram);
        let first = all.next();
        assert_eq!(all.next(), None);
        first
    }

    #[test]
    fn links_come_and_go_and_a_bridges_port_does_not() {
        let (index, name) = (7, "net0".to_owned());
        let there = Told::Link { index, name, is_usable: true };
        assert_eq!(one(&samples::link(NEW_LINK, 0, 7, b"net0")), Some(there));
        assert_eq!(one(&samples::link(DEL_LINK, 0, 7, b"net0")), Some(Told::NoLink { index }));
        assert_eq!(one(&samples::link(DEL_LINK, AF_BRIDGE, 7, b"net0")), None);
        let mut down = samples::link(NEW_LINK, 0, 7, b"net0");
        down[HEADER + LINK_FLAGS] = 0x1;
        let Some(Told::Link { is_usable, .. }) = one(&down) else { panic!("no link") };
        assert!(!is_usable, "it has no carrier");
    }

    #[test]
    fn the_address_is_ours_where_a_link_has_two_ends() {
        let (index, ours, theirs) = (3, [10, 0, 0, 1], [10, 0, 0, 2]);
        let both = samples::address(NEW_ADDRESS, 3, 0, &[(ANY, &theirs), (LOCAL, &ours)]);
        assert_eq!(one(&both), Some(Told::Address { index, ip: ours.into(), is_usable: true }));
        let gone = samples::address(DEL_ADDRESS, 3, 0, &[(ANY, &ours)]);
        assert_eq!(one(&gone), Some(Told::NoAddress { index, ip: ours.into() }));
        assert_eq!(one(&samples::address(NEW_ADDRESS, 3, 0, &[(ANY, &[1, 2, 3])])), None);
        assert_eq!(one(&samples::address(NEW_ADDRESS, 3, 0, &[])), None);
    }

    #[test]
    fn an_address_is_usable_when_duplicate_detection_has_ended_well() {
        let ip: [u8; 16] = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let is_usable = |in_header: u8, in_attribute: u32| {
            let flags = in_attribute.to_ne_bytes();
            match one(&samples::address(NEW_ADDRESS, 3, in_header, &[(ANY, &ip), (FLAGS, &flags)])) {
                Some(Told::Address { ip: told, is_usable, .. }) if told == IpAddr::from(ip) => is_usable,
                other => panic!("{other:?}"),
            }
        };
        // Permanent, and managed: a flag beyond the header.
        assert!(is_usable(0x80, 0x180));
        assert!(!is_usable(0x40, 0) && !is_usable(0x08, 0) && !is_usable(0, 0x40) && !is_usable(0, 0x08));
    }

    #[test]
    fn a_way_is_a_route_that_was_set_up_whatever_else_it_says() {
        for protocol in SET_UP {
            assert_eq!(one(&samples::route(protocol, UNICAST, 0)), Some(Told::Way), "{protocol}");
            assert_eq!(one(&samples::no_route(protocol, UNICAST, 0)), Some(Told::NoWay), "{protocol}");
            let other = samples::other_route(protocol, UNICAST, 0);
            assert_eq!(one(&other), Some(Told::OtherWay), "{protocol}");
        }
        // Of the kernel itself, of a routing daemon (zebra), to be dropped, a copy.
        assert_eq!(one(&samples::route(2, UNICAST, 0)), None);
        assert_eq!(one(&samples::route(11, UNICAST, 0)), None);
        assert_eq!(one(&samples::no_route(2, UNICAST, 0)), None);
        assert_eq!(one(&samples::other_route(2, UNICAST, 0)), None);
        assert_eq!(one(&samples::route(4, 6, 0)), None);
        assert_eq!(one(&samples::route(4, UNICAST, CLONED)), None);
    }

    #[test]
    fn what_cannot_be_read_hides_nothing_behind_it() {
        let nameless = samples::link(NEW_LINK, 0, 7, b"\xff");
        let unknown = message(9999, 0, 0, &[]);
        let empty = vec![0; 4];
        let address = samples::new_address(7, [192, 0, 2, 1]);
        let all = [nameless, unknown, empty, address, samples::done()].concat();
        let ip = IpAddr::from([192, 0, 2, 1]);
        let told: Vec<Told> = read(&all).collect();
        assert_eq!(told, [Told::Address { index: 7, ip, is_usable: true }, Told::End]);
    }

    #[test]
    fn what_is_cut_short_tells_nothing() {
        let of_all_kinds = [
            samples::new_link(7, "net0"),
            samples::new_address(7, [192, 0, 2, 1]),
            samples::route(4, UNICAST, 0),
            samples::done(),
        ];
        for whole in of_all_kinds {
            assert!(one(&whole).is_some());
            for length in 0..whole.len() {
                assert_eq!(one(&whole[..length]), None, "{length} of {whole:?}");
            }
        }
        assert_eq!(read(&[0xff; 100]).count(), 0);
    }

    #[test]
    fn questions_ask_for_all_links_and_all_addresses() {
        let links = Question::Links.message(5);
        assert_eq!(links.len(), 32);
        assert_eq!(links[..4], 32u32.to_ne_bytes());
        assert_eq!(links[4..8], [18u16.to_ne_bytes(), 0x301u16.to_ne_bytes()].concat());
        assert_eq!(links[8..12], 5u32.to_ne_bytes());
        assert!(links[12..].iter().all(|byte| *byte == 0));
        assert_eq!(samples::question(&links), Some(Question::Links));
        assert_eq!(samples::question(&Question::Addresses.message(6)), Some(Question::Addresses));
    }
}
