//! How long a move interrupts a connection.
//!
//! Hosts around an emulated router: a client, a server that listens under a name, the name service,
//! and a bystander that watches the name. Every two of them are one RTT apart, and all of them,
//! resolvers included, use the lab's links only. The server says something every 2 ms.
//!
//! A side moves by losing its only address and getting another one: at once in the first round, and
//! a little later in each further one, up to a second, so that the move meets every phase of what is
//! tried meanwhile. The time counts from the moment from which the new address could be used, which
//! is taken just before the kernel is asked (by a netlink request of this process) for the route that
//! comes with it; when both move, from the later of the two. It ends when the client's application
//! has read the first message that the server's application wrote after the old address was gone:
//! such a message cannot have come by the old path.
//!
//! When both move, the budget holds two times that are measured in the same run: `publish`, from that
//! moment until the service has stored the new record; and `push`, from then until the bystander,
//! which stays where it is, has it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::sync::watch;
use whimbrel::{Endpoint, SecretKey};
use whimbrel_base::{Name, SignedRecord};
use whimbrel_names::{Limits, MemoryStore, Service};
use whimbrel_transport::{self as transport, CarrierKind, Carriers, Config, Resolver};

use super::{Plan, schedule};
use crate::lab::{Ears, LIMIT, Net, Node, Speakers};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const NAME: &str = "anna@example.org";
/// Round trips between the hosts, in milliseconds.
const RTTS: [u64; 4] = [20, 50, 100, 200];
/// How long a host has no address in the last round: longer than between the first attempts to find a way without one.
pub(crate) const AWAY_MS: u64 = 1000;
const MESSAGE_EVERY: Duration = Duration::from_millis(2);
/// Before each move, so that nothing of the one before is still under way.
const CALM: Duration = Duration::from_millis(500);
const CALM_RTTS: u32 = 6;

const SPEC: Spec = Spec {
    name: "recovery",
    title: "from a usable new address to the first new byte; excess: what is above the budget in RTT",
    metrics: &[
        Metric { key: "recovery", unit: "ms" },
        Metric { key: "rtts", unit: "RTT" },
        Metric { key: "publish", unit: "ms" },
        Metric { key: "push", unit: "ms" },
        Metric { key: "budget", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
    ],
    targets: &[
        excess_of("whimbrel client 20 ms"),
        excess_of("whimbrel client 50 ms"),
        excess_of("whimbrel client 100 ms"),
        excess_of("whimbrel client 200 ms"),
        excess_of("whimbrel server 20 ms"),
        excess_of("whimbrel server 50 ms"),
        excess_of("whimbrel server 100 ms"),
        excess_of("whimbrel server 200 ms"),
        excess_of("whimbrel both 20 ms"),
        excess_of("whimbrel both 50 ms"),
        excess_of("whimbrel both 100 ms"),
        excess_of("whimbrel both 200 ms"),
    ],
    plot: Plot::Against { value: "recovery", budget: "budget", allowance: 10.0, unit: "ms" },
};

/// JOIN in 0-RTT data is answered after one round trip.
const QUIC: Spec = Spec {
    name: "quic-recovery",
    title: "QUIC, client moves: from a usable new address to the first new byte; excess: what is above one RTT",
    metrics: SPEC.metrics,
    targets: &[
        excess_of("whimbrel client 20 ms"),
        excess_of("whimbrel client 50 ms"),
        excess_of("whimbrel client 100 ms"),
        excess_of("whimbrel client 200 ms"),
    ],
    plot: SPEC.plot,
};

const fn excess_of(of: &'static str) -> Target {
    Target { of, metric: "excess", against: None, judged: Judged::P95, bound: Bound::AtMost(10.0), aim: 3.0 }
}

/// Who moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mover {
    Client,
    Server,
    Both,
}

impl Mover {
    fn label(self, rtt: u64) -> String {
        let mover = match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        };
        format!("whimbrel {mover} {rtt} ms")
    }

    /// What a move may cost [DESIGN §4].
    fn budget(self, carriers: Carriers, rtt: Duration, record: Option<&RecordTimes>) -> Duration {
        match (self, record) {
            (Self::Client, _) if carriers == Carriers::Only(CarrierKind::Quic) => rtt,
            (Self::Client, _) => rtt * 2,
            (Self::Both, Some(times)) => times.publish + times.push + rtt * 2,
            (Self::Server | Self::Both, _) => rtt * 5 / 2,
        }
    }
}

/// How the new record travelled.
#[derive(Debug, Clone, Copy)]
struct RecordTimes {
    publish: Duration,
    push: Duration,
}

/// One of the round-trip times, in milliseconds.
pub(crate) fn parse_rtt(text: &str) -> Result<u64, String> {
    let known = text.parse().ok().filter(|rtt| RTTS.contains(rtt));
    known.ok_or_else(|| format!("targets are set for {RTTS:?} only"))
}

