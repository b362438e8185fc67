//! A client with two links of its own, such as Wi-Fi and cellular, to the network in which the server is.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use whimbrel_lab::{
    Capacity, DirectLink, Direction, Host, Lab, Link, LinkSpec, MptcpUse, Queue, Rate, Runtime, Trace, Wake,
};

use super::LIMIT;
use super::netlink::Interface;

/// Of every TCP and MPTCP socket, the subject's included.
pub(crate) const CONGESTION_CONTROL: &str = "cubic";
/// What the subject's paths run on, unless a bench is about other carriers: the same as its peers'.
pub(crate) const CARRIER: &str = "tcp";
/// Each host's workers.
const WORKERS: usize = 2;
/// Places for each host's connections: a manager lists them ten times a second, and many may run.
const TABLE: u32 = 4096;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 2);
/// Of a host that is added.
const ATTACHED: Ipv4Addr = Ipv4Addr::new(10, 0, 8, 2);
/// Subflows that kernel MPTCP may have besides the first one.
const SUBFLOWS: u8 = 2;

/// One of the client's links.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The interface's name.
    pub(crate) name: &'static str,
    /// Forward is up, from the client.
    pub(crate) spec: LinkSpec,
}

impl Access {
    /// A link of a steady rate in both directions, with a queue of 100 ms.
    pub(crate) fn new(name: &'static str, rate: Rate, rtt: Duration) -> Self {
        Self { name, spec: LinkSpec::default().delay(rtt / 2).rate(rate) }
    }

    /// A recorded link: what it carried up and down.
    pub(crate) fn recorded(name: &'static str, up: Trace, down: Trace, rtt: Duration) -> Self {
        let [up, down] = [up, down].map(|trace| Capacity::Trace(trace.into()));
        let spec = LinkSpec::default().delay(rtt / 2);
        Self { name, spec: spec.forward(|shape| shape.capacity = up).backward(|shape| shape.capacity = down) }
    }

    pub(crate) fn queue(self, queue: Queue) -> Self {
        Self { spec: self.spec.queue(queue), ..self }
    }

    /// Loses packets in both directions, with that chance.
    pub(crate) fn loss(self, loss: f64) -> Self {
        Self { spec: self.spec.loss(loss), ..self }
    }

    /// Lets so many bytes through at once after a pause, as a token bucket does.
    pub(crate) fn burst(self, bytes: usize) -> Self {
        Self { spec: self.spec.burst(bytes), ..self }
    }

    /// Lets the radio sleep: it is woken by what the client sends.
    pub(crate) fn sleeping(self, wake: Wake) -> Self {
        Self { spec: self.spec.forward(|shape| shape.wake = Some(wake)), ..self }
    }
}

/// How a link is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The client's interface is switched off. (A pulled cable would be the same, but the kernel reports lost
    /// carriers once a second only, over all namespaces.)
    Down,
    /// Nothing passes any more, and nobody is told.
    Blackhole,
    /// The client's address is taken away.
    AddressRemoved,
}

impl Loss {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "link down",
            Self::Blackhole => "blackhole",
            Self::AddressRemoved => "address removed",
        }
    }
}

/// A host and its runtime.
pub(crate) struct Site {
    pub(crate) host: Host,
    pub(crate) runtime: Runtime,
}

impl Site {
    pub(super) fn new(host: Host) -> Result<Self> {
        Ok(Self { runtime: host.runtime(WORKERS)?, host })
    }

    /// Runs a future on this host, for `limit` at most.
    pub(crate) fn within<F>(&self, limit: Duration, what: &str, future: F) -> Result<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let limited = async { tokio::time::timeout(limit, future).await };
        let name = self.host.name();
        self.runtime.block_on(limited).with_context(|| format!("{what}: {name} still waits after {limit:?}"))
    }

    /// Runs a future on this host, for [`LIMIT`] at most.
    pub(crate) fn wait<F>(&self, what: &str, future: F) -> Result<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.within(LIMIT, what, future)
    }
}

/// What joins the client and its network.
enum Cable {
    Emulated(Link),
    /// As fast as the machine.
    Direct(DirectLink),
}

impl Cable {
    fn interface(&self, host: &Host) -> &whimbrel_lab::End {
        match self {
            Self::Emulated(link) => link.end(host),
            Self::Direct(link) => link.end(host),
        }
    }
}

/// A host more behind the router, joined by a cable that is as fast as the machine.
pub(crate) struct Attached {
    pub(crate) site: Site,
    _cable: DirectLink,
}

/// The network. Fields are dropped in this order.
pub(crate) struct TwoLinks {
    pub(crate) client: Site,
    pub(crate) server: Site,
    interfaces: [Mutex<Interface>; 2],
    cables: [Cable; 2],
    router: Host,
    lab: Lab,
}

impl TwoLinks {
    /// The first link is the one that the client's kernel prefers.
    pub(crate) fn new(accesses: &[Access; 2]) -> Result<Self> {
        let link = |lab: &Lab, client: &Host, router: &Host, number: usize| -> Result<Cable> {
            let Access { name, spec } = &accesses[number];
            let spec = spec.clone().interface_names(name, &format!("to-{name}"));
            Ok(Cable::Emulated(lab.link(client, router, spec)?))
        };
        Self::build(link)
    }

    /// Both links as fast as the machine, without delay.
    pub(crate) fn unlimited() -> Result<Self> {
        let link = |lab: &Lab, client: &Host, router: &Host, _| -> Result<Cable> {
            Ok(Cable::Direct(lab.direct_link(client, router, LinkSpec::default())?))
        };
        Self::build(link)
    }

