//! Rules for opening a path through the NAT gateways of both sides: which of the peer's candidates are worth
//! a packet, when packets leave, and how often it is tried. Pure functions and counters; drivers do what they
//! say.

mod search;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use whimbrel_base::address::AddressScope;

use crate::frame::MAX_CANDIDATES;

pub use search::{FLOW_EVERY, FLOWS, LONGEST_SEARCH, PROBE_EVERY, PROBES, Search, probes};

/// When the packets to one address leave, after an attempt began.
pub const PUNCHES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(800),
];
/// Answers to packets of the peer, in one attempt: each goes where one came from.
pub const MAX_ANSWERS: u32 = 16;
/// Attempts that a peer may ask for one right after the other, and how soon it may ask for one more.
const ROUNDS_AT_ONCE: u32 = 4;
const ROUND_EVERY: Duration = Duration::from_secs(5);
/// Searches of an endpoint, for all of its peers together.
const SEARCHES_AT_ONCE: u32 = 2;
const SEARCH_EVERY: Duration = Duration::from_secs(60);
/// Between attempts that did not succeed.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What one side knows of where it is, by which it judges the peer's candidates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The addresses of its own interfaces.
    pub own: &'a [IpAddr],
    /// The relays that both sides are connected to.
    pub relays: &'a [IpAddr],
}

/// The peer's candidates that may be sent to, at most [`MAX_CANDIDATES`], in the peer's order.
///
/// Left out are those that nobody can listen at, that are of this host or a link, and the relays' own
/// addresses; public addresses in the subnet (/24, /64) of a relay, unless one of ours is in it too; and
/// private addresses unless one of ours is in the same subnet, or the sides meet at a relay that has a
/// private address itself. That the peer names our outside address as its own shows nothing: it was told that
/// address, and could have packets sent into networks that are ours alone.
#[must_use]
pub fn worth_punching(theirs: &[SocketAddr], around: &Surroundings<'_>) -> Vec<SocketAddr> {
    let is_private = |ip: IpAddr| AddressScope::of(ip) == AddressScope::Private;
    let shares = |ip: IpAddr| {
        around.own.iter().any(|own| same_subnet(*own, ip))
            || around.relays.iter().any(|relay| is_private(*relay))
    };
    // What stands beside a relay would be sent to for all who meet there. Private networks of many have one
    // subnet.
    let is_beside_a_relay = |ip: IpAddr| {
        let is_in = |all: &[IpAddr]| all.iter().any(|one| same_subnet(*one, ip));
        is_in(around.relays) && !is_in(around.own)
    };
    let may = |at: &SocketAddr| {
        let ip = at.ip();
        let in_reach = match AddressScope::of(ip) {
            AddressScope::Global => !is_beside_a_relay(ip),
            AddressScope::Private => shares(ip),
            _ => false,
        };
        in_reach && at.port() != 0 && !around.relays.contains(&ip) && !around.own.contains(&ip)
    };
    let mut worth: Vec<SocketAddr> = Vec::new();
    for at in theirs.iter().map(|at| SocketAddr::new(at.ip().to_canonical(), at.port())) {
        if worth.len() < MAX_CANDIDATES && may(&at) && !worth.contains(&at) {
            worth.push(at);
        }
    }
    worth
}

fn same_subnet(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => false,
    }
}

/// How many attempts a peer may ask for, or an endpoint may make: each has this side send packets to
/// addresses that a peer has named.
#[derive(Debug)]
pub struct Allowance {
    at_once: u32,
    /// How soon there is one more.
    every: Duration,
    /// When all would be free again.
    full_at: Option<Instant>,
}

impl Default for Allowance {
    /// Of attempts to punch, for one peer.
    fn default() -> Self {
        Self { at_once: ROUNDS_AT_ONCE, every: ROUND_EVERY, full_at: None }
    }
}

impl Allowance {
    /// Of [searches](Search), for one endpoint.
    #[must_use]
    pub const fn of_searches() -> Self {
        Self { at_once: SEARCHES_AT_ONCE, every: SEARCH_EVERY, full_at: None }
    }

    /// Whether an attempt may begin now; then it is counted.
    pub fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        let may = full_at + self.every <= now + self.every * self.at_once;
        if may {
            self.full_at = Some(full_at + self.every);
        }
        may
    }
}

