//! What connections cost whose peers are suspended.
//!
//! The server is a process of its own, which keeps each connection that it accepted and does nothing with it.
//! The client, this process, connects, suspends each connection, and keeps its bytes. What the server has
//! grown by then is what a standing by costs, and the bytes are what a sleeping one takes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use whimbrel_base::EndpointAddr;
use whimbrel_transport::Endpoint;

use super::child::{Reply, Request};
use super::side::Side;
use super::{Plan, isolated};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::system::{Address, Kind};

/// Connections that are made, and suspended, at the same time.
const PARALLEL: usize = 32;
/// A peer may have so many connections at most.
const EACH: usize = 2000;
/// Before the baseline is taken: caches and pools have their size then.
const WARM_UP: usize = 64;
const LIMIT: Duration = Duration::from_secs(10);
/// After this nothing is left of a carrier that was closed.
const GONE: Duration = Duration::from_secs(5);

const SPEC: Spec = Spec {
    name: "standby",
    title: "suspended connections: resident memory of the side that stands by, bytes of the one that sleeps, each",
    metrics: &[
        Metric { key: "standby_memory", unit: "KiB" },
        Metric { key: "standby_heap", unit: "KiB" },
        Metric { key: "snapshot", unit: "KiB" },
    ],
    targets: &[at_most("standby_memory"), at_most("standby_heap"), at_most("snapshot")],
    plot: Plot::Ratios,
};

const fn at_most(metric: &'static str) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(2.0),
        aim: 1.0,
    }
}

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let connections = connections.unwrap_or(if plan.quick { 200 } else { 10_000 });
    crate::sys::raise_file_limit()?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        let trial = one(round, connections).context("standby")?;
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({ "carrier": "auto", "connections": connections, "streams": "one each, idle" });
    output.finish(&SPEC, settings, &trials)
}

fn one(round: u32, connections: usize) -> Result<Trial> {
    let (mut server, address) = Side::keeper(Kind::Whimbrel)?;
    isolated(suspended(address.clone(), WARM_UP))?;
    server.ask(&Request::Expect(WARM_UP))?;
    let before = used(&mut server)?;
    let bytes = isolated(suspended(address, connections))?;
    server.ask(&Request::Expect(WARM_UP + connections))?;
    std::thread::sleep(GONE);
    let after = used(&mut server)?;
    let each = |bytes: u64| bytes as f64 / 1024.0 / connections as f64;
    let trial = Trial::new("whimbrel", round)
        .with("standby_memory", each(after.0.saturating_sub(before.0)))
        .with("snapshot", each(bytes));
    Ok(match (after.1, before.1) {
        (Some(after), Some(before)) => trial.with("standby_heap", each(after.saturating_sub(before))),
        _ => trial,
    })
}

/// What the server has resident, and what of its heap is in use.
fn used(server: &mut Side) -> Result<(u64, Option<u64>)> {
    match server.ask(&Request::Measure)? {
        Reply::Usage { resident, allocated, .. } => Ok((resident, allocated)),
        other => bail!("unexpected answer {other:?}"),
    }
}

/// Connects so many times, suspends each connection, and returns how many bytes they are together.
async fn suspended(address: Address, connections: usize) -> Result<u64> {
    let server = EndpointAddr::new(address.identity.parse()?, [address.socket]);
    let (mut bytes, mut left) = (0, connections);
    while left > 0 {
        let part = left.min(EACH);
        left -= part;
        let endpoint = Arc::new(Endpoint::builder().bind().await?);
        let mut running = JoinSet::new();
        for _ in 0..part {
            if running.len() >= PARALLEL
                && let Some(size) = running.join_next().await
            {
                bytes += size??;
            }
            running.spawn(suspend_one(endpoint.clone(), server.clone()));
        }
        while let Some(size) = running.join_next().await {
            bytes += size??;
        }
    }
    Ok(bytes)
}

async fn suspend_one(endpoint: Arc<Endpoint>, server: EndpointAddr) -> Result<u64> {
    let connection = endpoint.connect(server).await?;
    let mut stream = connection.open_stream().await?;
    stream.write_all(&[7]).await?;
    Ok(connection.suspend(LIMIT).await?.as_bytes().len() as u64)
}
