//! Hosts around a router, whose addresses change while connections carry data.

mod chain;
pub(crate) mod haproxy;
mod homes;
mod hub;
mod line;
mod netlink;
mod phones;
pub(crate) mod program;
mod traffic;
mod two_links;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use whimbrel_lab::{Host, Lab, LinkSpec, Runtime};

pub(crate) use self::chain::Chain;
pub(crate) use self::homes::Homes;
pub(crate) use self::hub::{Hub, Spoke};
pub(crate) use self::line::Line;
use self::netlink::Interface;
pub(crate) use self::phones::Phones;
pub(crate) use self::traffic::{Ears, Speakers};
pub(crate) use self::two_links::{Access, CARRIER, CONGESTION_CONTROL, Loss, Site, TwoLinks};

/// No single step takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Each host's workers.
const WORKERS: usize = 2;
/// Host parts of the addresses that a host moves through.
const FIRST: u8 = 10;
const LAST: u8 = 250;
/// Of a host that stays where it is.
const STEADY: u8 = 2;

/// Hosts, and what joins them.
pub(crate) struct Net {
    nodes: Vec<Node>,
    _lab: Lab,
}

impl Net {
    /// Hosts around a router, each in a network of its own. Every two of them are `rtt` apart; the links are
    /// as fast as the machine.
    pub(crate) fn star<const N: usize>(names: [&str; N], rtt: Duration) -> Result<Self> {
        // A way there and back passes through four links.
        Self::around(names.map(|name| (name, LinkSpec::default().delay(rtt / 4))))
    }

    /// Hosts around a router, each in a network of its own, behind these links. Forward is from the host.
    pub(crate) fn around<const N: usize>(hosts: [(&str, LinkSpec); N]) -> Result<Self> {
        let lab = Lab::new()?;
        let router = lab.router("router")?;
        let mut nodes = Vec::new();
        for (network, (name, spec)) in (1..).zip(hosts) {
            let host = lab.host(name)?;
            let link = lab.link(&host, &router, spec)?;
            link.end(&router).add_address(&format!("10.0.{network}.1/24"))?;
            nodes.push(Node::new(host.clone(), link.end(&host).name(), network, FIRST)?);
        }
        Ok(Self { nodes, _lab: lab })
    }

    /// Two hosts on one link, of which the first stays where it is. For much traffic: packets are carried in
    /// lots, up to twice `grain` late.
    pub(crate) fn pair(names: [&str; 2], rtt: Duration, grain: Duration) -> Result<Self> {
        let lab = Lab::new()?;
        let hosts = [lab.host(names[0])?, lab.host(names[1])?];
        let link = lab.link(&hosts[0], &hosts[1], LinkSpec::default().delay(rtt / 2).grain(grain))?;
        let node = |host: &Host, first| Node::new(host.clone(), link.end(host).name(), 1, first);
        Ok(Self { nodes: vec![node(&hosts[0], STEADY)?, node(&hosts[1], FIRST)?], _lab: lab })
    }

    pub(crate) fn nodes<const N: usize>(&self) -> [&Node; N] {
        std::array::from_fn(|index| &self.nodes[index])
    }
}

/// A host with a runtime and one address that matters.
pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    host: Host,
    interface: String,
    network: u8,
    state: Mutex<State>,
}

struct State {
    interface: Interface,
    /// The last part of the current address.
    at: u8,
}

impl Node {
    fn new(host: Host, interface: &str, network: u8, at: u8) -> Result<Self> {
        let state = State { interface: Interface::open(&host, interface)?, at };
        let (runtime, interface) = (host.runtime(WORKERS)?, interface.to_owned());
        let node = Self { runtime, host, interface, network, state: Mutex::new(state) };
        node.settle_at(at)?;
        Ok(node)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, at: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, self.network, at)
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The name of its interface.
    pub(crate) fn interface(&self) -> &str {
        &self.interface
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address(self.lock().at).into()
    }

    /// Takes the address away, and with it every route.
    pub(crate) fn leave(&self) -> Result<()> {
        let mut state = self.lock();
        let ip = self.address(state.at);
        state.interface.del_address(ip)
    }

    /// Gives the next address and the route to others. Returns the moment from which both could be
    /// used: the address was there, and the kernel was about to be asked for the route, so the
    /// microseconds that this took count as part of the recovery.
    pub(crate) fn arrive(&self) -> Result<Instant> {
        let at = self.lock().at;
        self.settle_at(if at == LAST { FIRST } else { at + 1 })
    }

    fn settle_at(&self, at: u8) -> Result<Instant> {
        let mut state = self.lock();
        state.at = at;
        state.interface.add_address(self.address(at))?;
        state.interface.add_default_route(self.address(1))
    }

    /// Runs a future on this host, for [`LIMIT`] at most.
    pub(crate) fn wait<F>(&self, what: &str, future: F) -> Result<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let limited = async { tokio::time::timeout(LIMIT, future).await };
        let name = self.host.name();
        self.runtime.block_on(limited).with_context(|| format!("{what}: {name} still waits after {LIMIT:?}"))
    }

    /// A round trip to another host, by the kernel's own TCP handshake.
    pub(crate) fn measure_rtt(&self, other: &Node) -> Result<Duration> {
        let address = (other.ip(), 0);
        let listener = other.host.run(|| std::net::TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let mut best = LIMIT;
        for _ in 0..5 {
            let began = Instant::now();
            self.host.run(|| std::net::TcpStream::connect_timeout(&address, LIMIT))?;
            best = best.min(began.elapsed());
        }
        Ok(best)
    }
}
