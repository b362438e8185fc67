//! Where a path ends: the place that is dialled.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use whimbrel_base::relayed::{Place, RelayedAddr, places};

/// Where a peer can be dialled, or a path's remote end.
///
/// Two places are the same only if the same peer is reached there in the same way, which a socket address
/// alone does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Locator {
    /// The peer itself is there, or a gateway that passes all of it on.
    Direct(SocketAddr),
    /// A relay is there, which passes on to the peer what comes for its token.
    Relayed(RelayedAddr),
    /// An HTTP proxy is asked to connect to one of these places.
    Proxied(Proxied),
}

/// A place that is dialled through an HTTP proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Proxied {
    /// Where the proxy is.
    pub proxy: SocketAddr,
    /// What it is asked for.
    pub place: Place,
}

impl fmt::Display for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by the HTTP proxy {}", self.place, self.proxy)
    }
}

impl Locator {
    /// The places that a list of addresses means, as records, tickets and frames hold it.
    #[must_use]
    pub fn list(addrs: &[SocketAddr]) -> Vec<Self> {
        places(addrs).into_iter().map(Self::from).collect()
    }

    /// The addresses that stand for the place in such a list.
    pub(crate) fn pack(self) -> Vec<SocketAddr> {
        match self {
            Self::Direct(address) | Self::Proxied(Proxied { place: Place::Direct(address), .. }) => {
                vec![address]
            }
            Self::Relayed(relayed) | Self::Proxied(Proxied { place: Place::Relayed(relayed), .. }) => {
                relayed.pack()
            }
        }
    }

    /// The address of the peer itself, where that is known.
    pub(crate) fn direct(&self) -> Option<SocketAddr> {
        match self {
            Self::Direct(address) => Some(*address),
            Self::Relayed(_) | Self::Proxied(_) => None,
        }
    }

    /// The place behind a relay, if it is one.
    pub(crate) fn relayed(&self) -> Option<RelayedAddr> {
        match self {
            Self::Direct(_) | Self::Proxied(_) => None,
            Self::Relayed(relayed) => Some(*relayed),
        }
    }

    /// The place that a proxy is asked for, if it is one.
    pub(crate) fn proxied(&self) -> Option<Proxied> {
        match self {
            Self::Direct(_) | Self::Relayed(_) => None,
            Self::Proxied(proxied) => Some(*proxied),
        }
    }

    /// The place behind a relay, whether that is reached by a proxy or not.
    pub(crate) fn behind(&self) -> Option<RelayedAddr> {
        match self {
            Self::Relayed(relayed) | Self::Proxied(Proxied { place: Place::Relayed(relayed), .. }) => {
                Some(*relayed)
            }
            Self::Direct(_) | Self::Proxied(Proxied { place: Place::Direct(_), .. }) => None,
        }
    }

    /// The address that packets are sent to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Direct(address) => *address,
            Self::Relayed(relayed) => relayed.relay,
            Self::Proxied(proxied) => proxied.proxy,
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
            Self::Relayed(RelayedAddr { relay, token }) => {
                Self::Relayed(RelayedAddr { relay: canonical(relay), token })
            }
            Self::Proxied(Proxied { proxy, place }) => {
                Self::Proxied(Proxied { proxy: canonical(proxy), place })
            }
        }
    }

    /// Of how much of the way the kernel's figures of a TCP connection to there tell. (QUIC is acknowledged
    /// by the peer alone, wherever its packets are sent to.)
    pub(crate) fn tcp_extent(&self) -> Extent {
        match self {
            Self::Direct(_) => Extent::EndToEnd,
            Self::Relayed(_) | Self::Proxied(_) => Extent::NextHop,
        }
    }
}

impl From<Place> for Locator {
    fn from(place: Place) -> Self {
        match place {
            Place::Direct(address) => Self::Direct(address),
            Place::Relayed(relayed) => Self::Relayed(relayed),
        }
    }
}

impl From<SocketAddr> for Locator {
    fn from(address: SocketAddr) -> Self {
        Self::Direct(address)
    }
}

/// Of how much of a path its carrier's figures tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Extent {
    /// Of the whole: what the carrier takes for acknowledged was acknowledged by the peer.
    EndToEnd,
    /// Of the way to the next hop, which ends the carrier and passes the bytes on. The figures say how fast
    /// that hop takes bytes, and nothing of whether the peer lives or how far away it is.
    NextHop,
}

/// A direct place is shown as its address, one behind a relay as `relay 192.0.2.1:443 for TOKEN`; what is
/// dialled through an HTTP proxy has that behind it.
impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => address.fmt(f),
            Self::Relayed(relayed) => relayed.fmt(f),
            Self::Proxied(proxied) => proxied.fmt(f),
        }
    }
}

/// IPv4 addresses on dual-stack sockets are shown as what they are.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
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
    fn the_kernels_figures_of_a_relayed_path_are_not_end_to_end() {
        let token = whimbrel_base::RelayToken::from_bytes([7; 10]);
        let relayed = Locator::Relayed(RelayedAddr { relay: "192.0.2.1:443".parse().unwrap(), token });
        assert_eq!(relayed.tcp_extent(), Extent::NextHop);
        assert_eq!(Locator::list(&relayed.pack()), [relayed]);
    }

    #[test]
    fn what_a_proxy_is_asked_for_is_the_same_place_once_there_is_no_proxy() {
        let relay = "192.0.2.1:443".parse().unwrap();
        let relayed = RelayedAddr { relay, token: whimbrel_base::RelayToken::from_bytes([7; 10]) };
        for (place, of) in [
            (Place::Direct(relay), Locator::Direct(relay)),
            (Place::Relayed(relayed), Locator::Relayed(relayed)),
        ] {
            let proxied = Locator::Proxied(Proxied { proxy: "10.0.0.1:3128".parse().unwrap(), place });
            assert_eq!(Locator::list(&proxied.pack()), [of]);
            assert_eq!((proxied.tcp_extent(), proxied.behind()), (Extent::NextHop, of.behind()));
            assert_eq!((proxied.direct(), proxied.relayed()), (None, None));
        }
    }

    #[test]
    fn a_mapped_address_is_the_place_that_it_stands_for() {
        let at = |text: &str| Locator::Direct(text.parse().unwrap());
        assert_eq!(at("[::ffff:192.0.2.1]:443").canonical(), at("192.0.2.1:443"));
    }
}
