//! Where a path ends: the place that is dialled.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::carrier::Extent;
use crate::path_io::canonical;

/// Where a peer can be dialled, or a path's remote end.
///
/// Two places are the same only if the same peer is reached there in the same way, which a socket address
/// alone does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Locator {
    /// The peer itself is there, or a gateway that passes all of it on.
    Direct(SocketAddr),
}

impl Locator {
    /// The address that packets are sent to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Direct(address) => *address,
        }
    }

    /// The IP address that packets are sent to.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.address().ip()
    }

    /// With IPv4 addresses as what they are, where a dual-stack socket maps them to IPv6.
    pub(crate) fn canonical(self) -> Self {
        match self {
            Self::Direct(address) => Self::Direct(canonical(address)),
        }
    }

    /// Of how much of the way the kernel's figures of a TCP connection to there tell. (QUIC is acknowledged
    /// by the peer alone, wherever its packets are sent to.)
    pub(crate) fn tcp_extent(&self) -> Extent {
        match self {
            Self::Direct(_) => Extent::EndToEnd,
        }
    }
}

impl From<SocketAddr> for Locator {
    fn from(address: SocketAddr) -> Self {
        Self::Direct(address)
    }
}

/// A direct place is shown as its address.
impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_place_is_written_as_its_address() {
        for text in ["192.0.2.1:443", "[2001:db8::1]:443"] {
            assert_eq!(Locator::from(text.parse::<SocketAddr>().unwrap()).to_string(), text);
        }
    }

    #[test]
    fn a_mapped_address_is_the_place_that_it_stands_for() {
        let at = |text: &str| Locator::Direct(text.parse().unwrap());
        assert_eq!(at("[::ffff:192.0.2.1]:443").canonical(), at("192.0.2.1:443"));
    }
}
