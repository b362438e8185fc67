//! What idle connections cost a relay: its own memory, and pipes, beside HAProxy in TCP mode.
//!
//! Client and server are in this process, and not counted; neither are buffers in the kernel.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stage::{Dialler, Stage, System, haproxy_version};
use crate::benches::{Plan, rotated};
use crate::lab::Chain;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;

const SYSTEMS: [System; 2] = [System::Whimbrel, System::Haproxy];
/// As many as are asked for, if the limit of open files allows them.
const MOST: usize = 50_000;
/// Connections that begin at the same time.
const PARALLEL: usize = 32;
/// Before the baseline is taken: caches and pools have their size then.
const WARM_UP: usize = 64;
/// What was needed to begin has been freed after this.
const SETTLE: Duration = Duration::from_secs(2);
/// To open so many takes no longer.
const LIMIT: Duration = Duration::from_secs(300);
/// Open files besides the connections' own.
const OTHER_FILES: u64 = 400;

const SPEC: Spec = Spec {
    name: "relay-idle",
    title: "idle connections through a relay: its resident memory for each, and the pipes that it holds",
    metrics: &[Metric { key: "memory", unit: "KiB" }, Metric { key: "pipes", unit: "" }],
    targets: &[
        Target {
            case: "",
            of: "whimbrel",
            metric: "memory",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(4.0),
            aim: 3.0,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "memory",
            against: Some("haproxy"),
            judged: Judged::Median,
            bound: Bound::AtMost(1.0),
            aim: 0.5,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "pipes",
            against: None,
            judged: Judged::Median,
            // The runtime's own, if it has any.
            bound: Bound::AtMost(8.0),
            aim: 0.0,
        },
    ],
    plot: Plot::Ratios,
};

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let limit = sys::raise_file_limit()?;
    let possible =
        usize::try_from(limit.saturating_sub(OTHER_FILES) / 2).unwrap_or(MOST).saturating_sub(WARM_UP);
    let connections = connections.unwrap_or(if plan.quick { 200 } else { possible.min(MOST) });
    let needed = 2 * (connections + WARM_UP) as u64 + OTHER_FILES;
    if limit < needed {
        bail!(
            "{connections} connections need {needed} open files, but the limit is {limit}; raise it (ulimit -n)"
        );
    }
    let chain = Chain::loopback()?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        for system in rotated(&SYSTEMS, round) {
            let trial = one(&chain, system, round, connections).context(system.name())?;
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings =
        json!({ "carrier": "tcp", "connections": connections, "haproxy": haproxy_version(&chain)? });
    output.finish(&SPEC, settings, &trials)
}

fn one(chain: &Chain, system: System, round: u32, connections: usize) -> Result<Trial> {
    let mut stage = Stage::start(chain, system, connections + WARM_UP)?;
    let open = |count| chain.client.within(LIMIT, "connect", open(stage.dialler.clone(), count));
    drop(open(WARM_UP)??);
    std::thread::sleep(SETTLE);
    let pid = stage.pid();
    let before = sys::resident_of(pid)?;
    let held = chain.client.within(LIMIT, "connect", self::open(stage.dialler.clone(), connections))??;
    std::thread::sleep(SETTLE);
    let grown = sys::resident_of(pid)?.saturating_sub(before);
    let pipes = pipes(pid)?;
    drop(held);
    Ok(Trial::new(system.name(), round)
        .with("memory", grown as f64 / 1024.0 / connections as f64)
        .with("pipes", pipes as f64))
}

/// So many connections, over each of which a byte was echoed.
async fn open(dialler: Dialler, count: usize) -> Result<Vec<TcpStream>> {
    let (mut held, mut running) = (Vec::with_capacity(count), JoinSet::new());
    for _ in 0..count {
        if running.len() >= PARALLEL
            && let Some(stream) = running.join_next().await
        {
            held.push(stream??);
        }
        let dialler = dialler.clone();
        running.spawn(async move { dialler.echoed().await });
    }
    while let Some(stream) = running.join_next().await {
        held.push(stream??);
    }
    Ok(held)
}

/// Ends of pipes that a process has open, but for its standard streams.
fn pipes(pid: u32) -> Result<usize> {
    let mut count = 0;
    for file in fs::read_dir(format!("/proc/{pid}/fd")).context("the relay is gone")? {
        let file = file?;
        let number: u32 = file.file_name().to_string_lossy().parse().unwrap_or(0);
        // One that was closed meanwhile is none.
        let is_pipe = fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
        count += usize::from(number > 2 && is_pipe);
    }
    Ok(count)
}
