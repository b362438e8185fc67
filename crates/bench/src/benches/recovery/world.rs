//! The hosts between which the bench moves, and when news came where.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use tokio::sync::watch;
use whimbrel::{Endpoint, SecretKey};
use whimbrel_base::{Name, SignedRecord};
use whimbrel_lab::Block;
use whimbrel_names::{Admission, Limits, MemoryStore, Service};
use whimbrel_transport::{self as transport, Allow, Config, ListenOptions, Resolver};

use super::{CALM, CALM_RTTS, Condition, MESSAGE_EVERY, Mover, RecordTimes, millis};
use crate::lab::{Ears, LIMIT, Net, Node, Speakers};
use crate::report::Trial;

const NAME: &str = "anna@example.org";

/// Fields are dropped in this order: endpoints before the hosts that they are on.
pub(in crate::benches) struct World {
    ears: Ears,
    _speakers: Speakers,
    stored: Records,
    pushed: Records,
    _endpoints: [Endpoint; 3],
    _service: Arc<Service>,
    net: Net,
    rtt: Duration,
    condition: Condition,
}

impl World {
    pub(in crate::benches) fn new(rtt: Duration, condition: Condition) -> Result<Self> {
        let net = Net::star(["client", "server", "names", "bystander"], rtt)?;
        let [client, server, names, bystander] = net.nodes();
        if condition == Condition::UdpBlocked {
            [client, server, names, bystander].iter().try_for_each(|node| node.host().block(Block::Udp))?;
        }
        let name: Name = NAME.parse()?;
        let service = Arc::new(names.wait("start the name service", start_service())??);
        let bind = |node: &Node| -> Result<Endpoint> {
            let config = Config { carriers: condition.carriers(), ..Config::default() };
            let builder =
                Endpoint::builder().identity(SecretKey::generate()).config(config).names(service.addr());
            Ok(node.wait("bind", builder.bind())??)
        };
        let endpoints = [bind(client)?, bind(server)?, bind(bystander)?];
        let listener =
            server.wait("listen", endpoints[1].listen(ListenOptions::named(NAME).allow(Allow::Any)))??;
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
            condition,
        })
    }

    pub(super) fn measure_rtt(&self) -> Result<Duration> {
        let [client, server] = self.net.nodes();
        client.measure_rtt(server)
    }

    pub(in crate::benches) fn trial(&mut self, mover: Mover, away: Duration, round: u32) -> Result<Trial> {
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
        let budget = mover.budget(self.condition, self.rtt, record.as_ref());
        let rtt = u64::try_from(self.rtt.as_millis())?;
        let mut trial = Trial::new(mover.label(rtt), round)
            .in_case(self.condition.name())
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
    Ok(Service::start(endpoint, MemoryStore::new(), Admission::any(), Limits::default()).await?)
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
            while let Some(record) = records.changed().await {
                let now = Instant::now();
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
