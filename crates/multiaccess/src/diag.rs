//! The messages of sock_diag(7) that ask for all TCP connections and tell of them.

use crate::TcpConnection;
use crate::netlink::attribute;
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// SOCK_DIAG_BY_FAMILY of `linux/sock_diag.h`.
pub(crate) const BY_FAMILY: u16 = 20;
/// Address families, as in `bits/socket.h` of Linux.
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;
pub(crate) const IPPROTO_TCP: u8 = 6;
/// INET_DIAG_INFO of `linux/inet_diag.h`: the attribute that is the structure `tcp_info`.
pub(crate) const INFO: u16 = 2;
/// TCP_ESTABLISHED of `net/tcp_states.h`.
pub(crate) const ESTABLISHED: u8 = 1;
/// The length of `inet_diag_req_v2`.
pub(crate) const REQUEST: usize = 56;
/// The length of `inet_diag_msg`, which attributes follow.
pub(crate) const MESSAGE: usize = 72;

/// A request for all established TCP connections of a family, or what the answer says of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiagMessage {
    Request { family: u8 },
    Connection(TcpConnection),
}

impl NetlinkSerializable for DiagMessage {
    fn message_type(&self) -> u16 {
        BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        if let Self::Request { family } = self {
            buffer[0] = *family;
            buffer[1] = IPPROTO_TCP;
            buffer[2] = 1 << (INFO - 1);
            buffer[4..8].copy_from_slice(&(1u32 << ESTABLISHED).to_ne_bytes());
        }
    }
}

impl NetlinkDeserializable for DiagMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type != BY_FAMILY {
            return Err(DecodeError::from(format!("{} is not SOCK_DIAG_BY_FAMILY", header.message_type)));
        }
        connection(payload)
            .map(Self::Connection)
            .ok_or_else(|| DecodeError::from("a connection of sock_diag is cut short".to_owned()))
    }
}

/// Reads `inet_diag_msg` with its attributes. `None` if something is missing.
fn connection(payload: &[u8]) -> Option<TcpConnection> {
    let attributes = payload.get(MESSAGE..)?;
    let source = payload.get(8..24)?;
    let local = match *payload.first()? {
        AF_INET => IpAddr::from(Ipv4Addr::from(*source.first_chunk::<4>()?)),
        AF_INET6 => IpAddr::from(Ipv6Addr::from(*source.first_chunk::<16>()?)).to_canonical(),
        _ => return None,
    };
    let info = attribute(attributes, INFO)?;
    // Positions in the structure `tcp_info` of `linux/tcp.h`, which only ever grows at its end.
    let number = |at: usize| info.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let srtt = Duration::from_micros(u64::from(number(68)?));
    // Of data and of acknowledgements: those that come with the data of a download are not counted as such.
    let heard = number(52)?.min(number(56)?);
    Some(TcpConnection {
        local,
        srtt: Some(srtt).filter(|srtt| !srtt.is_zero()),
        heard: Duration::from_millis(u64::from(heard)),
        // tcpi_data_segs_out came with Linux 4.6.
        sent: number(156).unwrap_or(0),
        sent_again: number(100)?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// An answer as the kernel makes it: 10.0.1.2, 25 ms, 300 segments of which 3 again, data 40 ms ago, and
    /// an acknowledgement before.
    fn answer() -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        bytes[0] = AF_INET;
        bytes[8..12].copy_from_slice(&[10, 0, 1, 2]);
        // Another attribute before, of a length that needs padding.
        for number in [5u16, 8, 1, 0] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        let mut info = vec![0; 232];
        for (at, number) in [(52, 40u32), (56, 900), (68, 25_000), (100, 3), (156, 300)] {
            info[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(&(info.len() as u16 + 4).to_ne_bytes());
        bytes.extend_from_slice(&INFO.to_ne_bytes());
        bytes.extend_from_slice(&info);
        bytes
    }

    fn read(payload: &[u8]) -> Result<DiagMessage, DecodeError> {
        let mut header = NetlinkHeader::default();
        header.message_type = BY_FAMILY;
        DiagMessage::deserialize(&header, payload)
    }

    #[test]
    fn an_answer_is_read() {
        let expected = TcpConnection {
            local: IpAddr::from([10, 0, 1, 2]),
            srtt: Some(Duration::from_millis(25)),
            heard: Duration::from_millis(40),
            sent: 300,
            sent_again: 3,
        };
        assert_eq!(read(&answer()).unwrap(), DiagMessage::Connection(expected));
    }

    #[test]
    fn a_v4_address_in_v6_clothes_is_the_v4_address() {
        let mut bytes = answer();
        bytes[0] = AF_INET6;
        bytes[8..24].copy_from_slice(&"::ffff:10.0.1.2".parse::<Ipv6Addr>().unwrap().octets());
        let DiagMessage::Connection(found) = read(&bytes).unwrap() else { panic!("not a connection") };
        assert_eq!(found.local, IpAddr::from([10, 0, 1, 2]));
    }

    #[test]
    fn an_answer_that_is_cut_short_is_refused_wherever_it_is_cut() {
        let whole = answer();
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn attributes_of_no_length_end_the_search() {
        let mut bytes = answer();
        bytes[MESSAGE..MESSAGE + 4].fill(0);
        assert!(read(&bytes).is_err());
    }

    #[test]
    fn a_request_asks_for_what_is_established_with_its_figures() {
        let mut bytes = [0xff; REQUEST];
        DiagMessage::Request { family: AF_INET6 }.serialize(&mut bytes);
        assert_eq!(bytes[..4], [10, 6, 2, 0]);
        assert_eq!(bytes[4..8], 2u32.to_ne_bytes());
        assert!(bytes[8..].iter().all(|byte| *byte == 0));
    }
}
