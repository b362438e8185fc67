//! The host's real addresses, told by the Linux kernel through netlink events: no polling.

use futures_util::FutureExt;
use std::collections::{HashMap, HashSet};
use std::future::Future;
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
use crate::watch::Watch;

use super::{AddressMonitor, AddressSet, LocalAddress};

/// New addresses often come in groups (IPv4, several IPv6), microseconds apart: report them together.
/// What comes later is one more report, which costs little; waiting costs every move.
const DEBOUNCE: Duration = Duration::from_millis(2);
const SLEEP_CHECK: Duration = Duration::from_secs(2);
/// The kernel's answer takes milliseconds.
const DUMP_LIMIT: Duration = Duration::from_secs(5);
/// Between attempts to ask for everything anew. The first follows without a pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
        let mut kernel = Kernel::new(open)?;
        kernel.dump().await?;
        let (sender, receiver) = watch::channel(Arc::new(kernel.addresses()));
        let task = tokio::spawn(FutureExt::boxed(async move { kernel.run(&sender).await }));
        Ok(Self { receiver, task })
    }
}

impl Drop for NetlinkMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AddressMonitor for NetlinkMonitor {
    fn watch(&self) -> Watch<Arc<AddressSet>> {
        Watch::begin(&self.receiver)
    }
}

/// A socket that tells of addresses, links and routes.
trait Source: Send + 'static {
    fn send(&mut self, message: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// The next datagram. Cancel-safe.
    fn receive(&mut self) -> impl Future<Output = io::Result<Vec<u8>>> + Send;
}

impl Source for TokioSocket {
    async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        AsyncSocketExt::send(self, message).await.map(drop)
    }

    async fn receive(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.recv_from_full().await?.0)
    }
}

fn open() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        socket.socket_mut().add_membership(group)?;
    }
    Ok(socket)
}

struct Kernel<S, O> {
    open: O,
    source: S,
    state: HostState,
    sequence: u32,
    wakes: u64,
}

impl<S: Source, O: FnMut() -> io::Result<S>> Kernel<S, O> {
    fn new(mut open: O) -> io::Result<Self> {
        let source = open()?;
        Ok(Self { open, source, state: HostState::default(), sequence: 0, wakes: 0 })
    }

    fn addresses(&self) -> AddressSet {
        self.state.addresses(self.wakes)
    }

