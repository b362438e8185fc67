//! The messages of sock_diag(7) that ask for connections of Multipath TCP and for their subflows, and what is
//! read of those that tell of them. Which connection a subflow belongs to is told to those alone who have
//! CAP_NET_ADMIN, before Linux 6.15.

use crate::diag::{AF_INET, AF_INET6, BY_FAMILY, ESTABLISHED, INFO, IPPROTO_TCP, MESSAGE, REQUEST};
use crate::netlink::{attribute, number_u32, put};
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// INET_DIAG_REQ_PROTOCOL of `linux/inet_diag.h`: the protocol, where the number is larger than a byte. That
/// byte is then IPPROTO_RAW, as ss(8) has it.
const REQUEST_PROTOCOL: u16 = 3;
const LARGE: u8 = 255;
/// TCP_SYN_SENT of `net/tcp_states.h`.
const SYN_SENT: u8 = 2;
/// INET_DIAG_ULP_INFO, INET_ULP_INFO_MPTCP, and MPTCP_SUBFLOW_ATTR_TOKEN_LOC and _FLAGS of `linux/mptcp.h`.
const ULP: u16 = 19;
const ULP_MPTCP: u16 = 3;
const SUBFLOW_TOKEN: u16 = 2;
const SUBFLOW_FLAGS: u16 = 8;
/// MPTCP_SUBFLOW_FLAG_BKUP_LOC: this side asked for a backup.
const BACKUP: u32 = 1 << 5;
/// Where `mptcp_info` has its flags and the token, and MPTCP_INFO_FLAG_FALLBACK.
const INFO_FLAGS: usize = 8;
const INFO_TOKEN: usize = 12;
const FALLBACK: u32 = 1;
/// Where `inet_diag_msg` has the state, both ports, both addresses and the user.
const STATE: usize = 1;
const LOCAL_PORT: usize = 4;
const REMOTE_PORT: usize = 6;
const LOCAL: usize = 8;
const REMOTE: usize = 24;
const USER: usize = 64;

/// Where a connection begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A connection of Multipath TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Those of its first subflow, also when that is closed.
    pub(crate) ends: Ends,
    /// Whose it is.
    pub(crate) user: u32,
    /// What the kernel's path manager knows it by.
    pub(crate) token: u32,
}

/// A TCP connection that carries data of one of Multipath TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subflow {
    pub(crate) ends: Ends,
    /// Of the connection; a matter between the kernel and the one that asked it.
    #[serde(skip)]
    pub(crate) token: u32,
    #[serde(rename = "established")]
    pub(crate) is_established: bool,
    #[serde(rename = "backup")]
    pub(crate) is_backup: bool,
}

/// A request for the connections of Multipath TCP with these ports, or what the answer says of one. `None`:
/// it is TCP alone by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectionsMessage {
    Request { family: u8, ports: (u16, u16) },
    Connection(Option<Connection>),
}

/// A request for the TCP connections to this port, or what the answer says of one. `None`: it carries none of
/// Multipath TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubflowsMessage {
    Request { family: u8, remote_port: u16 },
    Subflow(Option<Subflow>),
}

impl NetlinkSerializable for ConnectionsMessage {
    fn message_type(&self) -> u16 {
        BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST + 8
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        if let Self::Request { family, ports } = self {
            request(buffer, *family, LARGE, 1 << ESTABLISHED, *ports);
            let mut protocol = Vec::new();
            put(&mut protocol, REQUEST_PROTOCOL, &super::PROTOCOL.to_ne_bytes());
            buffer[REQUEST..].copy_from_slice(&protocol);
        }
    }
}

impl NetlinkSerializable for SubflowsMessage {
    fn message_type(&self) -> u16 {
        BY_FAMILY
    }

    fn buffer_len(&self) -> usize {
        REQUEST
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        if let Self::Request { family, remote_port } = self {
            request(buffer, *family, IPPROTO_TCP, (1 << ESTABLISHED) | (1 << SYN_SENT), (0, *remote_port));
        }
    }
}

/// Writes `inet_diag_req_v2`.
fn request(buffer: &mut [u8], family: u8, protocol: u8, states: u32, (local, remote): (u16, u16)) {
    buffer[0] = family;
    buffer[1] = protocol;
    buffer[2] = 1 << (INFO - 1);
    buffer[4..8].copy_from_slice(&states.to_ne_bytes());
    buffer[8..10].copy_from_slice(&local.to_be_bytes());
    buffer[10..12].copy_from_slice(&remote.to_be_bytes());
}

impl NetlinkDeserializable for ConnectionsMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let (ends, attributes) = told(header, payload)?;
        let read = || {
            let info = attribute(attributes, INFO)?;
            let number = |at: usize| info.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            let user = u32::from_ne_bytes(*payload.get(USER..)?.first_chunk()?);
            let connection = Connection { ends, user, token: number(INFO_TOKEN)? };
            Some(Some(connection).filter(|_| number(INFO_FLAGS).is_some_and(|flags| flags & FALLBACK == 0)))
        };
        read().map(Self::Connection).ok_or_else(cut)
    }
}

impl NetlinkDeserializable for SubflowsMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let (ends, attributes) = told(header, payload)?;
        let read = || {
            let about = attribute(attribute(attributes, ULP)?, ULP_MPTCP)?;
            Some(Subflow {
                ends,
                token: number_u32(about, SUBFLOW_TOKEN)?,
                is_established: payload.get(STATE) == Some(&ESTABLISHED),
                is_backup: number_u32(about, SUBFLOW_FLAGS)? & BACKUP != 0,
            })
        };
        Ok(Self::Subflow(read()))
    }
}

