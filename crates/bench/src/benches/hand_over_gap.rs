//! How long a peer hears nothing while the other end of its connection is handed over live to another key and
//! host.
//!
//! The old owner, the new one and the peer are hosts around a router. The end that is handed over says a byte
//! every five milliseconds, before on the old owner's host and afterwards on the new one's; the gap is the
//! longest pause that the peer's application sees from the hand-over on. The round trip is the longest of the
//! three between them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;
use whimbrel_lab::{Block, LinkSpec};
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions, Listener, Side, Stream};

use super::{Plan, lanes};
use crate::lab::{Net, Node};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const EVERY: Duration = Duration::from_millis(5);
/// Of bytes that the new owner says.
const COUNT: u32 = 100;
/// For a hand-over; none that is measured takes as long.
const LIMIT: Duration = Duration::from_secs(20);
const CALM: Duration = Duration::from_millis(300);
const LANES: usize = 2;

const SPEC: Spec = Spec {
    name: "hand-over-gap",
    title: "live hand-over: longest pause at the peer; excess: beyond 3 RTT over QUIC, 4 over TCP",
    metrics: &[
        Metric { key: "gap", unit: "ms" },
        Metric { key: "rtt", unit: "ms" },
        Metric { key: "round_trips", unit: "RTT" },
        Metric { key: "excess", unit: "ms" },
    ],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "excess",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(20.0),
        aim: 0.0,
    }],
    plot: Plot::Cases { metric: "gap", unit: "ms" },
};

/// Where the three are.
#[derive(Debug, Clone, Copy)]
enum Places {
    /// Each as far from the others.
    Equal,
    /// The new owner is far from both.
    NewOwnerFar,
    /// The peer is far from both owners.
    PeerFar,
}

impl Places {
    const ALL: [Self; 3] = [Self::Equal, Self::NewOwnerFar, Self::PeerFar];

    const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal RTTs",
            Self::NewOwnerFar => "new owner far",
            Self::PeerFar => "peer far",
        }
    }

    /// One way from the peer, the old owner and the new one to the router, in milliseconds.
    const fn delays(self) -> [u64; 3] {
        match self {
            Self::Equal => [25, 25, 25],
            Self::NewOwnerFar => [15, 5, 65],
            Self::PeerFar => [75, 5, 5],
        }
    }

    /// The longest round trip between two of them.
    fn rtt(self) -> Duration {
        let mut delays = self.delays();
        delays.sort_unstable();
        Duration::from_millis(2 * (delays[1] + delays[2]))
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    places: Places,
    /// The side of the connection that is handed over.
    hops: Side,
    udp: bool,
    round: u32,
}

impl Job {
    fn name(&self) -> String {
        let carrier = if self.udp { "QUIC" } else { "TCP" };
        let hops = match self.hops {
            Side::Client => "client",
            Side::Server => "server",
        };
        format!("{carrier}, {}, {hops} hops", self.places.name())
    }

