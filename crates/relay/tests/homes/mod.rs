//! Two homes behind NAT gateways, with relays between.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::SecretKey;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, NatGateway, Rate};
use whimbrel_relay::{Directory, Keeper, Limits, Relay};
use whimbrel_transport::{Allow, Connection, Endpoint};

use crate::lab_support::ms;
use crate::lab_support::net::{Family, Node};
use crate::lab_support::traffic::Server;

/// Two homes, each behind its gateway, and relays on the Internet between them. 24 ms between a home and a relay.
pub(crate) struct Homes {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) relays: Vec<(Node, Link)>,
    /// The client's and the server's.
    pub(crate) gateways: [NatGateway; 2],
    _links: Vec<Link>,
    _lab: Lab,
}

impl Homes {
    pub(crate) fn new(relays: u8) -> Self {
        Self::apart(relays, ms(3))
    }

    /// `far` is what the link between a home and the Internet delays.
    pub(crate) fn apart(relays: u8, far: Duration) -> Self {
        let lab = Lab::new().unwrap();
        let internet = lab.router("internet").unwrap();
        let spec = |delay| LinkSpec::default().delay(delay).rate(Rate::mbit(100));
        let mut links = Vec::new();
        let outside = |host: &Host, network: u8, delay| {
            let link = lab
                .link(host, &internet, spec(delay).interface_names("wan0", &format!("to{network}")))
                .unwrap();
            link.end(&internet).add_address(&format!("10.0.{network}.1/24")).unwrap();
            link
        };
        let mut home = |name: &str, network: u8| {
            let (host, gateway) = (lab.host(name).unwrap(), lab.router(&format!("{name}-gw")).unwrap());
            let wan = outside(&gateway, network, far);
            gateway.add_address("wan0", &format!("10.0.{network}.10/24")).unwrap();
            gateway.add_default_route("wan0", &format!("10.0.{network}.1"), 1).unwrap();
            let near = lab.link(&host, &gateway, spec(ms(3)).interface_names("eth0", "lan0")).unwrap();
            near.end(&gateway).add_address(&format!("10.0.{}.1/24", network + 100)).unwrap();
            let nat = lab.nat_gateway(&gateway, "wan0").unwrap();
            links.extend([wan, near]);
            (Node::routed(&host, "eth0", Family::V4, network + 100, 1), nat)
        };
        let ((client, near), (server, far)) = (home("client", 1), home("server", 2));
        let relays = (0..relays).map(|number| {
            let host = lab.host(&format!("relay{number}")).unwrap();
            let link = outside(&host, 50 + number, ms(3));
            (Node::routed(&host, "wan0", Family::V4, 50 + number, 1), link)
        });
        let relays = relays.collect();
        Self { client, server, relays, gateways: [near, far], _links: links, _lab: lab }
    }

    pub(crate) fn relay(&self, number: usize) -> Relay {
        let node = &self.relays[number].0;
        let endpoint = node.endpoint_with(|builder| builder.config(Relay::config()));
        node.wait(Relay::start(endpoint, Allow::Any, Limits::default(), Vec::new())).unwrap()
    }

    /// A server with reservations at the relays.
    pub(crate) fn serve(&self, relays: &[&Relay]) -> (Server, Keeper) {
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

    pub(crate) fn connect(&self, server: &Server) -> (Endpoint, Connection) {
        let client = self.client.endpoint();
        let connection = self.client.wait(client.connect(server.endpoint.addr())).unwrap();
        (client, connection)
    }
}
