//! Two homes behind NAT gateways, with relays between.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub(crate) mod gateway;

use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::SecretKey;
use whimbrel_lab::{HomesPlan, Link, NatGateway, Place};
use whimbrel_relay::{Directory, Keeper, Limits, Relay};
use whimbrel_transport::{Allow, Builder, Connection, ConnectionEvent, Endpoint, Locator, PathState};

pub(crate) use whimbrel_lab::Carriers;

use crate::lab_support::net::{Family, Node, Watch};
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};

/// Two homes, each behind its gateway, and relays on the Internet between them. 18 ms between a home and a
/// relay.
pub(crate) struct Homes {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) relays: Vec<(Node, Link)>,
    /// The client's and the server's. They translate no addresses of IPv6.
    pub(crate) gateways: Vec<NatGateway>,
    /// Those of the homes' carriers, if they have any: the client's, the server's, or the one of both.
    pub(crate) carriers: Vec<NatGateway>,
    _net: whimbrel_lab::Homes,
}

/// How homes are connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) relays: u8,
    /// What the link between a home and the Internet delays.
    pub(crate) far: Duration,
    pub(crate) family: Family,
    pub(crate) carriers: Carriers,
    /// Links deliver in lots, up to twice this late.
    pub(crate) grain: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self { relays: 1, far: ms(3), family: Family::V4, carriers: Carriers::None, grain: Duration::ZERO }
    }
}

impl Homes {
    pub(crate) fn new(relays: u8) -> Self {
        Self::build(Plan { relays, ..Plan::default() })
    }

    /// `far` is what the link between a home and the Internet delays.
    pub(crate) fn apart(relays: u8, far: Duration) -> Self {
        Self::build(Plan { relays, far, ..Plan::default() })
    }

    pub(crate) fn build(plan: Plan) -> Self {
        let Plan { relays, far, family, carriers, grain } = plan;
        let is_ipv6 = family == Family::V6;
        let net =
            whimbrel_lab::Homes::build(HomesPlan { public: relays, far, is_ipv6, carriers, grain }).unwrap();
        let node = |place: &Place| Node::routed(&place.host, place.interface, family, place.network, 1);
        let [client, server] = net.inside.each_ref().map(node);
        let relays = net.public.iter().map(|place| (node(place), place.link.clone())).collect();
        let (gateways, carriers) = (net.gateways.clone(), net.carriers.clone());
        Self { client, server, relays, gateways, carriers, _net: net }
    }

    pub(crate) fn relay(&self, number: usize) -> Relay {
        self.relay_at(number, 0)
    }

    /// A relay at that port.
    pub(crate) fn relay_at(&self, number: usize, port: u16) -> Relay {
        self.relay_with(number, port, Limits::default())
    }

    /// A relay that gives no more than that.
    pub(crate) fn relay_with(&self, number: usize, port: u16, limits: Limits) -> Relay {
        let node = &self.relays[number].0;
        let endpoint = node.endpoint_with(|builder| builder.config(Relay::config()).port(port));
        node.wait(Relay::start(endpoint, Allow::Any, limits, Vec::new())).unwrap()
    }

    /// A server with reservations at the relays.
    pub(crate) fn serve(&self, relays: &[&Relay]) -> (Server, Keeper) {
        self.serve_as(&SecretKey::generate(), relays)
    }

    /// The same, with that key.
    pub(crate) fn serve_as(&self, key: &SecretKey, relays: &[&Relay]) -> (Server, Keeper) {
        self.serve_with(key, relays, |builder| builder)
    }

    /// The same, on an endpoint that is changed a little.
    pub(crate) fn serve_with(
        &self,
        key: &SecretKey,
        relays: &[&Relay],
        change: impl FnOnce(Builder) -> Builder + Send,
    ) -> (Server, Keeper) {
        let endpoint = self.server.endpoint_with(|builder| change(builder.secret_key(key.clone())));
        let server = Server::start(&self.server, endpoint.clone());
        let directories = relays.iter().map(|relay| Arc::new(relay.endpoint().addr()) as Arc<dyn Directory>);
        let directories: Vec<_> = directories.collect();
        let count = directories.len();
        let keeper = self.server.wait(async { Keeper::start(endpoint, key, directories) });
        let mut news = keeper.news();
        self.server.wait(async { news.wait_for(|now| now.held == count).await.unwrap() });
        (server, keeper)
    }

    pub(crate) fn connect(&self, server: &Server) -> (Endpoint, Connection) {
        let client = self.client.endpoint();
        let connection = self.client.wait(client.connect(server.endpoint.addr())).unwrap();
        (client, connection)
    }
}

/// A download through one of two relays. Fields are dropped in this order.
pub(crate) struct Download {
    pub(crate) transfer: Transfer,
    pub(crate) connection: Connection,
    _client: Endpoint,
    _keeper: Keeper,
    pub(crate) server: Server,
    pub(crate) relays: [Relay; 2],
    pub(crate) homes: Homes,
}

impl Download {
    /// Of so many bytes, of which a mebibyte has come.
    pub(crate) fn begin(size: u64) -> Self {
        let homes = Homes::new(2);
        let relays = [homes.relay(0), homes.relay(1)];
        let (server, keeper) = homes.serve(&[&relays[0], &relays[1]]);
        let (client, connection) = homes.connect(&server);
        let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, size);
        transfer.reach(&homes.client, 1 << 20);
        Self { transfer, connection, _client: client, _keeper: keeper, server, relays, homes }
    }

    /// The relay that is used more than the other one.
    pub(crate) fn used(&self) -> usize {
        used(&self.relays)
    }
}

/// The relay that is used more than the other one.
pub(crate) fn used(relays: &[Relay; 2]) -> usize {
    let begun = Instant::now();
    loop {
        let [first, second] = relays.each_ref().map(passed_on);
        if first.max(second) > 0 {
            return usize::from(second > first);
        }
        assert!(begun.elapsed() < secs(90), "no relay is used");
        std::thread::sleep(ms(10));
    }
}

/// How many connections and flows go through a relay.
pub(crate) fn passed_on(relay: &Relay) -> u64 {
    let stats = relay.stats();
    stats.splices + stats.flows
}

/// Waits for the first direct path; tells how long it took.
pub(crate) fn direct(homes: &Homes, connection: &Connection, limit: Duration) -> Option<Duration> {
    let begun = Instant::now();
    let mut watch = Watch::new(connection);
    if is_direct(connection) {
        return Some(Duration::ZERO);
    }
    let up = watch.next(|event| matches!(event, ConnectionEvent::PathUp { remote: Locator::Direct(_), .. }));
    let up = async { tokio::time::timeout(limit, up).await };
    homes.client.runtime.block_on(up).ok().map(|_| begun.elapsed())
}

/// Whether a path carries, or could, that is not through a relay.
pub(crate) fn is_direct(connection: &Connection) -> bool {
    let paths = connection.stats().paths;
    paths.iter().any(|path| matches!(path.remote, Locator::Direct(_)) && path.state == PathState::Active)
}
