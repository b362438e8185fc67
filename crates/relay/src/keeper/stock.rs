//! Spares: TCP connections to the relay that wait until it has a client for them.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_base::RelayedAddr;
use whimbrel_transport::{AddressSet, Endpoint, Locator, Watch, Watched};

use super::{is_gone, relay_of};
use crate::spare::{Key, Offer, START, decode_start};
use crate::splice::tune_waiting;

/// To connect takes no longer.
const DIAL: Duration = Duration::from_secs(10);
/// The rest of the relay's word comes this soon behind its first byte.
const WORD: Duration = Duration::from_secs(10);
/// Connections that are being made at once, whatever the relay wants.
const MAX_DIALLING: usize = 64;
/// Spares that are made and wait, whatever the relay wants: each holds a connection of this host, and perhaps
/// of its network's proxy.
const MAX_SPARES: usize = 256;
/// After a spare that could not be made, or that the relay did not keep.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// For so long no spare could be opened before that is told: a relay that has died is noticed sooner, by the
/// heartbeat of the control connection.
const LASTING: Duration = Duration::from_secs(30);

/// What spares report.
enum News {
    /// It waits at the relay.
    Offered,
    /// A client came for it.
    Started,
    /// It could not be made, or has ended. Whether it had been offered, and why it ended.
    Ended { offered: bool, why: String },
    /// The relay is reached in another way before it was made: that says nothing of either.
    Outdated,
}

/// Attempts that have failed, with none between them that did not.
struct Failing {
    since: Instant,
    /// The last one: where no spares are kept, one that failed says nothing of the time behind it.
    last: Instant,
    /// Of the last one.
    why: String,
}

/// This server's addresses by number, as the relay is told them.
#[derive(Debug)]
struct Origins {
    by_ip: HashMap<IpAddr, u32>,
    next: u32,
}

/// The spares of one relay.
pub(super) struct Stock {
    endpoint: Endpoint,
    addresses: Watch<Arc<AddressSet>>,
    origins: Arc<Mutex<Origins>>,
    /// Of the present reservation.
    key: Option<Key>,
    place: Option<RelayedAddr>,
    /// How the relay is reached, once that is known: spares go the same way.
    way: Watched<Option<Locator>>,
    wanted: usize,
    tasks: JoinSet<()>,
    reports: mpsc::UnboundedReceiver<News>,
    report: mpsc::UnboundedSender<News>,
    number: u64,
    dialling: usize,
    waiting: usize,
    pause: Duration,
    not_before: Option<Instant>,
    failing: Option<Failing>,
}

