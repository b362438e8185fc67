//! The host's real addresses, told by the Linux kernel through netlink events: no polling.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteFlags, RouteMessage, RouteProtocol, RouteType};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::sleep::SleepDetector;
use super::{AddressMonitor, AddressSet, LocalAddress};

/// New addresses often come in groups (IPv4, several IPv6), microseconds apart: report them together.
/// What comes later is one more report, which costs little; waiting costs every move.
const DEBOUNCE: Duration = Duration::from_millis(2);
const SLEEP_CHECK: Duration = Duration::from_secs(2);

// Multicast groups of rtnetlink(7): RTNLGRP_LINK, then RTNLGRP_IPV4_IFADDR and _ROUTE, then those of IPv6.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// Watches the kernel's addresses and links. Stops when dropped.
#[derive(Debug)]
pub struct NetlinkMonitor {
    receiver: watch::Receiver<Arc<AddressSet>>,
    task: JoinHandle<()>,
}

impl NetlinkMonitor {
    /// Reads the current state and starts to listen. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub async fn start() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.socket_mut().add_membership(group)?;
        }
        let mut kernel = Kernel { socket, state: HostState::default(), sequence: 0 };
        kernel.dump().await?;
        let (sender, receiver) = watch::channel(Arc::new(kernel.state.addresses(0)));
        let task = tokio::spawn(async move {
            if let Err(error) = kernel.run(&sender).await {
                tracing::error!(%error, "address events are lost; moves will be noticed late");
            }
        });
        Ok(Self { receiver, task })
    }
}

impl Drop for NetlinkMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AddressMonitor for NetlinkMonitor {
    fn watch(&self) -> watch::Receiver<Arc<AddressSet>> {
        self.receiver.clone()
    }
}

struct Kernel {
    socket: TokioSocket,
    state: HostState,
    sequence: u32,
}

impl Kernel {
    /// Asks for all links, then all addresses.
    async fn dump(&mut self) -> io::Result<()> {
        // Routes are not asked for: there may be a million, and only that one was added matters.
        self.state = HostState { routes: self.state.routes, ..HostState::default() };
        self.request(RouteNetlinkMessage::GetLink(LinkMessage::default())).await?;
        self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default())).await
    }

    async fn request(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes).await?;
        while !self.receive().await?.done {}
        Ok(())
    }

    async fn receive(&mut self) -> io::Result<Received> {
        let (bytes, _) = self.socket.recv_from_full().await?;
        let mut received = Received::default();
        let mut rest = &bytes[..];
        while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
            let (message, others) = rest.split_at(length.next_multiple_of(4).clamp(4, rest.len()));
            rest = others;
            // Newer kernels say things that this crate cannot read; what comes behind them still counts.
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else {
                continue;
            };
            match message.payload {
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => received.done = true,
                NetlinkPayload::InnerMessage(inner) => self.state.apply(inner),
                _ => {}
            }
        }
        Ok(received)
    }

    async fn run(&mut self, sender: &watch::Sender<Arc<AddressSet>>) -> io::Result<()> {
        let mut sleep = SleepDetector::new();
        let mut wakes = 0;
        let mut sleep_check = tokio::time::interval(SLEEP_CHECK);
        let mut settle: Option<Instant> = None;
        loop {
            let settled = async {
                match settle {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = self.receive() => self.recover(result).await?,
                () = settled => {}
                _ = sleep_check.tick() => {
                    if let Some(slept) = sleep.poll() {
                        tracing::info!(?slept, "woke from sleep");
                        wakes += 1;
                        self.dump().await?;
                    }
                }
            }
            let now = self.state.addresses(wakes);
            let before = sender.borrow().clone();
            if now == *before {
                settle = None;
                continue;
            }
            let due = settle.is_some_and(|at| at <= Instant::now());
            if due || is_urgent(&before, &now) {
                settle = None;
                tracing::debug!(addresses = ?now.addresses, "addresses changed");
                sender.send_replace(Arc::new(now));
            } else if settle.is_none() {
                settle = Some(Instant::now() + DEBOUNCE);
            }
        }
    }

    /// An overrun event buffer means that events were missed: ask for everything anew.
    async fn recover(&mut self, result: io::Result<Received>) -> io::Result<()> {
        match result {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.dump().await,
            result => result.map(drop),
        }
    }
}

