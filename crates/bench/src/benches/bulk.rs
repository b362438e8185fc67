//! One stream, one way, as fast as it goes: `throughput` with large writes, `small-writes` with
//! small ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Plan, isolated, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys::cpu_time;
use crate::system::{Channel, Kind, Start};

const MIB: f64 = 1024.0 * 1024.0;
const READ_SIZE: usize = 64 * 1024;
/// The receiver begins to count after this: windows have opened, allocators are warm.
const WARM_UP: Duration = Duration::from_millis(300);
/// The clock is looked at once in so many bytes, so that small writes do not measure the clock.
const CLOCK_EVERY: usize = 256 * 1024;

const METRICS: &[Metric] = &[Metric { key: "rate", unit: "MiB/s" }, Metric { key: "cpu", unit: "ns/KiB" }];

const THROUGHPUT: Spec = Spec {
    name: "throughput",
    title: "one stream, 64 KiB writes, loopback, both ends in one process",
    metrics: METRICS,
    targets: &[
        Target {
            case: "",
            of: "whimbrel",
            metric: "rate",
            against: Some("tls"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.9),
            aim: 0.97,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "rate",
            against: Some("iroh"),
            judged: Judged::Median,
            bound: Bound::AtLeast(2.5),
            aim: 2.5,
        },
    ],
    plot: Plot::Ratios,
};

const SMALL_WRITES: Spec = Spec {
    name: "small-writes",
    title: "one stream, 1 KiB writes, loopback, both ends in one process",
    metrics: METRICS,
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "rate",
        against: Some("tls"),
        judged: Judged::Median,
        bound: Bound::AtLeast(1.0),
        aim: 2.0,
    }],
    plot: Plot::Ratios,
};

pub(crate) fn throughput(plan: &Plan, output: &mut Output) -> Result<()> {
    run(&THROUGHPUT, 64 * 1024, plan, output)
}

pub(crate) fn small_writes(plan: &Plan, output: &mut Output) -> Result<()> {
    run(&SMALL_WRITES, 1024, plan, output)
}

fn run(spec: &Spec, write_size: usize, plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(2.5);
    let mut trials = Vec::new();
    for (round, system) in schedule(&plan.systems, plan.rounds(7)) {
        let received = isolated(one_way(system, write_size, length))
            .with_context(|| format!("{} of {system}", spec.name))?;
        let trial = Trial::new(system, round)
            .with("rate", received.bytes as f64 / MIB / received.time.as_secs_f64())
            .with("cpu", received.cpu.as_nanos() as f64 * 1024.0 / received.bytes as f64);
        output.trial(spec, &trial);
        trials.push(trial);
    }
    let settings = json!({
        "write_bytes": write_size,
        "read_bytes": READ_SIZE,
        "seconds": length.as_secs_f64(),
        "warm_up_seconds": WARM_UP.as_secs_f64(),
    });
    output.finish(spec, settings, &trials)
}

/// What came in after the warm-up. The CPU time is of both ends.
#[derive(Debug)]
struct Received {
    bytes: u64,
    time: Duration,
    cpu: Duration,
}

async fn one_way(system: Kind, write_size: usize, length: Duration) -> Result<Received> {
    let (results, mut received) = mpsc::channel(1);
    let address = system
        .serve(Arc::new(move |channel| {
            let results = results.clone();
            Box::pin(async move {
                let _ = results.send(drain(channel).await).await;
            })
        }))
        .await?;
    let client = system.client(address).await?;
    let mut channel = client.connect(Start::Plain).await?;
    let payload = vec![0x5a; write_size];
    let writes = (CLOCK_EVERY / write_size).max(1);
    let start = Instant::now();
    while start.elapsed() < WARM_UP + length {
        for _ in 0..writes {
            channel.write_all(&payload).await?;
        }
    }
    channel.shutdown().await?;
    received.recv().await.context("the receiver is gone")?
}

/// Reads to the end.
async fn drain(mut channel: Channel) -> Result<Received> {
    let mut buffer = vec![0; READ_SIZE];
    let mut n = channel.read(&mut buffer).await?;
    let first = Instant::now();
    while n > 0 && first.elapsed() < WARM_UP {
        n = channel.read(&mut buffer).await?;
    }
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut bytes = 0;
    while n > 0 {
        n = channel.read(&mut buffer).await?;
        bytes += n as u64;
    }
    Ok(Received { bytes, time: start.elapsed(), cpu: cpu_time().saturating_sub(cpu) })
}
