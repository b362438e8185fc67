//! Client: where the server may be.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_base::address::AddressScope;

use crate::locator::Locator;
use whimbrel_base::order;

/// Places kept that the server does not know of.
const MAX_OUTSIDE: usize = 16;
/// Places remembered whose paths fell silent.
const MAX_SILENT: usize = 16;
/// A path that falls silent so soon was of little use.
const SOON: Duration = Duration::from_secs(30);
/// A place is tried after the others when so many of its paths in a row were of little use: one may have been
/// broken by a move.
const TOO_OFTEN: u32 = 2;

/// From how near a peer was seen, which tells the addresses that it may name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Nearness {
    /// It is on this host, or was.
    here: bool,
    /// It has, or had, an address that only its own link knows.
    on_link: bool,
}

impl Nearness {
    /// A path between these addresses was answered.
    pub(crate) fn met(&mut self, local: IpAddr, remote: IpAddr) {
        self.here |= local == remote || is_loopback(remote);
        self.on_link |= is_link_local(remote);
    }

    /// To be written down.
    pub(crate) fn flags(self) -> u8 {
        u8::from(self.here) | u8::from(self.on_link) << 1
    }

    pub(crate) fn from_flags(flags: u8) -> Self {
        Self { here: flags & 1 != 0, on_link: flags & 2 != 0 }
    }

    /// Whether the peer may be there. One elsewhere must not have us send to what listens on this host,
    /// perhaps for us alone, or on a link of ours.
    pub(crate) fn permits(self, place: SocketAddr) -> bool {
        let ip = place.ip();
        is_dialable(place)
            && (self.here || !is_loopback(ip))
            && (self.here || self.on_link || !is_link_local(ip))
    }
}

/// Leaves out the IPv4 places that only a link knows, unless this host has such an address itself. A record
/// or ticket that names nothing else would have us dial them: a cloud's metadata service is at one.
pub(crate) fn on_own_links(mut places: Vec<Locator>, own: impl Iterator<Item = IpAddr>) -> Vec<Locator> {
    let is_of_a_link = |ip: IpAddr| ip.to_canonical().is_ipv4() && is_link_local(ip);
    if !own.into_iter().any(is_of_a_link) {
        places.retain(|place| !is_of_a_link(place.ip()));
    }
    places
}

/// What is known of where a server is. What it says itself is not all: behind a gateway that passes a port
/// on, it knows its inner address only, and is reached at the gateway's.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    /// Where the server says that it is.
    stated: Vec<Locator>,
    /// Where else it may be reached: what we were given, and what worked, as far as the server never said so.
    outside: Vec<Locator>,
    /// One of these worked last, or none of the others did.
    outside_first: bool,
    /// A place behind a relay worked last.
    relayed_first: bool,
    nearness: Nearness,
    /// Places whose newest paths fell silent soon, and how many of them in a row.
    silent: Vec<(Locator, u32)>,
}

impl Whereabouts {
    /// Begins with what the name service, a ticket or the user says. Beside other places, those on this host
    /// or its links are left out: an endpoint that others can reach names none of its own, and they would be
    /// ours.
    pub(crate) fn given(mut places: Vec<Locator>) -> Self {
        places.retain(|place| is_dialable(place.address()));
        let here = !places.is_empty() && places.iter().all(|place| is_loopback(place.ip()));
        places.retain(|place| here || !is_loopback(place.ip()));
        let on_link = !places.is_empty() && places.iter().all(|place| is_link_local(place.ip()));
        let nearness = Nearness { here, on_link };
        places.retain(|place| nearness.permits(place.address()));
        Self { stated: Vec::new(), outside: places, nearness, ..Self::default() }
    }

    /// The server, or its record, says where it is. True if that is news.
    pub(crate) fn state(&mut self, places: &[Locator]) -> bool {
        let mut stated = places.to_vec();
        stated.retain(|place| self.nearness.permits(place.address()));
        if stated.is_empty() || stated == self.stated {
            return false;
        }
        let before = self.list();
        // Once it leaves a place that it said, it is there no more.
        self.outside.retain(|place| !stated.contains(place));
        self.stated = stated;
        self.outside_first = false;
        before != self.list()
    }

    /// A path from `local` to there was answered.
    pub(crate) fn worked(&mut self, local: IpAddr, at: Locator) {
        // That a proxy reaches the peer says of this network something, and of the peer nothing.
        if at.proxied().is_some() {
            return;
        }
        if let Some(address) = at.direct() {
            self.nearness.met(local, address.ip());
        }
        self.relayed_first = at.relayed().is_some();
        self.outside_first = !self.stated.contains(&at);
        if self.outside_first {
            self.outside.retain(|place| *place != at);
            self.outside.insert(0, at);
            self.outside.truncate(MAX_OUTSIDE);
        }
    }

