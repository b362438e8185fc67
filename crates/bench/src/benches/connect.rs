//! From starting to connect to a known peer until the first byte was echoed.
//!
//! Known means: client and server hold a session from an earlier connection, as each system does
//! by default. `-early` is the same with data in the first flight, where a system offers it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Plan, isolated, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};
use crate::system::{Client, Kind, Start, echo};

/// Connections before the measured ones.
const WARM_UP: usize = 8;
/// Between two connections, for the one before to end.
const PAUSE: Duration = Duration::from_millis(3);

const SPEC: Spec = Spec {
    name: "connect",
    title: "connecting to a known peer until the first byte was echoed, loopback",
    metrics: &[Metric { key: "p50", unit: "µs" }, Metric { key: "p99", unit: "µs" }],
    targets: &[
        Target {
            case: "",
            of: "whimbrel-early",
            metric: "p50",
            against: Some("tls"),
            judged: Judged::Median,
            bound: Bound::AtMost(1.1),
            aim: 0.9,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "p50",
            against: Some("tls"),
            judged: Judged::Median,
            bound: Bound::AtMost(1.1),
            aim: 0.9,
        },
    ],
    plot: Plot::Ratios,
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let count = if plan.quick { 30 } else { 300 };
    let plain = plan.systems.iter().map(|&s| (s, Start::Plain));
    let early = plan.systems.iter().filter(|s| s.can_start_early()).map(|&s| (s, Start::Early));
    let subjects: Vec<(Kind, Start)> = plain.chain(early).collect();
    let mut trials = Vec::new();
    for (round, (system, start)) in schedule(&subjects, plan.rounds(5)) {
        let label = format!("{system}{}", if start == Start::Early { "-early" } else { "" });
        let times =
            isolated(connects(system, start, count)).with_context(|| format!("connect of {label}"))?;
        let trial = Trial::new(label, round)
            .with("p50", quantile(&times, 0.5).context("no connection")?)
            .with("p99", quantile(&times, 0.99).context("no connection")?);
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({ "carrier": "auto", "connections": count, "warm_up_connections": WARM_UP });
    output.finish(&SPEC, settings, &trials)
}

async fn connects(system: Kind, start: Start, count: usize) -> Result<Vec<f64>> {
    let address = system.serve(echo()).await?;
    let client = system.client(address).await?;
    for _ in 0..WARM_UP {
        connect(&*client, start).await?;
        tokio::time::sleep(PAUSE).await;
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let (time, resumed) = connect(&*client, start).await?;
        ensure!(resumed != Some(false), "the session was not resumed: this would compare full handshakes");
        times.push(time.as_nanos() as f64 / 1000.0);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(sorted(&times))
}

/// One connection. Also tells whether it resumed a session, where the system says so.
async fn connect(client: &dyn Client, how: Start) -> Result<(Duration, Option<bool>)> {
    let start = Instant::now();
    let mut channel = client.connect(how).await?;
    let mut byte = [1];
    channel.write_all(&byte).await?;
    channel.flush().await?;
    channel.read_exact(&mut byte).await?;
    let time = start.elapsed();
    let resumed = channel.resumed;
    // A failure to say goodbye changes nothing that was measured.
    let _ = channel.shutdown().await;
    Ok((time, resumed))
}
