//! Two thousand relays, a million servers and ten million connections, simulated: who is loaded how much, and
//! what it costs in round trips, before, during and after the loss of whole regions.
//!
//! Servers choose by the very function that a real one asks ([`whimbrel_relay::choice`]). Everything else is
//! a model: places lie on a plane, a round trip is the distance and what the access link adds, and what
//! servers know of the relays' load is as old as the last thousandth of all arrivals, unless a relay that is
//! full refuses them. The numbers are the same on every machine.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use whimbrel_relay::choice::{Pick, Site, choose, is_full};

use crate::benches::Plan;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};

const PLACES: usize = 40;
/// Places whose relays all fail at once, next to each other.
const FAILED: usize = 4;
/// Relays that each server has.
const EACH: usize = 2;
/// Connections that a relay may carry; the mean is half of it when all live.
const CAPACITY: f64 = 10_000.0;
/// Of all servers so many arrive between two looks at the load of all relays: one in a thousand.
const STALE: usize = 1000;
/// A server that was refused so often takes what it gets.
const REFUSALS: usize = 16;
/// The plane's edge, as a round trip.
const EDGE_MS: f64 = 200.0;

const SPEC: Spec = Spec {
    name: "relays-at-scale",
    title: "relays of a group, simulated: the highest load over the mean, and round trips over the nearest relay's",
    metrics: &[
        Metric { key: "max_load", unit: "x mean" },
        Metric { key: "rtt_penalty_p50", unit: "of the nearest" },
        Metric { key: "rtt_penalty_p99", unit: "of the nearest" },
    ],
    targets: &[at_most("max_load", 1.25, 1.15), at_most("rtt_penalty_p50", 0.10, 0.05)],
    plot: Plot::Cases { metric: "max_load", unit: "x mean" },
};

const fn at_most(metric: &'static str, limit: f64, aim: f64) -> Target {
    let bound = Bound::AtMost(limit);
    Target { case: "", of: "whimbrel", metric, against: None, judged: Judged::Median, bound, aim }
}

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
struct Size {
    relays: usize,
    servers: usize,
    connections: usize,
}

const WHOLE: Size = Size { relays: 2000, servers: 1_000_000, connections: 10_000_000 };
const SMALL: Size = Size { relays: 200, servers: 100_000, connections: 1_000_000 };

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let size = if plan.quick { SMALL } else { WHOLE };
    let mut trials = Vec::new();
    for round in 0..plan.rounds(1) {
        for (case, measured) in simulate(size, u64::from(round) + 1) {
            let trial = Trial::new("whimbrel", round)
                .in_case(case)
                .with("max_load", measured.max_load)
                .with("rtt_penalty_p50", measured.penalty_p50)
                .with("rtt_penalty_p99", measured.penalty_p99);
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "relays": size.relays, "servers": size.servers, "connections": size.connections, "places": PLACES,
        "failed_places": FAILED, "relays_of_a_server": EACH, "arrivals_between_looks": size.servers / STALE,
    });
    output.finish(&SPEC, settings, &trials)
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The highest load of a living relay over the mean of all living ones.
    max_load: f64,
    /// How much longer the round trip to a server's nearest relay is than to the nearest living relay of all.
    penalty_p50: f64,
    penalty_p99: f64,
}

/// Xorshift: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    x: f64,
    y: f64,
}

impl Point {
    fn random(random: &mut Random) -> Self {
        Self { x: random.unit() * EDGE_MS, y: random.unit() * EDGE_MS }
    }

    /// Around here: most within a few milliseconds.
    fn near(self, random: &mut Random) -> Self {
        let mut off = || (random.unit() + random.unit() - 1.0) * 10.0;
        Self { x: self.x + off(), y: self.y + off() }
    }

    fn rtt(self, other: Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }
}

/// A place with relays, and how many servers are around it.
struct Place {
    at: Point,
    /// Connections on each relay now, and when it was looked last, as a share of the capacity.
    carried: Vec<f64>,
    seen: Vec<f64>,
    alive: bool,
}