    /// A path to there, which had come up `age` ago, has fallen silent. What answers each new path and stalls
    /// soon, such as a relay that lies, must not be dialled again and again before all others.
    pub(crate) fn fell_silent(&mut self, at: Locator, age: Duration) {
        let known = self.silent.iter().position(|(place, _)| *place == at);
        let count = known.map_or(0, |index| self.silent.remove(index).1);
        if age < SOON {
            self.silent.truncate(MAX_SILENT - 1);
            self.silent.insert(0, (at, count + 1));
        }
    }

    /// This host is elsewhere: what fell silent there says nothing of here.
    pub(crate) fn moved(&mut self) {
        self.silent.clear();
    }

    /// How often paths to there fell silent in a row, if that was too often.
    fn silences(&self, at: &Locator) -> u32 {
        let known = self.silent.iter().find(|(place, _)| place == at);
        known.map_or(0, |(_, count)| *count).saturating_sub(TOO_OFTEN - 1)
    }

    /// Nobody answered an attempt: the other places come first in the next one.
    pub(crate) fn failed(&mut self) {
        self.outside_first = !self.outside_first;
        self.relayed_first = false;
    }

    /// Whether the server says that it has this address.
    pub(crate) fn states(&self, ip: IpAddr) -> bool {
        self.stated.iter().any(|place| place.direct().is_some_and(|address| address.ip() == ip))
    }

    /// All of them, the best guess first.
    pub(crate) fn list(&self) -> Vec<Locator> {
        self.list_by(|places| places)
    }

