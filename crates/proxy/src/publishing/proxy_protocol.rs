//! Where a client is, told to a server that reads the PROXY protocol, version 2 (haproxy's
//! `proxy-protocol.txt`, §2.2).

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, and a connection that is passed on.
const PROXY: u8 = 0x21;
/// TCP over IPv4, and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// What is said before a connection's bytes: that its client is at `from`, and connected to `at`. Where the
/// two are of different families, both are told as IPv6.
pub fn proxy_header(from: SocketAddr, at: SocketAddr) -> Vec<u8> {
    let (family, ips) = match (from.ip().to_canonical(), at.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(at)) => (TCP4, [from.octets(), at.octets()].concat()),
        (from, at) => (TCP6, [as_v6(from), as_v6(at)].concat()),
    };
    let ports = [from.port().to_be_bytes(), at.port().to_be_bytes()].concat();
    let length = u16::try_from(ips.len() + ports.len()).unwrap_or_default().to_be_bytes();
    [&SIGNATURE[..], &[PROXY, family], &length, &ips, &ports].concat()
}

fn as_v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_header_is_that_of_the_protocols_document() {
        let of = |from: &str, at: &str| proxy_header(from.parse().unwrap(), at.parse().unwrap());
        let v4 = of("[::ffff:192.0.2.7]:40000", "203.0.113.5:443");
        assert_eq!(v4[..12], *b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a");
        assert_eq!(v4[12..], *b"\x21\x11\x00\x0c\xc0\x00\x02\x07\xcb\x00\x71\x05\x9c\x40\x01\xbb");
        let v6 = of("[2001:db8::7]:1", "203.0.113.5:2");
        assert_eq!(v6[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(v6.len(), 16 + 36);
        assert_eq!(v6[32..48], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 5]);
    }
}
