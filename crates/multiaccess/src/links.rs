//! The messages of rtnetlink that ask which interfaces there are, and what is read of those that tell of
//! them: a number, a name and flags, of more than fifty things.

use crate::netlink::attribute;
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

/// RTM_GETLINK and RTM_NEWLINK of `linux/rtnetlink.h`.
const GET: u16 = 18;
const NEW: u16 = 16;
/// The length of `ifinfomsg`, which attributes follow, and where it has the number and the flags.
const MESSAGE: usize = 16;
const INDEX: usize = 4;
const FLAGS: usize = 8;
/// IFF_LOOPBACK of `linux/if.h`; IFF_UP and IFF_RUNNING.
const LOOPBACK: u32 = 0x8;
const RUNS: u32 = 0x1 | 0x40;
/// IFLA_IFNAME of `linux/if_link.h`.
const NAME: u16 = 3;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) is_loopback: bool,
    /// Whether packets can leave by it.
    pub(crate) is_up: bool,
}

/// A request for all interfaces, or what the answer says of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinksMessage {
    Request,
    Link(Link),
}

impl NetlinkSerializable for LinksMessage {
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

impl NetlinkDeserializable for LinksMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type != NEW {
            return Err(DecodeError::from(format!("{} is not RTM_NEWLINK", header.message_type)));
        }
        link(payload)
            .map(Self::Link)
            .ok_or_else(|| DecodeError::from("an interface is cut short, or has a strange name".to_owned()))
    }
}

/// Reads `ifinfomsg` with its attributes. `None` if something is missing.
fn link(payload: &[u8]) -> Option<Link> {
    let attributes = payload.get(MESSAGE..)?;
    let number = |at: usize| payload.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let flags = number(FLAGS)?;
    let name = attribute(attributes, NAME)?.split(|byte| *byte == 0).next()?;
    Some(Link {
        index: number(INDEX)?,
        name: String::from_utf8(name.to_vec()).ok()?,
        is_loopback: flags & LOOPBACK != 0,
        is_up: flags & RUNS == RUNS,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// An answer as the kernel makes it: interface 7, another attribute before the name.
    fn answer(flags: u32, name: &[u8; 8]) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        bytes[INDEX..FLAGS].copy_from_slice(&7u32.to_ne_bytes());
        bytes[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_ne_bytes());
        for number in [5u16, 13, 1, 0, 12, NAME] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(name);
        bytes
    }

    fn read(payload: &[u8]) -> Result<LinksMessage, DecodeError> {
        let mut header = NetlinkHeader::default();
        header.message_type = NEW;
        LinksMessage::deserialize(&header, payload)
    }

    #[test]
    fn an_interface_is_read_and_refused_wherever_it_is_cut() {
        let whole = answer(RUNS, b"wlan0\0\0\0");
        let expected = Link { index: 7, name: "wlan0".to_owned(), is_loopback: false, is_up: true };
        assert_eq!(read(&whole).unwrap(), LinksMessage::Link(expected));
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&answer(RUNS, b"\xff\0\0\0\0\0\0\0")).is_err());
    }

    #[test]
    fn packets_leave_by_what_is_up_and_has_a_carrier() {
        for (flags, is_up, is_loopback) in
            [(0x1, false, false), (0x40, false, false), (0x41, true, false), (0x49, true, true)]
        {
            let LinksMessage::Link(link) = read(&answer(flags, b"wlan0\0\0\0")).unwrap() else {
                panic!("no interface")
            };
            assert_eq!((link.is_up, link.is_loopback), (is_up, is_loopback), "{flags:#x}");
        }
    }
}
