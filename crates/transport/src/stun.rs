//! What is needed of STUN (RFC 8489): a request that asks where it comes from, and the answer to one.
//!
//! A server of them keeps nothing: [`observe`] is a function of the datagram and its sender.

mod server;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) use server::StunServer;

const COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const HEADER: usize = 20;
/// Longest datagram that is looked at.
const MAX_SIZE: usize = 512;
const REQUEST: u16 = 0x0001;
const RESPONSE: u16 = 0x0101;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
const SOFTWARE: u16 = 0x8022;
/// RFC 5780 §7.5: the answer goes to that port of the same address.
const RESPONSE_PORT: u16 = 0x0027;
/// RFC 5780 §7.4. Its address is left open: it is the one that was asked.
const OTHER_ADDRESS: u16 = 0x802c;
const FINGERPRINT: u16 = 0x8028;
/// The value of FINGERPRINT is the CRC, XORed with this (RFC 8489 §14.7).
const FINGERPRINT_MASK: u32 = 0x5354_554e;
const FINGERPRINT_SIZE: usize = 8;
/// Also room in the request for the answer, which must not be much larger.
const NAME: &[u8; 8] = b"whimbrel";

/// Tells an answer from others: random, so that only those who saw the request can forge one.
pub(crate) type Transaction = [u8; 12];

/// Whether a datagram is of STUN, sound or not. QUIC's have one of the first two bits set (RFC 9443).
pub(crate) fn is_stun(datagram: &[u8]) -> bool {
    datagram.len() >= HEADER && datagram[0] < 4 && datagram[4..8] == COOKIE
}

/// Asks whoever receives it where it came from.
pub(crate) fn request(transaction: &Transaction) -> Vec<u8> {
    let mut out = header(REQUEST, transaction);
    put(&mut out, SOFTWARE, NAME);
    finish(out)
}

/// The same, and has the answer sent to another port of where the request comes from.
pub(crate) fn request_to(transaction: &Transaction, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let mut out = header(REQUEST, transaction);
    put(&mut out, SOFTWARE, NAME);
    put(&mut out, RESPONSE_PORT, &[high, low, 0, 0]);
    finish(out)
}

/// Where the answer to a sound request that came from there goes: to the port that it names, if it does.
pub(crate) fn answer_to(datagram: &[u8], from: SocketAddr) -> SocketAddr {
    let attributes = parse(datagram).map_or(&[][..], |(_, _, attributes)| attributes);
    let named = self::attributes(attributes).flatten().find(|(name, _)| *name == RESPONSE_PORT);
    let port = named.and_then(|(_, value)| value.first_chunk()).map(|port| u16::from_be_bytes(*port));
    SocketAddr::new(from.ip(), port.filter(|port| *port != 0).unwrap_or(from.port()))
}

/// The answer to a binding request that came from there. `None` for everything else: what has no sound
/// fingerprint, or is so short that the answer would be more than 1.5 times as long. Those who ask over IPv4
/// are told of the `other` port, if there is one.
pub(crate) fn observe(datagram: &[u8], from: SocketAddr, other: Option<u16>) -> Option<Vec<u8>> {
    let (kind, transaction, _) = parse(datagram)?;
    if kind != REQUEST {
        return None;
    }
    let mut out = header(RESPONSE, &transaction);
    put(&mut out, XOR_MAPPED_ADDRESS, &xor_address(from, &transaction));
    if let Some(port) = other.filter(|_| from.ip().to_canonical().is_ipv4()) {
        let [high, low] = port.to_be_bytes();
        put(&mut out, OTHER_ADDRESS, &[0, 1, high, low, 0, 0, 0, 0]);
    }
    let answer = finish(out);
    (answer.len() * 2 <= datagram.len() * 3).then_some(answer)
}

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Which request it answers.
    pub(crate) transaction: Transaction,
    /// Where that came from.
    pub(crate) seen: SocketAddr,
    /// The port of another socket of the same host that answers too.
    pub(crate) other: Option<u16>,
}

/// Reads an answer. `None` if it is none.
pub(crate) fn answer(datagram: &[u8]) -> Option<Answer> {
    let (kind, transaction, attributes) = parse(datagram)?;
    if kind != RESPONSE {
        return None;
    }
    let (mut seen, mut other) = (None, None);
    for attribute in self::attributes(attributes) {
        match attribute? {
            (XOR_MAPPED_ADDRESS, value) if seen.is_none() => seen = Some(address(value, &transaction)?),
            (OTHER_ADDRESS, value) => {
                other = value.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
            }
            _ => {}
        }
    }
    Some(Answer { transaction, seen: seen?, other: other.filter(|port| *port != 0) })
}