impl Place {
    fn as_seen_by(&self, server: &Server) -> Site<'_> {
        Site {
            rtt: Duration::from_secs_f64((server.at.rtt(self.at) + server.access_ms) / 1000.0),
            loads: if self.alive { &self.seen } else { &[] },
        }
    }
}

struct Server {
    at: Point,
    /// What its own access link adds to each round trip.
    access_ms: f64,
    /// Where each of its connections comes from: a place.
    clients: Vec<u8>,
    picks: Vec<Pick>,
}

struct World {
    places: Vec<Place>,
    servers: Vec<Server>,
    random: Random,
    arrivals: usize,
    mean: f64,
}

fn simulate(size: Size, seed: u64) -> Vec<(&'static str, Measured)> {
    let mut world = World::new(size, seed);
    let everybody: Vec<usize> = (0..world.servers.len()).collect();
    everybody.iter().for_each(|server| world.serve(*server));
    let mut measured = vec![("all live", world.measure())];
    let failed = world.fail();
    failed.iter().for_each(|server| world.serve(*server));
    measured.push(("4 of 40 places lost", world.measure()));
    world.places.iter_mut().for_each(|place| place.alive = true);
    for server in failed {
        world.leave(server);
        world.serve(server);
    }
    measured.push(("all back", world.measure()));
    measured
}

impl World {
    /// Relays stand where servers are, but not in proportion: a place may have a fifth too many or too few.
    fn new(size: Size, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let weights: Vec<f64> = (0..PLACES).map(|_| 0.3 + random.unit() * 1.7).collect();
        let total: f64 = weights.iter().sum();
        let supply: Vec<f64> = weights.iter().map(|weight| weight * (0.8 + random.unit() * 0.4)).collect();
        let supplied: f64 = supply.iter().sum();
        let places: Vec<Place> = supply
            .iter()
            .map(|share| {
                let relays = ((share / supplied * size.relays as f64).round() as usize).max(1);
                let at = Point::random(&mut random);
                Place { at, carried: vec![0.0; relays], seen: vec![0.0; relays], alive: true }
            })
            .collect();
        let home = |random: &mut Random| {
            let mut left = random.unit() * total;
            weights.iter().position(|weight| {
                left -= weight;
                left <= 0.0
            })
        };
        // Some have a connection, some have many times the mean.
        let mean = size.connections / size.servers;
        let servers = (0..size.servers)
            .map(|_| {
                let here = home(&mut random).unwrap_or(0);
                let count = 1 + (-(1.0 - random.unit()).ln() * (mean as f64 - 0.5)) as usize;
                // Most clients live where their server does.
                let clients = (0..count)
                    .map(|_| if random.unit() < 0.7 { here } else { home(&mut random).unwrap_or(0) } as u8)
                    .collect();
                let (at, access_ms) = (places[here].at.near(&mut random), 5.0 + random.unit() * 15.0);
                Server { at, access_ms, clients, picks: Vec::new() }
            })
            .collect();
        Self { places, servers, random, arrivals: 0, mean: 0.0 }
    }

    /// A server chooses its relays, and its clients connect: each over the relay that is nearest to both.
    fn serve(&mut self, server: usize) {
        if self.arrivals.is_multiple_of((self.servers.len() / STALE).max(1)) {
            self.look();
        }
        self.arrivals += 1;
        let Self { places, servers, random, mean, .. } = self;
        let server = &mut servers[server];
        // What this server has heard otherwise from relays that refused it.
        let mut refusals: Vec<(Pick, f64)> = Vec::new();
        loop {
            let sites: Vec<Site<'_>> = places.iter().map(|place| place.as_seen_by(server)).collect();
            server.picks = choose(&sites, *mean, EACH, &mut |below| random.below(below));
            let refusing = server.picks.iter().copied().filter(|pick| {
                let place = &places[pick.site];
                is_full(place.carried[pick.relay], *mean) && !is_full(place.seen[pick.relay], *mean)
            });
            let refusing: Vec<Pick> = refusing.collect();
            if refusing.is_empty() || refusals.len() >= REFUSALS {
                break;
            }
            for pick in refusing {
                let place = &mut places[pick.site];
                refusals.push((pick, place.seen[pick.relay]));
                place.seen[pick.relay] = place.carried[pick.relay];
            }
        }
        for (pick, seen) in refusals {
            places[pick.site].seen[pick.relay] = seen;
        }
        server.carry(places, 1.0 / CAPACITY);
    }

