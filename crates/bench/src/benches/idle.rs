//! What connections that do nothing cost: memory on either side, and CPU time.
//!
//! Client and server are processes of their own, so that each side is counted alone. Buffers in
//! the kernel are not counted.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::child::{Reply, Request};
use super::side::Side;
use super::{Plan, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;
use crate::system::Kind;

/// Open files besides the connections' own.
const OTHER_FILES: u64 = 64;

const SPEC: Spec = Spec {
    name: "idle",
    title: "idle connections: resident memory a connection, CPU time of one core, by side",
    metrics: &[
        Metric { key: "client_memory", unit: "KiB" },
        Metric { key: "server_memory", unit: "KiB" },
        Metric { key: "client_cpu", unit: "%" },
        Metric { key: "server_cpu", unit: "%" },
    ],
    targets: &[
        at_most("client_memory", 40.0, 20.0),
        at_most("server_memory", 40.0, 20.0),
        at_most("client_cpu", 0.1, 0.1),
        at_most("server_cpu", 0.1, 0.1),
    ],
    plot: Plot::Ratios,
};

const fn at_most(metric: &'static str, limit: f64, aim: f64) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim,
    }
}

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let connections = connections.unwrap_or(if plan.quick { 200 } else { 2000 });
    let length = plan.length(30.0);
    let limit = sys::raise_file_limit()?;
    if limit < connections as u64 + OTHER_FILES {
        bail!(
            "{connections} connections need as many open files, but the limit is {limit}; raise it (ulimit -n)"
        );
    }
    let mut trials = Vec::new();
    for (round, system) in schedule(&plan.systems, plan.rounds(3)) {
        let trial = one(system, round, connections, length).with_context(|| format!("idle of {system}"))?;
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({ "carrier": "auto", "connections": connections, "seconds": length.as_secs_f64() });
    output.finish(&SPEC, settings, &trials)
}

fn one(system: Kind, round: u32, connections: usize, length: Duration) -> Result<Trial> {
    let (mut server, address) = Side::server(system)?;
    let mut client = Side::client(system, &address)?;
    server.ask(&Request::Expect(0))?;
    let before = usage(&mut client, &mut server)?;
    client.ask(&Request::Connect { count: connections, each: connections })?;
    server.ask(&Request::Expect(connections))?;
    let full = usage(&mut client, &mut server)?;
    std::thread::sleep(length);
    let after = usage(&mut client, &mut server)?;
    let memory = |side: usize| {
        let grown = full[side].resident.saturating_sub(before[side].resident);
        grown as f64 / 1024.0 / connections as f64
    };
    let cpu = |side: usize| {
        let used = after[side].cpu_nanos.saturating_sub(full[side].cpu_nanos_settled);
        used as f64 / 1e9 / length.as_secs_f64() * 100.0
    };
    Ok(Trial::new(system, round)
        .with("client_memory", memory(0))
        .with("server_memory", memory(1))
        .with("client_cpu", cpu(0))
        .with("server_cpu", cpu(1)))
}

struct Usage {
    resident: u64,
    cpu_nanos: u64,
    cpu_nanos_settled: u64,
}

/// Of both sides, at the same moment.
fn usage(client: &mut Side, server: &mut Side) -> Result<[Usage; 2]> {
    client.tell(&Request::Measure)?;
    server.tell(&Request::Measure)?;
    Ok([hear_usage(client)?, hear_usage(server)?])
}

fn hear_usage(side: &mut Side) -> Result<Usage> {
    match side.hear()? {
        Reply::Usage { resident, cpu_nanos, cpu_nanos_settled, .. } => {
            Ok(Usage { resident, cpu_nanos, cpu_nanos_settled })
        }
        other => bail!("unexpected answer {other:?}"),
    }
}
