//! What is said on a stream that a gateway opens, before its bytes: who has come.
//!
//! ```text
//! arrival = version (1) = 2, kind (1) = 8, length (2, big-endian), body
//! body    = client (address), came to (address), what (1 + n)
//! address = family (1) = 4 or 6, address (4 or 16), port (2, big-endian)
//! what    = 1, host of TLS | 2, port (2, big-endian) | 3, host of HTTP
//! ```
//!
//! The answer is that of a gateway, from the peer. The client's bytes may follow an arrival before it is
//! there.

use crate::{BadMessage, Publication};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The same as of requests about sessions.
const VERSION: u8 = 2;
const KIND: u8 = 8;
/// Two addresses, and a host.
const LONGEST: usize = 2 * 19 + 1 + 253;

/// A client has come to a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// To what.
    pub to: Publication,
    /// Where it is.
    pub from: SocketAddr,
    /// The gateway's address that it connected to.
    pub at: SocketAddr,
}

impl Arrival {
    /// This client has come. Addresses of IPv4 that are written as such of IPv6 are told as what they are.
    pub fn new(to: Publication, from: SocketAddr, at: SocketAddr) -> Self {
        Self { to, from: canonical(from), at: canonical(at) }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_address(&mut body, self.from);
        put_address(&mut body, self.at);
        self.to.put(&mut body);
        let [high, low] = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&[VERSION, KIND, high, low], &body[..]].concat()
    }

    /// Reads a whole one.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let [version, kind, high, low, body @ ..] = bytes else { return Err(BadMessage::Length) };
        check(*version, *kind)?;
        if body.len() != usize::from(u16::from_be_bytes([*high, *low])) {
            return Err(BadMessage::Length);
        }
        let (from, rest) = address(body)?;
        let (at, rest) = address(rest)?;
        Ok(Self { to: Publication::decode(rest)?, from, at })
    }

    /// Takes one from a stream, and not a byte of what follows it.
    ///
    /// # Errors
    /// When it is none, in an [`ErrorKind::InvalidData`], or the stream breaks.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let mut bytes = vec![0; 4];
        from.read_exact(&mut bytes).await?;
        check(bytes[0], bytes[1]).map_err(invalid)?;
        let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if length > LONGEST {
            return Err(invalid(BadMessage::Length));
        }
        bytes.resize(4 + length, 0);
        from.read_exact(&mut bytes[4..]).await?;
        Self::decode(&bytes).map_err(invalid)
    }
}

fn check(version: u8, kind: u8) -> Result<(), BadMessage> {
    match (version, kind) {
        (VERSION, KIND) => Ok(()),
        (VERSION, other) => Err(BadMessage::Kind(other)),
        (other, _) => Err(BadMessage::Version(other)),
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

fn address(bytes: &[u8]) -> Result<(SocketAddr, &[u8]), BadMessage> {
    let (family, rest) = bytes.split_first().ok_or(BadMessage::Length)?;
    let (ip, rest): (IpAddr, _) = match family {
        4 => {
            let (ip, rest) = rest.split_first_chunk::<4>().ok_or(BadMessage::Length)?;
            (Ipv4Addr::from(*ip).into(), rest)
        }
        6 => {
            let (ip, rest) = rest.split_first_chunk::<16>().ok_or(BadMessage::Length)?;
            (Ipv6Addr::from(*ip).into(), rest)
        }
        _ => return Err(BadMessage::Destination),
    };
    let (port, rest) = rest.split_first_chunk::<2>().ok_or(BadMessage::Length)?;
    Ok((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn arrival(to: &str, from: &str, at: &str) -> Arrival {
        Arrival::new(to.parse().unwrap(), from.parse().unwrap(), at.parse().unwrap())
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let bytes = arrival("2222", "192.0.2.7:40000", "203.0.113.5:2222").encode();
        let expected =
            b"\x02\x08\x00\x11\x04\xc0\x00\x02\x07\x9c\x40\x04\xcb\x00\x71\x05\x08\xae\x02\x08\xae";
        assert_eq!(bytes, expected);
        let mapped = arrival("2222", "[::ffff:192.0.2.7]:40000", "203.0.113.5:2222");
        assert_eq!(mapped.encode(), expected);
    }

    #[tokio::test]
    async fn what_was_said_is_understood_and_what_follows_is_left() {
        let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        for to in ["www.example.org", "1", &longest] {
            let said = arrival(to, "[2001:db8::7]:1", "[2001:db8::1]:443");
            let bytes = said.encode();
            for cut in 0..bytes.len() {
                assert!(Arrival::decode(&bytes[..cut]).is_err(), "{to} cut at {cut}");
            }
            let stream = [&bytes[..], b"GET /"].concat();
            let mut stream = &stream[..];
            assert_eq!(Arrival::read(&mut stream).await.unwrap(), said);
            assert_eq!(stream, b"GET /");
        }
        let error = Arrival::read(&mut &b"\x02\x08\xff\xffxxxx"[..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "it is not waited for");
        assert_eq!(Arrival::decode(b"\x01\x08\0\0"), Err(BadMessage::Version(1)));
        assert_eq!(Arrival::decode(b"\x02\x07\0\0"), Err(BadMessage::Kind(7)));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_understood_in_one_way_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let [high, low] = (bytes.len() as u16).to_be_bytes();
            let bytes = [&[VERSION, KIND, high, low], &bytes[..]].concat();
            if let Ok(arrival) = Arrival::decode(&bytes) {
                prop_assert_eq!(arrival.encode(), bytes);
            }
        }
    }
}
