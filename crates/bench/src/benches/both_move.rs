//! Both ends move at the same moment, again and again, with kernel MPTCP beside us.
//!
//! The subject has a name service, as in [`recovery`](super::recovery), from which the trials are. Kernel
//! MPTCP has its path manager on both sides, which is told at once of the address that is gone and of the new
//! one, which the server signals; it has no way to tell a peer that no longer is where it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::MptcpUse;

use super::recovery::{Condition, Mover, World};
use super::{Plan, lanes};
use crate::contender::sockets::{self, Kind};
use crate::flow::{self, Flow, Notes, Way};
use crate::lab::{CARRIER, CONGESTION_CONTROL, Net, Node};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const RTT: Duration = Duration::from_millis(50);
/// How long a host that moves has no address.
const LONGEST_AWAY: Duration = Duration::from_millis(1000);
/// What has not come back by then counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);
const CALM: Duration = Duration::from_millis(800);
const BLOCK_BITS: u64 = 200_000;
const BLOCK_EVERY: Duration = Duration::from_millis(4);
const PORT: u16 = 7000;
const ENDPOINT: u8 = 1;
/// Few, because each one that fails takes [`DEAD_AFTER`].
const MPTCP_ROUNDS: u32 = 10;

const SPEC: Spec = Spec {
    name: "both-move",
    title: "both ends move at once: how many connections recover, and how fast",
    metrics: &[Metric { key: "recovered", unit: "of 1" }, Metric { key: "recovery", unit: "ms" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "recovered",
        against: None,
        judged: Judged::Least,
        bound: Bound::AtLeast(1.0),
        aim: 1.0,
    }],
    plot: Plot::Cases { metric: "recovery", unit: "ms" },
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rounds = plan.rounds(100);
    let mut trials = subject(rounds, output)?;
    let peers: Vec<u32> = (0..rounds.min(MPTCP_ROUNDS)).collect();
    let done = lanes::run(
        &peers,
        2,
        &SPEC,
        output,
        |round| format!("mptcp #{round}"),
        |round| Ok((vec![mptcp(*round)?], ())),
    )?;
    trials.extend(done.trials);
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "rtt_ms": RTT.as_millis(),
        "longest_away_ms": LONGEST_AWAY.as_millis(),
        "dead_after_ms": DEAD_AFTER.as_millis(),
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &trials)
}

fn away(round: u32) -> Duration {
    LONGEST_AWAY * (round % 10) / 9
}

/// One connection that moves each round; a new one after it was lost.
fn subject(rounds: u32, output: &Output) -> Result<Vec<Trial>> {
    let mut world = World::new(RTT, Condition::TcpOnly)?;
    let mut trials = Vec::new();
    for round in 0..rounds {
        let recovered = world.trial(Mover::Both, away(round), round);
        let trial = match &recovered {
            Ok(trial) => outcome("whimbrel", round, trial.values.get("recovery").copied()),
            Err(error) => {
                eprintln!("  both-move whimbrel #{round}: {error:#}");
                world = World::new(RTT, Condition::TcpOnly)?;
                outcome("whimbrel", round, None)
            }
        };
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    Ok(trials)
}

fn outcome(system: &str, round: u32, recovery: Option<f64>) -> Trial {
    let recovery = recovery.filter(|ms| *ms < DEAD_AFTER.as_secs_f64() * 1000.0);
    let trial = Trial::new(system, round).with("recovered", f64::from(u8::from(recovery.is_some())));
    recovery.into_iter().fold(trial, |trial, ms| trial.with("recovery", ms))
}

fn mptcp(round: u32) -> Result<Trial> {
    let net = Net::star(["client", "server"], RTT)?;
    let [client, server] = net.nodes();
    let uses = [(client, MptcpUse::Subflow), (server, MptcpUse::Signal)];
    for (node, for_what) in uses {
        node.host().allow_mptcp(2).context("the kernel has no usable MPTCP (net.mptcp.enabled)")?;
        offer(node, for_what)?;
    }
    let notes = Arc::new(Notes::new());
    let anywhere = ([0, 0, 0, 0], PORT).into();
    server
        .wait("listen", async { sockets::listen(Kind::Mptcp, anywhere, flow::server(notes.clone())) })??;
    let address = (server.ip(), PORT).into();
    let mut channel = client.wait("connect", sockets::connect(Kind::Mptcp, None, address))??;
    let traffic = notes.clone();
    let flow = Flow::blocks(Way::Down, BLOCK_BITS, BLOCK_EVERY, DEAD_AFTER * 3);
    let listening = client.runtime.spawn(async move { flow::ask(&mut channel, flow, &traffic).await });
    std::thread::sleep(CALM);

    for (node, _) in uses {
        node.host().del_mptcp_endpoint(ENDPOINT)?;
        node.leave()?;
    }
    let gone = Instant::now();
    std::thread::sleep(away(round));
    let mut usable = gone;
    for (node, for_what) in uses {
        usable = node.arrive()?;
        offer(node, for_what)?;
    }
    let recovered = wait_for_new(&notes, gone, usable + DEAD_AFTER);
    listening.abort();
    let recovery = recovered.map(|at| at.saturating_duration_since(usable).as_secs_f64() * 1000.0);
    Ok(outcome("mptcp", round, recovery))
}

/// Tells the path manager of the node's address.
fn offer(node: &Node, for_what: MptcpUse) -> Result<()> {
    Ok(node.host().add_mptcp_endpoint(ENDPOINT, node.ip(), node.interface(), for_what)?)
}

/// When the first block arrived that was written after `gone`.
fn wait_for_new(notes: &Notes, gone: Instant, end: Instant) -> Option<Instant> {
    while Instant::now() < end {
        let new = notes.take().into_iter().find(|arrival| arrival.written.is_some_and(|at| at > gone));
        if let Some(arrival) = new {
            return Some(arrival.at);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