    /// Round trips that a hand-over may take.
    const fn allowed(&self) -> u32 {
        if self.udp { 3 } else { 4 }
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(5) {
        for places in Places::ALL {
            for hops in [Side::Client, Side::Server] {
                jobs.extend([true, false].map(|udp| Job { places, hops, udp, round }));
            }
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::name, |job| Ok((vec![trial(job)?], ())))?;
    let delays = Places::ALL.map(|places| (places.name(), places.delays()));
    let settings = json!({
        "one_way_ms": delays,
        "one_way_of": "peer, old owner, new owner, each to the router between them",
        "rtt": "the longest of the three pairs",
        "links": "as fast as the machine",
        "carrier": "auto, which opens over QUIC; TCP: UDP is blocked at all three",
        "said_every_ms": EVERY.as_millis(),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// An endpoint and the host that it is on.
type Place<'a> = (&'a Node, &'a Endpoint);

fn bind(node: &Node) -> Result<Endpoint> {
    Ok(node.wait("bind", Endpoint::builder().bind())??)
}

/// Both ends of a new connection, and what it was accepted by.
fn join(from: Place<'_>, to: Place<'_>) -> Result<(Connection, Connection, Listener)> {
    let options = ListenOptions::unnamed().allow(Allow::Any);
    let mut listener = to.0.wait("listen", to.1.listen(options))??;
    let dialled = from.0.wait("connect", from.1.connect(to.1.addr()))??;
    let accepted = to.0.wait("accept", listener.accept())?.context("the listener ended")?;
    Ok((dialled, accepted, listener))
}

fn trial(job: &Job) -> Result<Trial> {
    let [peers, olds, news] =
        job.places.delays().map(|delay| LinkSpec::default().delay(Duration::from_millis(delay)));
    let net = Net::around([("peer", peers), ("old", olds), ("new", news)])?;
    let [peer, old, new] = net.nodes();
    if !job.udp {
        for node in [peer, old, new] {
            node.host().block(Block::Udp)?;
        }
    }
    let (its, was, will) = (bind(peer)?, bind(old)?, bind(new)?);
    let (over, arriving, _between) = join((old, &was), (new, &will))?;
    let (handed, kept, _listener) = match job.hops {
        Side::Client => join((old, &was), (peer, &its))?,
        Side::Server => {
            let (dialled, accepted, listener) = join((peer, &its), (old, &was))?;
            (accepted, dialled, listener)
        }
    };
    let mut says = old.wait("open a stream", handed.open_stream())??;
    old.wait("write", says.write_all(&[0]))??;
    let hears = peer.wait("accept a stream", kept.accept_stream())??;
    let counts = Arc::<AtomicBool>::default();
    let hearing = peer.runtime.spawn(longest_pause(hears, counts.clone()));
    old.runtime.spawn(async move {
        // It fails once the other one has it.
        while says.write_all(&[0]).await.is_ok() {
            sleep(EVERY).await;
        }
    });
    let rtt = job.places.rtt();
    // Whatever carrier takes over is there then.
    std::thread::sleep(CALM + rtt * 4);
    counts.store(true, Ordering::Relaxed);
    // What the two owners talk over lasts until the end, whichever of them is done first.
    let by = over.clone();
    let leaving = old.runtime.spawn(async move { handed.hand_over(&by, LIMIT).await });
    let here = new.wait("take over", will.accept_hand_over(&arriving, LIMIT))??;
    let mut says = here.streams().pop().context("the stream is gone")?;
    let speaking = async {
        for _ in 0..COUNT {
            says.write_all(&[0]).await?;
            sleep(EVERY).await;
        }
        says.finish()?;
        anyhow::Ok(())
    };
    new.wait("write", speaking)??;
    old.wait("hand over", leaving)???;
    let gap = peer.wait("hear", hearing)???;
    ensure!(kept.peer_id() == will.id(), "the peer has another one at the other end");
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    Ok(Trial::new("whimbrel", job.round)
        .in_case(job.name())
        .with("gap", millis(gap))
        .with("rtt", millis(rtt))
        .with("round_trips", gap.as_secs_f64() / rtt.as_secs_f64())
        .with("excess", millis(gap) - millis(rtt * job.allowed())))
}

/// Reads to the end. The longest pause between two reads, from when it counts.
async fn longest_pause(mut hears: Stream, counts: Arc<AtomicBool>) -> io::Result<Duration> {
    let (mut last, mut longest, mut bytes) = (Instant::now(), Duration::ZERO, [0; 4096]);
    while hears.read(&mut bytes).await? > 0 {
        if counts.load(Ordering::Relaxed) {
            longest = longest.max(last.elapsed());
        }
        last = Instant::now();
    }
    Ok(longest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn the_longest_way_between_two_of_the_three_is_the_round_trip() {
        let all = Places::ALL.map(|places| places.rtt().as_millis());
        assert_eq!(all, [100, 160, 160]);
    }

    #[test]
    fn the_peer_hears_the_new_owner_after_a_gap() {
        if !require!() {
            return;
        }
        for hops in [Side::Client, Side::Server] {
            let job = Job { places: Places::NewOwnerFar, hops, udp: true, round: 0 };
            let trial = trial(&job).unwrap();
            // The state goes 70 ms from old to new, which says the first byte 80 ms away; the last one of the
            // old owner was 20 ms away. What a busy machine holds back is seen as a pause as well.
            assert!(trial.values["gap"] >= 40.0, "{trial:?}");
        }
    }
}
