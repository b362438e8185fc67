//! What a relay carries, beside HAProxy in TCP mode: bulk over 1 and 100 connections (beside iroh's relay
//! too), new connections a second, and how long a byte takes there and back.
//!
//! Client and server are the same for each relay, in this process, and know no TLS. The relay is a process of
//! its own.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::served::{COUNT, ECHO};
use super::stage::{Stage, System, echo, haproxy_version};
use crate::benches::{Plan, rotated};
use crate::lab::Chain;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};
use crate::sys;

/// Connections that begin at the same time.
const PARALLEL: usize = 32;
const PIECE: usize = 64 * 1024;
/// Slow start is over, and queues have their size.
const WARM_UP: Duration = Duration::from_millis(300);
/// Room in the relay.
const ROOM: usize = 2000;

const SPEC: Spec = Spec {
    name: "relay",
    title: "what a relay carries, beside HAProxy in TCP mode and iroh-relay; late: how much longer a byte takes \
            there and back",
    metrics: &[
        Metric { key: "rate", unit: "Gbit/s" },
        Metric { key: "connections", unit: "1/s" },
        Metric { key: "round_trip", unit: "µs" },
        Metric { key: "late", unit: "µs" },
    ],
    targets: &[
        Target {
            case: "bulk",
            of: "whimbrel",
            metric: "rate",
            against: Some("haproxy"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.95),
            aim: 1.1,
        },
        Target {
            case: "bulk",
            of: "whimbrel",
            metric: "rate",
            against: Some("iroh-relay"),
            judged: Judged::Median,
            bound: Bound::AtLeast(3.0),
            aim: 4.0,
        },
        Target {
            case: "new connections",
            of: "whimbrel",
            metric: "connections",
            against: Some("haproxy"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.9),
            aim: 1.0,
        },
        Target {
            case: "a byte",
            of: "whimbrel",
            metric: "late",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(20.0),
            aim: 0.0,
        },
    ],
    plot: Plot::Ratios,
};

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum Work {
    Bulk(usize),
    Connections,
    RoundTrip,
}

impl Work {
    const ALL: [Self; 4] = [Self::Bulk(1), Self::Bulk(100), Self::Connections, Self::RoundTrip];

    fn case(self) -> String {
        match self {
            Self::Bulk(count) => format!("bulk, connections {count}"),
            Self::Connections => "new connections".into(),
            Self::RoundTrip => "a byte there and back".into(),
        }
    }

    fn metric(self) -> &'static str {
        match self {
            Self::Bulk(_) => "rate",
            Self::Connections => "connections",
            Self::RoundTrip => "round_trip",
        }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    sys::raise_file_limit()?;
    let chains = [("loopback", Chain::loopback()?), ("veth", Chain::direct()?)];
    let length = plan.length(3.0);
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        for (link, chain) in &chains {
            for work in Work::ALL {
                let mut values = Vec::new();
                for system in rotated(&System::ALL, round) {
                    let value = one(chain, system, work, length)
                        .with_context(|| format!("{} through {}, {link}", work.case(), system.name()))?;
                    values.push((system, value));
                }
                let haproxy = values.iter().find(|(system, _)| *system == System::Haproxy).map(|(_, v)| *v);
                for (system, value) in values {
                    let case = format!("{}, {link}", work.case());
                    let mut trial = Trial::new(system.name(), round).in_case(case).with(work.metric(), value);
                    if let (Work::RoundTrip, Some(haproxy)) = (work, haproxy) {
                        trial = trial.with("late", value - haproxy);
                    }
                    output.trial(&SPEC, &trial);
                    trials.push(trial);
                }
                #[cfg(feature = "peers")]
                {
                    if let Work::Bulk(count) = work {
                        let case = format!("{}, {link}", work.case());
                        let rate = super::iroh::bulk(chain, count, length)
                            .with_context(|| format!("{case} through iroh-relay"))?;
                        let trial = Trial::new(super::iroh::NAME, round).in_case(case).with("rate", rate);
                        output.trial(&SPEC, &trial);
                        trials.push(trial);
                    }
                }
            }
        }
    }
    let settings = json!({
        "carrier": "tcp",
        "seconds": length.as_secs_f64(),
        "parallel": PARALLEL,
        "haproxy": haproxy_version(&chains[0].1)?,
    });
    output.finish(&SPEC, settings, &trials)
}

fn one(chain: &Chain, system: System, work: Work, length: Duration) -> Result<f64> {
    let stage = Stage::start(chain, system, ROOM)?;
    match work {
        Work::Bulk(count) => chain.client.wait("bulk", bulk(&stage, count, length))?,
        Work::Connections => chain.client.wait("connect", connections(&stage, length))?,
        Work::RoundTrip => chain.client.wait("echo", round_trip(&stage, length))?,
    }
}

/// Gbit/s that the server counts.
async fn bulk(stage: &Stage, count: usize, length: Duration) -> Result<f64> {
    let mut writers = JoinSet::new();
    for _ in 0..count {
        let mut stream = stage.dialler.dial(COUNT).await?;
        writers.spawn(async move {
            let piece = vec![7; PIECE];
            while stream.write_all(&piece).await.is_ok() {}
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let (began, before) = (Instant::now(), stage.served.counted.load(Ordering::Relaxed));
    tokio::time::sleep(length).await;
    let bytes = stage.served.counted.load(Ordering::Relaxed) - before;
    let took = began.elapsed().as_secs_f64();
    ensure!(writers.len() == count && writers.try_join_next().is_none(), "a connection ended");
    Ok(bytes as f64 * 8.0 / 1e9 / took)
}

/// Connections a second, over each of which a byte was echoed.
async fn connections(stage: &Stage, length: Duration) -> Result<f64> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..PARALLEL {
        let dialler = stage.dialler.clone();
        running.spawn(async move {
            let mut count = 0_u64;
            while began.elapsed() < length {
                let stream = dialler.echoed().await?;
                // So that this side's ports do not run out.
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(one) = running.join_next().await {
        count += one??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// The median time of a byte there and back, in µs.
async fn round_trip(stage: &Stage, length: Duration) -> Result<f64> {
    let mut stream = stage.dialler.dial(ECHO).await?;
    for _ in 0..100 {
        echo(&mut stream).await?;
    }
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < length {
        let at = Instant::now();
        echo(&mut stream).await?;
        times.push(at.elapsed().as_secs_f64() * 1e6);
    }
    quantile(&sorted(&times), 0.5).context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_is_for_some_target() {
        for work in Work::ALL {
            let metrics: Vec<_> = SPEC.targets.iter().filter(|t| work.case().starts_with(t.case)).collect();
            // Bulk is compared with two others.
            let expected = if matches!(work, Work::Bulk(_)) { 2 } else { 1 };
            assert_eq!(metrics.len(), expected, "{work:?}");
        }
    }
}
