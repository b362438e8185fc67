//! The Port Control Protocol's request to let a port in at the host's own address (RFC 6887 §11), without
//! I/O.
//!
//! crab_nat, which asks for ports of IPv4, leaves the source address of its packets to the kernel. Towards a
//! router whose address is link-local that is a link-local one, while a pinhole is asked for from the very
//! address that it is for (§8.1: the router compares them).

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;

/// By what a router knows again who asked (§11.2): 96 bits that nobody else can guess.
pub(crate) type Nonce = crab_nat::pcp::Nonce;

/// Of a request, and of the answer to it as far as it is looked at.
pub(crate) const LENGTH: usize = 60;
/// Of all that the protocol sends (§7).
pub(crate) const LONGEST: usize = 1100;

const VERSION: u8 = 2;
const MAP: u8 = 1;
/// The bit of the operation that answers have.
const ANSWER: u8 = 0x80;
/// All that every answer has.
const HEADER: usize = 24;
const UNSUPPORTED_VERSION: u8 = 1;
/// Of a request that only somebody else may make, or nobody.
pub(crate) const NOT_AUTHORIZED: u8 = 2;

/// Why a router does not say that it lets peers in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcpError {
    /// It cannot be asked.
    #[error("it cannot be asked by PCP: {0}")]
    Socket(#[from] io::Error),
    /// It does not answer.
    #[error("it does not answer to PCP")]
    Silent,
    /// It refuses.
    #[error("it refuses: {0}")]
    Refused(PcpRefusal),
    /// It translates addresses of IPv6, and lets in at another one.
    #[error("it translates, and would let in at {0}")]
    Translated(SocketAddrV6),
}

/// A router's reason to refuse: a result code of RFC 6887 §7.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcpRefusal(pub u8);

impl fmt::Display for PcpRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            1 => "unsupported version",
            2 => "not authorized",
            3 => "malformed request",
            4 => "unsupported operation",
            5 => "unsupported option",
            6 => "malformed option",
            7 => "network failure",
            8 => "no resources",
            9 => "unsupported protocol",
            10 => "quota exceeded",
            11 => "that address or port cannot be provided",
            12 => "the request comes from another address",
            13 => "too many remote peers",
            code => return write!(f, "result code {code}"),
        };
        f.write_str(words)
    }
}

/// Asks that a port be let in at the address from which this is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapRequest {
    /// This host's address.
    pub(crate) own: Ipv6Addr,
    /// By which the router knows again who asks.
    pub(crate) nonce: Nonce,
    pub(crate) protocol: InternetProtocol,
    pub(crate) port: NonZeroU16,
    /// In seconds; zero gives it back.
    pub(crate) lifetime: u32,
}

/// What a router does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Where peers are let in.
    pub(crate) at: SocketAddrV6,
    pub(crate) lifetime: Duration,
}

impl MapRequest {
    /// The datagram.
    pub(crate) fn encode(&self) -> [u8; LENGTH] {
        let mut packet = [0; LENGTH];
        packet[..2].copy_from_slice(&[VERSION, MAP]);
        packet[4..8].copy_from_slice(&self.lifetime.to_be_bytes());
        packet[8..24].copy_from_slice(&self.own.octets());
        for (place, word) in packet[24..36].chunks_exact_mut(4).zip(self.nonce) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        packet[36] = number(self.protocol);
        packet[40..42].copy_from_slice(&self.port.get().to_be_bytes());
        // What is given back names neither (§15).
        if self.lifetime > 0 {
            packet[42..44].copy_from_slice(&self.port.get().to_be_bytes());
            packet[44..].copy_from_slice(&self.own.octets());
        }
        packet
    }

    /// What a datagram from the router answers to this request. `None` if it is no answer to it.
    pub(crate) fn answer(&self, datagram: &[u8]) -> Option<Result<Granted, PcpError>> {
        let [version, operation, _, code, ..] = *datagram else { return None };
        if operation != ANSWER | MAP {
            return None;
        }
        let refused = |code| Some(Err(PcpError::Refused(PcpRefusal(code))));
        // One of another version has another header (§9).
        if version != VERSION {
            return refused(UNSUPPORTED_VERSION);
        }
        if datagram.len() < HEADER || datagram.len() > LONGEST || !datagram.len().is_multiple_of(4) {
            return None;
        }
        // Those that did not understand the request may not repeat what it is about.
        let Some(body) = datagram.get(HEADER..LENGTH) else {
            return if code == 0 { None } else { refused(code) };
        };
        let own = self.encode();
        // Nonce, protocol and port.
        if body[..13] != own[HEADER..37] || body[16..18] != own[40..42] {
            return None;
        }
        if code != 0 {
            return refused(code);
        }
        let port = u16::from_be_bytes([body[18], body[19]]);
        let ip: [u8; 16] = body[20..].try_into().ok()?;
        let seconds = u32::from_be_bytes([datagram[4], datagram[5], datagram[6], datagram[7]]);
        let at = SocketAddrV6::new(ip.into(), port, 0, 0);
        Some(Ok(Granted { at, lifetime: Duration::from_secs(seconds.into()) }))
    }
}

