//! As fast as it goes, on loopback: `throughput` with large writes, one way, both ways at once and over 8
//! streams; `small-writes` with small ones, which measures how well writes are gathered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Plan, isolated, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys::cpu_time;
use crate::system::{Channel, Handler, Kind};

const MIB: f64 = 1024.0 * 1024.0;
const READ_SIZE: usize = 64 * 1024;
/// Counting begins after this: windows have opened, allocators are warm.
const WARM_UP: Duration = Duration::from_millis(300);

const METRICS: &[Metric] = &[Metric { key: "rate", unit: "MiB/s" }, Metric { key: "cpu", unit: "ns/KiB" }];

const ONE_WAY: Load = Load { case: "one way", streams: 1, both_ways: false, write_size: 64 * 1024 };
const THROUGHPUT_LOADS: [Load; 3] = [
    ONE_WAY,
    Load { case: "both ways at once", both_ways: true, ..ONE_WAY },
    Load { case: "8 streams", streams: 8, ..ONE_WAY },
];
const SMALL_WRITES_LOADS: [Load; 1] = [Load { case: "", write_size: 1024, ..ONE_WAY }];

const THROUGHPUT: Spec = Spec {
    name: "throughput",
    title: "64 KiB writes, loopback, both ends in one process",
    metrics: METRICS,
    targets: &[
        beside("rate", "tls", Bound::AtLeast(0.95), 1.0),
        Target { case: ONE_WAY.case, ..beside("cpu", "tls", Bound::AtMost(1.10), 1.0) },
        Target { case: ONE_WAY.case, ..beside("rate", "iroh", Bound::AtLeast(2.5), 2.5) },
    ],
    plot: Plot::Cases { metric: "rate", unit: "MiB/s" },
};

const SMALL_WRITES: Spec = Spec {
    name: "small-writes",
    title: "1 KiB writes (how well they are gathered), loopback, both ends in one process",
    metrics: METRICS,
    targets: &[beside("rate", "tls", Bound::AtLeast(1.0), 2.0)],
    plot: Plot::Ratios,
};

const fn beside(metric: &'static str, peer: &'static str, bound: Bound, aim: f64) -> Target {
    let (case, of, against) = ("", "whimbrel", Some(peer));
    Target { case, of, metric, against, judged: Judged::Median, bound, aim }
}

/// What is carried.
#[derive(Debug, Clone, Copy)]
struct Load {
    case: &'static str,
    /// Of one connection; TCP and TLS have as many connections instead.
    streams: usize,
    both_ways: bool,
    write_size: usize,
}

pub(crate) fn throughput(plan: &Plan, output: &mut Output) -> Result<()> {
    run(&THROUGHPUT, &THROUGHPUT_LOADS, plan, output)
}

pub(crate) fn small_writes(plan: &Plan, output: &mut Output) -> Result<()> {
    run(&SMALL_WRITES, &SMALL_WRITES_LOADS, plan, output)
}

fn run(spec: &Spec, loads: &[Load], plan: &Plan, output: &mut Output) -> Result<()> {
    let length = plan.length(2.5);
    let mut trials = Vec::new();
    for load in loads {
        for (round, system) in schedule(&plan.systems, plan.rounds(7)) {
            let carried = isolated(carry(system, *load, length))
                .with_context(|| format!("{} of {system}, {}", spec.name, load.case))?;
            let trial = Trial::new(system, round)
                .in_case(load.case)
                .with("rate", carried.bytes as f64 / MIB / carried.time.as_secs_f64())
                .with("cpu", carried.cpu.as_nanos() as f64 * 1024.0 / carried.bytes as f64);
            output.trial(spec, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "write_bytes": loads.first().map(|load| load.write_size),
        "read_bytes": READ_SIZE,
        "seconds": length.as_secs_f64(),
        "warm_up_seconds": WARM_UP.as_secs_f64(),
        "carrier": "auto",
        "streams": "of one connection; tcp and tls: a connection each",
        "both_ways": "the sum of both",
    });
    output.finish(spec, settings, &trials)
}

/// What arrived while it was counted. The CPU time is of both ends.
#[derive(Debug)]
struct Carried {
    bytes: u64,
    time: Duration,
    cpu: Duration,
}

async fn carry(system: Kind, load: Load, length: Duration) -> Result<Carried> {
    let arrived = Arc::new(AtomicU64::new(0));
    let address = system.serve(server(load, arrived.clone())).await?;
    let client = system.client(address).await?;
    for channel in client.streams(load.streams).await? {
        tokio::spawn(exchange(channel, load, true, arrived.clone()));
    }
    let began = Instant::now();
    while arrived.load(Ordering::Relaxed) == 0 {
        ensure!(began.elapsed() < Duration::from_secs(10), "nothing arrives");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(WARM_UP).await;
    let before = (arrived.load(Ordering::Relaxed), Instant::now(), cpu_time());
    tokio::time::sleep(length).await;
    let bytes = arrived.load(Ordering::Relaxed) - before.0;
    ensure!(bytes > 0, "nothing arrived any more");
    Ok(Carried { bytes, time: before.1.elapsed(), cpu: cpu_time().saturating_sub(before.2) })
}

fn server(load: Load, arrived: Arc<AtomicU64>) -> Handler {
    Arc::new(move |channel| Box::pin(exchange(channel, load, false, arrived.clone())))
}

/// Sends, or receives, or both, until the runtime ends.
async fn exchange(channel: Channel, load: Load, is_client: bool, arrived: Arc<AtomicU64>) {
    let (sends, receives) = (is_client || load.both_ways, !is_client || load.both_ways);
    let ended = match (sends, receives) {
        (true, true) => {
            let (read, write) = tokio::io::split(channel);
            let sending = tokio::spawn(send(write, load.write_size));
            let ended = receive(read, &arrived).await;
            sending.abort();
            ended
        }
        (true, false) => send(channel, load.write_size).await,
        (false, _) => receive(channel, &arrived).await,
    };
    if let Err(error) = ended {
        // The count shows what is missing.
        tracing::debug!(%error, "a stream ended");
    }
}

async fn send(mut to: impl AsyncWrite + Unpin, write_size: usize) -> std::io::Result<()> {
    let payload = vec![0x5a; write_size];
    loop {
        to.write_all(&payload).await?;
    }
}

async fn receive(mut from: impl AsyncRead + Unpin, arrived: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(()),
            n => _ = arrived.fetch_add(n as u64, Ordering::Relaxed),
        }
    }
}
