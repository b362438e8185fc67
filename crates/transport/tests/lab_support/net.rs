//! Hosts with endpoints on them.

use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use whimbrel_lab::{Host, Lab, Link, LinkSpec, Rate, Runtime};
use whimbrel_transport::{Builder, Connection, ConnectionEvent, Endpoint, Events};

use super::{log, ms, secs};

/// No step of a test waits longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn ip(self, network: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => IpAddr::from([10, 0, network, host]),
            Self::V6 => IpAddr::from([0xfd00, network.into(), 0, 0, 0, 0, 0, host.into()]),
        }
    }

    fn with_prefix(self, network: u8, host: u8) -> String {
        let length = match self {
            Self::V4 => 24,
            Self::V6 => 64,
        };
        format!("{}/{length}", self.ip(network, host))
    }
}

/// A host with a runtime, and one address on one interface that matters to the test.
pub(crate) struct Node {
    pub(crate) host: Host,
    pub(crate) runtime: Runtime,
    pub(crate) family: Family,
    interface: String,
    network: u8,
    /// The last part of the current address.
    at: AtomicU8,
    /// Of the default route through host 1 of the network, if there is to be one.
    metric: Option<u32>,
}

impl Node {
    /// A host alone on a link with others.
    pub(crate) fn new(host: &Host, interface: &str, family: Family, network: u8, at: u8) -> Self {
        Self::build(host, interface, family, network, at, None)
    }

    /// A host behind a router, which is number 1 in its network.
    pub(crate) fn routed(host: &Host, interface: &str, family: Family, network: u8, metric: u32) -> Self {
        Self::build(host, interface, family, network, 10, Some(metric))
    }

    fn build(host: &Host, interface: &str, family: Family, network: u8, at: u8, metric: Option<u32>) -> Self {
        let node = Self {
            host: host.clone(),
            runtime: host.runtime(2).unwrap(),
            family,
            interface: interface.into(),
            network,
            at: AtomicU8::new(at),
            metric,
        };
        node.add(at);
        node
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.family.ip(self.network, self.at.load(Ordering::Relaxed))
    }

    fn add(&self, at: u8) {
        let address = self.family.with_prefix(self.network, at);
        self.host.add_address(&self.interface, &address).unwrap();
        if let Some(metric) = self.metric {
            let gateway = self.family.ip(self.network, 1).to_string();
            self.host.add_default_route(&self.interface, &gateway, metric).unwrap();
        }
    }

    fn del(&self, at: u8) {
        let address = self.family.with_prefix(self.network, at);
        self.host.del_address(&self.interface, &address).unwrap();
    }

    /// Takes the address away and gives the next one, as when joining another network.
    pub(crate) fn move_on(&self) -> IpAddr {
        self.leave();
        self.arrive()
    }

    /// Takes the address away.
    pub(crate) fn leave(&self) {
        self.del(self.at.load(Ordering::Relaxed));
    }

    /// Gives the address after the last one.
    pub(crate) fn arrive(&self) -> IpAddr {
        self.add(self.at.fetch_add(1, Ordering::Relaxed) + 1);
        self.ip()
    }

    /// Waits until the endpoint knows the present address.
    pub(crate) fn settle(&self, endpoint: &Endpoint) {
        let mut addresses = endpoint.watch_addresses();
        let ip = self.ip();
        self.wait(async { drop(addresses.wait_for(|set| set.contains(ip)).await) });
    }

    /// An endpoint that listens to the kernel's own events.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint_with(|builder| builder)
    }

    pub(crate) fn endpoint_with(&self, change: impl FnOnce(Builder) -> Builder + Send) -> Endpoint {
        log();
        self.wait(change(Endpoint::builder()).bind()).unwrap()
    }

    /// Runs a future on this host; panics if it takes too long.
    pub(crate) fn wait<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.wait_for(LIMIT, future)
    }

    pub(crate) fn wait_for<F>(&self, limit: Duration, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        let limited = async { tokio::time::timeout(limit, future).await };
        match self.runtime.block_on(limited) {
            Ok(output) => output,
            Err(_) => panic!("{} still waits after {limit:?}", self.host.name()),
        }
    }
}

/// A client and a server on one emulated link.
pub(crate) struct Net {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) link: Link,
    pub(crate) lab: Lab,
}

impl Net {
    /// 20 ms and 100 Mbit/s between the hosts.
    pub(crate) fn new(family: Family) -> Self {
        Self::with(family, LinkSpec::default().delay(ms(10)).rate(Rate::mbit(100)))
    }

    pub(crate) fn with(family: Family, spec: LinkSpec) -> Self {
        let lab = Lab::new().unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let link = lab.link(&client, &server, spec).unwrap();
        let node = |host: &Host, at| Node::new(host, link.end(host).name(), family, 1, at);
        Self { client: node(&client, 10), server: node(&server, 130), link, lab }
    }
}

/// A client with two interfaces, each on a link of its own to a router, and a server behind that.
pub(crate) struct Routed {
    /// The client and its first interface, which its routes prefer.
    pub(crate) client: Node,
    pub(crate) router: Host,
    pub(crate) server: Node,
    /// The client's links to the router.
    pub(crate) near: [Link; 2],
    pub(crate) far: Link,
    pub(crate) lab: Lab,
    other: Option<Node>,
}

