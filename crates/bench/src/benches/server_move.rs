//! How long many connections are interrupted when their server moves.
//!
//! The server and the clients are hosts one RTT of 100 ms apart; ten connections share a client
//! endpoint, as few do in life, for each has sockets and an address monitor of its own. Both hosts
//! and the emulator share this machine's cores, so that what is measured is an upper bound; the
//! emulated link carries packets in lots, at most 1 ms late, because a wake-up for each of them
//! would keep the cores busy with nothing else.
//!
//! On each connection the server says something every second, for the same reason. So that the moment of the
//! first new byte is exact nevertheless, the server's application also writes one message on each connection
//! once the old address is gone; after a pause, in which the machine comes to rest, the server gets its new
//! address, and the time counts from then (see [`recovery`](super::recovery)) until the client's application
//! has read a message that was written after the old address was gone.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::task::JoinSet;
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions};

use super::Plan;
use crate::lab::{Ears, Net, Node, Speakers};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::quantile;
use crate::sys;

const RTT: Duration = Duration::from_millis(100);
const COUNTS: [usize; 4] = [20, 100, 500, 2000];
const PER_ENDPOINT: usize = 10;
const MESSAGE_EVERY: Duration = Duration::from_secs(1);
const GRAIN: Duration = Duration::from_micros(500);
/// How long the server has no address.
const AWAY: Duration = Duration::from_millis(500);
/// Before each move.
const CALM: Duration = Duration::from_secs(3);
/// Connections that are made at the same time.
const PARALLEL: usize = 64;
/// Open files besides those of endpoints and connections.
const OTHER_FILES: u64 = 128;
/// A client's address monitor and two sockets for notices.
const FILES_PER_ENDPOINT: u64 = 3;
/// Two ends of a path, and of the next one.
const FILES_PER_CONNECTION: u64 = 4;

const SPEC: Spec = Spec {
    name: "server-move",
    title: "one server moves, RTT 100 ms: from its usable new address to each connection's first new byte",
    metrics: &[
        Metric { key: "first", unit: "ms" },
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p99", unit: "ms" },
        Metric { key: "last", unit: "ms" },
        Metric { key: "cpu", unit: "ms" },
    ],
    // 1.5 RTT + 10 ms for few; for many at once 1 s more, because all of them share two cores.
    targets: &[within("whimbrel 20", "p50", 160.0), within("whimbrel 2000", "p99", 1150.0)],
    plot: Plot::Distribution { unit: "ms", limit: 1150.0 },
};

const fn within(of: &'static str, metric: &'static str, limit: f64) -> Target {
    Target {
        case: "",
        of,
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim: 153.0,
    }
}

/// Runs the bench, for these numbers of connections or the usual ones.
pub(crate) fn run(plan: &Plan, counts: &[usize], output: &mut Output) -> Result<()> {
    let usual = if plan.quick { &COUNTS[..1] } else { &COUNTS[..] };
    let counts = if counts.is_empty() { usual } else { counts };
    let limit = sys::raise_file_limit()?;
    let (mut trials, mut measured) = (Vec::new(), Vec::new());
    for &count in counts {
        let needed = files_for(count);
        if needed > limit {
            bail!(
                "{count} connections need {needed} open files, but the limit is {limit}; raise it (ulimit -n)"
            );
        }
        let mut world = World::new(count)?;
        measured.push(world.measure_rtt()?.as_secs_f64() * 1000.0);
        for round in 0..plan.rounds(5) {
            let trial = world.trial(round)?;
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": "auto",
        "rtt_ms": RTT.as_millis(),
        "connections": counts,
        "connections_per_endpoint": PER_ENDPOINT,
        "message_every_ms": MESSAGE_EVERY.as_millis(),
        "grain_ms": GRAIN.as_secs_f64() * 1000.0,
        "rtt_measured_ms": measured,
        "away_ms": AWAY.as_millis(),
        "samples": "milliseconds, one for each connection",
    });
    output.finish(&SPEC, settings, &trials)
}

