//! A gateway that publishes, peers that have servers, and those servers: real endpoints on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use whimbrel::{Allow, Connection, Endpoint, EndpointId, ListenOptions, ManualMonitor};
use whimbrel_base::SecretKey;
use whimbrel_proxy::{
    Answer, Arrival, GatewayServer, Guard, Offering, Publications, PublishError, PublishRules,
    PublishSettings, Quota, Rules, Status,
};

/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(60);

pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_bytes(&[number; 32])
}

pub fn id(number: u8) -> EndpointId {
    key(number).id()
}

/// A gateway, in a network of its own.
pub struct Stage {
    net: u8,
    gateway: Endpoint,
    pub publications: Publications,
}

impl Stage {
    /// With these rules: what, and the number of the key that it is for.
    pub async fn new(net: u8, rules: &[(&str, u8)], set: impl FnOnce(&mut PublishSettings)) -> Self {
        let gateway = Endpoint::builder().monitor(ManualMonitor::new([ip(net, 1)])).bind().await.unwrap();
        let rules = rules.iter().map(|(what, by)| format!("{what}={}", id(*by)).parse().unwrap());
        let mut settings = PublishSettings::default();
        set(&mut settings);
        let publications = Publications::new(PublishRules::new(rules.collect()).unwrap(), settings);
        let server = GatewayServer::new(Guard::new(Rules::default()), Quota::new(64, 256));
        let server = server.with_publications(publications.clone());
        let mut listener = gateway.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    while let Ok(stream) = connection.accept_stream().await {
                        let server = server.clone();
                        tokio::spawn(async move { server.serve(stream).await.map(drop) });
                    }
                });
            }
        });
        Self { net, gateway, publications }
    }

    /// Where clients come with TLS.
    pub async fn tls(&self) -> SocketAddr {
        let listener = TcpListener::bind((ip(self.net, 1), 0)).await.unwrap();
        let (at, publications) = (listener.local_addr().unwrap(), self.publications.clone());
        tokio::spawn(async move { publications.serve_tls(listener).await });
        at
    }

    /// Where clients come with HTTP.
    pub async fn http(&self) -> SocketAddr {
        let listener = TcpListener::bind((ip(self.net, 1), 0)).await.unwrap();
        let (at, publications) = (listener.local_addr().unwrap(), self.publications.clone());
        tokio::spawn(async move { publications.serve_http(listener).await });
        at
    }

    /// A peer with this key, whose clients are passed on to `to`.
    pub async fn peer(&self, number: u8, host: u8, to: SocketAddr) -> Peer {
        let monitor = ManualMonitor::new([ip(self.net, host)]);
        let builder = Endpoint::builder().identity(key(number)).monitor(monitor.clone());
        let endpoint = builder.bind().await.unwrap();
        let connecting = endpoint.connect(self.gateway.ticket(None));
        let connection = within("a peer connects", connecting).await.unwrap();
        let came = Arc::<Mutex<Vec<Arrival>>>::default();
        tokio::spawn(serve(connection.clone(), to, came.clone()));
        Peer { net: self.net, _endpoint: endpoint, monitor, connection, came }
    }
}

pub fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 31, net, host])
}

/// A port that is free on the gateway of this network.
pub async fn free_port(net: u8) -> SocketAddr {
    TcpListener::bind((ip(net, 1), 0)).await.unwrap().local_addr().unwrap()
}

/// What a program does that exposes a server.
async fn serve(connection: Connection, to: SocketAddr, came: Arc<Mutex<Vec<Arrival>>>) {
    while let Ok(mut stream) = connection.accept_stream().await {
        let came = came.clone();
        tokio::spawn(async move {
            let arrival = Arrival::read(&mut stream).await.unwrap();
            came.lock().unwrap().push(arrival);
            match TcpStream::connect(to).await {
                Ok(mut socket) => {
                    let _ = stream.write_all(&Answer::new(Status::Connected, "").encode()).await;
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut socket).await;
                }
                Err(error) => {
                    let _ = stream.write_all(&Answer::of_io(&error).encode()).await;
                }
            }
        });
    }
}

/// A peer of the gateway.
pub struct Peer {
    net: u8,
    _endpoint: Endpoint,
    pub monitor: ManualMonitor,
    pub connection: Connection,
    came: Arc<Mutex<Vec<Arrival>>>,
}

impl Peer {
    pub async fn publish(&self, what: &str) -> Result<Offering, PublishError> {
        let stream = self.connection.open_stream().await.unwrap();
        let what = what.parse().unwrap();
        within("the gateway answers", Offering::begin(stream, &what)).await
    }

    pub fn move_to(&self, host: u8) {
        self.monitor.set([ip(self.net, host)]);
    }

    /// Who came.
    pub fn came(&self) -> Vec<Arrival> {
        self.came.lock().unwrap().clone()
    }
}

/// A server that does this with each connection.
pub async fn server<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

/// Answers each connection with what it read, once its end has come, and a word more.
pub async fn echo() -> SocketAddr {
    server(|mut socket| async move {
        let mut all = Vec::new();
        if socket.read_to_end(&mut all).await.is_ok() {
            let _ = socket.write_all(&[&all[..], b" and bye"].concat()).await;
        }
    })
    .await
}

/// A client at an address of its own, unless it is turned away at once.
pub async fn try_client(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    within("a client connects", socket.connect(to)).await
}

/// A client at an address of its own.
pub async fn client(from: IpAddr, to: SocketAddr) -> TcpStream {
    try_client(from, to).await.unwrap()
}

/// Waits until a client that says nothing is broken off: when it has connected, or while it does.
pub async fn is_broken_off(from: IpAddr, to: SocketAddr) {
    let heard = match try_client(from, to).await {
        Ok(mut client) => within("it is broken off", client.read(&mut [0; 9])).await,
        Err(error) => Err(error),
    };
    let error = heard.expect_err("it hears something, or an end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// What a client hears until the end, which may be a break.
pub async fn hears(client: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = within("it ends", client.read_to_end(&mut all)).await;
    all
}

/// Says this, and ends; what it hears.
pub async fn says(to: SocketAddr, words: &[u8]) -> Vec<u8> {
    // It may be turned away before it has said all, or as it connects.
    let Ok(mut client) = within("a client connects", TcpStream::connect(to)).await else { return Vec::new() };
    let _ = client.write_all(words).await;
    let _ = client.shutdown().await;
    hears(&mut client).await
}

/// Waits until it is so.
pub async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < LIMIT, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The beginning of TLS for this host.
pub fn client_hello(name: &str) -> Vec<u8> {
    let length = |n: usize| (n as u16).to_be_bytes();
    let server_name = [&length(name.len() + 3)[..], &[0], &length(name.len()), name.as_bytes()].concat();
    let extension = [&[0, 0][..], &length(server_name.len()), &server_name].concat();
    let begin = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    let body = [&begin[..], &length(extension.len()), &extension].concat();
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[22, 3, 1][..], &length(message.len()), &message].concat()
}
