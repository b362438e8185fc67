//! Two hosts in one network, without the Internet and without a name service.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::{Name, Record, SecretKey, SignedRecord, UnixTime};
use whimbrel_lab::{DirectLink, Lab, LinkSpec, Runtime, require};
use whimbrel_lan::{Judge, Neighbours, name_of_key};
use whimbrel_transport::{Allow, Endpoint, ListenOptions, PathState, Resolver};

const PORT: u16 = 4480;
const LIMIT: Duration = Duration::from_secs(20);

/// Two hosts and the cable between them.
struct Network {
    one: Runtime,
    other: Runtime,
    _cable: DirectLink,
    _lab: Lab,
}

impl Network {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (one, other) = (lab.host("one").unwrap(), lab.host("other").unwrap());
        let spec = LinkSpec::default().interface_names("eth0", "eth0");
        let cable = lab.direct_link(&one, &other, spec).unwrap();
        cable.end(&one).add_address("192.168.7.1/24").unwrap();
        cable.end(&other).add_address("192.168.7.2/24").unwrap();
        let (one, other) = (one.runtime(2).unwrap(), other.runtime(2).unwrap());
        Self { one, other, _cable: cable, _lab: lab }
    }
}

fn name() -> Name {
    "ada@example.org".parse().unwrap()
}

/// Lets that key have all names, and no other.
fn owned_by(key: &SecretKey) -> Judge {
    let owner = key.id();
    Arc::new(move |record| match record.authority() == owner {
        true => Ok(()),
        false => Err("the name is another key's".into()),
    })
}

async fn neighbours(owner: &SecretKey) -> Arc<Neighbours> {
    Arc::new(Neighbours::start(owned_by(owner)).unwrap())
}

async fn endpoint(key: &SecretKey, resolver: Arc<Neighbours>, port: u16) -> Endpoint {
    let builder = Endpoint::builder().secret_key(key.clone()).port(port).resolver(resolver);
    builder.bind().await.unwrap()
}

/// Takes one connection, and echoes what comes on its first stream.
async fn echo(endpoint: Endpoint, options: ListenOptions) {
    let mut listener = endpoint.listen(options.allow(Allow::Any)).await.unwrap();
    let connection = listener.accept().await.unwrap();
    let mut stream = connection.accept_stream().await.unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.unwrap();
    stream.write_all(&text).await.unwrap();
    // Until the peer has read it.
    let _ = stream.read(&mut text).await;
    std::future::pending::<()>().await;
}

async fn is_echoed(connection: &whimbrel_transport::Connection) {
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"hello");
}

#[test]
fn two_hosts_find_each_other_by_name_and_by_key_without_a_service() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let (server, client) = (SecretKey::generate(), SecretKey::generate());
    let endpoint_there =
        network.other.block_on(async { endpoint(&server, neighbours(&server).await, 0).await });
    network.other.spawn(echo(endpoint_there, ListenOptions::named(name())));
    network.one.block_on(async {
        let by_name = async {
            let client = endpoint(&client, neighbours(&server).await, 0).await;
            let connection = client.connect(name()).await.unwrap();
            assert_eq!(connection.peer_id(), server.id());
            is_echoed(&connection).await;
            let found = neighbours(&server).await.find(server.id()).await.unwrap();
            assert!(found.addrs.iter().all(|at| at.ip().to_string() == "192.168.7.2"), "{found:?}");
        };
        tokio::time::timeout(LIMIT, by_name).await.expect("nobody is found");
    });
}

