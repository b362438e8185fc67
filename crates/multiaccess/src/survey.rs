//! What is known of all paths of this host, one for each interface with an address.

use crate::diag::{AF_INET, AF_INET6, DiagMessage};
use crate::kernel::Kernel;
use crate::{Meter, RoundTrips, TcpConnection};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_sys::protocols::{NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use whimbrel_access::PathEstimate;

/// A path out of this host: an interface that is up, with its addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessPath {
    /// The kernel's number of the interface.
    pub index: u32,
    /// Its name.
    pub interface: String,
    /// Its addresses, those for the link alone left out.
    pub addresses: Vec<IpAddr>,
    /// What is known of it. Whether it is metered, and what is scheduled on it, the caller has to add.
    pub estimate: PathEstimate,
}

/// Measures the paths of this host.
pub struct Survey {
    routes: Kernel,
    sockets: Kernel,
    /// What was received and sent over each interface.
    meters: HashMap<u32, (Meter, Meter)>,
}

/// An interface as the kernel tells of it.
#[derive(Default)]
struct Interface {
    name: String,
    is_up: bool,
    addresses: Vec<IpAddr>,
    received: u64,
    sent: u64,
}

impl Survey {
    /// Opens the sockets to the kernel. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            routes: Kernel::open(NETLINK_ROUTE)?,
            sockets: Kernel::open(NETLINK_SOCK_DIAG)?,
            meters: HashMap::new(),
        })
    }

    /// Measures once: to be called every 100 ms or so while there is traffic (§V-E1). `now` is the time on a
    /// clock of the caller that never goes back. Paths come in the order of their numbers.
    ///
    /// # Errors
    /// When the kernel does not answer within seconds. After an error, or when this was dropped before its
    /// end, open another survey: the kernel may still be answering.
    pub async fn measure(&mut self, now: Duration) -> io::Result<Vec<AccessPath>> {
        let interfaces = self.interfaces().await?;
        let connections = self.connections().await?;
        self.meters.retain(|index, _| interfaces.contains_key(index));
        let mut paths = Vec::new();
        for (index, interface) in interfaces {
            let (down, up) = self.meters.entry(index).or_default();
            down.read(now, interface.received);
            up.read(now, interface.sent);
            if !interface.is_up || interface.addresses.is_empty() {
                continue;
            }
            let round_trips = RoundTrips::of(&interface.addresses, &connections);
            let estimate = PathEstimate { down: down.rates(), up: up.rates(), ..round_trips.estimate() };
            let Interface { name, addresses, .. } = interface;
            paths.push(AccessPath { index, interface: name, addresses, estimate });
        }
        Ok(paths)
    }

    async fn interfaces(&mut self) -> io::Result<BTreeMap<u32, Interface>> {
        let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
        let links = RouteNetlinkMessage::GetLink(LinkMessage::default());
        self.routes.dump(links, |message| note_link(&mut found, message)).await?;
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.routes.dump(addresses, |message| note_address(&mut found, message)).await?;
        Ok(found)
    }

    async fn connections(&mut self) -> io::Result<Vec<TcpConnection>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let note = |message| {
                if let DiagMessage::Connection(connection) = message {
                    found.push(connection);
                }
            };
            self.sockets.dump(DiagMessage::Request { family }, note).await?;
        }
        Ok(found)
    }
}

fn note_link(found: &mut BTreeMap<u32, Interface>, message: RouteNetlinkMessage) {
    let RouteNetlinkMessage::NewLink(link) = message else { return };
    let flags = link.header.flags;
    if flags.contains(LinkFlags::Loopback) {
        return;
    }
    let interface = found.entry(link.header.index).or_default();
    interface.is_up = flags.contains(LinkFlags::Up | LinkFlags::Running);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Stats64(stats) => {
                (interface.received, interface.sent) = (stats.rx_bytes, stats.tx_bytes);
            }
            _ => {}
        }
    }
}

/// Addresses that are good beyond the link, of interfaces that were told of.
fn note_address(found: &mut BTreeMap<u32, Interface>, message: RouteNetlinkMessage) {
    let RouteNetlinkMessage::NewAddress(address) = message else { return };
    let Some(interface) = found.get_mut(&address.header.index) else { return };
    if matches!(address.header.scope, AddressScope::Link | AddressScope::Host) {
        return;
    }
    let attributes = &address.attributes;
    // On point-to-point links IFA_ADDRESS is the peer's; IFA_LOCAL is ours where it exists.
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let any = || {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    };
    interface.addresses.extend(local.or_else(any));
}