/// Runs the bench, at these round-trip times or the usual ones. `away` is how long a host that moves is without any
/// address in the last round.
pub(crate) fn run(plan: &Plan, away: Duration, rtts: &[u64], output: &mut Output) -> Result<()> {
    let usual = if plan.quick { &RTTS[..1] } else { &RTTS[..] };
    let rtts = if rtts.is_empty() { usual } else { rtts };
    let mut trials = Vec::new();
    let mut measured = Vec::new();
    for &rtt in rtts {
        let mut world = World::new(Duration::from_millis(rtt), Carriers::Only(CarrierKind::Tcp))?;
        measured.push(millis(world.measure_rtt()?));
        let movers = [Mover::Client, Mover::Server, Mover::Both];
        let rounds = plan.rounds(20);
        for (round, mover) in schedule(&movers, rounds) {
            let label = mover.label(rtt);
            let away = away * round / (rounds - 1).max(1);
            let trial = world.trial(mover, away, round).with_context(|| label)?;
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "rtt_ms": rtts,
        "rtt_measured_ms": measured,
        "name_service": "a host of its own, one RTT from every other",
        "longest_away_ms": millis(away),
        "message_every_ms": millis(MESSAGE_EVERY),
    });
    output.finish(&SPEC, settings, &trials)
}

