//! Hosts with endpoints on them.

use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::broadcast;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, Rate, Runtime};
use whimbrel_transport::{Builder, Connection, ConnectionEvent, Endpoint};

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
}

impl Node {
    pub(crate) fn new(host: &Host, interface: &str, family: Family, network: u8, at: u8) -> Self {
        let node = Self {
            host: host.clone(),
            runtime: host.runtime(2).unwrap(),
            family,
            interface: interface.into(),
            network,
            at: AtomicU8::new(at),
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

/// What happened to a connection while something was done, told from its events.
pub(crate) struct Watch {
    events: broadcast::Receiver<ConnectionEvent>,
}

impl Watch {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { events: connection.events() }
    }

    pub(crate) async fn next(&mut self, wanted: impl Fn(&ConnectionEvent) -> bool) -> ConnectionEvent {
        loop {
            match self.events.recv().await {
                Ok(event) if wanted(&event) => return event,
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(error) => panic!("no more events: {error}"),
            }
        }
    }

    /// Waits until data flows again, and tells how long it did not.
    pub(crate) async fn recovery(&mut self) -> Duration {
        let is_recovery = |event: &ConnectionEvent| matches!(event, ConnectionEvent::PathUp { recovery: Some(_), .. });
        match self.next(is_recovery).await {
            ConnectionEvent::PathUp { recovery: Some(took), .. } => took,
            _ => secs(0),
        }
    }
}
