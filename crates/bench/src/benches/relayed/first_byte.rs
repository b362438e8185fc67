//! How soon a known peer behind a relay is heard, over TCP and QUIC, with spares and without, and beside
//! iroh.
//!
//! The client is 20 ms from the relay, the server 30 ms (round trips), and neither reaches the other but
//! through the relay.

#[cfg(feature = "peers")]
mod iroh;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_relay::{Directory, Keeper, Relay};
use whimbrel_transport::{Allow, CarrierKind, Carriers, Config, Endpoint, ListenOptions};

use super::child::limits;
use crate::benches::{Plan, rotated};
use crate::lab::Chain;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::system::{Channel, echo};

/// From the relay to the client, and to the server.
const NEAR: Duration = Duration::from_millis(20);
const FAR: Duration = Duration::from_millis(30);
/// Between two connections, for the one before to end, for tickets to arrive, and for spares.
const CALM: Duration = Duration::from_millis(400);

const SPEC: Spec = Spec {
    name: "relay-first-byte",
    title: "connecting to a known peer behind a relay until the first byte was echoed; excess: over what it takes \
            at least",
    metrics: &[Metric { key: "time", unit: "ms" }, Metric { key: "excess", unit: "ms" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "excess",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(15.0),
        aim: 5.0,
    }],
    plot: Plot::Cases { metric: "excess", unit: "ms" },
};

#[derive(Debug, Clone, Copy)]
enum Way {
    Spare,
    NoSpare,
    Quic,
}

impl Way {
    const ALL: [Self; 3] = [Self::Spare, Self::NoSpare, Self::Quic];

    fn case(self) -> &'static str {
        match self {
            Self::Spare => "TCP, with a spare",
            Self::NoSpare => "TCP, without a spare",
            Self::Quic => "QUIC",
        }
    }

    fn carrier(self) -> CarrierKind {
        if matches!(self, Self::Quic) { CarrierKind::Quic } else { CarrierKind::Tcp }
    }

    /// What it takes at least.
    fn least(self) -> Duration {
        let end_to_end = NEAR + FAR;
        match self {
            Self::Spare => NEAR + end_to_end,
            // The relay asks for one, which is dialled then.
            Self::NoSpare => NEAR + end_to_end + FAR * 2,
            Self::Quic => end_to_end,
        }
    }
}

/// A system that connects in one of these ways, again and again.
struct Contestant {
    system: &'static str,
    way: Way,
    connect: Box<dyn Fn() -> Result<Duration>>,
}

impl Contestant {
    fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for way in Way::ALL {
            let world = World::new(way).with_context(|| way.case())?;
            all.push(Self { system: "whimbrel", way, connect: Box::new(move || world.connect()) });
        }
        #[cfg(feature = "peers")]
        {
            let world = iroh::World::new().context("iroh")?;
            all.push(Self { system: "iroh", way: Way::Quic, connect: Box::new(move || world.connect()) });
        }
        Ok(all)
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let contestants = Contestant::all()?;
    let mut trials = Vec::new();
    let order: Vec<usize> = (0..contestants.len()).collect();
    for round in 0..plan.rounds(20) {
        for index in rotated(&order, round) {
            let Contestant { system, way, connect } = &contestants[index];
            let took = connect().with_context(|| format!("{system}, {}", way.case()))?;
            let millis = |time: Duration| time.as_secs_f64() * 1000.0;
            let trial = Trial::new(system, round)
                .in_case(way.case())
                .with("time", millis(took))
                .with("excess", millis(took) - millis(way.least()));
            output.trial(&SPEC, &trial);
            trials.push(trial);
        }
    }
    let settings = json!({
        "carrier": Way::ALL.map(|way| way.carrier().to_string()),
        "rtt_client_relay_ms": NEAR.as_millis() as u64,
        "rtt_relay_server_ms": FAR.as_millis() as u64,
    });
    output.finish(&SPEC, settings, &trials)
}

/// A relay, a server behind it, and a client that knows it. Fields are dropped in this order.
struct World {
    client: Endpoint,
    server: EndpointAddr,
    _keeper: Keeper,
    _relay: Relay,
    chain: Chain,
}

impl World {
    fn new(way: Way) -> Result<Self> {
        let chain = Chain::apart([NEAR, FAR])?;
        let mut limits = limits(100);
        if matches!(way, Way::NoSpare) {
            limits.spares = 0;
        }
        let [to_client, to_server] = chain.relay_ips;
        let relaying = async {
            let endpoint = Endpoint::builder().config(Relay::config()).bind().await?;
            let told = vec![SocketAddr::new(to_client, endpoint.port())];
            anyhow::Ok(Relay::start(endpoint, Allow::Any, limits, told).await?)
        };
        let relay = chain.relay.wait("relay", relaying)??;
        let at = SocketAddr::new(to_server, relay.endpoint().port());
        let control = EndpointAddr::new(relay.endpoint().id(), [at]);
        let (server, keeper) = chain.server.wait("serve", serve(control))??;
        let relayed = server.relayed().into_iter().flat_map(|place| place.pack());
        let server = EndpointAddr::new(server.id(), relayed);
        let config =
            Config { direct_paths: false, carriers: Carriers::Only(way.carrier()), ..Config::default() };
        let client = chain.client.wait("bind", Endpoint::builder().config(config).bind())??;
        let world = Self { client, server, _keeper: keeper, _relay: relay, chain };
        // The first connection makes the peer known.
        world.connect()?;
        Ok(world)
    }

    fn connect(&self) -> Result<Duration> {
        std::thread::sleep(CALM);
        self.chain.client.wait("connect", async {
            let began = Instant::now();
            let connection = self.client.connect_early(self.server.clone()).await?;
            let mut channel = Channel::new(connection.open_stream().await?);
            channel.write_u8(1).await?;
            channel.flush().await?;
            channel.read_u8().await.context("no echo")?;
            anyhow::Ok(began.elapsed())
        })?
    }
}

/// A server that echoes every stream, with a reservation.
async fn serve(relay: EndpointAddr) -> Result<(Endpoint, Keeper)> {
    let key = SecretKey::generate();
    let endpoint = Endpoint::builder().secret_key(key.clone()).bind().await?;
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
    let keeper = Keeper::start(endpoint.clone(), &key, vec![Arc::new(relay) as Arc<dyn Directory>]);
    keeper.news().wait_for(|now| now.held == 1).await.context("no reservation")?;
    Ok((endpoint, keeper))
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
        for way in Way::ALL {
            let world = World::new(way).unwrap();
            assert!(world.connect().unwrap() >= way.least(), "{way:?}");
        }
    }
}
