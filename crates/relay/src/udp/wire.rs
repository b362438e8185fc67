//! Datagrams between a server and its relay.
//!
//! ```text
//! open     30 | token (10) | number (8) | proof (16)                          server: packets for the token go here
//! opened   31 | number (8) | nonce (8) | proof (16)                           relay: are you there? 0: they do
//! confirm  35 | token (10) | nonce (8)                                        server: it is
//! first    32 | flow (4) | client's IPv6 address, or IPv4 mapped (16) |
//!               client's port (2) | proof (8) | packet                        relay
//! data     33 | flow (4) | packet                                             both
//! unknown  34 | flow (4)                                                      server: whose packet was this?
//! ```
//!
//! An `open` may come with a forged source. So a place counts once something from there has repeated the
//! nonce that was sent there.
//!
//! The first byte is hexadecimal, integers are big-endian. Packets of QUIC have the bit `40` set in their
//! first byte, requests of STUN begin below `04`. A proof is the beginning of HMAC-SHA256 with the
//! reservation's key over a purpose, a zero byte, and what stands before it.
//!
//! The longest header has 31 bytes, so the 1200 bytes of a client's first packet (RFC 9000 §14.1) fit into
//! the smallest packet of IPv6, 1280 bytes with headers of 48.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use whimbrel_base::RelayToken;

use crate::spare::Key;

/// Bytes of an `open`.
pub const OPEN: usize = 1 + RelayToken::LENGTH + 8 + OPEN_PROOF;
/// Bytes of an `opened`.
pub const OPENED: usize = 1 + 8 + 8 + OPEN_PROOF;
/// Bytes of a `confirm`.
pub const CONFIRM: usize = 1 + RelayToken::LENGTH + 8;
/// Bytes before the packet where the server knows the flow.
pub const DATA_HEADER: usize = 1 + 4;
/// Bytes before the packet where it does not yet.
pub const FIRST_HEADER: usize = DATA_HEADER + 16 + 2 + FIRST_PROOF;

const OPEN_PROOF: usize = 16;
const FIRST_PROOF: usize = 8;

const OPENS: u8 = 0x30;
const OPENS_WORD: u8 = 0x31;
const FIRST: u8 = 0x32;
const DATA: u8 = 0x33;
const UNKNOWN: u8 = 0x34;
const CONFIRMS: u8 = 0x35;

const OPEN_PURPOSE: &[u8] = b"whimbrel relay open v1\0";
const OPENED_PURPOSE: &[u8] = b"whimbrel relay opened v1\0";
const FIRST_PURPOSE: &[u8] = b"whimbrel relay flow v1\0";

/// What a server sends to its relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromServer<'a> {
    /// Packets for the token are to go to where this comes from. The number grows with each. Whether it is
    /// true tells [`is_open_of`].
    Open {
        /// Whose.
        token: RelayToken,
        /// Higher than all before.
        number: u64,
    },
    /// What the relay has sent in answer to an `open` has come to where that came from.
    Confirm {
        /// Whose.
        token: RelayToken,
        /// What was sent.
        nonce: u64,
    },
    /// A packet for a client.
    Data {
        /// Which client.
        flow: u32,
        /// The packet.
        packet: &'a [u8],
    },
    /// The server does not know where the client of a flow is.
    Unknown {
        /// Which client.
        flow: u32,
    },
}

/// What a relay sends to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromRelay<'a> {
    /// The `open` of that number has come.
    Opened {
        /// Its number.
        number: u64,
        /// To be repeated; 0: packets come here.
        nonce: u64,
    },
    /// A packet of a client, and where that is.
    First {
        /// Which client.
        flow: u32,
        /// Where it is.
        client: SocketAddr,
        /// The packet.
        packet: &'a [u8],
    },
    /// A packet of a client.
    Data {
        /// Which client.
        flow: u32,
        /// The packet.
        packet: &'a [u8],
    },
}

/// Reads what a server sent. `None` if it is nothing of this kind, but QUIC's for instance.
pub fn read_from_server(datagram: &[u8]) -> Option<FromServer<'_>> {
    match *datagram.first()? {
        OPENS if datagram.len() == OPEN => {
            let token = RelayToken::from_bytes(datagram[1..11].try_into().ok()?);
            let number = u64::from_be_bytes(datagram[11..19].try_into().ok()?);
            Some(FromServer::Open { token, number })
        }
        CONFIRMS if datagram.len() == CONFIRM => {
            let token = RelayToken::from_bytes(datagram[1..11].try_into().ok()?);
            let nonce = u64::from_be_bytes(datagram[11..].try_into().ok()?);
            Some(FromServer::Confirm { token, nonce })
        }
        DATA => read_data(datagram).map(|(flow, packet)| FromServer::Data { flow, packet }),
        UNKNOWN if datagram.len() == DATA_HEADER => {
            read_data(datagram).map(|(flow, _)| FromServer::Unknown { flow })
        }
        _ => None,
    }
}

