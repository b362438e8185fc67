//! Addresses that are no ordinary hosts of the internet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use whimbrel_multiaccess::Prefix;

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Net {
    base: IpAddr,
    prefix: u8,
}

/// A network that a host is in.
impl From<Prefix> for Net {
    fn from(prefix: Prefix) -> Self {
        Self { base: prefix.address(), prefix: prefix.length() }
    }
}

impl Net {
    /// Exactly this address.
    pub(super) fn of(address: IpAddr) -> Self {
        Self { base: address, prefix: longest(address) }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }

    /// Whether every address of this is in the other one.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.has(self.base)
    }
}

fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An address, or one and the number of bits that count, as in `10.0.0.0/8`.
impl FromStr for Net {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (base, prefix) = match text.split_once('/') {
            Some((base, prefix)) => (base, Some(prefix)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(drop)?;
        let prefix = match prefix {
            // `parse` would take a sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(drop)?
            }
            Some(_) => return Err(()),
            None => longest(base),
        };
        if prefix <= longest(base) { Ok(Self { base, prefix }) } else { Err(()) }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == longest(self.base) {
            return self.base.fmt(f);
        }
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// Why an address is no ordinary host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Special {
    /// All the addresses that are special for this reason.
    pub(super) net: Net,
    /// What they are, as in `10.0.0.1 is …`.
    pub(super) what: &'static str,
    /// Whether these are ordinary hosts in a network of their own.
    pub(super) is_private: bool,
}

const PRIVATE: &str = "an address of a private network";
const SHARED: &str = "an address between a provider and its customers";
const METADATA: &str = "where clouds keep their machines' secrets";
const TRANSLATED: &str = "an IPv4 address in an IPv6 one";
const LOCAL_NAT64: &str = "an IPv4 address in an IPv6 one, at a place that only its network knows";
const RESERVED: &str = "reserved, and no host";

/// Those that come first win, so what is narrower does. The IANA special-purpose registries (RFC 6890), and
/// what clouds have. Addresses for documentation (192.0.2.0/24 and others) are not among them: they lead
/// nowhere.
const V4: [(Ipv4Addr, u8, &str); 17] = [
    (Ipv4Addr::new(169, 254, 169, 254), 32, METADATA),
    // Alibaba's, Oracle's, and the host below a virtual machine of Azure's, which is in a public range.
    (Ipv4Addr::new(100, 100, 100, 200), 32, METADATA),
    (Ipv4Addr::new(192, 0, 0, 192), 32, METADATA),
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA),
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this host itself, unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, PRIVATE),
    (Ipv4Addr::new(100, 64, 0, 0), 10, SHARED),
    (Ipv4Addr::new(127, 0, 0, 0), 8, LOOPBACK),
    (Ipv4Addr::new(169, 254, 0, 0), 16, LINK),
    (Ipv4Addr::new(172, 16, 0, 0), 12, PRIVATE),
    (Ipv4Addr::new(192, 0, 0, 0), 24, RESERVED),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a relay of 6to4"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, PRIVATE),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements inside of networks"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "for multicast"),
    (Ipv4Addr::new(255, 255, 255, 255), 32, "for broadcast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, RESERVED),
];

const LOOPBACK: &str = "the gateway itself";
const LINK: &str = "an address on one link only";

/// Amazon's and Google's metadata are in ranges that are private.
const V6: [(Ipv6Addr, u8, &str); 16] = [
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, METADATA),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, METADATA),
    (Ipv6Addr::UNSPECIFIED, 128, "this host itself, unspecified"),
    (Ipv6Addr::LOCALHOST, 128, LOOPBACK),
    // Compatible (RFC 4291, §2.5.5.1), mapped (§2.5.5.2), and translated by SIIT (RFC 2765).
    (Ipv6Addr::UNSPECIFIED, 96, TRANSLATED),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, TRANSLATED),
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, TRANSLATED),
    // NAT64 (RFC 6052, RFC 8215), Teredo (RFC 4380) and 6to4 (RFC 3056).
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, TRANSLATED),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, LOCAL_NAT64),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, TRANSLATED),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, TRANSLATED),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, RESERVED),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, PRIVATE),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, LINK),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, PRIVATE),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "for multicast"),
];

/// The addresses that hosts of the internet have (RFC 4291, §2.4). Nothing else of IPv6 is in use.
const GLOBAL_V6: Net = Net { base: IpAddr::V6(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0)), prefix: 3 };

/// Why an address is no ordinary host of the internet; `None` where it is one.
pub(super) fn special(address: IpAddr) -> Option<Special> {
    let v4 = V4.iter().map(|(base, prefix, what)| (IpAddr::V4(*base), *prefix, *what));
    let v6 = V6.iter().map(|(base, prefix, what)| (IpAddr::V6(*base), *prefix, *what));
    let listed = v4.chain(v6).map(|(base, prefix, what)| {
        let is_private = what == PRIVATE || what == SHARED;
        // What cannot be judged is lifted one by one.
        let net = if what == LOCAL_NAT64 { Net::of(address) } else { Net { base, prefix } };
        (Net { base, prefix }, Special { net, what, is_private })
    });
    let outside = || Special { net: Net::of(address), what: RESERVED, is_private: false };
    let mut found = listed.filter(|(net, _)| net.has(address)).map(|(_, special)| special);
    found.next().or_else(|| (address.is_ipv6() && !GLOBAL_V6.has(address)).then(outside))
}

