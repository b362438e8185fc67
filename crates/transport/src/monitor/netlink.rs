//! The host's real addresses, told by the Linux kernel through netlink events: no polling.

mod host;
mod messages;
mod ways;

use futures_util::FutureExt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::host::HostState;
use self::messages::{Question, Told};
use super::sleep::SleepDetector;
use crate::watch::Watch;

use super::{AddressMonitor, AddressSet, LocalAddress};

/// New addresses often come in groups (IPv4, several IPv6), microseconds apart: report them together.
/// What comes later is one more report, which costs little; waiting costs every move.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// Routes may go by the thousand, and whoever hears of one has time.
const WAYS_DEBOUNCE: Duration = Duration::from_millis(50);
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

    fn has_way(&self, from: &LocalAddress, to: IpAddr) -> bool {
        ways::has_way(from, to)
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
        // Routes are not asked for: there may be a million, and only that one came or went matters.
        self.state = self.state.emptied();
        let both = async {
            self.ask(Question::Links).await?;
            self.ask(Question::Addresses).await
        };
        tokio::time::timeout(DUMP_LIMIT, both).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    async fn ask(&mut self, question: Question) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.source.send(&question.message(self.sequence)).await?;
        while !self.receive().await? {}
        Ok(())
    }

    /// Takes what the next datagram tells. True if an answer ends with it.
    async fn receive(&mut self) -> io::Result<bool> {
        let bytes = self.source.receive().await?;
        let mut is_end = false;
        for told in messages::read(&bytes) {
            is_end |= told == Told::End;
            self.state.apply(told);
        }
        Ok(is_end)
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
        // It may have been among what was missed.
        self.state.may_have_other_ways();
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
            } else {
                let at = Instant::now() + patience(&before, &now);
                settle = Some(settle.map_or(at, |due| due.min(at)));
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

/// A lost address means that a path is lost, a route that a way out is open now: neither can wait.
fn is_urgent(before: &AddressSet, now: &AddressSet) -> bool {
    let lost = before.addresses.iter().any(|address| !now.addresses.contains(address));
    lost || now.routes != before.routes || now.wakes != before.wakes
}

/// How long news that are not urgent wait for more: if the addresses are the same, a route is gone.
fn patience(before: &AddressSet, now: &AddressSet) -> Duration {
    if before.addresses == now.addresses { WAYS_DEBOUNCE } else { DEBOUNCE }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::messages::samples;
    use super::*;

    fn set(ips: &[&str], routes: u64) -> AddressSet {
        let addresses = ips.iter().map(|ip| LocalAddress { ip: ip.parse().unwrap(), interface: None });
        AddressSet { addresses: addresses.collect(), routes, ..AddressSet::default() }
    }

    #[test]
    fn what_is_lost_and_every_way_out_is_told_at_once() {
        let before = set(&["192.0.2.1"], 1);
        assert!(is_urgent(&before, &set(&[], 1)));
        assert!(is_urgent(&before, &set(&["192.0.2.2"], 1)));
        assert!(is_urgent(&before, &set(&["192.0.2.1"], 2)));
        assert!(is_urgent(&before, &set(&["192.0.2.1", "192.0.2.2"], 2)));
        assert!(!is_urgent(&before, &set(&["192.0.2.1", "2001:db8::1"], 1)), "more may come with it");
        let without_way = AddressSet { routes_lost: 1, ..before.clone() };
        assert!(!is_urgent(&before, &without_way), "it may come back, and others may go");
        assert_eq!(patience(&before, &without_way), WAYS_DEBOUNCE);
        assert_eq!(patience(&without_way, &set(&["192.0.2.1", "2001:db8::1"], 1)), DEBOUNCE);
    }

    /// A socket by script: it answers each question for addresses with one, and fails after that.
    struct Fragile {
        address: Option<[u8; 4]>,
        answers: Vec<Vec<u8>>,
        lasts: Duration,
    }

    impl Source for Fragile {
        async fn send(&mut self, message: &[u8]) -> io::Result<()> {
            let told = match (samples::question(message).unwrap(), self.address) {
                (Question::Links, _) => samples::new_link(7, "net0"),
                (Question::Addresses, Some(ip)) => samples::new_address(7, ip),
                (Question::Addresses, None) => return Err(io::ErrorKind::BrokenPipe.into()),
            };
            self.answers.push([told, samples::done()].concat());
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

    #[tokio::test(start_paused = true)]
    async fn the_monitor_recovers_from_any_error_and_goes_on() {
        let octets = |n: u8| [192, 0, 2, n];
        let address = |n: u8| IpAddr::from(octets(n));
        let lasts = Duration::from_secs(1);
        let mut opened = 0;
        let open = move || {
            opened += 1;
            match opened {
                // No more files, and then a socket on which nothing can be asked.
                2..=4 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                5 => Ok(Fragile { address: None, answers: Vec::new(), lasts }),
                n => Ok(Fragile { address: Some(octets(n)), answers: Vec::new(), lasts }),
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