    /// A server gives its relays back.
    fn leave(&mut self, server: usize) {
        let Self { places, servers, .. } = self;
        servers[server].carry(places, -1.0 / CAPACITY);
        servers[server].picks.clear();
    }

    /// What relays last said of their load.
    fn look(&mut self) {
        let (mut sum, mut count) = (0.0, 0.0);
        for place in self.places.iter_mut().filter(|place| place.alive) {
            place.seen.copy_from_slice(&place.carried);
            sum += place.carried.iter().sum::<f64>();
            count += place.carried.len() as f64;
        }
        self.mean = sum / f64::max(count, 1.0);
    }

    /// Loses one place and those nearest to it; returns the servers that had a relay there, which have none
    /// now.
    fn fail(&mut self) -> Vec<usize> {
        let centre = self.places[self.random.below(PLACES)].at;
        let mut near: Vec<usize> = (0..PLACES).collect();
        near.sort_by(|a, b| centre.rtt(self.places[*a].at).total_cmp(&centre.rtt(self.places[*b].at)));
        near.truncate(FAILED);
        let is_hit = |server: &Server| server.picks.iter().any(|pick| near.contains(&pick.site));
        let hit: Vec<usize> =
            (0..self.servers.len()).filter(|server| is_hit(&self.servers[*server])).collect();
        hit.iter().for_each(|server| self.leave(*server));
        near.iter().for_each(|place| self.places[*place].alive = false);
        hit
    }

    fn measure(&self) -> Measured {
        let living = || self.places.iter().filter(|place| place.alive);
        let loads: Vec<f64> = living().flat_map(|place| place.carried.iter().copied()).collect();
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        let highest = loads.iter().copied().fold(0.0, f64::max);
        let penalty = |server: &Server| {
            let rtt = |at: Point| server.at.rtt(at) + server.access_ms;
            let nearest = living().map(|place| rtt(place.at)).fold(f64::INFINITY, f64::min);
            let used = server.picks.first().map_or(f64::INFINITY, |pick| rtt(self.places[pick.site].at));
            used / nearest - 1.0
        };
        let penalties: Vec<f64> = self.servers.iter().map(penalty).collect();
        let penalties = sorted(&penalties);
        let at = |q| quantile(&penalties, q).unwrap_or(0.0);
        Measured { max_load: highest / mean, penalty_p50: at(0.5), penalty_p99: at(0.99) }
    }
}

impl Server {
    /// Puts its connections on its relays, or takes them off.
    fn carry(&self, places: &mut [Place], each: f64) {
        for client in &self.clients {
            let from = places[usize::from(*client)].at;
            let way = |pick: &&Pick| {
                let relay = places[pick.site].at;
                from.rtt(relay) + relay.rtt(self.at)
            };
            let nearest = self.picks.iter().min_by(|a, b| way(a).total_cmp(&way(b)));
            if let Some(pick) = nearest.copied() {
                places[pick.site].carried[pick.relay] += each;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of the whole, through the loss of places and their return.
    #[test]
    fn load_is_even_and_relays_are_near_through_the_loss_of_places() {
        for (case, measured) in simulate(SMALL, 1) {
            assert!(measured.max_load <= 1.25, "{case}: {measured:?}");
            assert!(measured.penalty_p50 <= 0.10, "{case}: {measured:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let size = Size { relays: 80, servers: 2000, connections: 20_000 };
        let once = || simulate(size, 7).iter().map(|(_, it)| it.max_load.to_bits()).collect::<Vec<_>>();
        assert_eq!(once(), once());
    }
}
