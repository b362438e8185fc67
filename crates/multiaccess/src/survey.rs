//! What is known of all paths of this host, one for each interface with an address.

use crate::addresses::AddressesMessage;
use crate::counters::{Counters, CountersMessage};
use crate::diag::{AF_INET, AF_INET6, DiagMessage};
use crate::kernel::Kernel;
use crate::leads::LeadsMessage;
use crate::links::LinksMessage;
use crate::round_trips::Remembered;
use crate::{Meter, Prefix, RoundTrips, Routes, TcpConnection};
use netlink_sys::protocols::{NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
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
    /// The networks that these addresses are in.
    pub prefixes: Vec<Prefix>,
    /// Where its routes led when they were last read.
    pub routes: Arc<Routes>,
    /// What is known of it. Whether it is metered, and what is scheduled on it, the caller has to add.
    pub estimate: PathEstimate,
}

/// Measures the paths of this host.
pub struct Survey {
    routes: Kernel,
    sockets: Kernel,
    /// What was received and sent over each interface.
    meters: HashMap<u32, (Meter, Meter)>,
    /// Interfaces, addresses and routes. `None`: they have to be read.
    known: Option<BTreeMap<u32, Interface>>,
    /// All TCP connections when they were last asked for, by their local addresses.
    connections: HashMap<IpAddr, Vec<TcpConnection>>,
    /// What these say of each interface, as far as it was needed.
    round_trips: HashMap<u32, RoundTrips>,
    /// What was told of each interface before, while it is up.
    remembered: HashMap<u32, Remembered>,
}

/// An interface as the kernel tells of it.
#[derive(Default)]
struct Interface {
    name: String,
    is_up: bool,
    addresses: Vec<IpAddr>,
    prefixes: Vec<Prefix>,
    routes: Arc<Routes>,
}

