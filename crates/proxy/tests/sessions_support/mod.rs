//! A gateway between real endpoints, devices, their programs, and an ordinary server.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

pub mod hand;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use whimbrel::{Allow, Connection, Endpoint, EndpointId, ListenOptions, ManualMonitor};
use whimbrel_proxy::{
    Attached, Destination, Gateway, GatewayServer, Guard, Listed, Opening, Outcome, Quota, Rules, Served,
    SessionId, SessionSettings, SessionsAt, Streams, Takers, Upstream as _,
};

/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(60);

pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// Bytes that are the same for the same seed, and never repeat.
pub fn random(seed: u64, size: usize) -> Arc<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1);
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    Arc::new(words.take(size.div_ceil(8)).flatten().take(size).collect())
}

/// Settings with which a busy machine's devices are waited for.
pub fn patient() -> SessionSettings {
    let mut settings = SessionSettings::default();
    (settings.pause, settings.most_pause, settings.confirm) = (LIMIT, LIMIT, LIMIT);
    settings
}

/// A gateway, and a network of its own.
pub struct Stage {
    net: u8,
    gateway: Endpoint,
}

impl Stage {
    pub async fn new(net: u8) -> Self {
        Self::with(net, patient()).await
    }

    pub async fn with(net: u8, settings: SessionSettings) -> Self {
        Self::with_quota(net, settings, Quota::new(64, 256)).await
    }

    pub async fn with_quota(net: u8, settings: SessionSettings, quota: Quota<EndpointId>) -> Self {
        let gateway = endpoint(net, 1).await.0;
        let mut listener = gateway.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let rules = Rules::new(vec!["127.0.0.0/8".parse().unwrap()], false);
        let server = GatewayServer::new(Guard::new(rules), quota).with_sessions(settings);
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                tokio::spawn(serve(server.clone(), connection));
            }
        });
        Self { net, gateway }
    }

    /// A device at this address, which lets these take its sessions.
    pub async fn device(&self, host: u8, takers: &[EndpointId]) -> Device {
        let (endpoint, monitor) = endpoint(self.net, host).await;
        let connection =
            within("a device connects", endpoint.connect(self.gateway.ticket(None))).await.unwrap();
        let streams = Arc::new(On(connection.clone()));
        let takers = Takers::new(takers.iter().copied());
        let gateway = Gateway::new(streams.clone()).with_sessions(takers.clone());
        Device { endpoint, monitor, connection, gateway, sessions: SessionsAt::new(streams), takers }
    }
}

pub async fn endpoint(net: u8, host: u8) -> (Endpoint, ManualMonitor) {
    let monitor = ManualMonitor::new([IpAddr::from([127, 0, net, host])]);
    (Endpoint::builder().monitor(monitor.clone()).bind().await.unwrap(), monitor)
}

async fn serve(server: GatewayServer, connection: Connection) {
    while let Ok(stream) = connection.accept_stream().await {
        let server = server.clone();
        tokio::spawn(async move {
            if let Ok(Served::Joined(mut stream, mut joined)) = server.serve(stream).await {
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut joined.socket).await;
            }
        });
    }
}

pub struct On(pub Connection);

impl Streams for On {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { self.0.open_stream().await.map_err(|error| error.to_string()) })
    }
}

/// One device.
pub struct Device {
    pub endpoint: Endpoint,
    pub monitor: ManualMonitor,
    pub connection: Connection,
    pub gateway: Gateway,
    pub sessions: SessionsAt,
    pub takers: Takers,
}

/// A program on a device that has a session.
pub struct Program {
    pub id: SessionId,
    /// The offset of the first byte that it gets.
    pub offset: u64,
    pub socket: TcpStream,
    pub carrying: JoinHandle<std::io::Result<Outcome>>,
}

impl Device {
    pub fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// A program's connection to a server.
    pub async fn open(&self, to: SocketAddr) -> Program {
        let to: Destination = to.to_string().parse().unwrap();
        let opened = within("a session opens", self.gateway.session(&to).unwrap()).await.unwrap();
        program(opened.unwrap().0).await
    }

    /// What the gateway tells of a session.
    pub async fn listed(&self, id: SessionId) -> Option<Listed> {
        let all = within("a list comes", self.sessions.list()).await.unwrap();
        all.into_iter().find(|listed| listed.id == id)
    }

