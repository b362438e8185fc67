//! The messages of rtnetlink that ask where routes lead, and nothing else of them. A route may say more, such
//! as the congestion control of what leaves by it, in forms that a general reader does not know: it leads
//! there nevertheless.

use crate::Prefix;
use crate::diag::{AF_INET, AF_INET6};
use crate::netlink::attribute;
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// RTM_GETROUTE and RTM_NEWROUTE of `linux/rtnetlink.h`.
const GET: u16 = 26;
const NEW: u16 = 24;
/// The length of `rtmsg`, which attributes follow, and where it has the length of the destination and the
/// type.
const MESSAGE: usize = 12;
const LENGTH: usize = 1;
const TYPE: usize = 7;
/// RTN_UNICAST: packets leave by it.
const UNICAST: u8 = 1;
/// RTA_DST, RTA_OIF and RTA_MULTIPATH.
const DESTINATION: u16 = 1;
const INTERFACE: u16 = 4;
const SEVERAL: u16 = 9;
/// The length of `rtnexthop`, of which RTA_MULTIPATH has several, and where it has the interface.
const HOP: usize = 8;
const HOP_INTERFACE: usize = 4;

/// Where a route leads, and by which interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lead {
    pub(crate) destination: Prefix,
    pub(crate) through: Vec<u32>,
}

/// A request for the routes of a family, or one of them. `Route(None)`: no packet leaves by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeadsMessage {
    Request { family: u8 },
    Route(Option<Lead>),
}

impl NetlinkSerializable for LeadsMessage {
    fn message_type(&self) -> u16 {
        GET
    }

    fn buffer_len(&self) -> usize {
        MESSAGE
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        if let Self::Request { family } = self {
            buffer[0] = *family;
        }
    }
}

impl NetlinkDeserializable for LeadsMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type != NEW {
            return Err(DecodeError::from(format!("{} is not RTM_NEWROUTE", header.message_type)));
        }
        let message = payload
            .first_chunk::<MESSAGE>()
            .ok_or_else(|| DecodeError::from("a route is cut short".to_owned()))?;
        if message[TYPE] != UNICAST {
            return Ok(Self::Route(None));
        }
        let attributes = &payload[MESSAGE..];
        let destination = destination(message, attributes);
        let lead = |address| Lead {
            destination: Prefix::new(address, message[LENGTH]),
            through: through(attributes),
        };
        Ok(Self::Route(destination.map(lead)))
    }
}

/// The destination's address. `None`: it is of another family.
fn destination(message: &[u8; MESSAGE], attributes: &[u8]) -> Option<IpAddr> {
    let bytes = attribute(attributes, DESTINATION);
    match message[0] {
        AF_INET => Some(match bytes {
            Some(bytes) => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }),
        AF_INET6 => Some(match bytes {
            Some(bytes) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
            None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }),
        _ => None,
    }
}

/// The interfaces by which packets leave.
fn through(attributes: &[u8]) -> Vec<u32> {
    let index = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let mut all: Vec<u32> = attribute(attributes, INTERFACE).and_then(index).into_iter().collect();
    let mut hops = attribute(attributes, SEVERAL).unwrap_or_default();
    while let Some(length) = hops.first_chunk().map(|length| usize::from(u16::from_ne_bytes(*length))) {
        all.extend(hops.get(HOP_INTERFACE..HOP).and_then(index));
        hops = hops.get(length.next_multiple_of(4).max(HOP)..).unwrap_or_default();
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
        bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    fn message(family: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        (bytes[0], bytes[LENGTH], bytes[TYPE]) = (family, length, UNICAST);
        bytes
    }

    fn read(payload: &[u8]) -> Option<Lead> {
        let mut header = NetlinkHeader::default();
        header.message_type = NEW;
        match LeadsMessage::deserialize(&header, payload) {
            Ok(LeadsMessage::Route(lead)) => lead,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_route_leads_where_it_says_whatever_else_it_says() {
        let mut bytes = message(AF_INET, 16);
        put(&mut bytes, DESTINATION, &[10, 7, 0, 0]);
        // RTA_METRICS with RTAX_CC_ALGO, a name.
        let mut metrics = Vec::new();
        put(&mut metrics, 16, b"cubic\0");
        put(&mut bytes, 8, &metrics);
        put(&mut bytes, INTERFACE, &3u32.to_ne_bytes());
        let destination = Prefix::new(IpAddr::from([10, 7, 0, 0]), 16);
        assert_eq!(read(&bytes).unwrap(), Lead { destination, through: vec![3] });
    }

    #[test]
    fn a_default_route_over_several_interfaces_leads_everywhere_by_each() {
        let mut bytes = message(AF_INET6, 0);
        let mut hops = Vec::new();
        for index in [4u32, 9] {
            // The second one's length has to be found behind the first one's attributes.
            hops.extend_from_slice(&[16, 0, 0, 0]);
            hops.extend_from_slice(&index.to_ne_bytes());
            put(&mut hops, 5, &[10, 0, 0, 1]);
        }
        put(&mut bytes, SEVERAL, &hops);
        let lead = read(&bytes).unwrap();
        assert_eq!(lead.through, [4, 9]);
        assert_eq!(lead.destination, Prefix::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0));
    }

    #[test]
    fn what_no_packet_leaves_by_leads_nowhere_and_what_is_cut_is_no_route() {
        let mut local = message(AF_INET, 32);
        local[TYPE] = 2;
        assert_eq!(read(&local), None);
        assert_eq!(read(&message(129, 0)), None);
        let header = {
            let mut header = NetlinkHeader::default();
            header.message_type = NEW;
            header
        };
        assert!(LeadsMessage::deserialize(&header, &[AF_INET; MESSAGE - 1]).is_err());
        // A hop that says that it has no length ends nothing but itself.
        let mut bytes = message(AF_INET, 0);
        put(&mut bytes, SEVERAL, &[0; 12]);
        assert_eq!(read(&bytes).unwrap().through, [0]);
    }
}