impl Interface {
    /// Whether it leads out of this host.
    fn is_path(&self) -> bool {
        self.is_up && !self.addresses.is_empty()
    }
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
            known: None,
            connections: HashMap::new(),
            round_trips: HashMap::new(),
            remembered: HashMap::new(),
        })
    }

    /// Opens the sockets to the kernel anew after an error, and goes on with what is known of rates.
    ///
    /// # Errors
    /// As [`Survey::open`].
    pub fn reopen(&mut self) -> io::Result<()> {
        self.routes = Kernel::open(NETLINK_ROUTE)?;
        self.sockets = Kernel::open(NETLINK_SOCK_DIAG)?;
        self.changed();
        Ok(())
    }

    /// Has interfaces, addresses and routes read again by the next measurement: some of them changed.
    pub fn changed(&mut self) {
        self.known = None;
    }

    /// Asks for all TCP connections, which [`Survey::rates`] then goes by. This is most of the work of a
    /// measurement where there are thousands.
    ///
    /// # Errors
    /// As [`Survey::measure`].
    pub async fn round_trips(&mut self) -> io::Result<()> {
        self.connections = self.connections().await?;
        self.round_trips.clear();
        Ok(())
    }

    /// Measures once: to be called every 100 ms or so while there is traffic (§V-E1). `now` is the time on a
    /// clock of the caller that never goes back. Paths come in the order of their numbers.
    ///
    /// # Errors
    /// When the kernel does not answer within seconds. After an error, or when this was dropped before its
    /// end, [`Survey::reopen`] it: the kernel may still be answering.
    pub async fn measure(&mut self, now: Duration) -> io::Result<Vec<AccessPath>> {
        self.changed();
        self.round_trips().await?;
        self.rates(now).await
    }

    /// The same with the round-trip times of the last time, and with the interfaces, addresses and routes of
    /// the last time unless they [`changed`](Survey::changed): reads counters only.
    ///
    /// # Errors
    /// As [`Survey::measure`].
    pub async fn rates(&mut self, now: Duration) -> io::Result<Vec<AccessPath>> {
        let known = match self.known.take() {
            Some(known) => known,
            None => {
                self.round_trips.clear();
                self.known().await?
            }
        };
        self.count(now).await?;
        self.meters.retain(|index, _| known.contains_key(index));
        // What comes back may lead to another network.
        self.remembered.retain(|index, _| known.get(index).is_some_and(Interface::is_path));
        let mut paths = Vec::new();
        for (index, interface) in &known {
            if !interface.is_path() {
                continue;
            }
            let (down, up) = self.meters.entry(*index).or_default();
            let round_trips = self.round_trips.entry(*index).or_insert_with(|| {
                let mine = interface.addresses.iter().filter_map(|address| self.connections.get(address));
                let found = RoundTrips::of(mine.flatten());
                self.remembered.entry(*index).or_default().take(now, &interface.addresses, found)
            });
            let estimate = PathEstimate { down: down.rates(), up: up.rates(), ..round_trips.estimate() };
            paths.push(AccessPath {
                index: *index,
                interface: interface.name.clone(),
                addresses: interface.addresses.clone(),
                prefixes: interface.prefixes.clone(),
                routes: Arc::clone(&interface.routes),
                estimate,
            });
        }
        self.known = Some(known);
        Ok(paths)
    }

    /// Reads the counters.
    async fn count(&mut self, now: Duration) -> io::Result<()> {
        let meters = &mut self.meters;
        let note = |message| {
            if let CountersMessage::Interface(Counters { index, received, sent }) = message {
                let (down, up) = meters.entry(index).or_default();
                down.read(now, received.bytes, received.packets);
                up.read(now, sent.bytes, sent.packets);
            }
        };
        self.routes.dump(CountersMessage::Request, note).await
    }

    async fn known(&mut self) -> io::Result<BTreeMap<u32, Interface>> {
        let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
        self.routes.dump(LinksMessage::Request, |message| note_link(&mut found, message)).await?;
        self.routes.dump(AddressesMessage::Request, |message| note_address(&mut found, message)).await?;
        let mut leads: HashMap<u32, Routes> = HashMap::new();
        for family in [AF_INET, AF_INET6] {
            let question = LeadsMessage::Request { family };
            self.routes.dump(question, |message| note_route(&mut leads, message)).await?;
        }
        for (index, routes) in leads {
            if let Some(interface) = found.get_mut(&index) {
                interface.routes = Arc::new(routes);
            }
        }
        Ok(found)
    }

    async fn connections(&mut self) -> io::Result<HashMap<IpAddr, Vec<TcpConnection>>> {
        let mut found: HashMap<IpAddr, Vec<TcpConnection>> = HashMap::new();
        for family in [AF_INET, AF_INET6] {
            let note = |message| {
                if let DiagMessage::Connection(connection) = message {
                    found.entry(connection.local).or_default().push(connection);
                }
            };
            self.sockets.dump(DiagMessage::Request { family }, note).await?;
        }
        Ok(found)
    }
}

fn note_link(found: &mut BTreeMap<u32, Interface>, message: LinksMessage) {
    let LinksMessage::Link(link) = message else { return };
    if !link.is_loopback {
        let interface = found.entry(link.index).or_default();
        (interface.name, interface.is_up) = (link.name, link.is_up);
    }
}

/// Addresses that are good beyond the link, of interfaces that were told of.
fn note_address(found: &mut BTreeMap<u32, Interface>, message: AddressesMessage) {
    let AddressesMessage::Address(address) = message else { return };
    let Some(interface) = found.get_mut(&address.index).filter(|_| address.leads_out) else { return };
    interface.addresses.push(address.ip);
    interface.prefixes.push(Prefix::new(address.network, address.length));
}

/// Routes by which packets leave, of any table; rules may choose among these by source address.
fn note_route(found: &mut HashMap<u32, Routes>, message: LeadsMessage) {
    let LeadsMessage::Route(Some(lead)) = message else { return };
    for index in lead.through {
        found.entry(index).or_default().add(lead.destination);
    }
}
