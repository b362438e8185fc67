//! Notices: single UDP datagrams by which a server that moved tells a client its new addresses
//! [msocket §III-B3, the RECONNECT message]. They are authenticated with a key of the connection
//! secret, carry a sequence number so that an old one cannot be played again, and are repeated
//! until answered.

use std::net::SocketAddr;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::assignment::Assignment;
use crate::error::DecodeError;
use crate::ids::Side;
use crate::mac;
use crate::params::{MAX_NOTICE_ADDRESSES, decode_address, encode_address};
use crate::varint::Reader;

/// Longest notice datagram.
pub const MAX_NOTICE: usize = 1200;
const MAGIC: &[u8; 4] = b"WHN1";
const MAC_SIZE: usize = 16;

/// Identifies a connection's notices on the wire without showing its id to onlookers.
pub type NoticeTag = [u8; 16];

/// Makes and checks one connection's notices.
#[derive(Clone)]
pub struct NoticeKey {
    tag: NoticeTag,
    key: [u8; 32],
}

impl std::fmt::Debug for NoticeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NoticeKey").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// What a datagram says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// "I am reachable there now."
    Moved {
        /// Grows with each move of the sender.
        sequence: u64,
        /// Where the sender listens now, its best address first.
        addresses: Vec<SocketAddr>,
    },
    /// "I have the sender's end now, by this word, and am reachable there."
    HandedOver {
        /// As in [`Notice::Moved`], which it may follow.
        sequence: u64,
        /// The word of the key before.
        assignment: Assignment,
        /// Where the sender listens, its best address first.
        addresses: Vec<SocketAddr>,
    },
    /// "This address of mine may reach you": a packet that opens the sender's gateway, and finds out whether
    /// the peer's is open.
    Punch {
        /// Which side sends it, so that it cannot be played back to its sender.
        from: Side,
        /// It answers one: not answered itself.
        is_answer: bool,
    },
    /// "Another copy of your end has the connection": the client's answer to a notice of a copy that has
    /// lost.
    Superseded {
        /// The generation of the copy that has it.
        generation: u64,
        /// What that copy is known by.
        nonce: [u8; 32],
    },
    /// "I heard the notice with this sequence number."
    Heard {
        /// Which notice.
        sequence: u64,
    },
}

impl NoticeKey {
    pub(crate) const fn new(tag: NoticeTag, key: [u8; 32]) -> Self {
        Self { tag, key }
    }

    /// The tag that datagrams of this connection start with (behind the magic).
    #[must_use]
    pub const fn tag(&self) -> NoticeTag {
        self.tag
    }

    /// A key of no connection.
    #[cfg(feature = "fuzzing")]
    #[must_use]
    pub const fn of_nobody() -> Self {
        Self::new([1; 16], [2; 32])
    }

    /// A datagram with this body, authentic however senseless it is.
    #[cfg(feature = "fuzzing")]
    #[must_use]
    pub fn sealed(&self, body: &[u8]) -> Vec<u8> {
        let mut out = [&MAGIC[..], &self.tag, body].concat();
        let mac = self.mac(&out).finalize().into_bytes();
        out.extend_from_slice(&mac[..MAC_SIZE]);
        out
    }

    /// Encodes and authenticates a notice; at most [`MAX_NOTICE`] bytes.
    #[must_use]
    pub fn seal(&self, notice: &Notice) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.tag);
        match notice {
            Notice::Moved { sequence, addresses } => {
                out.push(0);
                out.extend_from_slice(&sequence.to_be_bytes());
                put_addresses(&mut out, addresses);
            }
            Notice::HandedOver { sequence, assignment, addresses } => {
                out.push(2);
                out.extend_from_slice(&sequence.to_be_bytes());
                assignment.encode(&mut out);
                put_addresses(&mut out, addresses);
            }
            Notice::Punch { from, is_answer } => {
                out.push(3);
                out.extend_from_slice(&(*from as u64 * 2 + u64::from(*is_answer)).to_be_bytes());
            }
            Notice::Superseded { generation, nonce } => {
                out.push(4);
                out.extend_from_slice(&generation.to_be_bytes());
                out.extend_from_slice(nonce);
            }
            Notice::Heard { sequence } => {
                out.push(1);
                out.extend_from_slice(&sequence.to_be_bytes());
            }
        }
        let mac = self.mac(&out).finalize().into_bytes();
        out.extend_from_slice(&mac[..MAC_SIZE]);
        out
    }

    /// Checks and decodes a datagram whose tag is ours. `None` for anything not authentic.
    #[must_use]
    pub fn open(&self, datagram: &[u8]) -> Option<Notice> {
        let (signed, mac) = datagram.split_at_checked(datagram.len().checked_sub(MAC_SIZE)?)?;
        self.mac(signed).verify_truncated_left(mac).ok()?;
        let body = signed.strip_prefix(MAGIC)?.strip_prefix(&self.tag)?;
        decode(&mut Reader::new(body)).ok()
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        mac::over(&self.key, &[bytes])
    }
}

