//! How long a relay's death interrupts connections that have another relay: one connection, and 200 to one
//! server.
//!
//! Everything to and from the relay is swallowed, and nobody is told. Direct paths are off: all connections
//! are relayed, whatever the gateways. Detected is when the connection says of its path that it makes no
//! progress, or is gone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::task::JoinHandle;
use whimbrel_lab::NatKind;
use whimbrel_relay::{Keeper, Relay};
use whimbrel_transport::{Config, Connection, ConnectionEvent, Endpoint};

use super::{millis, whimbrel_stage};
use crate::benches::Plan;
use crate::lab::{Ears, Homes, Speakers};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};

/// From end to end through either relay.
const RTT: Duration = Duration::from_millis(100);
const CROWD: usize = 200;
/// How often each connection is spoken to: of a crowd less, because the machine is one.
const EVERY: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];
/// Links carry a crowd's frames in lots, so that the emulation leaves time for it.
const GRAIN: Duration = Duration::from_micros(500);
/// Before the relay dies.
const CALM: Duration = Duration::from_secs(2);
/// What is not said by then, after the connection has recovered, is not said.
const UNSAID: Duration = Duration::from_secs(2);
/// To look whether a relay has a reservation, and how long it may take to get one.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

const SPEC: Spec = Spec {
    name: "reach-death",
    title: "a relay of two dies: until it is noticed, and until words are heard again, of 200 connections by 99 in a \
            hundred; over: what the limit is exceeded by",
    metrics: &[
        Metric { key: "detection", unit: "ms" },
        Metric { key: "detection_over", unit: "ms" },
        Metric { key: "recovery", unit: "ms" },
        Metric { key: "over", unit: "ms" },
        Metric { key: "last", unit: "ms" },
    ],
    targets: &[within("detection_over"), within("over")],
    plot: Plot::Cases { metric: "recovery", unit: "ms" },
};

const fn within(metric: &'static str) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(0.0),
        aim: -100.0,
    }
}

/// A relay's death is to be noticed within so long.
fn noticed_within() -> Duration {
    RTT * 3 + Duration::from_millis(200)
}

/// And to be over within so long: of one connection, and of 99 in a hundred of a crowd.
fn over_within(count: usize) -> Duration {
    let after = if count == 1 { RTT * 2 } else { RTT * 4 + Duration::from_millis(300) };
    noticed_within() + after
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let counts = if plan.quick { [1, 20] } else { [1, CROWD] };
    let mut trials = Vec::new();
    for round in 0..plan.rounds(5) {
        for (count, every) in counts.into_iter().zip(EVERY) {
            let case = if count == 1 { "1 connection".to_owned() } else { format!("{count} connections") };
            let trial = one(count, every, round).with_context(|| case.clone())?.in_case(case);
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": "auto", "rtt_ms": RTT.as_millis() as u64, "gateways": "port-restricted",
        "grain_of_the_crowd_ms": GRAIN.as_secs_f64() * 1000.0,
        "a_word_every_ms": EVERY.map(|every| every.as_millis() as u64),
    });
    output.finish(&SPEC, settings, &trials)
}

fn one(count: usize, every: Duration, round: u32) -> Result<Trial> {
    let mut world = World::new(count, every)?;
    std::thread::sleep(CALM);
    let used = world.used()?;
    let noticed = world.notice();
    let began = Instant::now();
    world.homes.silence_relay(used, true);
    world.ears.expect_new();
    let World { homes, ears, .. } = &mut world;
    let heard = homes.client.wait("hear", ears.first_new())??;
    let times: Vec<f64> = heard.iter().map(|at| millis(at.saturating_duration_since(began))).collect();
    let times = sorted(&times);
    let recovery = quantile(&times, 0.99).context("no connection")?;
    let mut trial = Trial::new("whimbrel", round)
        .with("recovery", recovery)
        .with("over", recovery - millis(over_within(count)))
        .with("last", times.last().copied().unwrap_or(recovery));
    // Words may be heard again although nothing was said.
    let noticing = async { tokio::time::timeout(UNSAID, noticed).await };
    if let Ok(Ok(Some(at))) = homes.client.wait("notice", noticing)? {
        let detection = millis(at.saturating_duration_since(began));
        trial = trial.with("detection", detection);
        trial = trial.with("detection_over", detection - millis(noticed_within()));
    }
    Ok(trial)
}

/// Two relays, a server with reservations at both, and connections from one client. Dropped in this order.
struct World {
    ears: Ears,
    connections: Vec<Connection>,
    _client: Endpoint,
    _speakers: Speakers,
    _keeper: Keeper,
    _server: Endpoint,
    relays: Vec<Relay>,
    homes: Homes,
}

impl World {
    fn new(count: usize, every: Duration) -> Result<Self> {
        let homes = Homes::apart(2, RTT, if count == 1 { Duration::ZERO } else { GRAIN })?;
        homes.set_kind(NatKind::PortRestricted)?;
        let mut relays = Vec::new();
        for node in &homes.relays {
            relays.push(whimbrel_stage::relay(node)?);
        }
        let (server, listener, keeper) = whimbrel_stage::serve(&homes.server, &relays)?;
        let speakers = Speakers::start(&homes.server, listener, every);
        let config = Config { direct_paths: false, ..Config::default() };
        let client = homes.client.wait("bind", Endpoint::builder().config(config).bind())??;
        let (mut ears, mut connections) = (Ears::new(count), Vec::new());
        for _ in 0..count {
            let connection = homes.client.wait("connect", client.connect(server.addr()))??;
            homes.client.wait("listen", ears.listen(connection.clone()))??;
            connections.push(connection);
        }
        Ok(Self {
            ears,
            connections,
            _client: client,
            _speakers: speakers,
            _keeper: keeper,
            _server: server,
            relays,
            homes,
        })
    }

    /// The relay through which most connections go, once the server has reservations at both.
    fn used(&self) -> Result<usize> {
        let began = Instant::now();
        while self.relays.iter().any(|relay| relay.stats().reservations == 0) {
            anyhow::ensure!(began.elapsed() < PATIENCE, "a relay has no reservation");
            std::thread::sleep(LOOK_EVERY);
        }
        let carried = |number: &usize| {
            let stats = self.relays[*number].stats();
            stats.splices + stats.flows
        };
        (0..self.relays.len()).max_by_key(carried).context("there is no relay")
    }

    /// Waits until the first connection says that its path is lost, or looks so.
    fn notice(&self) -> JoinHandle<Option<Instant>> {
        let events = self.connections.first().map(Connection::events);
        self.homes.client.runtime.spawn(async move {
            let mut events = events?;
            loop {
                let event = events.next().await?;
                if matches!(event, ConnectionEvent::PathSuspect { .. } | ConnectionEvent::PathDown { .. }) {
                    return Some(Instant::now());
                }
            }
        })
    }
}
