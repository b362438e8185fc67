//! What the kernel tells of connections of Multipath TCP (enum mptcp_event_type of `linux/mptcp_pm.h`).

use crate::genl::Generic;
use crate::netlink::{attribute, number_u32};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Attributes of events (MPTCP_ATTR_*). Ports are in the order of the network here, other numbers are not.
const TOKEN: u16 = 1;
const SOURCE_V4: u16 = 5;
const SOURCE_V6: u16 = 6;
const SOURCE_PORT: u16 = 9;

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    Created,
    Established,
    Closed,
    /// The peer has told of an address.
    Announced,
    /// The peer has taken an address back.
    Removed,
    SubflowEstablished,
    SubflowClosed,
    /// A subflow has become a backup, or is none any more.
    SubflowPriority,
}

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) token: u32,
    /// Where the connection or subflow begins, if the event says so.
    pub(crate) local: Option<SocketAddr>,
}

/// Reads an event. `None` if it is of another kind, such as of a listener, or has no token.
pub(crate) fn event(message: &Generic) -> Option<Event> {
    let what = match message.command {
        1 => What::Created,
        2 => What::Established,
        3 => What::Closed,
        6 => What::Announced,
        7 => What::Removed,
        10 => What::SubflowEstablished,
        11 => What::SubflowClosed,
        13 => What::SubflowPriority,
        _ => return None,
    };
    let token = number_u32(&message.attributes, TOKEN)?;
    Some(Event { what, token, local: local(&message.attributes) })
}

fn local(told: &[u8]) -> Option<SocketAddr> {
    let port = attribute(told, SOURCE_PORT)?.try_into().ok().map(u16::from_be_bytes)?;
    let v4 = || <[u8; 4]>::try_from(attribute(told, SOURCE_V4)?).ok().map(Ipv4Addr::from).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(attribute(told, SOURCE_V6)?).ok().map(Ipv6Addr::from).map(IpAddr::from);
    Some(SocketAddr::new(v4().or_else(v6)?.to_canonical(), port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::netlink::put;
    use proptest::prelude::*;

    fn told(command: u8) -> Generic {
        let mut attributes = Vec::new();
        put(&mut attributes, TOKEN, &0xdead_beef_u32.to_ne_bytes());
        put(&mut attributes, 2, &2u16.to_ne_bytes());
        put(&mut attributes, SOURCE_V4, &[10, 0, 1, 1]);
        put(&mut attributes, 7, &[10, 9, 9, 9]);
        put(&mut attributes, SOURCE_PORT, &4000u16.to_be_bytes());
        Generic { family: 28, command, attributes }
    }

    #[test]
    fn events_of_connections_are_read_and_others_left() {
        let expected = |what| {
            Some(Event { what, token: 0xdead_beef, local: Some(SocketAddr::from(([10, 0, 1, 1], 4000))) })
        };
        for (command, what) in [
            (1, What::Created),
            (2, What::Established),
            (3, What::Closed),
            (6, What::Announced),
            (7, What::Removed),
            (10, What::SubflowEstablished),
            (11, What::SubflowClosed),
            (13, What::SubflowPriority),
        ] {
            assert_eq!(event(&told(command)), expected(what));
        }
        for command in [0, 4, 5, 8, 9, 12, 14, 15, 16, 17, 255] {
            assert_eq!(event(&told(command)), None);
        }
    }

    #[test]
    fn a_mapped_address_is_the_address_that_it_stands_for() {
        let mut attributes = Vec::new();
        put(&mut attributes, TOKEN, &7u32.to_ne_bytes());
        put(&mut attributes, SOURCE_V6, &"::ffff:10.0.1.1".parse::<Ipv6Addr>().unwrap().octets());
        put(&mut attributes, SOURCE_PORT, &1u16.to_be_bytes());
        let read = event(&Generic { family: 28, command: 10, attributes }).unwrap();
        assert_eq!(read.local, Some(SocketAddr::from(([10, 0, 1, 1], 1))));
    }

    #[test]
    fn an_event_that_is_cut_has_no_token_or_the_right_one() {
        let whole = told(10);
        for length in 0..whole.attributes.len() {
            let cut = Generic { attributes: whole.attributes[..length].to_vec(), ..whole.clone() };
            assert!(event(&cut).is_none_or(|event| event.token == 0xdead_beef), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_an_event_do_harm(command in any::<u8>(), attributes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = event(&Generic { family: 28, command, attributes });
        }
    }
}