    fn build(link: impl Fn(&Lab, &Host, &Host, usize) -> Result<Cable>) -> Result<Self> {
        let lab = Lab::new()?.with_tables(TABLE);
        let (client, server, router) = (lab.host("client")?, lab.host("server")?, lab.router("router")?);
        [&client, &server].into_iter().for_each(|host| host.set_congestion_control(CONGESTION_CONTROL));
        let mut cables = Vec::new();
        for number in 0..2 {
            let cable = link(&lab, &client, &router, number)?;
            cable.interface(&router).add_address(&format!("{}/24", gateway(number)))?;
            let end = cable.interface(&client);
            end.add_address(&format!("{}/24", address(number)))?;
            end.add_default_route(&gateway(number).to_string(), number as u32 + 1)?;
            let table = number as u8 + 1;
            client.add_source_route(end.name(), address(number).into(), gateway(number).into(), table)?;
            cables.push(cable);
        }
        let cable = lab.direct_link(&router, &server, LinkSpec::default())?;
        cable.end(&router).add_address("10.0.9.1/24")?;
        cable.end(&server).add_address(&format!("{SERVER}/24"))?;
        cable.end(&server).add_default_route("10.0.9.1", 1)?;
        let cables: [Cable; 2] = cables.try_into().ok().context("two cables")?;
        let open = |number: usize| Interface::open(&client, cables[number].interface(&client).name());
        let interfaces = [Mutex::new(open(0)?), Mutex::new(open(1)?)];
        let [client, server] = [Site::new(client)?, Site::new(server)?];
        Ok(Self { client, server, interfaces, cables, router, lab })
    }

    /// Adds one more host behind the router, where the server is too; once.
    pub(crate) fn attach(&self, name: &str) -> Result<Attached> {
        let host = self.lab.host(name)?;
        host.set_congestion_control(CONGESTION_CONTROL);
        let cable = self.lab.direct_link(&self.router, &host, LinkSpec::default())?;
        cable.end(&self.router).add_address("10.0.8.1/24")?;
        cable.end(&host).add_address(&format!("{ATTACHED}/24"))?;
        cable.end(&host).add_default_route("10.0.8.1", 1)?;
        Ok(Attached { site: Site::new(host)?, _cable: cable })
    }

    /// The client's address on a link.
    pub(crate) fn address(&self, link: usize) -> IpAddr {
        address(link).into()
    }

    pub(crate) fn server_address(&self, port: u16) -> SocketAddr {
        (SERVER, port).into()
    }

    /// The name of the client's interface on a link.
    pub(crate) fn interface(&self, link: usize) -> &str {
        self.cables[link].interface(&self.client.host).name()
    }

    /// The kernel's MPTCP opens a subflow on each link; the second one may be a backup.
    pub(crate) fn allow_mptcp(&self, second: MptcpUse) -> Result<()> {
        [&self.client, &self.server].iter().try_for_each(|site| site.host.allow_mptcp(SUBFLOWS))?;
        for (number, for_what) in [MptcpUse::Subflow, second].into_iter().enumerate() {
            self.client.host.add_mptcp_endpoint(
                mptcp_id(number),
                self.address(number),
                self.interface(number),
                for_what,
            )?;
        }
        Ok(())
    }

    /// What a host's network manager tells the kernel's MPTCP when it has seen that a link is lost; the
    /// kernel itself does not look.
    pub(crate) fn tell_mptcp_of_loss(&self, link: usize) -> Result<()> {
        Ok(self.client.host.del_mptcp_endpoint(mptcp_id(link))?)
    }

    /// … and that it is back.
    pub(crate) fn tell_mptcp_of_return(&self, link: usize, for_what: MptcpUse) -> Result<()> {
        let host = &self.client.host;
        Ok(host.add_mptcp_endpoint(mptcp_id(link), self.address(link), self.interface(link), for_what)?)
    }

    /// The emulated link; there is none if both are unlimited.
    pub(crate) fn link(&self, link: usize) -> Option<&Link> {
        match &self.cables[link] {
            Cable::Emulated(link) => Some(link),
            Cable::Direct(_) => None,
        }
    }

    /// Loses a link. Returns the moment just before.
    pub(crate) fn lose(&self, number: usize, how: Loss) -> Result<Instant> {
        let link = self.link(number).context("unlimited links cannot be lost")?;
        let now = Instant::now();
        match how {
            Loss::Down => self.lock(number).set_down()?,
            Loss::Blackhole => link.set_blackhole(Direction::Both, true),
            Loss::AddressRemoved => self.lock(number).del_address(address(number))?,
        }
        Ok(now)
    }

    /// Ends the loss of a link. Returns the moment from which it can be used.
    pub(crate) fn bring_back(&self, number: usize, how: Loss) -> Result<Instant> {
        let link = self.link(number).context("unlimited links cannot be lost")?;
        match how {
            Loss::Blackhole => link.set_blackhole(Direction::Both, false),
            // The routes went as well.
            Loss::Down | Loss::AddressRemoved => self.client.host.restore(self.interface(number))?,
        }
        Ok(Instant::now())
    }

    /// Bytes that a link has carried so far, up and down.
    pub(crate) fn carried(&self, number: usize) -> [u64; 2] {
        let Some(link) = self.link(number) else { return [0; 2] };
        [Direction::Forward, Direction::Backward].map(|direction| link.stats(direction).bytes)
    }

    fn lock(&self, number: usize) -> std::sync::MutexGuard<'_, Interface> {
        self.interfaces[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, link as u8 + 1, 2)
}

fn gateway(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, link as u8 + 1, 1)
}

fn mptcp_id(link: usize) -> u8 {
    link as u8 + 1
}