#[test]
fn an_endpoint_without_a_name_is_found_by_its_key_until_it_says_good_bye() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let (server, client) = (SecretKey::generate(), SecretKey::generate());
    let (telling, announcement, there) = network.other.block_on(async {
        let telling = neighbours(&server).await;
        let there = Endpoint::builder().secret_key(server.clone()).bind().await.unwrap();
        let name = name_of_key(server.id()).unwrap();
        (telling.clone(), telling.announce(there.clone(), server.clone(), name), there)
    });
    network.other.spawn(echo(there, ListenOptions::unnamed()));
    let heard = network.one.block_on(async {
        let heard = neighbours(&client).await;
        let client = endpoint(&client, heard.clone(), 0).await;
        let connecting = tokio::time::timeout(LIMIT, client.connect(server.id()));
        is_echoed(&connecting.await.expect("nobody is found").unwrap()).await;
        heard
    });
    network.other.block_on(async {
        drop(announcement);
        telling.close().await;
    });
    network.one.block_on(async {
        let gone = async { while heard.find(server.id()).await.is_ok() {} };
        tokio::time::timeout(LIMIT, gone).await.expect("it is still told");
    });
}

/// Signs that `key` is reached under the name at an address.
fn record(key: &SecretKey, at: SocketAddr) -> SignedRecord {
    let now = UnixTime::from(SystemTime::now());
    let record = Record {
        name: name(),
        id: key.id(),
        addrs: vec![at],
        sequence: now.as_millis(),
        expires: now.saturating_add(Duration::from_secs(600)),
        lifetime: Duration::from_secs(600),
        revoked: false,
    };
    SignedRecord::sign(record, key, None).unwrap()
}

#[test]
fn a_forged_answer_leads_nowhere() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let [victim, attacker, client] = [(); 3].map(|()| SecretKey::generate());
    let here: SocketAddr = "192.168.7.2:4480".parse().unwrap();
    // The attacker listens where it says that the victim is: by the victim's own record of some time ago.
    let there =
        network.other.block_on(async { endpoint(&attacker, neighbours(&attacker).await, PORT).await });
    network.other.spawn(echo(there, ListenOptions::unnamed()));
    let telling = network.other.block_on(async {
        let telling = neighbours(&attacker).await;
        telling.publish(record(&attacker, here)).await.unwrap();
        telling
    });
    network.one.block_on(async {
        let client = endpoint(&client, neighbours(&victim).await, 0).await;
        let error = client.connect(name()).await.unwrap_err().to_string();
        assert!(error.contains("another key's"), "a record of another key: {error}");
        telling.publish(record(&victim, here)).await.unwrap();
        let connected = tokio::time::timeout(Duration::from_secs(6), client.connect(name())).await;
        assert!(!matches!(connected, Ok(Ok(_))), "the machine there does not have the victim's key");
        // It may be dialled again at this very moment.
        let connections = client.connections();
        let mut paths = connections.iter().flat_map(|connection| &connection.stats.paths);
        assert!(paths.all(|path| path.state == PathState::Opening), "{connections:?}");
    });
}

#[test]
fn on_an_interface_that_is_left_alone_nothing_is_told_and_nothing_is_heard() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let server = SecretKey::generate();
    let here: SocketAddr = "192.168.7.2:4480".parse().unwrap();
    let found = |tells: bool, hears: bool| {
        let telling = network.other.block_on(async {
            let left_alone = move |interface: &str| interface == "eth0" && !tells;
            let telling = Neighbours::start_but(owned_by(&server), left_alone).unwrap();
            telling.tell(&record(&server, here)).unwrap();
            telling
        });
        let found = network.one.block_on(async {
            let left_alone = move |interface: &str| interface == "eth0" && !hears;
            let hearing = Neighbours::start_but(owned_by(&server), left_alone).unwrap();
            let (begun, mut found) = (Instant::now(), hearing.claims(&name()).await.len());
            // A busy machine may need longer.
            while tells && hears && found == 0 && begun.elapsed() < LIMIT {
                found = hearing.claims(&name()).await.len();
            }
            hearing.close().await;
            found
        });
        network.other.block_on(async { telling.close().await });
        found
    };
    assert_eq!([found(true, true), found(false, true), found(true, false)], [1, 0, 0]);
}