    /// Waits until the gateway tells so of a session.
    pub async fn wait_for(&self, id: SessionId, what: &str, is: impl Fn(Option<&Listed>) -> bool) {
        let begun = Instant::now();
        loop {
            let listed = self.listed(id).await;
            if is(listed.as_ref()) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{what}: {listed:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it has no path to the gateway.
    pub async fn is_unreachable(&self) {
        let begun = Instant::now();
        while self.connection.stats().unreachable.is_none() {
            assert!(begun.elapsed() < LIMIT, "it still has a path");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets another device take a session.
    pub async fn hand_off(&self, id: SessionId, to: &Device) {
        let moves = self.listed(id).await.expect("it has it").moves;
        let said = self.sessions.hand_off((id, moves), to.id(), Duration::from_secs(60));
        within("a word is heard", said).await.unwrap();
    }

    /// Takes a session. The program is there when it comes.
    pub async fn take(&self, id: SessionId) -> Program {
        let moves = self.listed(id).await.expect("it may be taken").moves;
        let taken = self.sessions.take(id, moves, self.takers.clone());
        let program = program(within("a session is taken", taken).await.unwrap()).await;
        // It may be over by now.
        self.wait_for(id, "it is confirmed", |it| it.is_none_or(|it| it.moves > moves)).await;
        program
    }
}

/// Hooks a program up.
pub async fn program(attached: Attached) -> Program {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let accepted = listener.accept().await.unwrap().0;
    let (id, offset) = (attached.id(), attached.offset());
    let carrying = tokio::spawn(attached.carry(accepted, Vec::new()));
    Program { id, offset, socket, carrying }
}

impl Program {
    pub async fn read(&mut self, size: usize) -> Vec<u8> {
        let mut some = vec![0; size];
        within("bytes come", self.socket.read_exact(&mut some)).await.unwrap();
        some
    }

    /// All until the connection ends, and whether that is in order.
    pub async fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        let result = within("an end comes", self.socket.read_to_end(&mut all)).await;
        (all, result.is_ok())
    }

    /// How carrying ended.
    pub async fn outcome(self) -> Outcome {
        drop(self.socket);
        within("carrying ends", self.carrying).await.unwrap().unwrap()
    }
}

/// An ordinary server: it sends bytes, and hears what it is sent until that ends.
pub struct Server {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
    heard: Arc<Mutex<Vec<u8>>>,
    ended: Arc<Mutex<Option<bool>>>,
    /// How much it may send, in all.
    pub open: tokio::sync::watch::Sender<usize>,
}

impl Server {
    /// One that sends all of these, and ends its direction then.
    pub async fn new(bytes: Arc<Vec<u8>>) -> Self {
        let all = bytes.len();
        Self::up_to(bytes, all).await
    }

    /// One that sends no more for now.
    pub async fn up_to(bytes: Arc<Vec<u8>>, first: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (open, may) = tokio::sync::watch::channel(first);
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            sent: Arc::default(),
            heard: Arc::default(),
            ended: Arc::default(),
            open,
        };
        let (connections, sent) = (server.connections.clone(), server.sent.clone());
        let (heard, ended) = (server.heard.clone(), server.ended.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let (read, write) = socket.into_split();
                tokio::spawn(send(write, bytes.clone(), may.clone(), sent.clone()));
                tokio::spawn(hear(read, heard.clone(), ended.clone()));
            }
        });
        server
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// What its socket has taken.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }

    /// Waits until it has heard so much.
    pub async fn wait_for(&self, size: usize) {
        let begun = Instant::now();
        while self.heard.lock().unwrap().len() < size {
            assert!(begun.elapsed() < LIMIT, "the server heard {}", self.heard.lock().unwrap().len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until what it hears has ended, and says whether in order.
    pub async fn end(&self) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(in_order) = *self.ended.lock().unwrap() {
                return in_order;
            }
            assert!(begun.elapsed() < LIMIT, "the server hears no end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn send(
    mut socket: tokio::net::tcp::OwnedWriteHalf,
    bytes: Arc<Vec<u8>>,
    mut may: tokio::sync::watch::Receiver<usize>,
    sent: Arc<AtomicUsize>,
) {
    let mut at = 0;
    while at < bytes.len() {
        let to = (*may.borrow_and_update()).min(bytes.len());
        if at == to {
            if may.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Ok(n) = socket.write(&bytes[at..to]).await else { return };
        at += n;
        sent.store(at, Ordering::Relaxed);
    }
    let _ = socket.shutdown().await;
}

async fn hear(
    mut socket: tokio::net::tcp::OwnedReadHalf,
    heard: Arc<Mutex<Vec<u8>>>,
    ended: Arc<Mutex<Option<bool>>>,
) {
    let mut some = vec![0; 64 * 1024];
    loop {
        match socket.read(&mut some).await {
            Ok(0) => break *ended.lock().unwrap() = Some(true),
            Ok(n) => heard.lock().unwrap().extend_from_slice(&some[..n]),
            Err(_) => break *ended.lock().unwrap() = Some(false),
        }
    }
}