    /// Asks for all links, then all addresses.
    async fn dump(&mut self) -> io::Result<()> {
        // Routes are not asked for: there may be a million, and only that one was added matters.
        self.state = HostState { routes: self.state.routes, ..HostState::default() };
        let both = async {
            self.request(RouteNetlinkMessage::GetLink(LinkMessage::default())).await?;
            self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default())).await
        };
        tokio::time::timeout(DUMP_LIMIT, both).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    async fn request(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        let packet = serialize(header, NetlinkPayload::from(message));
        self.source.send(&packet).await?;
        while !self.receive().await?.done {}
        Ok(())
    }

    async fn receive(&mut self) -> io::Result<Received> {
        let bytes = self.source.receive().await?;
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

    /// Tells of changes for ever. When events are lost, or the socket fails, everything is asked for anew, on
    /// another socket, after pauses that grow as long as that fails.
    async fn run(&mut self, sender: &watch::Sender<Arc<AddressSet>>) {
        let mut sleep = SleepDetector::new();
        let mut pause = Duration::ZERO;
        loop {
            let began = Instant::now();
            let error = self.follow(sender, &mut sleep).await;
            if began.elapsed() > LONGEST_PAUSE {
                pause = Duration::ZERO;
            }
            tracing::warn!(%error, ?pause, "address events were lost; asking for all addresses");
            tokio::time::sleep(pause).await;
            while let Err(error) = self.reopen().await {
                pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                tracing::warn!(%error, ?pause, "cannot ask for addresses; moves will be noticed late");
                tokio::time::sleep(pause).await;
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
    }

    async fn reopen(&mut self) -> io::Result<()> {
        self.source = (self.open)()?;
        self.dump().await?;
        // A route that opens a way may have been among what was missed.
        self.state.routes += 1;
        Ok(())
    }

    /// Tells of changes until the socket fails.
    async fn follow(
        &mut self,
        sender: &watch::Sender<Arc<AddressSet>>,
        sleep: &mut SleepDetector,
    ) -> io::Error {
        let mut sleep_check = tokio::time::interval(SLEEP_CHECK);
        let mut settle: Option<Instant> = None;
        loop {
            let now = self.addresses();
            let before = sender.borrow().clone();
            let due = settle.is_some_and(|at| at <= Instant::now());
            if now == *before {
                settle = None;
            } else if due || is_urgent(&before, &now) {
                settle = None;
                tracing::debug!(addresses = ?now.addresses, "addresses changed");
                sender.send_replace(Arc::new(now));
            } else if settle.is_none() {
                settle = Some(Instant::now() + DEBOUNCE);
            }
            let settled = async {
                match settle {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                result = self.receive() => result.map(drop),
                () = settled => Ok(()),
                _ = sleep_check.tick() => match sleep.poll() {
                    Some(slept) => {
                        tracing::info!(?slept, "woke from sleep");
                        self.wakes += 1;
                        self.dump().await
                    }
                    None => Ok(()),
                }
            };
            if let Err(error) = result {
                return error;
            }
        }
    }
}

fn serialize(header: NetlinkHeader, payload: NetlinkPayload<RouteNetlinkMessage>) -> Vec<u8> {
    let mut packet = NetlinkMessage::new(header, payload);
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    bytes
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
    use netlink_packet_route::AddressFamily;

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

    /// A socket by script: it answers each request for addresses with one, and fails after that.
    struct Fragile {
        address: Option<IpAddr>,
        answers: Vec<Vec<u8>>,
        lasts: Duration,
    }

    impl Source for Fragile {
        async fn send(&mut self, message: &[u8]) -> io::Result<()> {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).unwrap();
            let mut answer = Vec::new();
            match (message.payload, self.address) {
                (NetlinkPayload::InnerMessage(RouteNetlinkMessage::GetLink(_)), _) => {
                    let mut link = LinkMessage::default();
                    link.header.index = 7;
                    link.header.flags = LinkFlags::Up | LinkFlags::Running;
                    link.attributes = vec![LinkAttribute::IfName("net0".into())];
                    answer.extend(part(RouteNetlinkMessage::NewLink(link)));
                }
                (_, Some(ip)) => {
                    let mut address = AddressMessage::default();
                    address.header.index = 7;
                    address.header.family = AddressFamily::Inet;
                    address.attributes = vec![AddressAttribute::Local(ip)];
                    answer.extend(part(RouteNetlinkMessage::NewAddress(address)));
                }
                (_, None) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
            let done = NetlinkPayload::Done(netlink_packet_core::DoneMessage::default());
            answer.extend(serialize(NetlinkHeader::default(), done));
            self.answers.push(answer);
            Ok(())
        }

        async fn receive(&mut self) -> io::Result<Vec<u8>> {
            if let Some(answer) = self.answers.pop() {
                return Ok(answer);
            }
            tokio::time::sleep(self.lasts).await;
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        }
    }

    fn part(message: RouteNetlinkMessage) -> Vec<u8> {
        serialize(NetlinkHeader::default(), NetlinkPayload::from(message))
    }

    #[tokio::test(start_paused = true)]
    async fn the_monitor_recovers_from_any_error_and_goes_on() {
        let address = |n: u8| IpAddr::from([192, 0, 2, n]);
        let lasts = Duration::from_secs(1);
        let mut opened = 0;
        let open = move || {
            opened += 1;
            match opened {
                // No more files, and then a socket on which nothing can be asked.
                2..=4 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                5 => Ok(Fragile { address: None, answers: Vec::new(), lasts }),
                n => Ok(Fragile { address: Some(address(n)), answers: Vec::new(), lasts }),
            }
        };
        let mut kernel = Kernel::new(open).unwrap();
        kernel.dump().await.unwrap();
        let (sender, mut receiver) = watch::channel(Arc::new(kernel.addresses()));
        assert!(receiver.borrow().contains(address(1)));
        let task = tokio::spawn(async move { kernel.run(&sender).await });
        let began = Instant::now();
        for n in [6, 7, 8] {
            receiver.changed().await.unwrap();
            let now = receiver.borrow_and_update().clone();
            assert!(now.contains(address(n)) && !now.contains(address(n - 1)), "{n}: {now:?}");
            assert_eq!(now.routes, u64::from(n) - 5, "a way may have been opened unseen");
        }
        assert!(began.elapsed() < Duration::from_secs(30));
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_says_nothing_but_errors_is_asked_seldom() {
        let opened = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = opened.clone();
        let open = move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Fragile { address: None, answers: Vec::new(), lasts: Duration::ZERO })
        };
        let mut kernel = Kernel::new(open).unwrap();
        let (sender, _receiver) = watch::channel(Arc::new(kernel.addresses()));
        let run = tokio::time::timeout(Duration::from_secs(600), kernel.run(&sender));
        assert!(run.await.is_err());
        let opened = opened.load(std::sync::atomic::Ordering::Relaxed);
        assert!((50..100).contains(&opened), "{opened}");
    }
}