impl Routed {
    /// Each link has 5 ms and 100 Mbit/s. The second interface has an address only if `both`.
    pub(crate) fn new(family: Family, both: bool) -> Self {
        let lab = Lab::new().unwrap();
        let (client, router, server) =
            (lab.host("client").unwrap(), lab.router("router").unwrap(), lab.host("server").unwrap());
        let link = |host: &Host, network: u8, names: [&str; 2]| {
            let spec = LinkSpec::default().delay(ms(5)).rate(Rate::mbit(100));
            let link = lab.link(host, &router, spec.interface_names(names[0], names[1])).unwrap();
            link.end(&router).add_address(&family.with_prefix(network, 1)).unwrap();
            link
        };
        let near = [link(&client, 1, ["wifi0", "lan0"]), link(&client, 2, ["lte0", "lan1"])];
        let far = link(&server, 9, ["eth0", "wan0"]);
        Self {
            client: Node::routed(&client, "wifi0", family, 1, 100),
            other: both.then(|| Node::routed(&client, "lte0", family, 2, 200)),
            server: Node::routed(&server, "eth0", family, 9, 100),
            router,
            near,
            far,
            lab,
        }
    }
}

/// A client and a server with several interfaces each, every one on a link of its own to a router between
/// them.
pub(crate) struct Multi {
    pub(crate) client: Node,
    pub(crate) router: Host,
    pub(crate) server: Node,
    /// The client's links: interface `up0` with network 1, `up1` with network 2, …
    pub(crate) near: Vec<Link>,
    /// The server's links: interface `at0` with network 101, …
    pub(crate) far: Vec<Link>,
    pub(crate) lab: Lab,
    others: Vec<Node>,
}

impl Multi {
    /// One interface of the client for each of these links; the server's only one is fast.
    pub(crate) fn new(family: Family, near: &[LinkSpec]) -> Self {
        Self::with(family, near, &[LinkSpec::default()])
    }

    pub(crate) fn with(family: Family, near: &[LinkSpec], far: &[LinkSpec]) -> Self {
        let lab = Lab::new().unwrap();
        let (client, router, server) =
            (lab.host("client").unwrap(), lab.router("router").unwrap(), lab.host("server").unwrap());
        let join = |host: &Host, names: [&str; 2], first: u8, specs: &[LinkSpec]| -> (Vec<Link>, Vec<Node>) {
            let build = |(index, spec): (u8, &LinkSpec)| {
                let [name, other] = names.map(|name| format!("{name}{index}"));
                let link = lab.link(host, &router, spec.clone().interface_names(&name, &other)).unwrap();
                link.end(&router).add_address(&family.with_prefix(first + index, 1)).unwrap();
                (link, Node::routed(host, &name, family, first + index, 100 + u32::from(index)))
            };
            (0..).zip(specs).map(build).unzip()
        };
        let (near, mut clients) = join(&client, ["up", "lan"], 1, near);
        let (far, mut servers) = join(&server, ["at", "wan"], 101, far);
        let (client, server) = (clients.remove(0), servers.remove(0));
        let others = clients.into_iter().chain(servers).collect();
        Self { client, router, server, near, far, lab, others }
    }

    /// One of the client's interfaces.
    pub(crate) fn up(&self, index: usize) -> &Node {
        if index == 0 { &self.client } else { &self.others[index - 1] }
    }
}

/// Hosts around a router, each in a network of its own; 20 ms between any two.
pub(crate) struct Star {
    pub(crate) router: Host,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<Link>,
    pub(crate) lab: Lab,
}

impl Star {
    pub(crate) fn new<const N: usize>(family: Family, names: [&str; N]) -> Self {
        Self::with(family, names, ms(5))
    }

    /// With links that delay by so much: between two hosts there are two of them.
    pub(crate) fn with<const N: usize>(family: Family, names: [&str; N], delay: Duration) -> Self {
        let lab = Lab::new().unwrap();
        let router = lab.router("router").unwrap();
        let build = |(network, name): (u8, &str)| {
            let host = lab.host(name).unwrap();
            let spec = LinkSpec::default().delay(delay).rate(Rate::mbit(100));
            let link = lab.link(&host, &router, spec).unwrap();
            link.end(&router).add_address(&family.with_prefix(network, 1)).unwrap();
            (Node::routed(&host, link.end(&host).name(), family, network, 100), link)
        };
        let (nodes, links) = (1..).zip(names).map(build).unzip();
        Self { router, nodes, links, lab }
    }
}

/// What happened to a connection while something was done, told from its events.
pub(crate) struct Watch {
    events: Events,
}

impl Watch {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { events: connection.events() }
    }

    pub(crate) async fn next(&mut self, wanted: impl Fn(&ConnectionEvent) -> bool) -> ConnectionEvent {
        loop {
            let event = self.events.next().await.unwrap_or_else(|| panic!("no more events"));
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Waits until data flows again, and tells how long it did not.
    pub(crate) async fn recovery(&mut self) -> Duration {
        let is_recovery =
            |event: &ConnectionEvent| matches!(event, ConnectionEvent::PathUp { recovery: Some(_), .. });
        match self.next(is_recovery).await {
            ConnectionEvent::PathUp { recovery: Some(took), .. } => took,
            _ => secs(0),
        }
    }

    /// As [`recovery`](Self::recovery), by a path one of whose ends is there. A machine that is busy may
    /// suspect the old path and find it well again, before it hears that its address has gone.
    pub(crate) async fn recovery_at(&mut self, end: IpAddr) -> Duration {
        loop {
            let event = self.next(|event| matches!(event, ConnectionEvent::PathUp { .. })).await;
            let ConnectionEvent::PathUp { local, remote, recovery: Some(took), .. } = event else { continue };
            if [local.ip(), remote.address().ip()].contains(&end) {
                return took;
            }
        }
    }
}
