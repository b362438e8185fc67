//! What a relay carries, beside HAProxy in TCP mode: bulk over 1 and 100 connections (beside iroh's relay
//! too), new connections a second, and how long a byte takes there and back.
//!
//! Client and server are the same for each relay, in this process, and know no TLS. The relay is a process of
//! its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::carried::{Carried, Meter};
#[cfg(feature = "peers")]
use super::iroh::Speech;
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
    title: "what a relay carries, beside HAProxy in TCP mode and iroh-relay; carried: in a second of the relay's \
            processor; late: how much longer a byte takes there and back",
    metrics: &[
        Metric { key: "rate", unit: "Gbit/s" },
        Metric { key: "carried", unit: "Gbit" },
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
            case: "bulk",
            of: "whimbrel",
            metric: "carried",
            // As it is run.
            against: Some("iroh-relay with TLS"),
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
}

/// What came out.
#[derive(Debug, Clone, Copy)]
enum Value {
    Carried(Carried),
    /// A second.
    Connections(f64),
    /// In µs.
    RoundTrip(f64),
}

impl Value {
    /// A trial with it. `haproxy`: how long a byte takes there.
    fn noted(self, trial: Trial, haproxy: Option<f64>) -> Trial {
        match self {
            Self::Carried(carried) => carried.noted(trial),
            Self::Connections(count) => trial.with("connections", count),
            Self::RoundTrip(time) => {
                let trial = trial.with("round_trip", time);
                haproxy.into_iter().fold(trial, |trial, haproxy| trial.with("late", time - haproxy))
            }
        }
    }

    fn round_trip(self) -> Option<f64> {
        if let Self::RoundTrip(time) = self { Some(time) } else { None }
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
                let haproxy = values.iter().find(|(system, _)| *system == System::Haproxy);
                let haproxy = haproxy.and_then(|(_, value)| value.round_trip());
                let case = format!("{}, {link}", work.case());
                let mut note = |name: &str, value: Value| {
                    let trial = value.noted(Trial::new(name, round).in_case(case.clone()), haproxy);
                    output.trial(&SPEC, &trial);
                    trials.push(trial);
                };
                values.into_iter().for_each(|(system, value)| note(system.name(), value));
                #[cfg(feature = "peers")]
                if let Work::Bulk(count) = work {
                    for speech in rotated(&Speech::ALL, round) {
                        let carried = super::iroh::bulk(chain, speech, count, length)
                            .with_context(|| format!("{} through {}, {link}", work.case(), speech.name()))?;
                        note(speech.name(), Value::Carried(carried));
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

fn one(chain: &Chain, system: System, work: Work, length: Duration) -> Result<Value> {
    let mut stage = Stage::start(chain, system, ROOM)?;
    let relay = stage.pid();
    Ok(match work {
        Work::Bulk(count) => Value::Carried(chain.client.wait("bulk", bulk(&stage, relay, count, length))??),
        Work::Connections => Value::Connections(chain.client.wait("connect", connections(&stage, length))??),
        Work::RoundTrip => Value::RoundTrip(chain.client.wait("echo", round_trip(&stage, length))??),
    })
}

/// What the server counts, through a relay with this process id.
async fn bulk(stage: &Stage, relay: u32, count: usize, length: Duration) -> Result<Carried> {
    let mut writers = JoinSet::new();
    for _ in 0..count {
        let mut stream = stage.dialler.dial(COUNT).await?;
        writers.spawn(async move {
            let piece = vec![7; PIECE];
            while stream.write_all(&piece).await.is_ok() {}
        });
    }
    tokio::time::sleep(WARM_UP).await;
    let meter = Meter::start(relay, &stage.served.counted)?;
    tokio::time::sleep(length).await;
    let carried = meter.stop(&stage.served.counted)?;
    ensure!(writers.len() == count && writers.try_join_next().is_none(), "a connection ended");
    Ok(carried)
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
            // Bulk is compared with two others, and with one of them by what it costs.
            let expected = if matches!(work, Work::Bulk(_)) { 3 } else { 1 };
            assert_eq!(metrics.len(), expected, "{work:?}");
        }
    }
}
