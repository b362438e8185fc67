//! Addresses, and what they are good for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::EndpointId;

/// The most addresses of one endpoint that are told to anybody. More are cut off, the last first.
pub const MAX_ADDRESSES: usize = 16;

/// An endpoint and where it may be reached: the best guess first.
///
/// Addresses are hints: whoever answers there must still prove that it holds the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct EndpointAddr {
    /// Who it is.
    pub id: EndpointId,
    /// Where it may be, at most [`MAX_ADDRESSES`]. May be empty when only the id is known.
    pub addrs: Vec<SocketAddr>,
}

impl EndpointAddr {
    /// An endpoint at these addresses. Repeated addresses and those beyond [`MAX_ADDRESSES`] are left out.
    pub fn new(id: EndpointId, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { id, addrs: bounded(addrs) }
    }
}

/// Just the id, no addresses.
impl From<EndpointId> for EndpointAddr {
    fn from(id: EndpointId) -> Self {
        Self::new(id, [])
    }
}

/// The first [`MAX_ADDRESSES`] different addresses, in order.
pub(crate) fn bounded(addrs: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut kept = Vec::new();
    for addr in addrs {
        if kept.len() == MAX_ADDRESSES {
            break;
        }
        if !kept.contains(&addr) {
            kept.push(addr);
        }
    }
    kept
}

/// An [`EndpointAddr`] from outside, not yet checked against its bound.
#[derive(Deserialize)]
struct Unchecked {
    id: EndpointId,
    addrs: Vec<SocketAddr>,
}

impl TryFrom<Unchecked> for EndpointAddr {
    type Error = TooManyAddresses;

    fn try_from(unchecked: Unchecked) -> Result<Self, TooManyAddresses> {
        let Unchecked { id, addrs } = unchecked;
        if addrs.len() > MAX_ADDRESSES {
            return Err(TooManyAddresses(addrs.len()));
        }
        Ok(Self { id, addrs })
    }
}

/// More than [`MAX_ADDRESSES`] addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an endpoint has at most {MAX_ADDRESSES} addresses, here are {0}; keep the best ones")]
pub struct TooManyAddresses(pub usize);

/// From how far away an address can be reached, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AddressScope {
    /// No place to connect to: unspecified, multicast or broadcast.
    Unusable,
    /// From this machine only: `127.0.0.0/8`, `::1`.
    Loopback,
    /// From the same link only: `169.254.0.0/16` (RFC 3927), `fe80::/10` (RFC 4291 §2.5.6).
    LinkLocal,
    /// From the same private network, or the same carrier's: RFC 1918, `100.64.0.0/10` (RFC 6598), `fc00::/7`
    /// (RFC 4193).
    Private,
    /// From anywhere, as far as the address tells.
    Global,
}

impl AddressScope {
    /// Classifies an address. An IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2) counts as the IPv4 address in
    /// it.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::of_v4(ip),
            IpAddr::V6(ip) => Self::of_v6(ip),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Self {
        let [first, second, ..] = ip.octets();
        if first == 0 || ip.is_multicast() || ip.is_broadcast() {
            Self::Unusable
        } else if ip.is_loopback() {
            Self::Loopback
        } else if ip.is_link_local() {
            Self::LinkLocal
        } else if ip.is_private() || (first == 100 && (64..128).contains(&second)) {
            Self::Private
        } else {
            Self::Global
        }
    }

    fn of_v6(ip: Ipv6Addr) -> Self {
        if ip.is_unspecified() || ip.is_multicast() {
            Self::Unusable
        } else if ip.is_loopback() {
            Self::Loopback
        } else if ip.is_unicast_link_local() {
            Self::LinkLocal
        } else if ip.is_unique_local() {
            Self::Private
        } else {
            Self::Global
        }
    }
}

/// The address as another machine can use it: without the interface number and flow label, which mean
/// something on this machine only, and with an IPv4-mapped address as the IPv4 address in it.
pub fn portable(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SecretKey;

    #[test]
    fn scopes() {
        use AddressScope::*;
        let cases = [
            ("0.0.0.0", Unusable),
            ("0.1.2.3", Unusable),
            ("224.0.0.1", Unusable),
            ("255.255.255.255", Unusable),
            ("::", Unusable),
            ("ff02::1", Unusable),
            ("127.8.9.1", Loopback),
            ("::1", Loopback),
            ("::ffff:127.0.0.1", Loopback),
            ("169.254.1.1", LinkLocal),
            ("fe80::1", LinkLocal),
            ("10.1.2.3", Private),
            ("172.31.0.1", Private),
            ("192.168.0.1", Private),
            ("100.64.0.1", Private),
            ("100.127.255.255", Private),
            ("fd00::1", Private),
            ("::ffff:10.0.0.1", Private),
            ("100.128.0.1", Global),
            ("192.0.2.1", Global),
            ("172.32.0.1", Global),
            ("2001:db8::1", Global),
        ];
        for (ip, scope) in cases {
            assert_eq!(AddressScope::of(ip.parse().unwrap()), scope, "{ip}");
        }
        assert!(Loopback < LinkLocal && LinkLocal < Private && Private < Global);
    }

    #[test]
    fn addresses_are_bounded_and_different() {
        let id = SecretKey::from_bytes(&[1; 32]).id();
        let addr = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let all = (1..=40).flat_map(|port| [addr(port), addr(port)]);
        let endpoint = EndpointAddr::new(id, all);
        assert_eq!(endpoint.addrs, (1..=16).map(addr).collect::<Vec<_>>());

        let mut longer = endpoint.clone();
        longer.addrs.push(addr(17));
        let bytes = postcard::to_stdvec(&longer).unwrap();
        assert!(postcard::from_bytes::<EndpointAddr>(&bytes).is_err());
        let bytes = postcard::to_stdvec(&endpoint).unwrap();
        assert_eq!(postcard::from_bytes::<EndpointAddr>(&bytes).unwrap(), endpoint);
    }

    #[test]
    fn portable_addresses_forget_the_interface() {
        let local = "[fe80::1%3]:5".parse().unwrap();
        assert_eq!(portable(local).to_string(), "[fe80::1]:5");
        let mapped = "[::ffff:192.0.2.1]:5".parse().unwrap();
        assert_eq!(portable(mapped).to_string(), "192.0.2.1:5");
    }
}