/// The attributes of a message, by name; `None` at the end for one that is cut off.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = Option<(u16, &[u8])>> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let (head, behind) = rest.take()?.split_first_chunk::<4>()?;
        let (name, length) = (u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]]));
        let length = usize::from(length);
        let value = behind.get(..length);
        rest = behind.get(length.next_multiple_of(4)..);
        Some(value.filter(|_| rest.is_some()).map(|value| (name, value)))
    })
}

/// Kind, transaction and attributes of a message whose fingerprint is right.
fn parse(datagram: &[u8]) -> Option<(u16, Transaction, &[u8])> {
    if !is_stun(datagram) || datagram.len() > MAX_SIZE {
        return None;
    }
    let (head, attributes) = datagram.split_first_chunk::<HEADER>()?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if length != attributes.len() || !length.is_multiple_of(4) {
        return None;
    }
    let (signed, last) = datagram.split_at_checked(datagram.len().checked_sub(FINGERPRINT_SIZE)?)?;
    let (attributes, _) = attributes.split_at_checked(attributes.len().checked_sub(FINGERPRINT_SIZE)?)?;
    if last != fingerprint(signed) {
        return None;
    }
    let transaction = head[8..].try_into().ok()?;
    Some((u16::from_be_bytes([head[0], head[1]]), transaction, attributes))
}

fn header(kind: u16, transaction: &Transaction) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&COOKIE);
    out.extend_from_slice(transaction);
    out
}

/// An attribute; its value's length must be a multiple of four.
fn put(out: &mut Vec<u8>, name: u16, value: &[u8]) {
    out.extend_from_slice(&name.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}

/// Writes the length, and the fingerprint at the end.
fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let length = out.len() - HEADER + FINGERPRINT_SIZE;
    out[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    let fingerprint = fingerprint(&out);
    out.extend_from_slice(&fingerprint);
    out
}

fn fingerprint(signed: &[u8]) -> [u8; FINGERPRINT_SIZE] {
    let [a, b, c, d] = (crc32fast::hash(signed) ^ FINGERPRINT_MASK).to_be_bytes();
    let [name, kind] = FINGERPRINT.to_be_bytes();
    [name, kind, 0, 4, a, b, c, d]
}

/// The mask of addresses: cookie and transaction (RFC 8489 §14.2).
fn mask(transaction: &Transaction) -> [u8; 16] {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&COOKIE);
    mask[4..].copy_from_slice(transaction);
    mask
}

fn xor<const N: usize>(mut bytes: [u8; N], transaction: &Transaction) -> [u8; N] {
    bytes.iter_mut().zip(mask(transaction)).for_each(|(byte, mask)| *byte ^= mask);
    bytes
}

fn xor_address(address: SocketAddr, transaction: &Transaction) -> Vec<u8> {
    let [high, low] = xor(address.port().to_be_bytes(), transaction);
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => [&[0, 1, high, low][..], &xor(ip.octets(), transaction)].concat(),
        IpAddr::V6(ip) => [&[0, 2, high, low][..], &xor(ip.octets(), transaction)].concat(),
    }
}

fn address(value: &[u8], transaction: &Transaction) -> Option<SocketAddr> {
    let (&[_, family, high, low], ip) = value.split_first_chunk::<4>()?;
    let ip = match family {
        1 => IpAddr::from(Ipv4Addr::from(xor::<4>(ip.try_into().ok()?, transaction))),
        2 => IpAddr::from(Ipv6Addr::from(xor::<16>(ip.try_into().ok()?, transaction))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(xor([high, low], transaction))))
}