    /// As [`list`](Self::list), in an order of the caller's as far as nothing of this server speaks against
    /// it.
    pub(crate) fn list_by(&self, order: impl FnOnce(Vec<Locator>) -> Vec<Locator>) -> Vec<Locator> {
        let (first, last) =
            if self.outside_first { (&self.outside, &self.stated) } else { (&self.stated, &self.outside) };
        let mut all = order(first.iter().chain(last).copied().collect());
        if self.relayed_first {
            order::by_key(&mut all, |place| place.relayed().is_none());
        }
        order::by_key(&mut all, |place| self.silences(place));
        all
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    AddressScope::of(ip) == AddressScope::Loopback
}

fn is_link_local(ip: IpAddr) -> bool {
    AddressScope::of(ip) == AddressScope::LinkLocal
}

/// Whether anything can listen there. (The kernel takes the unspecified address for its own host.)
pub(crate) fn is_dialable(address: SocketAddr) -> bool {
    address.port() != 0 && AddressScope::of(address.ip()) != AddressScope::Unusable
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const US: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 99));

    fn at(text: &str) -> Locator {
        Locator::Direct(text.parse().unwrap())
    }

    #[test]
    fn a_server_is_where_it_says_and_no_more_where_it_said_before() {
        let mut server = Whereabouts::given(vec![at("192.0.2.1:1")]);
        assert!(!server.state(&[at("192.0.2.1:1")]), "that is no news");
        assert!(server.states(at("192.0.2.1:1").ip()));
        server.worked(US, at("192.0.2.1:1"));
        assert!(server.state(&[at("192.0.2.2:1"), at("[2001:db8::2]:1")]));
        assert_eq!(server.list(), [at("192.0.2.2:1"), at("[2001:db8::2]:1")]);
        assert!(!server.state(&[]), "a server without an address cannot say so");
        assert_eq!(server.list().len(), 2);
    }

    #[test]
    fn the_outside_of_its_gateway_is_not_forgotten() {
        let mut server = Whereabouts::given(vec![at("198.51.100.1:4480")]);
        assert!(server.state(&[at("10.0.0.2:4480")]));
        server.worked(US, at("198.51.100.1:4480"));
        assert_eq!(server.list(), [at("198.51.100.1:4480"), at("10.0.0.2:4480")]);
        assert!(!server.states(at("198.51.100.1:4480").ip()));
        // The gateway may pass nothing on any more.
        server.failed();
        assert_eq!(server.list(), [at("10.0.0.2:4480"), at("198.51.100.1:4480")]);
        // It moved, within its network or out of it.
        assert!(server.state(&[at("203.0.113.5:4480")]));
        assert_eq!(server.list(), [at("203.0.113.5:4480"), at("198.51.100.1:4480")]);
        (0..100).for_each(|n| server.worked(US, Locator::Direct(SocketAddr::from(([198, 51, 100, n], 1)))));
        assert_eq!(server.list().len(), MAX_OUTSIDE + 1);
    }

    #[test]
    fn a_server_that_was_met_on_a_link_may_name_places_there() {
        let mut server = Whereabouts::given(vec![at("169.254.1.1:1"), at("127.0.0.1:1")]);
        assert_eq!(server.list(), [at("169.254.1.1:1")]);
        assert!(server.state(&[at("169.254.1.2:1"), at("127.0.0.1:1")]));
        assert_eq!(server.list(), [at("169.254.1.2:1"), at("169.254.1.1:1")]);
    }

    #[test]
    fn a_server_elsewhere_cannot_have_us_dial_this_host_for_a_relay_either() {
        let token = whimbrel_base::RelayToken::from_bytes([7; 10]);
        let behind = |relay: &str| {
            Locator::Relayed(whimbrel_base::RelayedAddr { relay: relay.parse().unwrap(), token })
        };
        let places = vec![at("192.0.2.1:1"), behind("127.0.0.1:22"), behind("203.0.113.5:443")];
        let mut server = Whereabouts::given(places.clone());
        assert_eq!(server.list(), [places[0], places[2]]);
        server.worked(US, places[2]);
        assert_eq!(server.list(), [places[2], places[0]], "what worked comes first");
        assert!(!server.state(&[behind("[::1]:22"), behind("169.254.169.254:80")]));
        server.failed();
        assert!(server.state(&[at("192.0.2.2:1"), places[2]]));
        assert_eq!(server.list()[..2], [at("192.0.2.2:1"), places[2]]);
    }

    #[test]
    fn a_place_whose_paths_fall_silent_again_and_again_is_tried_after_the_others() {
        let places = [at("192.0.2.1:1"), at("192.0.2.2:1"), at("192.0.2.3:1")];
        let mut server = Whereabouts::given(places.to_vec());
        let (soon, late) = (Duration::from_secs(1), SOON);
        server.fell_silent(places[0], soon);
        assert_eq!(server.list(), places, "once may be a move");
        server.worked(US, places[0]);
        server.fell_silent(places[0], soon);
        assert_eq!(server.list(), [places[1], places[2], places[0]]);
        server.worked(US, places[1]);
        (0..3).for_each(|_| server.fell_silent(places[1], soon));
        assert_eq!(server.list(), [places[2], places[0], places[1]], "those that do so more often come last");
        server.fell_silent(places[1], late);
        assert_eq!(server.list()[0], places[1], "it carried for long, and worked last");
        (0..3).for_each(|_| server.fell_silent(places[1], soon));
        server.moved();
        assert_eq!(server.list()[0], places[1]);
        (0..100).for_each(|port| server.fell_silent(Locator::Direct(([192, 0, 2, 9], port).into()), soon));
        assert_eq!(server.silent.len(), MAX_SILENT);
    }

    #[test]
    fn places_on_a_link_are_dialled_from_such_an_address_only() {
        let given = ["169.254.169.254:80", "[::ffff:169.254.1.1]:80", "[fe80::1]:80", "127.0.0.1:1"].map(at);
        let from = |own: &[&str]| {
            let own = own.iter().map(|ip| ip.parse().unwrap());
            on_own_links(given.to_vec(), own)
        };
        assert_eq!(from(&["192.0.2.1", "fe80::2", "127.0.0.1"]), given[2..]);
        assert_eq!(from(&[]), given[2..]);
        assert_eq!(from(&["192.0.2.1", "169.254.7.7"]), given);
    }

    #[test]
    fn an_order_from_outside_stands_behind_what_fell_silent_here() {
        let places = ["192.0.2.1:1", "192.0.2.2:1"].map(at);
        let mut server = Whereabouts::given(places.to_vec());
        let reversed = |mut places: Vec<Locator>| {
            places.reverse();
            places
        };
        assert_eq!(server.list_by(reversed), [places[1], places[0]]);
        (0..2).for_each(|_| server.fell_silent(places[1], Duration::ZERO));
        assert_eq!(server.list_by(reversed), places);
    }

    #[test]
    fn a_server_elsewhere_cannot_have_us_dial_this_host() {
        let mut server = Whereabouts::given(vec![at("192.0.2.1:1")]);
        let bad = [
            "127.0.0.1:22",
            "[::1]:22",
            "169.254.169.254:80",
            "[fe80::1]:22",
            "0.0.0.0:22",
            "[::]:22",
            "224.0.0.1:22",
            "192.0.2.1:0",
        ];
        assert!(!server.state(&bad.map(at)));
        assert_eq!(server.list(), [at("192.0.2.1:1")]);
        let given = [
            "127.0.0.1:22",
            "192.0.2.1:1",
            "169.254.169.254:80",
            "0.0.0.0:22",
            "[::1]:22",
            "[::ffff:127.0.0.1]:22",
        ];
        let first = Whereabouts::given(given.map(at).to_vec());
        assert_eq!(first.list(), [at("192.0.2.1:1")], "nor by its first record, or a ticket");
        let mut here = Whereabouts::given(vec![at("127.0.0.1:1")]);
        assert!(here.state(&[at("127.0.0.2:1")]));
        // Once all networks are gone, one on this host is still there.
        server.worked(at("192.0.2.1:1").ip(), at("192.0.2.1:1"));
        assert!(server.state(&[at("127.0.0.1:1")]));
    }
}
