//! A search for a port. A gateway that maps each flow to a port of its own choice is not found by one that
//! lets in only what a packet went to. So one side opens many flows and the other one sends to many ports:
//! after a few hundred packets both have met somewhere, as birthdays in a class of school do.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Flows that the side with the changing ports opens, each from a socket of its own.
pub const FLOWS: usize = 256;
/// Ports that the other side sends to, at most: with [`FLOWS`] of 64 512 ports in use, one is met in 98 of
/// 100 cases.
pub const PROBES: usize = 1024;
/// Between two flows that are opened: all are open after a second.
pub const FLOW_EVERY: Duration = Duration::from_millis(4);
/// Between two ports that are sent to: all were after 10.3 s.
pub const PROBE_EVERY: Duration = Duration::from_millis(10);
/// A search is over after this at the latest.
pub const LONGEST_SEARCH: Duration = Duration::from_secs(14);

/// The ports that gateways give away (RFC 4787 REQ-3).
const FIRST_PORT: u16 = 1024;
const PORTS: u64 = 65_536 - FIRST_PORT as u64;
/// Ports that were given one after the other lie no farther apart than this.
const NEAR: u16 = 32;
/// Ports behind the last one that are sent to first, where they are given in order.
const AHEAD: u16 = 256;
/// Visits all ports before one a second time, far apart: it has no factor in common with [`PORTS`].
const STRIDE: u64 = 39_869;

/// This side's part in a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// Our gateway maps each flow to another port: many flows are opened to where the peer is.
    Open {
        /// Where the peer is seen by all.
        to: SocketAddr,
    },
    /// The peer's gateway does: many of its ports are sent to.
    Probe {
        /// The outside of that gateway.
        ip: IpAddr,
        /// The ports at which others see the peer there, in the order in which they were given.
        seen: Vec<u16>,
    },
}

impl Search {
    /// The part of a side that others see at `own`, if the peer may be sent to at `theirs`. `None` if a
    /// search would find nothing, or is not needed: exactly one of both must be seen at several ports of one
    /// address.
    #[must_use]
    pub fn between(own: &[SocketAddr], theirs: &[SocketAddr]) -> Option<Self> {
        match (varying(own), varying(theirs)) {
            (Some(ip), None) => {
                let to = theirs.iter().find(|at| at.is_ipv4() == ip.is_ipv4())?;
                Some(Self::Open { to: *to })
            }
            (None, Some(ip)) if own.iter().any(|at| at.is_ipv4() == ip.is_ipv4()) => {
                let seen = theirs.iter().filter(|at| at.ip() == ip).map(SocketAddr::port).collect();
                Some(Self::Probe { ip, seen })
            }
            _ => None,
        }
    }
}

/// An address that is seen at more than one port: its gateway gives each flow another one.
fn varying(places: &[SocketAddr]) -> Option<IpAddr> {
    let twice =
        |at: &&SocketAddr| places.iter().any(|other| other.ip() == at.ip() && other.port() != at.port());
    places.iter().find(twice).map(SocketAddr::ip)
}

/// The ports to send to, [`PROBES`] of them and each once, the likeliest first: where the gateway seems to
/// give ports in order, those behind the last one that was `seen`; then ports spread over all, beginning
/// anywhere (`start`, a random number).
#[must_use]
pub fn probes(seen: &[u16], start: u64) -> Vec<u16> {
    let mut ports = Vec::with_capacity(PROBES);
    let mut is_new = [true; 1 << 16];
    let ahead = ahead(seen);
    let spread = (0..PORTS).map(|n| FIRST_PORT + ((start % PORTS + n * STRIDE) % PORTS) as u16);
    for port in ahead.chain(spread) {
        // What was seen leads elsewhere.
        if !seen.contains(&port) && std::mem::replace(&mut is_new[usize::from(port)], false) {
            ports.push(port);
        }
        if ports.len() == PROBES {
            break;
        }
    }
    ports
}