fn files_for(connections: usize) -> u64 {
    let endpoints = connections.div_ceil(PER_ENDPOINT) as u64;
    endpoints * FILES_PER_ENDPOINT + connections as u64 * FILES_PER_CONNECTION + OTHER_FILES
}

/// Fields are dropped in this order: endpoints before the hosts that they are on.
struct World {
    ears: Ears,
    speakers: Speakers,
    _clients: Vec<Endpoint>,
    _server: Endpoint,
    net: Net,
    count: usize,
}

impl World {
    fn new(count: usize) -> Result<Self> {
        let net = Net::pair(["clients", "server"], RTT, GRAIN)?;
        let [clients, server] = net.nodes();
        let endpoint = server.wait("bind", Endpoint::builder().bind())??;
        let listener =
            server.wait("listen", endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)))??;
        let speakers = Speakers::start(server, listener, MESSAGE_EVERY);
        let mut ears = Ears::new(count);
        let endpoints = connect_all(clients, &endpoint, count, &mut ears)?;
        Ok(Self { ears, speakers, _clients: endpoints, _server: endpoint, net, count })
    }

    fn measure_rtt(&self) -> Result<Duration> {
        let [clients, server] = self.net.nodes();
        clients.measure_rtt(server)
    }

    fn trial(&mut self, round: u32) -> Result<Trial> {
        let [clients, server] = self.net.nodes();
        std::thread::sleep(CALM);
        server.leave()?;
        self.ears.expect_new();
        self.speakers.prompt();
        std::thread::sleep(AWAY);
        let cpu = sys::cpu_time();
        let usable = server.arrive()?;
        tracing::debug!("the new address is usable");
        let heard = clients.wait("hear", self.ears.first_new())??;
        let cpu = sys::cpu_time().saturating_sub(cpu);
        let times = heard.iter().map(|at| at.saturating_duration_since(usable).as_secs_f64() * 1000.0);
        let times: Vec<f64> = times.collect();
        let mut trial =
            Trial::new(format!("whimbrel {}", self.count), round).with("cpu", cpu.as_secs_f64() * 1000.0);
        for (metric, q) in [("first", 0.0), ("p50", 0.5), ("p99", 0.99), ("last", 1.0)] {
            if let Some(value) = quantile(&times, q) {
                trial = trial.with(metric, value);
            }
        }
        Ok(trial.with_samples(times))
    }
}

/// Makes the connections, a few at a time.
fn connect_all(clients: &Node, server: &Endpoint, count: usize, ears: &mut Ears) -> Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for _ in 0..count.div_ceil(PER_ENDPOINT) {
        endpoints.push(clients.wait("bind", Endpoint::builder().bind())??);
    }
    let turns: Vec<Endpoint> = endpoints.iter().cycle().take(count).cloned().collect();
    for some in turns.chunks(PARALLEL) {
        let connections = clients.wait("connect", connect_some(some.to_vec(), server.clone()))??;
        for connection in connections {
            clients.wait("open a stream", ears.listen(connection))??;
        }
    }
    Ok(endpoints)
}

async fn connect_some(clients: Vec<Endpoint>, server: Endpoint) -> Result<Vec<Connection>> {
    let mut running = JoinSet::new();
    for client in clients {
        let addr = server.addr();
        running.spawn(async move { client.connect(addr).await });
    }
    let mut connections = Vec::new();
    while let Some(connection) = running.join_next().await {
        connections.push(connection??);
    }
    Ok(connections)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn files_are_counted_for_all_ends() {
        assert_eq!(files_for(20), 2 * 3 + 20 * 4 + OTHER_FILES);
    }

    #[test]
    fn every_connection_is_measured() {
        if !require!() {
            return;
        }
        let mut world = World::new(12).unwrap();
        let trial = world.trial(0).unwrap();
        assert_eq!(trial.samples.len(), 12);
        // The notice's way, then a join in the first flight: nothing new can come earlier.
        assert!(trial.values["first"] >= 140.0, "{:?}", trial.values);
    }
}