fn cut() -> DecodeError {
    DecodeError::from("a connection of sock_diag is cut short, or of another family".to_owned())
}

/// Reads both ends out of `inet_diag_msg`, and returns the attributes that follow it.
fn told<'a>(header: &NetlinkHeader, payload: &'a [u8]) -> Result<(Ends, &'a [u8]), DecodeError> {
    if header.message_type != BY_FAMILY {
        return Err(DecodeError::from(format!("{} is not SOCK_DIAG_BY_FAMILY", header.message_type)));
    }
    let attributes = payload.get(MESSAGE..).ok_or_else(cut)?;
    let end = |ip: usize, port: usize| {
        let bytes: &[u8; 16] = payload.get(ip..)?.first_chunk()?;
        let ip = match *payload.first()? {
            AF_INET => IpAddr::from(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
            AF_INET6 => IpAddr::from(Ipv6Addr::from(*bytes)).to_canonical(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(*payload.get(port..)?.first_chunk()?)))
    };
    let ends = end(LOCAL, LOCAL_PORT).zip(end(REMOTE, REMOTE_PORT));
    ends.map(|(local, remote)| (Ends { local, remote }, attributes)).ok_or_else(cut)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends() -> Ends {
        Ends {
            local: SocketAddr::from(([10, 0, 1, 1], 40_000)),
            remote: SocketAddr::from(([10, 9, 9, 9], 443)),
        }
    }

    /// An answer as the kernel makes it: of user 1000, with one attribute.
    fn answer(state: u8, kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        bytes[0] = AF_INET;
        bytes[STATE] = state;
        bytes[LOCAL_PORT..REMOTE_PORT].copy_from_slice(&40_000u16.to_be_bytes());
        bytes[REMOTE_PORT..LOCAL].copy_from_slice(&443u16.to_be_bytes());
        bytes[LOCAL..LOCAL + 4].copy_from_slice(&[10, 0, 1, 1]);
        bytes[REMOTE..REMOTE + 4].copy_from_slice(&[10, 9, 9, 9]);
        bytes[USER..USER + 4].copy_from_slice(&1000u32.to_ne_bytes());
        put(&mut bytes, kind, value);
        bytes
    }

    fn header() -> NetlinkHeader {
        let mut header = NetlinkHeader::default();
        header.message_type = BY_FAMILY;
        header
    }

    fn info(flags: u32) -> Vec<u8> {
        let mut info = vec![0; 16];
        info[INFO_FLAGS..INFO_TOKEN].copy_from_slice(&flags.to_ne_bytes());
        info[INFO_TOKEN..].copy_from_slice(&0x1aeb_bafe_u32.to_ne_bytes());
        info
    }

    #[test]
    fn a_connection_has_two_ends_a_user_and_a_token_unless_it_fell_back() {
        let read = |bytes: &[u8]| ConnectionsMessage::deserialize(&header(), bytes);
        let expected = Connection { ends: ends(), user: 1000, token: 0x1aeb_bafe };
        let whole = answer(ESTABLISHED, INFO, &info(2));
        assert_eq!(read(&whole).unwrap(), ConnectionsMessage::Connection(Some(expected)));
        let fallen = answer(ESTABLISHED, INFO, &info(FALLBACK | 2));
        assert_eq!(read(&fallen).unwrap(), ConnectionsMessage::Connection(None));
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_subflow_belongs_to_a_token_and_other_connections_are_none() {
        let read = |bytes: &[u8]| SubflowsMessage::deserialize(&header(), bytes).unwrap();
        for (state, flags, is_established, is_backup) in
            [(ESTABLISHED, 0xc3, true, false), (ESTABLISHED, 0xe3, true, true), (SYN_SENT, 0x28, false, true)]
        {
            let (mut about, mut ulp) = (Vec::new(), Vec::new());
            put(&mut about, 1, &0u32.to_ne_bytes());
            put(&mut about, SUBFLOW_TOKEN, &7u32.to_ne_bytes());
            put(&mut about, SUBFLOW_FLAGS, &u32::to_ne_bytes(flags));
            put(&mut ulp, ULP_MPTCP, &about);
            let expected = Subflow { ends: ends(), token: 7, is_established, is_backup };
            let told = answer(state, ULP, &ulp);
            assert_eq!(read(&told), SubflowsMessage::Subflow(Some(expected)));
        }
        assert_eq!(read(&answer(ESTABLISHED, INFO, &[0; 232])), SubflowsMessage::Subflow(None));
    }

    #[test]
    fn requests_say_which_protocol_which_states_and_which_ports() {
        let asked = ConnectionsMessage::Request { family: AF_INET, ports: (40_000, 443) };
        let mut bytes = vec![0xff; asked.buffer_len()];
        asked.serialize(&mut bytes);
        let mut expected = vec![AF_INET, 255, 2, 0];
        expected.extend_from_slice(&2u32.to_ne_bytes());
        expected.extend_from_slice(&[0x9c, 0x40, 1, 0xbb]);
        expected.resize(REQUEST, 0);
        put(&mut expected, 3, &262u32.to_ne_bytes());
        assert_eq!(bytes, expected);
        let asked = SubflowsMessage::Request { family: AF_INET6, remote_port: 443 };
        let mut bytes = vec![0xff; asked.buffer_len()];
        asked.serialize(&mut bytes);
        let mut expected = vec![AF_INET6, 6, 2, 0];
        expected.extend_from_slice(&6u32.to_ne_bytes());
        expected.extend_from_slice(&[0, 0, 1, 0xbb]);
        expected.resize(REQUEST, 0);
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn no_bytes_of_an_answer_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ConnectionsMessage::deserialize(&header(), &bytes);
            let _ = SubflowsMessage::deserialize(&header(), &bytes);
        }
    }
}