/// The ports that come next if they are given in order, upwards or downwards.
fn ahead(seen: &[u16]) -> impl Iterator<Item = u16> {
    let given = seen.split_last().and_then(|(last, before)| Some((*last, *before.last()?)));
    let given = given.filter(|(last, before)| last.abs_diff(*before) <= NEAR);
    let steps = 1..=given.map_or(0, |_| AHEAD);
    steps.filter_map(move |step| {
        let (last, before) = given?;
        let port = if last > before { last.checked_add(step) } else { last.checked_sub(step) };
        port.filter(|port| *port >= FIRST_PORT)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn at(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, host], port))
    }

    #[test]
    fn the_side_whose_ports_change_opens_flows_and_the_other_one_sends_to_ports() {
        let (steady, changing) = ([at(1, 4000)], [at(2, 5000), at(2, 61_000)]);
        assert_eq!(Search::between(&changing, &steady), Some(Search::Open { to: steady[0] }));
        let probe = Search::Probe { ip: changing[0].ip(), seen: vec![5000, 61_000] };
        assert_eq!(Search::between(&steady, &changing), Some(probe));
    }

    #[test]
    fn there_is_no_search_where_it_is_not_needed_or_would_find_nothing() {
        let (steady, changing) = ([at(1, 4000)], [at(2, 5000), at(2, 61_000)]);
        assert_eq!(Search::between(&steady, &[at(3, 4000), at(4, 4000)]), None, "both are steady");
        assert_eq!(Search::between(&changing, &[at(3, 1), at(3, 2)]), None, "both change: 2³² possibilities");
        assert_eq!(Search::between(&[], &changing), None, "no UDP here");
        assert_eq!(Search::between(&changing, &[]), None, "no UDP there");
        let far = ["[2001:db8::1]:1".parse().ok()].into_iter().flatten().collect::<Vec<SocketAddr>>();
        assert_eq!((Search::between(&changing, &far), Search::between(&far, &changing)), (None, None));
    }

    #[test]
    fn no_more_ports_than_the_limit_are_sent_to_and_each_once() {
        for seen in [&[][..], &[5000], &[5000, 61_000], &[5000, 5001], &[5001, 5000], &[65_530, 65_535]] {
            for start in [0, 1, 77_777, u64::MAX] {
                let ports = probes(seen, start);
                let different: HashSet<u16> = ports.iter().copied().collect();
                assert_eq!((ports.len(), different.len()), (PROBES, PROBES), "{seen:?} {start}");
                assert!(ports.iter().all(|port| *port >= FIRST_PORT && !seen.contains(port)));
            }
        }
    }

    #[test]
    fn the_next_ports_come_first_where_they_are_given_in_order() {
        assert_eq!(probes(&[5000, 5001], 9)[..3], [5002, 5003, 5004]);
        assert_eq!(probes(&[5000, 5002], 9)[..3], [5003, 5004, 5005]);
        assert_eq!(probes(&[5001, 5000], 9)[..3], [4999, 4998, 4997]);
        assert_ne!(probes(&[5000, 61_000], 9)[0], 61_001);
    }

    /// What a gateway with random ports makes of it, 2000 times.
    #[test]
    fn nineteen_of_twenty_searches_find_a_port_and_half_of_them_within_two_seconds() {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut found, mut soon) = (0, 0);
        for _ in 0..2000 {
            let open: HashSet<u16> = (0..FLOWS).map(|_| FIRST_PORT + (next() % PORTS) as u16).collect();
            let hit = probes(&[7000, 40_000], next()).iter().position(|port| open.contains(port));
            found += usize::from(hit.is_some());
            soon += usize::from(hit.is_some_and(|at| PROBE_EVERY * (at as u32) < Duration::from_secs(2)));
        }
        assert!(found >= 1900 && soon >= 1000, "{found} and {soon} of 2000");
    }

    #[test]
    fn a_search_ends_within_its_time() {
        let (flows, probes) = (FLOW_EVERY * FLOWS as u32, PROBE_EVERY * PROBES as u32);
        assert!(flows + probes < LONGEST_SEARCH && LONGEST_SEARCH <= Duration::from_secs(20));
    }
}
