//! Relays, servers and clients on loopback addresses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use whimbrel_base::relayed::{Place, places};
use whimbrel_base::{EndpointAddr, RelayToken, SecretKey};
use whimbrel_relay::{Directory, Keeper, Limits, Relay, Roster, Salt, pool};
use whimbrel_transport::{
    Allow, Carriers, Config, Connection, Endpoint, ListenOptions, Listener, ManualMonitor, Timeouts,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Addresses of one test, by host.
pub(crate) fn ip(test: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 0, test, host])
}

pub(crate) async fn endpoint(test: u8, host: u8) -> Endpoint {
    endpoint_at(ManualMonitor::new([ip(test, host)]), Carriers::Auto).await
}

pub(crate) async fn endpoint_at(monitor: ManualMonitor, carriers: Carriers) -> Endpoint {
    endpoint_with(monitor, Config { carriers, ..Config::default() }).await
}

/// One that stays with its path on a busy machine, too, where all stands still for a while.
pub(crate) async fn patient_at(monitor: ManualMonitor, carriers: Carriers) -> Endpoint {
    let timeouts = Timeouts { suspect_least: Duration::from_secs(10), ..Timeouts::default() };
    endpoint_with(monitor, Config { carriers, timeouts, ..Config::default() }).await
}

async fn endpoint_with(monitor: ManualMonitor, config: Config) -> Endpoint {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    // On this host everybody could be dialled.
    let config = Config { direct_paths: false, ..config };
    Endpoint::builder().monitor(monitor).config(config).bind().await.unwrap()
}

pub(crate) async fn relay(test: u8, host: u8, allow: Allow, limits: Limits) -> Relay {
    let monitor = ManualMonitor::new([ip(test, host)]);
    let mut config = Relay::config();
    config.handshake_timeout = Duration::from_secs(1);
    let endpoint = Endpoint::builder().monitor(monitor).config(config).bind().await.unwrap();
    Relay::start(endpoint, allow, limits, Vec::new()).await.unwrap()
}

pub(crate) fn at(relay: &Relay) -> Arc<dyn Directory> {
    Arc::new(relay.endpoint().addr())
}

/// A server that echoes, with reservations.
pub(crate) struct Served {
    pub(crate) endpoint: Endpoint,
    pub(crate) keeper: Keeper,
    /// What it tells its relays of how its token is made.
    pub(crate) salt: Salt,
    /// Connections that its listener was given.
    pub(crate) accepted: Arc<AtomicUsize>,
}

impl Served {
    pub(crate) async fn start(test: u8, host: u8, relays: Vec<Arc<dyn Directory>>) -> Self {
        Self::start_with(ManualMonitor::new([ip(test, host)]), Config::default(), |_| relays).await
    }

    /// Told to nobody but behind its relays: on this host, clients would find it wherever it says that it is.
    pub(crate) async fn start_behind(monitor: ManualMonitor, relays: Vec<Arc<dyn Directory>>) -> Self {
        let config = Config { private_addresses: false, ..Config::default() };
        Self::start_with(monitor, config, |_| relays).await
    }

    /// With limits of its own for those who come.
    pub(crate) async fn start_limited(
        test: u8,
        host: u8,
        relays: Vec<Arc<dyn Directory>>,
        config: Config,
    ) -> Self {
        Self::start_with(ManualMonitor::new([ip(test, host)]), config, |_| relays).await
    }

    /// With so many relays of a group.
    pub(crate) async fn start_seats(test: u8, host: u8, group: Arc<dyn Roster>, count: usize) -> Self {
        let seats = |endpoint: &Endpoint| pool::seats(endpoint.clone(), group, count);
        Self::start_with(ManualMonitor::new([ip(test, host)]), Config::default(), seats).await
    }

    async fn start_with(
        monitor: ManualMonitor,
        config: Config,
        relays: impl FnOnce(&Endpoint) -> Vec<Arc<dyn Directory>>,
    ) -> Self {
        let key = SecretKey::generate();
        let builder = Endpoint::builder().secret_key(key.clone()).monitor(monitor).config(config);
        let endpoint = builder.bind().await.unwrap();
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        tokio::spawn(echo(listener, accepted.clone()));
        let relays = relays(&endpoint);
        let keeper = Keeper::start(endpoint.clone(), &key, relays);
        Self { endpoint, keeper, salt: Salt::of(&key), accepted }
    }

    pub(crate) async fn held(&self, count: usize) {
        let mut news = self.keeper.news();
        timeout(LIMIT, news.wait_for(|now| now.held == count)).await.expect("no reservation").unwrap();
    }

    /// Where it is behind its relays, and nowhere else.
    pub(crate) fn behind(&self) -> EndpointAddr {
        let all = self.endpoint.addr();
        let relayed = places(&all.addrs).into_iter().filter_map(|place| match place {
            Place::Relayed(relayed) => Some(relayed.pack()),
            Place::Direct(_) => None,
        });
        EndpointAddr::new(all.id, relayed.flatten())
    }

    pub(crate) fn token(&self) -> RelayToken {
        match places(&self.behind().addrs)[..] {
            [Place::Relayed(relayed), ..] => relayed.token,
            _ => panic!("no reservation"),
        }
    }
}

async fn echo(mut listener: Listener, accepted: Arc<AtomicUsize>) {
    while let Some(connection) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            while let Ok(stream) = connection.accept_stream().await {
                let (mut read, mut write) = stream.into_split();
                tokio::spawn(async move {
                    tokio::io::copy(&mut read, &mut write).await.unwrap();
                    write.shutdown().await.unwrap();
                });
            }
        });
    }
}

/// So many bytes there and back, compared.
pub(crate) async fn round_trip(connection: &Connection, size: usize) {
    let sent: Vec<u8> = (0..size).map(|n| (n % 253) as u8).collect();
    let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    timeout(LIMIT, read.read_to_end(&mut back)).await.expect("nothing comes back").unwrap();
    assert!(back == expected, "{} bytes came back", back.len());
    writing.await.unwrap();
}
