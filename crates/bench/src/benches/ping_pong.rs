//! One byte there and back, one after the other: what a lone small message costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Plan, isolated, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};
use crate::sys::cpu_time;
use crate::system::{Channel, Kind, Start, echo};

/// Round trips before the measured ones.
const WARM_UP: usize = 2000;

const SPEC: Spec = Spec {
    name: "ping-pong",
    title: "one byte there and back, loopback, both ends in one process",
    metrics: &[
        Metric { key: "p50", unit: "µs" },
        Metric { key: "p99", unit: "µs" },
        Metric { key: "cpu", unit: "µs" },
    ],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "p50",
        against: Some("tls"),
        judged: Judged::Median,
        bound: Bound::AtMost(1.1),
        aim: 1.0,
    }],
    plot: Plot::Ratios,
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(2.0);
    let mut trials = Vec::new();
    for (round, system) in schedule(&plan.systems, plan.rounds(7)) {
        let found =
            isolated(round_trips(system, length)).with_context(|| format!("ping-pong of {system}"))?;
        let trial =
            Trial::new(system, round).with("p50", found.p50).with("p99", found.p99).with("cpu", found.cpu);
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({
        "carrier": "auto",
        "seconds": length.as_secs_f64(),
        "warm_up_round_trips": WARM_UP,
    });
    output.finish(&SPEC, settings, &trials)
}

/// In microseconds, a round trip.
struct RoundTrips {
    p50: f64,
    p99: f64,
    cpu: f64,
}

async fn round_trips(system: Kind, length: Duration) -> Result<RoundTrips> {
    let address = system.serve(echo()).await?;
    let client = system.client(address).await?;
    let mut channel = client.connect(Start::Plain).await?;
    for _ in 0..WARM_UP {
        round_trip(&mut channel).await?;
    }
    let mut times = Vec::new();
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut last = start;
    while last - start < length {
        round_trip(&mut channel).await?;
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / 1000.0);
        last = now;
    }
    let cpu = cpu_time().saturating_sub(cpu).as_nanos() as f64 / 1000.0 / times.len() as f64;
    let times = sorted(&times);
    Ok(RoundTrips {
        p50: quantile(&times, 0.5).context("no round trip")?,
        p99: quantile(&times, 0.99).context("no round trip")?,
        cpu,
    })
}

async fn round_trip(channel: &mut Channel) -> Result<()> {
    let mut byte = [1];
    channel.write_all(&byte).await?;
    channel.flush().await?;
    channel.read_exact(&mut byte).await?;
    Ok(())
}