/// Reads whatever comes, and the same as attributes of a message that is sound otherwise. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let places = [IpAddr::from([198, 51, 100, 7]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7])];
    let mut messages = vec![bytes.to_vec()];
    for kind in [REQUEST, RESPONSE] {
        let mut message = [&header(kind, &[7; 12])[..], bytes].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        messages.push(finish(message));
    }
    for message in messages {
        for from in places.map(|ip| SocketAddr::new(ip, 4000)) {
            let Some(told) = observe(&message, from, Some(9)) else { continue };
            assert!(told.len() * 2 <= message.len() * 3, "{} for {}", told.len(), message.len());
            assert_eq!(answer(&told).map(|answer| answer.seen), Some(from));
        }
        assert!(answer(&message).is_none() || is_stun(&message));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_answer_tells_where_its_request_came_from_and_is_at_most_half_as_long_again() {
        for from in ["198.51.100.7:4000", "[2001:db8::7]:4000", "[::ffff:198.51.100.7]:4000"].map(at) {
            let request = request(&[7; 12]);
            let told = observe(&request, from, Some(9)).unwrap();
            let seen = SocketAddr::new(from.ip().to_canonical(), from.port());
            let other = seen.is_ipv4().then_some(9);
            assert_eq!(answer(&told), Some(Answer { transaction: [7; 12], seen, other }));
            assert!(told.len() * 2 <= request.len() * 3, "{} for {}", told.len(), request.len());
            assert!(is_stun(&request) && is_stun(&told));
        }
    }

    #[test]
    fn only_sound_requests_are_answered_and_answers_are_not() {
        let (good, from) = (request(&[7; 12]), at("198.51.100.7:4000"));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(observe(&bad, from, None), None, "bit {bit}");
        }
        for end in 0..good.len() {
            assert_eq!(observe(&good[..end], from, None), None, "{end} bytes");
            assert_eq!(answer(&good[..end]), None);
        }
        let told = observe(&good, from, Some(9)).unwrap();
        assert_eq!((observe(&told, from, None), answer(&good)), (None, None));
    }

    #[test]
    fn a_short_request_from_ipv6_is_not_answered_with_more_than_it_cost() {
        let short = finish(header(REQUEST, &[7; 12]));
        assert!(observe(&short, at("198.51.100.7:4000"), None).is_some());
        assert_eq!(observe(&short, at("[2001:db8::7]:4000"), None), None);
    }

    #[test]
    fn an_answer_goes_to_the_port_that_is_asked_for_and_to_no_other_address() {
        for from in ["198.51.100.7:4000", "[2001:db8::7]:4000"].map(at) {
            let request = request_to(&[7; 12], 9);
            assert_eq!(answer_to(&request, from), SocketAddr::new(from.ip(), 9));
            let told = observe(&request, from, Some(9)).unwrap();
            assert_eq!(
                answer(&told).map(|answer| answer.seen),
                Some(from),
                "it says where it was asked from"
            );
            assert!(told.len() <= request.len() + 8);
            assert_eq!(answer_to(&self::request(&[7; 12]), from), from);
            assert_eq!(answer_to(&request_to(&[7; 12], 0), from), from);
            for bit in 0..request.len() * 8 {
                let mut bad = request.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(answer_to(&bad, from), from, "bit {bit}");
            }
        }
    }

    #[test]
    fn no_attributes_make_it_panic() {
        for length in 0..200 {
            for seed in 0..50u8 {
                let mut bytes = header(RESPONSE, &[seed; 12]);
                bytes.extend((0..length).map(|n: u8| n.wrapping_mul(seed) ^ (seed >> 3)));
                bytes.resize(bytes.len().next_multiple_of(4), seed);
                // With a sound fingerprint, so that they are looked at.
                let sound = finish(bytes);
                assert!(parse(&sound).is_some());
                let _ = (answer(&sound), answer_to(&sound, at("198.51.100.7:4000")));
            }
        }
    }

    /// The sample response with an IPv4 address of RFC 5769 §2.2, whose MESSAGE-INTEGRITY is stepped over.
    #[test]
    fn the_sample_of_the_rfc_is_read() {
        let sample = [
            0x01, 0x01, 0x00, 0x3c, 0x21, 0x12, 0xa4, 0x42, 0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86,
            0xfa, 0x87, 0xdf, 0xae, 0x80, 0x22, 0x00, 0x0b, 0x74, 0x65, 0x73, 0x74, 0x20, 0x76, 0x65, 0x63,
            0x74, 0x6f, 0x72, 0x20, 0x00, 0x20, 0x00, 0x08, 0x00, 0x01, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43,
            0x00, 0x08, 0x00, 0x14, 0x2b, 0x91, 0xf5, 0x99, 0xfd, 0x9e, 0x90, 0xc3, 0x8c, 0x74, 0x89, 0xf9,
            0x2a, 0xf9, 0xba, 0x53, 0xf0, 0x6b, 0xe7, 0xd7, 0x80, 0x28, 0x00, 0x04, 0xc0, 0x7d, 0x4c, 0x96,
        ];
        let told = answer(&sample).unwrap();
        assert_eq!((&told.transaction[..], told.seen), (&sample[8..20], at("192.0.2.1:32853")));
    }
}