/// The same over QUIC, for a client that moves.
pub(crate) fn run_quic(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS[..1] } else { &RTTS[..] };
    let away = Duration::from_millis(AWAY_MS);
    let mut trials = Vec::new();
    for &rtt in rtts {
        let mut world = World::new(Duration::from_millis(rtt), Carriers::Only(CarrierKind::Quic))?;
        let rounds = plan.rounds(20);
        for round in 0..rounds {
            let away = away * round / (rounds - 1).max(1);
            let trial = world.trial(Mover::Client, away, round).context("a client that moves over QUIC")?;
            output.trial(&QUIC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "rtt_ms": rtts,
        "carrier": "quic",
        "longest_away_ms": millis(away),
        "message_every_ms": millis(MESSAGE_EVERY),
    });
    output.finish(&QUIC, settings, &trials)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Fields are dropped in this order: endpoints before the hosts that they are on.
struct World {
    ears: Ears,
    _speakers: Speakers,
    stored: Records,
    pushed: Records,
    _endpoints: [Endpoint; 3],
    _service: Arc<Service>,
    net: Net,
    rtt: Duration,
    carriers: Carriers,
}

impl World {
    fn new(rtt: Duration, carriers: Carriers) -> Result<Self> {
        let net = Net::star(["client", "server", "names", "bystander"], rtt)?;
        let [client, server, names, bystander] = net.nodes();
        let name: Name = NAME.parse()?;
        let service = Arc::new(names.wait("start the name service", start_service())??);
        let bind = |node: &Node| -> Result<Endpoint> {
            let config = Config { carriers, ..Config::default() };
            let builder = Endpoint::builder().config(config).names(service.addr());
            Ok(node.wait("bind", builder.bind())??)
        };
        let endpoints = [bind(client)?, bind(server)?, bind(bystander)?];
        let listener = server.wait("listen", endpoints[1].listen(NAME))??;
        let speakers = Speakers::start(server, listener, MESSAGE_EVERY);
        let stored = Records::stored(names, service.clone(), name.clone());
        let pushed = Records::pushed(bystander, &endpoints[2], &name)?;
        let connection = client.wait("connect", endpoints[0].connect(NAME))??;
        let mut ears = Ears::new(1);
        client.wait("open a stream", ears.listen(connection))??;
        Ok(Self {
            ears,
            _speakers: speakers,
            stored,
            pushed,
            _endpoints: endpoints,
            _service: service,
            net,
            rtt,
            carriers,
        })
    }

    fn measure_rtt(&self) -> Result<Duration> {
        let [client, server] = self.net.nodes();
        client.measure_rtt(server)
    }

    fn trial(&mut self, mover: Mover, away: Duration, round: u32) -> Result<Trial> {
        std::thread::sleep(CALM + self.rtt * CALM_RTTS);
        let usable = self.move_on(mover, away)?;
        let [client, server, names, bystander] = self.net.nodes();
        let heard = client.wait("hear", self.ears.first_new())??;
        let recovery = heard.first().context("nobody listens")?.saturating_duration_since(usable);
        let record = if mover == Mover::Client {
            None
        } else {
            let stored = names.wait("the record is stored", self.stored.of(server.ip()))??;
            let pushed = bystander.wait("the record is pushed", self.pushed.of(server.ip()))??;
            let publish = stored.saturating_duration_since(usable);
            Some(RecordTimes { publish, push: pushed.saturating_duration_since(stored) })
        };
        let budget = mover.budget(self.carriers, self.rtt, record.as_ref());
        let rtt = u64::try_from(self.rtt.as_millis())?;
        let mut trial = Trial::new(mover.label(rtt), round)
            .with("away", millis(away))
            .with("recovery", millis(recovery))
            .with("rtts", recovery.as_secs_f64() / self.rtt.as_secs_f64())
            .with("budget", millis(budget))
            .with("excess", millis(recovery) - millis(budget));
        if let Some(RecordTimes { publish, push }) = record {
            trial = trial.with("publish", millis(publish)).with("push", millis(push));
        }
        Ok(trial)
    }

    /// Returns the moment from which the new addresses could be used.
    fn move_on(&self, mover: Mover, away: Duration) -> Result<Instant> {
        let [client, server] = self.net.nodes();
        let movers = match mover {
            Mover::Client => vec![client],
            Mover::Server => vec![server],
            Mover::Both => vec![client, server],
        };
        movers.iter().try_for_each(|node| node.leave())?;
        self.ears.expect_new();
        tracing::debug!(?mover, "addresses are gone");
        std::thread::sleep(away);
        let mut usable = None;
        for node in movers {
            usable = Some(node.arrive()?);
        }
        tracing::debug!(?mover, "new addresses are usable");
        usable.context("nobody moves")
    }
}

async fn start_service() -> Result<Service> {
    let builder = transport::Endpoint::builder().secret_key(SecretKey::generate());
    let endpoint = builder.config(Service::config()).bind().await?;
    Ok(Service::start(endpoint, MemoryStore::new(), Limits::default()).await?)
}

/// When the newest record of the name came to some place.
struct Records(watch::Receiver<Option<(SignedRecord, Instant)>>);

impl Records {
    /// Into the service's store.
    fn stored(node: &Node, service: Arc<Service>, name: Name) -> Self {
        let (sender, receiver) = watch::channel(None);
        node.runtime.spawn(async move {
            let watching = service.registry().watch(&name, service.addr().id, None, SystemTime::now().into());
            match watching.await {
                Ok(mut watcher) => loop {
                    let record = watcher.next().await;
                    sender.send_replace(Some((record, Instant::now())));
                },
                Err(error) => tracing::error!(%error, "cannot watch the store"),
            }
        });
        Self(receiver)
    }

    /// To a resolver that watches it.
    fn pushed(node: &Node, endpoint: &Endpoint, name: &Name) -> Result<Self> {
        let mut records = endpoint.names().context("no resolver")?.watch(name);
        let (sender, receiver) = watch::channel(None);
        node.runtime.spawn(async move {
            while records.changed().await.is_ok() {
                let now = Instant::now();
                let record = records.borrow_and_update().clone();
                sender.send_replace(record.map(|record| (record, now)));
            }
        });
        Ok(Self(receiver))
    }

    /// When the record with that address, and no other, came.
    async fn of(&mut self, ip: IpAddr) -> Result<Instant> {
        let is_that = |record: &SignedRecord| {
            let addrs = &record.record().addrs;
            !addrs.is_empty() && addrs.iter().all(|addr| addr.ip() == ip)
        };
        let is_there =
            |news: &Option<(SignedRecord, Instant)>| news.as_ref().is_some_and(|(record, _)| is_that(record));
        let news = tokio::time::timeout(LIMIT, self.0.wait_for(is_there)).await??;
        news.as_ref().map(|(_, at)| *at).context("no record")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn budgets_are_those_of_the_design() {
        let rtt = Duration::from_millis(100);
        let record = RecordTimes { publish: Duration::from_millis(151), push: Duration::from_millis(52) };
        let (tcp, quic) = (Carriers::Only(CarrierKind::Tcp), Carriers::Only(CarrierKind::Quic));
        assert_eq!(Mover::Client.budget(tcp, rtt, None), Duration::from_millis(200));
        assert_eq!(Mover::Client.budget(quic, rtt, None), Duration::from_millis(100));
        assert_eq!(Mover::Server.budget(tcp, rtt, Some(&record)), Duration::from_millis(250));
        assert_eq!(Mover::Both.budget(tcp, rtt, Some(&record)), Duration::from_millis(403));
    }

    #[test]
    fn every_kind_of_move_has_a_target_at_every_round_trip_time() {
        for mover in [Mover::Client, Mover::Server, Mover::Both] {
            for rtt in RTTS {
                let label = mover.label(rtt);
                assert!(SPEC.targets.iter().any(|target| target.of == label), "{label}");
            }
        }
    }

    #[test]
    fn every_kind_of_move_is_measured() {
        if !require!() {
            return;
        }
        let rtt = Duration::from_millis(20);
        let mut world = World::new(rtt, Carriers::Only(CarrierKind::Tcp)).unwrap();
        for mover in [Mover::Client, Mover::Server, Mover::Both] {
            let trial = world.trial(mover, Duration::ZERO, 0).unwrap();
            // Less than the way there and back would mean that an old message was taken for new.
            assert!(trial.values["rtts"] >= 1.9, "{trial:?}");
            assert_eq!(trial.values.contains_key("push"), mover != Mover::Client, "{trial:?}");
        }
    }
}