fn lock(origins: &Mutex<Origins>) -> MutexGuard<'_, Origins> {
    origins.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stock {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        // At most one report of each kind for each spare, and spares are few.
        let (report, reports) = mpsc::unbounded_channel();
        // What an earlier process of this key has called so is not meant.
        let next = u32::from_be_bytes(whimbrel_base::random_bytes());
        Self {
            addresses: endpoint.watch_addresses(),
            endpoint,
            origins: Arc::new(Mutex::new(Origins { by_ip: HashMap::new(), next })),
            key: None,
            place: None,
            way: Watched::new(None),
            wanted: 0,
            tasks: JoinSet::new(),
            reports,
            report,
            number: 0,
            dialling: 0,
            waiting: 0,
            pause: FIRST_PAUSE,
            not_before: None,
            failing: None,
        }
    }

    /// A new reservation: spares of an old one are of no use.
    pub(super) fn begin(&mut self, key: Key, spares: u16, place: RelayedAddr) {
        self.tasks.abort_all();
        let (report, reports) = mpsc::unbounded_channel();
        (self.report, self.reports) = (report, reports);
        (self.dialling, self.waiting, self.not_before, self.failing) = (0, 0, None, None);
        (self.key, self.place, self.wanted) = (Some(key), Some(place), usize::from(spares).min(MAX_SPARES));
        // It may be another relay.
        self.way.set(None);
    }

    /// How the relay is reached, as it was told last of the present reservation.
    pub(super) fn way(&self) -> Option<Locator> {
        self.way.current()
    }

    /// How the relay is reached now. Spares that are being made in another way are given up.
    pub(super) fn dial_by(&mut self, way: Locator) {
        if self.way.current() == Some(way) {
            return;
        }
        self.way.set(Some(way));
        // What failed in another way says nothing of this one.
        (self.pause, self.not_before, self.failing) = (FIRST_PAUSE, None, None);
    }

    /// Why no client can be served over TCP, if no spare could be opened for a while.
    pub(super) fn problem(&self) -> Option<String> {
        let (failing, relay) = (self.failing.as_ref()?, relay_of(self.way.current()?));
        (self.waiting == 0 && failing.last.duration_since(failing.since) >= LASTING)
            .then(|| format!("no TCP connection to {relay} can be opened: {}", failing.why))
    }

    /// So many clients wait for spares.
    pub(super) fn wanted(&mut self, count: u16) {
        // Those on their way are for them.
        let missing = usize::from(count).saturating_sub(self.dialling);
        (0..missing).for_each(|_| self.open());
    }

    /// Opens spares until there are enough, if it is known how.
    pub(super) fn fill(&mut self) {
        if self.way.current().is_none() || self.not_before.is_some_and(|at| at > Instant::now()) {
            return;
        }
        while self.dialling + self.waiting < self.wanted && self.dialling < MAX_DIALLING {
            self.open();
        }
    }

    fn open(&mut self) {
        let (Some(key), Some(place), Some(way)) = (self.key.clone(), self.place, self.way.current()) else {
            return;
        };
        if self.dialling >= MAX_DIALLING || self.dialling + self.waiting >= MAX_SPARES {
            return;
        }
        self.dialling += 1;
        let number = self.number;
        self.number += 1;
        let spare = Spare {
            endpoint: self.endpoint.clone(),
            addresses: self.addresses.clone(),
            origins: self.origins.clone(),
            key,
            place,
            way,
            present: self.way.watch(),
            number,
            report: self.report.clone(),
        };
        self.tasks.spawn(FutureExt::boxed(spare.run()));
    }

    /// Waits until something is to be done: then spares are to be [filled](Self::fill) up. Returns what the relay
    /// is to be told: addresses that this server has left. Cancel-safe.
    pub(super) async fn news(&mut self) -> Vec<u32> {
        while self.tasks.try_join_next().is_some() {}
        let retry = async {
            match self.not_before.filter(|at| *at > Instant::now()) {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(news) = self.reports.recv() => {
                self.note(&news);
                // What came with it follows at once, so that all of it is acted upon once.
                while let Ok(news) = self.reports.try_recv() {
                    self.note(&news);
                }
                Vec::new()
            }
            Some(set) = self.addresses.changed() => {
                (self.pause, self.not_before, self.failing) = (FIRST_PAUSE, None, None);
                let mut origins = lock(&self.origins);
                origins.by_ip.extract_if(|ip, _| is_gone(&set, *ip)).map(|(_, origin)| origin).collect()
            }
            () = retry => Vec::new(),
        }
    }

    fn note(&mut self, news: &News) {
        match news {
            News::Offered => {
                self.dialling = self.dialling.saturating_sub(1);
                self.waiting += 1;
                self.failing = None;
            }
            News::Started => {
                self.waiting = self.waiting.saturating_sub(1);
                self.pause = FIRST_PAUSE;
            }
            News::Ended { offered, why } => {
                if !*offered {
                    let last = Instant::now();
                    let since = self.failing.as_ref().map_or(last, |failing| failing.since);
                    self.failing = Some(Failing { since, last, why: why.clone() });
                }
                let count = if *offered { &mut self.waiting } else { &mut self.dialling };
                *count = count.saturating_sub(1);
                self.not_before = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
            News::Outdated => self.dialling = self.dialling.saturating_sub(1),
        }
    }
}

/// One connection to the relay.
struct Spare {
    endpoint: Endpoint,
    addresses: Watch<Arc<AddressSet>>,
    origins: Arc<Mutex<Origins>>,
    key: Key,
    place: RelayedAddr,
    way: Locator,
    /// How the relay is reached by now.
    present: Watch<Option<Locator>>,
    number: u64,
    report: mpsc::UnboundedSender<News>,
}

impl Spare {
    async fn run(self) {
        let mut present = self.present.clone();
        let connected = tokio::select! {
            connected = tokio::time::timeout(DIAL, self.endpoint.connect_tcp(self.way)) => connected,
            Some(_) = present.wait_for(|now| *now != Some(self.way)) => {
                let _ = self.report.send(News::Outdated);
                return;
            }
        };
        let mut offered = false;
        let served = match connected {
            Ok(Ok(connected)) => self.serve(connected.socket, &mut offered).await,
            Ok(Err(error)) => Err(error),
            Err(elapsed) => Err(elapsed.into()),
        };
        if let Err(error) = served {
            tracing::debug!(way = %self.way, number = self.number, %error, "spare over");
            let _ = self.report.send(News::Ended { offered, why: error.to_string() });
        }
    }

    async fn serve(&self, mut socket: TcpStream, offered: &mut bool) -> io::Result<()> {
        tune_waiting(&socket)?;
        let local = socket.local_addr()?.ip().to_canonical();
        let offer = Offer { token: self.place.token, origin: self.origin(local), number: self.number };
        socket.write_all(&offer.encode(&self.key)).await?;
        *offered = true;
        let _ = self.report.send(News::Offered);
        let mut addresses = self.addresses.clone();
        tokio::select! {
            ready = socket.readable() => ready?,
            _ = addresses.wait_for(|set| is_gone(set, local)) => {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
        }
        let mut word = [0; START];
        tokio::time::timeout(WORD, socket.read_exact(&mut word)).await??;
        let client = decode_start(&self.key, self.number, &word)
            .ok_or_else(|| io::Error::other("the relay's word is not authentic"))?;
        self.endpoint.accept_relayed(socket, client, self.place)?;
        let _ = self.report.send(News::Started);
        Ok(())
    }

    /// The number of an address.
    fn origin(&self, ip: IpAddr) -> u32 {
        let mut origins = lock(&self.origins);
        let next = origins.next;
        let origin = *origins.by_ip.entry(ip).or_insert(next);
        if origin == next {
            origins.next = next.wrapping_add(1);
        }
        origin
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::OwnedFd;

    use socket2::{Domain, Socket, Type};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;
    use whimbrel_base::RelayToken;
    use whimbrel_transport::ManualMonitor;

    use super::*;
    use crate::spare::OFFER;

    /// No step takes longer.
    const LIMIT: Duration = Duration::from_secs(30);

    /// A place that answers nobody for as long as these are open: as many wait there as may.
    fn silent() -> (SocketAddr, [OwnedFd; 2]) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 141, 2], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let at = listener.local_addr().unwrap().as_socket().unwrap();
        let waiting = std::net::TcpStream::connect(at).unwrap();
        (at, [listener.into(), waiting.into()])
    }

    /// A stock of a server in 127.0.141.0/24, and what takes its spares.
    async fn stock() -> (Stock, TcpListener, RelayedAddr) {
        let monitor = ManualMonitor::new([IpAddr::from([127, 0, 141, 1])]);
        let endpoint = Endpoint::builder().monitor(monitor).bind().await.unwrap();
        // As many as are ever made wait in its queue.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.141.3:0".parse().unwrap()).unwrap();
        let listener = socket.listen(2 * MAX_SPARES as u32).unwrap();
        let relay = listener.local_addr().unwrap();
        (Stock::new(endpoint), listener, RelayedAddr { relay, token: RelayToken::from_bytes([7; 10]) })
    }

    #[tokio::test]
    async fn a_spare_that_is_being_made_in_a_way_that_is_left_is_made_in_the_present_one() {
        let (mut stock, relay, place) = stock().await;
        let (silent, _open) = silent();
        stock.begin(Key::new(&[1; 32]), 1, place);
        stock.dial_by(Locator::Direct(silent));
        stock.fill();
        tokio::task::yield_now().await;
        stock.dial_by(Locator::Direct(place.relay));
        timeout(LIMIT, stock.news()).await.unwrap();
        assert_eq!(stock.dialling, 0);
        assert!(stock.failing.is_none() && stock.not_before.is_none(), "it says nothing of the present way");
        stock.fill();
        let (mut socket, _) = timeout(LIMIT, relay.accept()).await.unwrap().unwrap();
        let mut offer = [0; OFFER];
        timeout(LIMIT, socket.read_exact(&mut offer)).await.unwrap().unwrap();
        assert!(Offer::decode(&offer).is_some_and(|offer| offer.token == place.token));
    }

    #[tokio::test]
    async fn what_failed_in_another_way_holds_up_no_spare() {
        let (mut stock, relay, place) = stock().await;
        stock.begin(Key::new(&[1; 32]), 1, place);
        let why = "no route".to_owned();
        stock.note(&News::Ended { offered: false, why });
        stock.not_before = Some(Instant::now() + 2 * LIMIT);
        stock.dial_by(Locator::Direct(place.relay));
        stock.fill();
        timeout(LIMIT, relay.accept()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn no_spare_is_opened_where_the_relay_only_says_to_be() {
        let (mut stock, _relay, place) = stock().await;
        for _ in 0..2 {
            stock.begin(Key::new(&[1; 32]), 8, place);
            stock.fill();
            stock.wanted(8);
            assert_eq!(stock.dialling, 0, "it is not known how the relay is reached");
            stock.dial_by(Locator::Direct(place.relay));
            stock.fill();
            assert_eq!(stock.dialling, 8);
        }
    }

    #[tokio::test]
    async fn a_relay_that_wants_spares_without_end_gets_a_bounded_number() {
        // They wait in the listener's queue.
        let (mut stock, _relay, place) = stock().await;
        stock.begin(Key::new(&[1; 32]), u16::MAX, place);
        stock.dial_by(Locator::Direct(place.relay));
        let all_wait = async {
            while stock.waiting < MAX_SPARES {
                stock.wanted(u16::MAX);
                stock.fill();
                assert!(stock.dialling <= MAX_DIALLING && stock.dialling + stock.waiting <= MAX_SPARES);
                stock.news().await;
            }
        };
        timeout(LIMIT, all_wait).await.unwrap();
        stock.wanted(u16::MAX);
        stock.fill();
        assert_eq!((stock.dialling, stock.waiting), (0, MAX_SPARES));
    }
}