/// Takes bytes for a router's answer: as they are, and with what only a router that was asked can repeat.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let asked = MapRequest {
        own: Ipv6Addr::LOCALHOST,
        nonce: [1, 2, 3],
        protocol: InternetProtocol::Udp,
        port: NonZeroU16::MIN,
        lifetime: 3600,
    };
    let (own, mut repeated) = (asked.encode(), bytes.to_vec());
    if repeated.len() >= LENGTH {
        repeated[HEADER..37].copy_from_slice(&own[HEADER..37]);
        repeated[40..42].copy_from_slice(&own[40..42]);
    }
    for datagram in [bytes, &repeated[..]] {
        match asked.answer(datagram) {
            Some(Ok(Granted { lifetime, .. })) => {
                assert!(datagram.len() >= LENGTH && lifetime <= Duration::from_secs(u32::MAX.into()));
            }
            Some(Err(PcpError::Refused(refusal))) => assert!(!refusal.to_string().is_empty()),
            Some(Err(error)) => panic!("an answer is no other error: {error}"),
            None => {}
        }
    }
}

/// The number of a protocol in IP's header.
pub(crate) fn number(protocol: InternetProtocol) -> u8 {
    match protocol {
        InternetProtocol::Tcp => 6,
        InternetProtocol::Udp => 17,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(lifetime: u32) -> MapRequest {
        MapRequest {
            own: "2001:db8::20".parse().unwrap(),
            nonce: [0x0102_0304, 0x0506_0708, 0x090a_0b0c],
            protocol: InternetProtocol::Udp,
            port: NonZeroU16::new(4433).unwrap(),
            lifetime,
        }
    }

    /// What a router answers that does as it is asked, with a result code.
    fn answer(request: &MapRequest, code: u8) -> [u8; LENGTH] {
        let mut answer = request.encode();
        answer[1] |= ANSWER;
        answer[3] = code;
        answer[8..24].fill(0);
        answer[11] = 7;
        answer
    }

    #[test]
    fn a_request_is_laid_out_as_the_rfc_says() {
        let own = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20];
        let head = [2, 1, 0, 0, 0, 0, 0x0e, 0x10];
        let middle = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17, 0, 0, 0, 0x11, 0x51, 0x11, 0x51];
        assert_eq!(request(3600).encode().to_vec(), [&head[..], &own, &middle, &own].concat());
        let back = request(0).encode();
        assert_eq!((&back[4..8], &back[40..]), (&[0; 4][..], &[&[0x11, 0x51][..], &[0; 18]].concat()[..]));
    }

    #[test]
    fn what_is_granted_and_what_is_refused_is_told_apart() {
        let asked = request(3600);
        let granted = asked.answer(&answer(&asked, 0)).unwrap().unwrap();
        assert_eq!(granted.at, "[2001:db8::20]:4433".parse().unwrap());
        assert_eq!(granted.lifetime, Duration::from_secs(3600));
        for code in [2, 8, 12, 200] {
            let full = answer(&asked, code);
            for length in [HEADER, LENGTH] {
                let refused = asked.answer(&full[..length]).unwrap().unwrap_err();
                assert!(matches!(refused, PcpError::Refused(PcpRefusal(is)) if is == code), "{refused}");
            }
        }
        // As a router answers that knows NAT-PMP alone (RFC 6886 §3.5).
        let older = asked.answer(&[0, 0x81, 0, 1, 0, 0, 0, 9]).unwrap().unwrap_err();
        assert_eq!(older.to_string(), "it refuses: unsupported version");
    }

    #[test]
    fn answers_to_others_are_none() {
        let asked = request(3600);
        let good = answer(&asked, 0);
        // The operation, the nonce, the protocol and the port.
        for at in [1, 24, 35, 36, 40, 41] {
            let mut other = good;
            other[at] ^= 0x40;
            assert!(asked.answer(&other).is_none(), "byte {at}");
        }
        assert!(asked.answer(&asked.encode()).is_none(), "a question");
        let long = [&good[..], &[0; LONGEST]].concat();
        for cut in [&good[..HEADER], &good[..LENGTH - 4], &good[..LENGTH - 1], &long[..]] {
            assert!(asked.answer(cut).is_none(), "{} bytes", cut.len());
        }
    }

    proptest! {
        #[test]
        fn what_is_granted_is_what_was_asked_for(
            own in any::<u128>(), nonce in any::<[u32; 3]>(), is_tcp in any::<bool>(), port in 1..=u16::MAX,
            lifetime in 1..=u32::MAX, options in 0..10usize,
        ) {
            let protocol = if is_tcp { InternetProtocol::Tcp } else { InternetProtocol::Udp };
            let (own, port) = (Ipv6Addr::from(own), NonZeroU16::new(port).unwrap());
            let asked = MapRequest { own, nonce, protocol, port, lifetime };
            let mut answer = answer(&asked, 0).to_vec();
            answer.extend(std::iter::repeat_n(0, options * 4));
            let granted = asked.answer(&answer).unwrap().unwrap();
            prop_assert_eq!(granted.at, SocketAddrV6::new(own, port.get(), 0, 0));
            prop_assert_eq!(granted.lifetime, Duration::from_secs(lifetime.into()));
        }

        #[test]
        fn whatever_comes_grants_nothing_unless_it_knows_the_nonce(
            bytes in prop::collection::vec(any::<u8>(), 0..120), is_answer in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if is_answer && bytes.len() > 3 {
                bytes[..4].copy_from_slice(&[VERSION, ANSWER | MAP, 0, 0]);
            }
            let granted = request(3600).answer(&bytes);
            prop_assert!(!matches!(granted, Some(Ok(_))), "{granted:?}");
        }
    }
}