/// How long to wait between attempts.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// An attempt failed: when the next one may begin.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Something is not as it was: the next failure counts as the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ips<const N: usize>(all: [&str; N]) -> [IpAddr; N] {
        all.map(|ip| ip.parse().unwrap())
    }

    const BAD: [&str; 10] = [
        "127.0.0.1:1",
        "[::1]:1",
        "[::ffff:127.0.0.1]:1",
        "0.0.0.0:1",
        "224.0.0.1:1",
        "[ff02::1]:1",
        "255.255.255.255:1",
        "169.254.1.1:1",
        "[fe80::1]:1",
        "203.0.113.9:0",
    ];

    #[test]
    fn what_a_peer_names_of_this_host_its_links_or_a_group_is_not_sent_to() {
        let own = ips(["192.168.1.2"]);
        let around = Surroundings { own: &own, ..Surroundings::default() };
        assert!(worth_punching(&BAD.map(at), &around).is_empty());
        assert!(worth_punching(&[at("192.168.1.2:22")], &around).is_empty(), "this host");
    }

    #[test]
    fn a_relays_own_address_and_its_network_are_not_sent_to_from_elsewhere() {
        let relays = ips(["203.0.113.5", "2001:db8:0:7::5"]);
        let around = Surroundings { relays: &relays, ..Surroundings::default() };
        let named = ["203.0.113.5:443", "203.0.113.5:53", "203.0.113.6:443", "203.0.112.6:443"].map(at);
        assert_eq!(worth_punching(&named, &around), [named[3]]);
        let of_v6 = ["[2001:db8:0:7::6]:443", "[2001:db8:0:8::6]:443"].map(at);
        assert_eq!(worth_punching(&of_v6, &around), [of_v6[1]]);
        // In its network ourselves, we reach what is there in any case; but not the relay.
        let own = ips(["203.0.113.9"]);
        assert_eq!(worth_punching(&named, &Surroundings { own: &own, ..around }), named[2..]);
    }

    #[test]
    fn private_addresses_are_sent_to_only_where_the_network_is_shared_whatever_the_peer_says() {
        // The first one may be our own outside address, of which we told the peer.
        let theirs = [at("198.51.100.1:4000"), at("192.168.1.7:5000"), at("[fd00::7]:5000")];
        let own = ips(["192.168.7.2"]);
        let far = Surroundings { own: &own, ..Surroundings::default() };
        assert_eq!(worth_punching(&theirs, &far), [theirs[0]]);
        let near = ips(["192.168.1.9"]);
        assert_eq!(worth_punching(&theirs, &Surroundings { own: &near, ..far }), theirs[..2]);
        let company = ips(["10.9.9.9"]);
        assert_eq!(worth_punching(&theirs, &Surroundings { relays: &company, ..far }), theirs);
    }

    #[test]
    fn no_more_than_eight_addresses_are_sent_to_and_each_once() {
        let named: Vec<SocketAddr> = (1..=40).map(|n| SocketAddr::from(([198, 51, 100, n / 2], 9))).collect();
        let worth = worth_punching(&named, &Surroundings::default());
        assert_eq!(worth.len(), MAX_CANDIDATES);
        assert!((1..worth.len()).all(|n| !worth[..n].contains(&worth[n])));
    }

    #[test]
    fn a_peer_that_asks_without_end_gets_a_few_attempts_and_then_one_each_five_seconds() {
        let (mut allowance, begin) = (Allowance::default(), Instant::now());
        let granted = (0..6000).filter(|n| allowance.take(begin + Duration::from_millis(*n * 10))).count();
        assert_eq!(granted, 4 + 59 / 5);
    }

    #[test]
    fn an_endpoint_searches_twice_and_then_once_a_minute_however_many_ask() {
        let (mut allowance, begin) = (Allowance::of_searches(), Instant::now());
        let granted = (0..6000).filter(|n| allowance.take(begin + Duration::from_millis(*n * 100))).count();
        assert_eq!(granted, 2 + 9);
    }

    #[test]
    fn attempts_that_fail_come_less_and_less_often() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..12).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        backoff.reset();
        assert_eq!(backoff.pause(), FIRST_PAUSE);
    }
}
