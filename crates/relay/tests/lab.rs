//! Servers and clients behind NAT gateways of their own, with relays between.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;

use std::sync::Arc;

use lab_support::net::{Family, Node, Watch};
use lab_support::traffic::{Server, Transfer, Way};
use lab_support::{ms, secs};
use whimbrel_base::SecretKey;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, NatGateway, Rate, require};
use whimbrel_relay::{Directory, Keeper, Limits, Relay};
use whimbrel_transport::{Allow, Connection, Endpoint, Locator};

const SIZE: u64 = 12 << 20;

/// Two homes, each behind its gateway, and relays on the Internet between them. 24 ms between a home and a relay.
struct Homes {
    client: Node,
    server: Node,
    relays: Vec<(Node, Link)>,
    _gateways: [NatGateway; 2],
    _links: Vec<Link>,
    _lab: Lab,
}

impl Homes {
    fn new(relays: u8) -> Self {
        let lab = Lab::new().unwrap();
        let internet = lab.router("internet").unwrap();
        let spec = || LinkSpec::default().delay(ms(3)).rate(Rate::mbit(100));
        let mut links = Vec::new();
        let outside = |host: &Host, network: u8| {
            let link =
                lab.link(host, &internet, spec().interface_names("wan0", &format!("to{network}"))).unwrap();
            link.end(&internet).add_address(&format!("10.0.{network}.1/24")).unwrap();
            link
        };
        let mut home = |name: &str, network: u8| {
            let (host, gateway) = (lab.host(name).unwrap(), lab.router(&format!("{name}-gw")).unwrap());
            let far = outside(&gateway, network);
            gateway.add_address("wan0", &format!("10.0.{network}.10/24")).unwrap();
            gateway.add_default_route("wan0", &format!("10.0.{network}.1"), 1).unwrap();
            let near = lab.link(&host, &gateway, spec().interface_names("eth0", "lan0")).unwrap();
            near.end(&gateway).add_address(&format!("10.0.{}.1/24", network + 100)).unwrap();
            let nat = lab.nat_gateway(&gateway, "wan0").unwrap();
            links.extend([far, near]);
            (Node::routed(&host, "eth0", Family::V4, network + 100, 1), nat)
        };
        let ((client, near), (server, far)) = (home("client", 1), home("server", 2));
        let relays = (0..relays).map(|number| {
            let host = lab.host(&format!("relay{number}")).unwrap();
            let link = outside(&host, 50 + number);
            (Node::routed(&host, "wan0", Family::V4, 50 + number, 1), link)
        });
        let relays = relays.collect();
        Self { client, server, relays, _gateways: [near, far], _links: links, _lab: lab }
    }

    fn relay(&self, number: usize) -> Relay {
        let node = &self.relays[number].0;
        let endpoint = node.endpoint_with(|builder| builder.config(Relay::config()));
        node.wait(Relay::start(endpoint, Allow::Any, Limits::default(), Vec::new())).unwrap()
    }

    /// A server with reservations at the relays.
    fn serve(&self, relays: &[&Relay]) -> (Server, Keeper) {
        let key = SecretKey::generate();
        let endpoint = self.server.endpoint_with(|builder| builder.secret_key(key.clone()));
        let server = Server::start(&self.server, endpoint.clone());
        let directories = relays.iter().map(|relay| Arc::new(relay.endpoint().addr()) as Arc<dyn Directory>);
        let directories: Vec<_> = directories.collect();
        let count = directories.len();
        let keeper = self.server.wait(async { Keeper::start(endpoint, &key, directories) });
        let mut news = keeper.news();
        self.server.wait(async { news.wait_for(|now| now.held == count).await.unwrap() });
        (server, keeper)
    }

    fn connect(&self, server: &Server) -> (Endpoint, Connection) {
        let client = self.client.endpoint();
        let connection = self.client.wait(client.connect(server.endpoint.addr())).unwrap();
        (client, connection)
    }
}

fn relay_of(connection: &Connection) -> Option<Locator> {
    connection.stats().paths.first().map(|path| path.remote)
}

#[test]
fn behind_two_gateways_each_side_moves_during_a_download_and_no_byte_is_lost() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    assert!(matches!(relay_of(&connection), Some(Locator::Relayed(_))), "{:?}", connection.stats().paths);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    let mut watch = Watch::new(&connection);
    homes.client.move_on();
    // Two round trips from end to end, and what a busy machine adds.
    let took = homes.client.wait(watch.recovery());
    assert!(took < ms(600), "the client's move took {took:?}");
    transfer.reach(&homes.client, 4 << 20);
    let mut watch = Watch::new(&connection);
    homes.server.move_on();
    let took = homes.client.wait(watch.recovery());
    assert!(took < secs(1), "the server's move took {took:?}");
    transfer.reach(&homes.client, 7 << 20);
    homes.client.move_on();
    homes.server.move_on();
    transfer.finish(&homes.client);
}

#[test]
fn a_relay_that_falls_silent_is_left_for_another_one() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    let relays = [homes.relay(0), homes.relay(1)];
    let (server, _keeper) = homes.serve(&[&relays[0], &relays[1]]);
    let (_client, connection) = homes.connect(&server);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    let used = relays.iter().position(|relay| relay.stats().splices > 0).expect("a relay is used");
    let (node, link) = &homes.relays[used];
    link.set_blackhole(link.from(&node.host), true);
    let mut watch = Watch::new(&connection);
    let took = homes.client.wait(watch.recovery());
    assert!(took < secs(2), "it took {took:?}");
    transfer.finish(&homes.client);
    assert!(relays[1 - used].stats().splices > 0);
}