/// The IPv4 addresses in an IPv6 one, to which it leads where the gateway or its network translates. Prefixes
/// of NAT64 that a network chose for itself are not known here.
pub(super) fn inside(address: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let translated = special(address).filter(|special| special.what == TRANSLATED);
    let found = match (address, translated) {
        (IpAddr::V6(address), Some(_)) => match address.octets() {
            // 6to4: the router.
            [0x20, 0x02, a, b, c, d, ..] => [Some(Ipv4Addr::new(a, b, c, d)), None],
            // Teredo: the server, and the client with all bits turned.
            [0x20, 0x01, _, _, a, b, c, d, .., e, f, g, h] => {
                [Some(Ipv4Addr::new(a, b, c, d)), Some(Ipv4Addr::new(!e, !f, !g, !h))]
            }
            [.., a, b, c, d] => [Some(Ipv4Addr::new(a, b, c, d)), None],
        },
        _ => [None, None],
    };
    found.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_no_host_of_the_internet_is_known() {
        for (address, what) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("100.64.0.1", "provider"),
            ("100.127.255.255", "provider"),
            ("100.100.100.200", "secrets"),
            ("127.0.0.1", "gateway itself"),
            ("127.255.255.254", "gateway itself"),
            ("168.63.129.16", "secrets"),
            ("169.254.169.254", "secrets"),
            ("169.254.0.1", "one link"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.1", "reserved"),
            ("192.0.0.192", "secrets"),
            ("192.88.99.1", "6to4"),
            ("192.168.0.1", "private"),
            ("198.19.255.255", "measurements"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "gateway itself"),
            ("::7f00:1", "IPv4"),
            ("::ffff:127.0.0.1", "IPv4"),
            ("::ffff:198.51.100.1", "IPv4"),
            ("::ffff:0:127.0.0.1", "IPv4"),
            ("64:ff9b::7f00:1", "IPv4"),
            ("64:ff9b:1::a00:1", "IPv4"),
            ("100::1", "reserved"),
            ("2001::1", "IPv4"),
            ("2001:10::1", "reserved"),
            ("2002:7f00:1::", "IPv4"),
            ("4000::1", "reserved"),
            ("5f00::1", "reserved"),
            ("fc00::1", "private"),
            ("fd00:ec2::254", "secrets"),
            ("fd20:ce::254", "secrets"),
            ("fe80::1", "one link"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
        ] {
            let found = special(address.parse().unwrap()).map(|special| special.what);
            assert!(found.is_some_and(|found| found.contains(what)), "{address}: {found:?}");
        }
    }

    #[test]
    fn hosts_of_the_internet_are_ordinary() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "203.0.113.5",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700:4700::1111",
            "2001:db8::1",
        ] {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn ipv4_addresses_inside_of_ipv6_ones_are_found() {
        for (address, expected) in [
            ("::ffff:10.0.0.1", &["10.0.0.1"][..]),
            ("::10.0.0.1", &["10.0.0.1"]),
            ("::ffff:0:169.254.169.254", &["169.254.169.254"]),
            ("64:ff9b::a9fe:a9fe", &["169.254.169.254"]),
            ("2002:a00:1::1", &["10.0.0.1"]),
            ("2001:0:a00:1::f5ff:fffd", &["10.0.0.1", "10.0.0.2"]),
            ("64:ff9b:1::a00:1", &[]),
            ("::1", &[]),
            ("2001:db8::1", &[]),
            ("10.0.0.1", &[]),
        ] {
            let found: Vec<String> = inside(address.parse().unwrap()).map(|ip| ip.to_string()).collect();
            assert_eq!(found, expected, "{address}");
        }
    }

    #[test]
    fn nets_are_read_compared_and_shown() {
        let net = |text: &str| text.parse::<Net>().unwrap();
        assert!(net("10.0.0.0/8").has("10.9.8.7".parse().unwrap()));
        assert!(net("0.0.0.0/0").has("10.9.8.7".parse().unwrap()));
        assert!(!net("0.0.0.0/0").has("::1".parse().unwrap()));
        assert!(net("::/0").has("fe80::1".parse().unwrap()));
        assert!(net("10.1.0.0/16").is_within(&net("10.0.0.0/8")));
        assert!(!net("0.0.0.0/0").is_within(&net("10.0.0.0/8")));
        assert_eq!(net("fd00::/8").to_string(), "fd00::/8");
        assert_eq!(net("192.0.2.1").to_string(), "192.0.2.1");
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "a/8"] {
            assert!(wrong.parse::<Net>().is_err(), "{wrong}");
        }
    }
}