/// A lost address means that a path is lost, a route that a way out is open now: neither can wait.
fn is_urgent(before: &AddressSet, now: &AddressSet) -> bool {
    let lost = before.addresses.iter().any(|address| !now.addresses.contains(address));
    lost || now.routes != before.routes || now.wakes != before.wakes
}

#[derive(Default)]
struct Received {
    done: bool,
}

/// What the kernel has told.
#[derive(Debug, Default)]
struct HostState {
    links: HashMap<u32, (String, bool)>,
    addresses: HashSet<(u32, IpAddr)>,
    /// Routes that were added.
    routes: u64,
}

impl HostState {
    fn apply(&mut self, message: RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewLink(link) => {
                let name = link.attributes.iter().find_map(|a| match a {
                    LinkAttribute::IfName(name) => Some(name.clone()),
                    _ => None,
                });
                let usable = link.header.flags.contains(LinkFlags::Up | LinkFlags::Running);
                self.links.insert(link.header.index, (name.unwrap_or_default(), usable));
            }
            RouteNetlinkMessage::DelLink(link) => {
                self.links.remove(&link.header.index);
                self.addresses.retain(|(index, _)| *index != link.header.index);
            }
            RouteNetlinkMessage::NewAddress(address) => {
                if let Some(ip) = ip(&address) {
                    let entry = (address.header.index, ip);
                    if is_usable(&address) {
                        self.addresses.insert(entry);
                    } else {
                        self.addresses.remove(&entry);
                    }
                }
            }
            RouteNetlinkMessage::DelAddress(address) => {
                if let Some(ip) = ip(&address) {
                    self.addresses.remove(&(address.header.index, ip));
                }
            }
            RouteNetlinkMessage::NewRoute(route) => self.routes += u64::from(opens_a_way(&route)),
            _ => {}
        }
    }

    fn addresses(&self, wakes: u64) -> AddressSet {
        let usable = self.addresses.iter().filter_map(|(index, ip)| {
            let (name, _) = self.links.get(index).filter(|(_, usable)| *usable)?;
            Some(LocalAddress { ip: *ip, interface: Some(Arc::from(name.as_str())) })
        });
        let mut addresses: Vec<LocalAddress> = usable.collect();
        addresses.sort();
        AddressSet { addresses, wakes, routes: self.routes }
    }
}

fn ip(message: &AddressMessage) -> Option<IpAddr> {
    // On point-to-point links IFA_ADDRESS is the peer's; IFA_LOCAL is ours where it exists.
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

/// A route that somebody set up, by hand or told by the network. Those that come with an address are no
/// news, and those of routing daemons come too often.
fn opens_a_way(message: &RouteMessage) -> bool {
    let header = &message.header;
    header.kind == RouteType::Unicast
        && !header.flags.contains(RouteFlags::Cloned)
        && matches!(
            header.protocol,
            RouteProtocol::Boot | RouteProtocol::Static | RouteProtocol::Ra | RouteProtocol::Dhcp
        )
}

/// A tentative IPv6 address cannot be used before duplicate detection has ended (another event).
fn is_usable(message: &AddressMessage) -> bool {
    let in_header =
        message.header.flags.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed);
    let in_attribute = message.attributes.iter().any(|a| match a {
        AddressAttribute::Flags(flags) => flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed),
        _ => false,
    });
    !(in_header || in_attribute)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn set(ips: &[&str], routes: u64) -> AddressSet {
        let addresses = ips.iter().map(|ip| LocalAddress { ip: ip.parse().unwrap(), interface: None });
        AddressSet { addresses: addresses.collect(), wakes: 0, routes }
    }

    #[test]
    fn what_is_lost_and_every_way_out_is_told_at_once() {
        let before = set(&["192.0.2.1"], 1);
        assert!(is_urgent(&before, &set(&[], 1)));
        assert!(is_urgent(&before, &set(&["192.0.2.2"], 1)));
        assert!(is_urgent(&before, &set(&["192.0.2.1"], 2)));
        assert!(is_urgent(&before, &set(&["192.0.2.1", "192.0.2.2"], 2)));
        assert!(!is_urgent(&before, &set(&["192.0.2.1", "2001:db8::1"], 1)), "more may come with it");
    }
}
