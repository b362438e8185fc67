//! The lab itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DirectLink, Host, Link, LinkSpec, NatGateway, Result, Unavailable, available};

/// An emulated network. When it and all handles to its parts are dropped, or the process ends, nothing is
/// left of it.
#[derive(Default)]
pub struct Lab {
    // Keeps the network standing even if a test drops a handle early.
    links: Mutex<Vec<Link>>,
    hosts: Mutex<Vec<Host>>,
    /// Places for connections in a table of each host's own.
    table: Option<u32>,
}

impl Lab {
    /// Opens a lab.
    pub fn new() -> Result<Self> {
        Self::available()?;
        Ok(Self::default())
    }

    /// Has each host that is added from now on find its TCP connections in a table of its own with so many
    /// places: a power of two, 256 to 16 777 216. (Where connections share a place, looking for one takes
    /// longer.) Otherwise all hosts share the table of this machine, of some hundred thousand: whoever
    /// lists a host's connections goes through all of it, which takes milliseconds. Before Linux 6.1 they
    /// share it in any case.
    #[must_use]
    pub fn with_tables(self, places: u32) -> Self {
        Self { table: Some(places), ..self }
    }

    /// Whether this process may build networks right now. A test calls [`require!`](crate::require!) instead,
    /// which also finds a way in without root.
    pub fn available() -> std::result::Result<(), Unavailable> {
        available::here()
    }

    /// Adds a host. It has a loopback interface and nothing else.
    pub fn host(&self, name: &str) -> Result<Host> {
        self.keep(Host::build(name, false, self.table)?)
    }

    /// Adds a host that forwards packets, of IPv4 and IPv6.
    pub fn router(&self, name: &str) -> Result<Host> {
        self.keep(Host::build(name, true, self.table)?)
    }

    /// Joins two hosts by an emulated link. Its interfaces are up and have no addresses yet.
    pub fn link(&self, first: &Host, second: &Host, spec: LinkSpec) -> Result<Link> {
        let link = Link::build(first, second, &spec)?;
        lock(&self.links).push(link.clone());
        Ok(link)
    }

    /// Joins two hosts by a plain virtual cable; of the spec only names and MTU count.
    pub fn direct_link(&self, first: &Host, second: &Host, spec: LinkSpec) -> Result<DirectLink> {
        DirectLink::build(first, second, &spec)
    }

    /// Makes a router hide all its other interfaces behind the address of the interface named `outside`.
    pub fn nat_gateway(&self, router: &Host, outside: &str) -> Result<NatGateway> {
        NatGateway::build(router, outside)
    }

    fn keep(&self, host: Host) -> Result<Host> {
        lock(&self.hosts).push(host.clone());
        Ok(host)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