/// Reads what the relay sent. `None` for what is nothing of this kind, or not authentic.
pub fn read_from_relay<'a>(key: &Key, datagram: &'a [u8]) -> Option<FromRelay<'a>> {
    match *datagram.first()? {
        OPENS_WORD if datagram.len() == OPENED => {
            let (words, proof) = datagram.split_at(OPENED - OPEN_PROOF);
            let number = u64::from_be_bytes(words[1..9].try_into().ok()?);
            let nonce = u64::from_be_bytes(words[9..].try_into().ok()?);
            key.begins(&[OPENED_PURPOSE, words], proof).then_some(FromRelay::Opened { number, nonce })
        }
        FIRST => {
            let (header, packet) = datagram.split_at_checked(FIRST_HEADER)?;
            let (words, proof) = header.split_at(FIRST_HEADER - FIRST_PROOF);
            if !key.begins(&[FIRST_PURPOSE, words], proof) {
                return None;
            }
            let flow = u32::from_be_bytes(words[1..5].try_into().ok()?);
            let ip: [u8; 16] = words[5..21].try_into().ok()?;
            let port = u16::from_be_bytes(words[21..].try_into().ok()?);
            let client = SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port);
            Some(FromRelay::First { flow, client, packet })
        }
        DATA => read_data(datagram).map(|(flow, packet)| FromRelay::Data { flow, packet }),
        _ => None,
    }
}

fn read_data(datagram: &[u8]) -> Option<(u32, &[u8])> {
    let (header, packet) = datagram.split_at_checked(DATA_HEADER)?;
    Some((u32::from_be_bytes(header[1..].try_into().ok()?), packet))
}

/// Server: has packets for the token come to where this is sent from.
pub fn open(key: &Key, token: RelayToken, number: u64) -> Vec<u8> {
    let mut bytes = vec![OPENS];
    bytes.extend(token.as_bytes());
    bytes.extend(number.to_be_bytes());
    let proof = key.sign(&[OPEN_PURPOSE, &bytes]);
    bytes.extend(&proof.as_ref()[..OPEN_PROOF]);
    bytes
}

/// Whether the holder of the key has written this `open`.
pub fn is_open_of(key: &Key, datagram: &[u8]) -> bool {
    let split = datagram.split_at_checked(OPEN - OPEN_PROOF);
    split.is_some_and(|(words, proof)| proof.len() == OPEN_PROOF && key.begins(&[OPEN_PURPOSE, words], proof))
}

/// Relay: the answer to an `open`. Shorter than that.
pub fn opened(key: &Key, number: u64, nonce: u64) -> Vec<u8> {
    let mut bytes = vec![OPENS_WORD];
    bytes.extend(number.to_be_bytes());
    bytes.extend(nonce.to_be_bytes());
    let proof = key.sign(&[OPENED_PURPOSE, &bytes]);
    bytes.extend(&proof.as_ref()[..OPEN_PROOF]);
    bytes
}

/// Server: repeats what came in answer to an `open`.
pub fn confirm(token: RelayToken, nonce: u64) -> Vec<u8> {
    let mut bytes = vec![CONFIRMS];
    bytes.extend(token.as_bytes());
    bytes.extend(nonce.to_be_bytes());
    bytes
}

/// Relay: what stands before a packet of a client that the server may not know. Each packet of a flow has the
/// same.
pub fn first_header(key: &Key, flow: u32, client: SocketAddr) -> [u8; FIRST_HEADER] {
    let ip = match client.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut header = [0; FIRST_HEADER];
    header[0] = FIRST;
    header[1..5].copy_from_slice(&flow.to_be_bytes());
    header[5..21].copy_from_slice(&ip.octets());
    header[21..23].copy_from_slice(&client.port().to_be_bytes());
    let proof = key.sign(&[FIRST_PURPOSE, &header[..23]]);
    header[23..].copy_from_slice(&proof.as_ref()[..FIRST_PROOF]);
    header
}

/// What stands before a packet of a flow that both know.
pub fn data_header(flow: u32) -> [u8; DATA_HEADER] {
    header(DATA, flow)
}

