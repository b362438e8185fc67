//! The messages of rtnetlink that ask for the addresses of all interfaces, and what is read of those that
//! tell of them.

use crate::diag::{AF_INET, AF_INET6};
use crate::netlink::attribute;
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use std::net::IpAddr;

/// RTM_GETADDR and RTM_NEWADDR of `linux/rtnetlink.h`.
const GET: u16 = 22;
const NEW: u16 = 20;
/// The length of `ifaddrmsg`, which attributes follow, and where it has the length of the prefix, flags, the
/// scope and the interface.
const MESSAGE: usize = 8;
const LENGTH: usize = 1;
const FLAGS: usize = 2;
const SCOPE: usize = 3;
const INDEX: usize = 4;
/// IFA_F_DADFAILED and IFA_F_TENTATIVE of `linux/if_addr.h`: somebody else may have it; nothing can be sent
/// from it yet.
const UNUSABLE: u8 = 0x08 | 0x40;
/// RT_SCOPE_LINK and RT_SCOPE_HOST.
const NEAR: [u8; 2] = [253, 254];
/// IFA_ADDRESS and IFA_LOCAL.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) index: u32,
    /// Ours.
    pub(crate) ip: IpAddr,
    /// An address of the network that it is in: on point-to-point links the peer's, else ours.
    pub(crate) network: IpAddr,
    /// The length of that network's prefix.
    pub(crate) length: u8,
    /// Whether it can be used, and beyond the link.
    pub(crate) leads_out: bool,
}

/// A request for all addresses, or what the answer says of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressesMessage {
    Request,
    Address(Address),
}

impl NetlinkSerializable for AddressesMessage {
    fn message_type(&self) -> u16 {
        GET
    }

    fn buffer_len(&self) -> usize {
        MESSAGE
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

impl NetlinkDeserializable for AddressesMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type != NEW {
            return Err(DecodeError::from(format!("{} is not RTM_NEWADDR", header.message_type)));
        }
        address(payload)
            .map(Self::Address)
            .ok_or_else(|| DecodeError::from("an address is cut short, or of another family".to_owned()))
    }
}

/// Reads `ifaddrmsg` with its attributes. `None` if something is missing.
fn address(payload: &[u8]) -> Option<Address> {
    let header: &[u8; MESSAGE] = payload.first_chunk()?;
    let ip = |kind| ip(header[0], attribute(&payload[MESSAGE..], kind)?);
    // On point-to-point links IFA_ADDRESS is the peer's; IFA_LOCAL is ours where it exists.
    let (any, local) = (ip(ADDRESS), ip(LOCAL));
    let ours = local.or(any)?;
    Some(Address {
        index: header[INDEX..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))?,
        ip: ours,
        network: any.unwrap_or(ours),
        length: header[LENGTH],
        leads_out: header[FLAGS] & UNUSABLE == 0 && !NEAR.contains(&header[SCOPE]),
    })
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const OURS: [u8; 4] = [10, 0, 0, 1];
    const THEIRS: [u8; 4] = [10, 9, 0, 1];

    /// An answer as the kernel makes it: of interface 7, in a network of 24 bits.
    fn answer(family: u8, flags: u8, scope: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![family, 24, flags, scope];
        bytes.extend_from_slice(&7u32.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    fn read(payload: &[u8]) -> Option<Address> {
        let mut header = NetlinkHeader::default();
        header.message_type = NEW;
        match AddressesMessage::deserialize(&header, payload) {
            Ok(AddressesMessage::Address(address)) => Some(address),
            _ => None,
        }
    }

    #[test]
    fn an_address_is_read_and_refused_wherever_it_is_cut() {
        let whole = answer(AF_INET, 0x80, 0, &[(ADDRESS, &OURS)]);
        let ours = IpAddr::from(OURS);
        let expected = Address { index: 7, ip: ours, network: ours, length: 24, leads_out: true };
        assert_eq!(read(&whole), Some(expected));
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(read(&answer(AF_INET6, 0, 0, &[(ADDRESS, &OURS)])), None);
        assert_eq!(read(&answer(129, 0, 0, &[(ADDRESS, &OURS)])), None);
    }

    #[test]
    fn on_a_link_of_two_ends_the_address_is_ours_and_the_network_that_of_the_peer() {
        let address = read(&answer(AF_INET, 0, 0, &[(ADDRESS, &THEIRS), (LOCAL, &OURS)])).unwrap();
        assert_eq!((address.ip, address.network), (IpAddr::from(OURS), IpAddr::from(THEIRS)));
        let address = read(&answer(AF_INET, 0, 0, &[(LOCAL, &OURS)])).unwrap();
        assert_eq!((address.ip, address.network), (IpAddr::from(OURS), IpAddr::from(OURS)));
    }

    #[test]
    fn an_address_leads_out_that_is_good_beyond_the_link_and_no_others() {
        let ip = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        // Flags, scope: permanent and global, of a site, of the link, of the host; tentative, a duplicate.
        for (flags, scope, expected) in [
            (0x80, 0, true),
            (0x80, 200, true),
            (0x80, 253, false),
            (0x80, 254, false),
            (0x40, 0, false),
            (0x88, 0, false),
        ] {
            let address = read(&answer(AF_INET6, flags, scope, &[(ADDRESS, &ip)])).unwrap();
            assert_eq!(address.ip, IpAddr::from(ip));
            assert_eq!(address.leads_out, expected, "{flags:#x}, {scope}");
        }
    }
}
