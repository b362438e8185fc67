//! From starting to connect until the first byte was echoed, at a distance.
//!
//! Two hosts, one round trip apart. A known peer is one with which the endpoint has talked before; an unknown
//! one is called by a fresh endpoint. Data travels as early as may be. The peer is TCP, which has no
//! handshake of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::EndpointAddr;
use whimbrel_lab::Block;
use whimbrel_transport::{Allow, Endpoint, ListenOptions};

use super::{Plan, lanes, rotated};
use crate::contender::sockets;
use crate::lab::{Net, Node};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::system::{Channel, echo};

const RTTS_MS: [u64; 4] = [20, 50, 100, 200];
const TCP_PORT: u16 = 7001;
/// Between two connections, for the one before to end and for session tickets to arrive.
const CALM: Duration = Duration::from_millis(100);
const LANES: usize = 2;
const OPEN: &str = "any carrier";
const BLOCKED: &str = "UDP blocked";

const SPEC: Spec = Spec {
    name: "connect-lab",
    title: "connecting until the first byte was echoed, in the lab; excess: over one, two or three round trips",
    metrics: &[
        Metric { key: "time", unit: "ms" },
        Metric { key: "rtts", unit: "RTT" },
        Metric { key: "excess", unit: "ms" },
    ],
    targets: &[
        of(OPEN, "whimbrel known"),
        of(OPEN, "whimbrel unknown"),
        of(BLOCKED, "whimbrel known"),
        of(BLOCKED, "whimbrel unknown"),
    ],
    plot: Plot::Cases { metric: "rtts", unit: "RTT" },
};

const fn of(case: &'static str, system: &'static str) -> Target {
    Target {
        case,
        of: system,
        metric: "excess",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(10.0),
        aim: 3.0,
    }
}

#[derive(Debug, Clone, Copy)]
enum System {
    Known,
    Unknown,
    Tcp,
}

impl System {
    const ALL: [Self; 3] = [Self::Known, Self::Unknown, Self::Tcp];

    fn label(self) -> &'static str {
        match self {
            Self::Known => "whimbrel known",
            Self::Unknown => "whimbrel unknown",
            Self::Tcp => "tcp",
        }
    }

    /// Round trips that it takes at least: one more where UDP is blocked, for TCP's own handshake.
    fn least(self, is_blocked: bool) -> u32 {
        match self {
            Self::Known => 1 + u32::from(is_blocked),
            Self::Unknown => 2 + u32::from(is_blocked),
            Self::Tcp => 2,
        }
    }
}

struct Job {
    rtt_ms: u64,
    is_blocked: bool,
    rounds: u32,
}

impl Job {
    fn case(&self) -> String {
        format!("{}, RTT {} ms", if self.is_blocked { BLOCKED } else { OPEN }, self.rtt_ms)
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS_MS[..1] } else { &RTTS_MS[..] };
    let rounds = plan.rounds(20);
    let job = |&rtt_ms| [false, true].map(|is_blocked| Job { rtt_ms, is_blocked, rounds });
    let jobs: Vec<Job> = rtts.iter().flat_map(job).collect();
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::case, one)?;
    let settings = json!({
        "carrier": "auto",
        "rtt_ms": rtts,
        "known": "connect_early, with a session of an earlier connection",
        "unknown": "connect_early, by a fresh endpoint",
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let rtt = Duration::from_millis(job.rtt_ms);
    let net = Net::star(["client", "server"], rtt)?;
    let [client, server] = net.nodes();
    if job.is_blocked {
        [client, server].iter().try_for_each(|node| node.host().block(Block::Udp))?;
    }
    let listening = server.wait("listen", serve())??;
    let address = EndpointAddr::new(listening.id(), [SocketAddr::new(server.ip(), listening.port())]);
    let tcp = SocketAddr::new(server.ip(), TCP_PORT);
    server.wait("listen", async move { sockets::listen(sockets::Kind::Tcp, tcp, echo()) })??;
    let known = client.wait("bind", Endpoint::builder().bind())??;
    // The first connection makes the peer known.
    whimbrel(client, &known, &address)?;
    let mut trials = Vec::new();
    for round in 0..job.rounds {
        for system in rotated(&System::ALL, round) {
            std::thread::sleep(CALM + rtt * 3);
            let took = match system {
                System::Known => whimbrel(client, &known, &address)?,
                System::Unknown => {
                    let fresh = client.wait("bind", Endpoint::builder().bind())??;
                    whimbrel(client, &fresh, &address)?
                }
                System::Tcp => client.wait("connect", over_tcp(tcp))??,
            };
            let least = rtt * system.least(job.is_blocked);
            let millis = |time: Duration| time.as_secs_f64() * 1000.0;
            let trial = Trial::new(system.label(), round)
                .in_case(job.case())
                .with("time", millis(took))
                .with("rtts", took.as_secs_f64() / rtt.as_secs_f64())
                .with("excess", millis(took) - millis(least));
            trials.push(trial);
        }
    }
    Ok((trials, ()))
}

/// Echoes every stream.
async fn serve() -> Result<Endpoint> {
    let endpoint = Endpoint::builder().bind().await?;
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(stream) = connection.accept_stream().await {
                    tokio::spawn(echo()(Channel::new(stream)));
                }
            });
        }
    });
    Ok(endpoint)
}

fn whimbrel(client: &Node, endpoint: &Endpoint, to: &EndpointAddr) -> Result<Duration> {
    client.wait("connect", async {
        let began = Instant::now();
        let connection = endpoint.connect_early(to.clone()).await?;
        let mut channel = Channel::new(connection.open_stream().await?);
        echoed(&mut channel).await.context("no echo")?;
        anyhow::Ok(began.elapsed())
    })?
}

async fn over_tcp(to: SocketAddr) -> Result<Duration> {
    let began = Instant::now();
    let mut channel = sockets::connect(sockets::Kind::Tcp, None, to).await?;
    echoed(&mut channel).await?;
    Ok(began.elapsed())
}

async fn echoed(channel: &mut Channel) -> Result<()> {
    channel.write_u8(1).await?;
    channel.flush().await?;
    channel.read_u8().await?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn nothing_is_faster_than_its_round_trips() {
        if !require!() {
            return;
        }
        for is_blocked in [false, true] {
            let (trials, ()) = one(&Job { rtt_ms: 20, is_blocked, rounds: 1 }).unwrap();
            assert_eq!(trials.len(), System::ALL.len());
            assert!(trials.iter().all(|trial| trial.values["excess"] > -1.0), "{trials:?}");
        }
    }
}