/// Whether a datagram looks like a notice, authentic or not.
#[must_use]
pub fn is_notice(datagram: &[u8]) -> bool {
    datagram.starts_with(MAGIC)
}

/// The tag of a datagram, to find its connection by; `None` if it is no notice.
#[must_use]
pub fn tag(datagram: &[u8]) -> Option<NoticeTag> {
    if datagram.len() > MAX_NOTICE {
        return None;
    }
    datagram.strip_prefix(MAGIC)?.first_chunk::<16>().copied()
}

fn put_addresses(out: &mut Vec<u8>, addresses: &[SocketAddr]) {
    for address in addresses.iter().take(MAX_NOTICE_ADDRESSES) {
        out.push(if address.is_ipv4() { 6 } else { 18 });
        encode_address(*address, out);
    }
}

fn take_addresses(reader: &mut Reader<'_>) -> Result<Vec<SocketAddr>, DecodeError> {
    let mut addresses = Vec::new();
    while !reader.is_empty() {
        if addresses.len() == MAX_NOTICE_ADDRESSES {
            return Err(DecodeError::TooLarge("addresses"));
        }
        let length = usize::from(reader.byte()?);
        addresses.push(decode_address(&mut Reader::new(reader.bytes(length)?))?);
    }
    Ok(addresses)
}

fn decode(reader: &mut Reader<'_>) -> Result<Notice, DecodeError> {
    let kind = reader.byte()?;
    let sequence = u64::from_be_bytes(reader.array()?);
    match kind {
        0 => Ok(Notice::Moved { sequence, addresses: take_addresses(reader)? }),
        2 => {
            let assignment = Assignment::decode(reader)?;
            Ok(Notice::HandedOver { sequence, assignment, addresses: take_addresses(reader)? })
        }
        1 => Ok(Notice::Heard { sequence }),
        4 => Ok(Notice::Superseded { generation: sequence, nonce: reader.array()? }),
        3 if sequence < 4 => {
            let from = if sequence < 2 { Side::Client } else { Side::Server };
            Ok(Notice::Punch { from, is_answer: sequence & 1 == 1 })
        }
        _ => Err(DecodeError::Invalid("notice kind")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::{ConnectionId, SecretKey};

    use super::*;

    fn moved() -> Notice {
        Notice::Moved {
            sequence: 7,
            addresses: vec!["192.0.2.1:4480".parse().unwrap(), "[2001:db8::2]:4480".parse().unwrap()],
        }
    }

    #[test]
    fn a_notice_round_trips_and_any_changed_bit_is_noticed() {
        let key = NoticeKey::new([1; 16], [2; 32]);
        let (key_before, to) = (SecretKey::from_bytes(&[4; 32]), SecretKey::from_bytes(&[5; 32]).id());
        let assignment = Assignment::sign(&key_before, ConnectionId::random(), Side::Server, to, 1);
        let addresses = vec!["192.0.2.1:4480".parse().unwrap()];
        let handed_over = Notice::HandedOver { sequence: 8, assignment, addresses };
        let punches =
            [(Side::Client, false), (Side::Client, true), (Side::Server, false), (Side::Server, true)]
                .map(|(from, is_answer)| Notice::Punch { from, is_answer });
        let superseded = Notice::Superseded { generation: 3, nonce: [6; 32] };
        let others = [moved(), handed_over, superseded, Notice::Heard { sequence: 9 }];
        for notice in others.into_iter().chain(punches) {
            let datagram = key.seal(&notice);
            assert_eq!(tag(&datagram), Some([1; 16]));
            assert_eq!(key.open(&datagram), Some(notice));
            for bit in 0..datagram.len() * 8 {
                let mut forged = datagram.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(key.open(&forged), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn another_connections_key_opens_nothing() {
        let datagram = NoticeKey::new([1; 16], [2; 32]).seal(&moved());
        assert_eq!(NoticeKey::new([1; 16], [3; 32]).open(&datagram), None);
        assert_eq!(NoticeKey::new([1; 16], [2; 32]).open(&datagram[..10]), None);
    }
}