/// The same for a flow that was told of just now, by what was said then.
pub fn data_header_of(first: &[u8; FIRST_HEADER]) -> [u8; DATA_HEADER] {
    [DATA, first[1], first[2], first[3], first[4]]
}

/// Server: asks where the client of a flow is.
pub fn unknown(flow: u32) -> [u8; DATA_HEADER] {
    header(UNKNOWN, flow)
}

fn header(kind: u8, flow: u32) -> [u8; DATA_HEADER] {
    let [a, b, c, d] = flow.to_be_bytes();
    [kind, a, b, c, d]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: RelayToken = RelayToken::from_bytes([7; 10]);

    fn keys() -> (Key, Key) {
        (Key::new(&[1; 32]), Key::new(&[2; 32]))
    }

    #[test]
    fn an_open_and_its_answer_round_trip_and_each_changed_byte_is_told() {
        let (key, other) = keys();
        let asked = open(&key, TOKEN, 1 << 40);
        assert_eq!(asked.len(), OPEN);
        assert_eq!(read_from_server(&asked), Some(FromServer::Open { token: TOKEN, number: 1 << 40 }));
        assert!(is_open_of(&key, &asked) && !is_open_of(&other, &asked));
        let answer = opened(&key, 9, 77);
        assert!(answer.len() < asked.len(), "nobody is sent more than was asked with");
        assert_eq!(read_from_relay(&key, &answer), Some(FromRelay::Opened { number: 9, nonce: 77 }));
        let confirmed = FromServer::Confirm { token: TOKEN, nonce: 77 };
        assert_eq!(read_from_server(&confirm(TOKEN, 77)), Some(confirmed));
        assert_eq!(read_from_relay(&other, &answer), None);
        for at in 0..OPEN {
            let mut changed = asked.clone();
            changed[at] ^= 1;
            assert!(!is_open_of(&key, &changed), "byte {at}");
        }
        for at in 0..OPENED {
            let mut changed = answer.clone();
            changed[at] ^= 1;
            assert!(!matches!(read_from_relay(&key, &changed), Some(FromRelay::Opened { .. })), "byte {at}");
        }
    }

    #[test]
    fn where_a_client_is_belongs_to_its_flow_and_each_changed_byte_is_told() {
        let (key, other) = keys();
        for client in ["192.0.2.1:5", "[2001:db8::1]:65535"] {
            let client: SocketAddr = client.parse().unwrap();
            let mut datagram = first_header(&key, 70_000, client).to_vec();
            datagram.extend(b"packet");
            let first = FromRelay::First { flow: 70_000, client, packet: b"packet" };
            assert_eq!(read_from_relay(&key, &datagram), Some(first));
            assert_eq!(read_from_relay(&other, &datagram), None);
            for at in 0..FIRST_HEADER {
                let mut changed = datagram.clone();
                changed[at] ^= 1;
                let read = read_from_relay(&key, &changed);
                assert!(!matches!(read, Some(FromRelay::First { .. })), "byte {at}");
            }
        }
    }

    #[test]
    fn packets_travel_with_five_bytes_more_and_first_ones_fit_into_the_smallest_packet_of_ipv6() {
        let mut datagram = data_header(7).to_vec();
        datagram.extend([9; 1400]);
        assert_eq!(datagram.len(), 1405);
        let packet = &[9; 1400][..];
        assert_eq!(read_from_server(&datagram), Some(FromServer::Data { flow: 7, packet }));
        assert_eq!(read_from_relay(&keys().0, &datagram), Some(FromRelay::Data { flow: 7, packet }));
        assert_eq!(
            data_header_of(&first_header(&keys().0, 7, "192.0.2.1:5".parse().unwrap())),
            data_header(7)
        );
        assert_eq!(read_from_server(&unknown(7)), Some(FromServer::Unknown { flow: 7 }));
        const { assert!(1200 + FIRST_HEADER + 48 <= 1280) };
    }

    #[test]
    fn what_shares_the_port_is_nothing_of_this_kind() {
        let (key, _) = keys();
        for first in (0..0x30).chain(0x40..=0xff) {
            let datagram = [first; OPEN];
            assert_eq!(read_from_server(&datagram), None, "{first}");
            assert_eq!(read_from_relay(&key, &datagram), None, "{first}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), kind in 0x30u8..0x36) {
            let (key, _) = keys();
            let of_kind: Vec<u8> = std::iter::once(kind).chain(bytes.iter().copied()).collect();
            for datagram in [&bytes[..], &of_kind[..]] {
                let _ = (read_from_server(datagram), read_from_relay(&key, datagram), is_open_of(&key, datagram));
            }
        }
    }
}
