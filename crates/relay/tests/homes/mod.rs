//! Two homes behind NAT gateways, with relays between.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::SecretKey;
use whimbrel_lab::{Block, Host, Lab, Link, LinkSpec, NatGateway, Rate};
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
    /// The client's and the server's. They translate no addresses of IPv6.
    pub(crate) gateways: Vec<NatGateway>,
    /// Those of the homes' carriers, if they have any: the client's, the server's, or the one of both.
    pub(crate) carriers: Vec<NatGateway>,
    _links: Vec<Link>,
    _lab: Lab,
}

/// What is between a home's gateway and the Internet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Carriers {
    /// Nothing.
    #[default]
    None,
    /// Another gateway for those that are marked, the client's home and the server's.
    Own([bool; 2]),
    /// One gateway for both homes, at 10.0.3.10.
    Shared,
}

/// How homes are connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) relays: u8,
    /// What the link between a home and the Internet delays.
    pub(crate) far: Duration,
    pub(crate) family: Family,
    pub(crate) carriers: Carriers,
}

impl Default for Plan {
    fn default() -> Self {
        Self { relays: 1, far: ms(3), family: Family::V4, carriers: Carriers::None }
    }
}

impl Plan {
    /// An address on the link to a network, with its length.
    fn on_link(&self, network: u8, host: u8) -> String {
        match self.family {
            Family::V4 => format!("10.0.{network}.{host}/24"),
            Family::V6 => format!("fd00:{network:x}::{host:x}/64"),
        }
    }

    fn bare(&self, network: u8, host: u8) -> String {
        let address = self.on_link(network, host);
        address.split('/').next().unwrap().to_owned()
    }

    fn network(&self, network: u8) -> String {
        match self.family {
            Family::V4 => format!("10.0.{network}.0/24"),
            Family::V6 => format!("fd00:{network:x}::/64"),
        }
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
        let lab = Lab::new().unwrap();
        let internet = lab.router("internet").unwrap();
        let spec = |delay| LinkSpec::default().delay(delay).rate(Rate::mbit(100));
        let mut links = Vec::new();
        // A host's way out to `to`, over the link of that network.
        let outside = |host: &Host, to: &Host, network: u8, delay| {
            let link =
                lab.link(host, to, spec(delay).interface_names("wan0", &format!("to{network}"))).unwrap();
            link.end(to).add_address(&plan.on_link(network, 1)).unwrap();
            link
        };
        let mut gateways = Vec::new();
        let mut carriers = Vec::new();
        // A router whose number on that link is 10, and which hides what is behind it if it can.
        let mut gateway = |name: &str, to: &Host, network: u8, delay, of: &mut Vec<NatGateway>| {
            let router = lab.router(name).unwrap();
            links.push(outside(&router, to, network, delay));
            router.add_address("wan0", &plan.on_link(network, 10)).unwrap();
            router.add_default_route("wan0", &plan.bare(network, 1), 1).unwrap();
            if plan.family == Family::V4 {
                of.push(lab.nat_gateway(&router, "wan0").unwrap());
            }
            router
        };
        let shared = (plan.carriers == Carriers::Shared)
            .then(|| gateway("carrier", &internet, 3, ms(1), &mut carriers));
        let mut home = |name: &str, network: u8| {
            let own = matches!(plan.carriers, Carriers::Own(own) if own[usize::from(network) - 1]);
            let own = own
                .then(|| gateway(&format!("{name}-carrier"), &internet, network + 3, ms(1), &mut carriers));
            let to = own.as_ref().or(shared.as_ref()).unwrap_or(&internet);
            let router = gateway(&format!("{name}-gw"), to, network, plan.far, &mut gateways);
            let host = lab.host(name).unwrap();
            let near = lab.link(&host, &router, spec(ms(3)).interface_names("eth0", "lan0")).unwrap();
            near.end(&router).add_address(&plan.on_link(network + 100, 1)).unwrap();
            if plan.family == Family::V6 {
                let (there, through) = (plan.network(network + 100), plan.bare(network, 10));
                internet.add_route(&format!("to{network}"), &there, &through).unwrap();
                router.block(Block::UnaskedFrom("wan0")).unwrap();
            }
            (Node::routed(&host, "eth0", plan.family, network + 100, 1), near)
        };
        let ((client, near), (server, far)) = (home("client", 1), home("server", 2));
        links.extend([near, far]);
        let relays = (0..plan.relays).map(|number| {
            let host = lab.host(&format!("relay{number}")).unwrap();
            let link = outside(&host, &internet, 50 + number, ms(3));
            (Node::routed(&host, "wan0", plan.family, 50 + number, 1), link)
        });
        let relays = relays.collect();
        Self { client, server, relays, gateways, carriers, _links: links, _lab: lab }
    }

    pub(crate) fn relay(&self, number: usize) -> Relay {
        self.relay_at(number, 0)
    }

    /// A relay at that port.
    pub(crate) fn relay_at(&self, number: usize, port: u16) -> Relay {
        let node = &self.relays[number].0;
        let endpoint = node.endpoint_with(|builder| builder.config(Relay::config()).port(port));
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
