//! Two endpoints on loopback addresses that are taken away and given by hand.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::poll_fn;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use whimbrel_base::{EndpointAddr, Name, SecretKey, SignedRecord};
use whimbrel_transport::{
    Allow, Backlog, BoxFuture, CarrierKind, Carriers, Connection, ConnectionEvent, Endpoint, HandoverMode,
    ListenOptions, ManualMonitor, PathInfo, ResolveError, Resolver, Watch, Watched,
};

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 77, last])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

async fn endpoint(last: u8) -> (Endpoint, ManualMonitor) {
    log();
    let monitor = ManualMonitor::new([ip(last)]);
    (
        Endpoint::builder().secret_key(SecretKey::generate()).monitor(monitor.clone()).bind().await.unwrap(),
        monitor,
    )
}

struct Pair {
    client: Endpoint,
    client_at: ManualMonitor,
    server: Endpoint,
    server_at: ManualMonitor,
}

/// A server that echoes every stream.
async fn pair(client: u8, server: u8) -> Pair {
    let (client, client_at) = endpoint(client).await;
    let (server, server_at) = endpoint(server).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(echo(connection));
        }
    });
    Pair { client, client_at, server, server_at }
}

async fn echo(connection: Connection) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
    }
}

async fn say(stream: &mut whimbrel_transport::Stream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut back = vec![0; what.len()];
    tokio::time::timeout(Duration::from_secs(10), stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_echoes_and_closes() {
    let pair = pair(1, 2).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    assert_eq!(connection.peer_id(), pair.server.id());
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"hello").await;
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    let start = Instant::now();
    connection.close(whimbrel_transport::CloseCode::NONE, "", Duration::from_secs(5)).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn megabytes_arrive_exactly() {
    let pair = pair(3, 4).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let stream = connection.open_stream().await.unwrap();
    let data: Vec<u8> = (0..40_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut read, mut write) = stream.into_split();
    let sent = data.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.unwrap();
    writer.await.unwrap();
    assert!(back == data);
}

/// One task writes more than the buffers hold, another waits until all of it is delivered; the peer reads
/// only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_and_a_task_that_waits_for_delivery_are_both_woken() {
    const BYTES: usize = 24 << 20;
    let (client, _client_at) = endpoint(3).await;
    let (server, _server_at) = endpoint(4).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let (go, may_read) = tokio::sync::oneshot::channel::<()>();
    let reader = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().accept_stream().await.unwrap();
        may_read.await.unwrap();
        let mut all = vec![0; BYTES];
        stream.read_exact(&mut all).await.unwrap();
        stream
    });
    let connection = client.connect(server.addr()).await.unwrap();
    let stream = std::sync::Arc::new(connection.open_stream().await.unwrap());
    let writer = tokio::spawn({
        let stream = stream.clone();
        async move {
            let data = vec![7; 64 << 10];
            let mut left = BYTES;
            while left > 0 {
                let piece = &data[..left.min(data.len())];
                left -= poll_fn(|cx| stream.poll_write_bytes(cx, piece)).await.unwrap();
            }
        }
    });
    // The writer is blocked by now, and waits for room when the other task begins to wait.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!writer.is_finished(), "the buffers hold less than {BYTES} bytes");
    let mut drained = tokio::spawn({
        let stream = stream.clone();
        async move { stream.drained().await }
    });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut drained).await.is_err());
    let Backlog { unsent, unacknowledged } = stream.backlog();
    assert!(
        0 < unsent && unsent <= unacknowledged && unacknowledged < BYTES as u64,
        "{unsent} {unacknowledged}"
    );
    go.send(()).unwrap();
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, writer).await.expect("the writer is woken").unwrap();
    let delivered = tokio::time::timeout(limit, drained).await.expect("the waiting task is woken");
    delivered.unwrap().unwrap();
    // It may have been all once before, while the writer was kept waiting for a processor.
    tokio::time::timeout(limit, stream.drained()).await.expect("all is delivered").unwrap();
    assert_eq!(stream.backlog(), Backlog::default());
    drop(reader.await.unwrap());
}

/// Does what makes the connection move, and waits until it has.
async fn moved(connection: &Connection, to: IpAddr, change: impl FnOnce()) -> Duration {
    let (mut events, began) = (connection.events(), Instant::now());
    change();
    let wait = async {
        loop {
            // The path before may still be there: then nothing had to recover.
            if let ConnectionEvent::PathUp { local, remote, .. } = events.next().await.unwrap()
                && [local.ip(), remote.ip()].contains(&to)
            {
                return began.elapsed();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap()
}

/// Waits until all paths have this address at an end.
async fn only_at(connection: &Connection, ip: IpAddr) {
    let is_there = |path: &PathInfo| [path.local.ip(), path.remote.ip()].contains(&ip);
    let wait = async {
        while !connection.stats().paths.iter().all(is_there) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), wait).await.expect("another path stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_moves() {
    let pair = pair(5, 6).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    let took = moved(&connection, ip(7), || pair.client_at.set([ip(7)])).await;
    println!("client move: {took:?}");
    say(&mut stream, b"after").await;
    only_at(&connection, ip(7)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_moves() {
    let pair = pair(8, 9).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    let took = moved(&connection, ip(10), || pair.server_at.set([ip(10)])).await;
    println!("server move: {took:?}");
    say(&mut stream, b"after").await;
    only_at(&connection, ip(10)).await;
}

/// Somebody else has the port at the new address: the endpoint is heard there as soon as it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_at_the_new_address_is_tried_again() {
    let pair = pair(11, 12).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    for (last, udp) in [(13, true), (14, false)] {
        let address = std::net::SocketAddr::new(ip(last), pair.server.port());
        let datagrams = udp.then(|| std::net::UdpSocket::bind(address).unwrap());
        let streams = (!udp).then(|| std::net::TcpListener::bind(address).unwrap());
        pair.server_at.set([ip(last)]);
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop((datagrams, streams));
        // No further change of address says that it could work now.
        let limit = Duration::from_secs(5);
        let fresh = tokio::time::timeout(limit, pair.client.connect(pair.server.addr())).await;
        let fresh = fresh.expect("the endpoint is deaf").unwrap();
        say(&mut fresh.open_stream().await.unwrap(), b"fresh").await;
    }
}

/// Knows nobody, and knocks at each address that is published.
struct Knocker(mpsc::UnboundedSender<(std::net::SocketAddr, bool)>);

impl Resolver for Knocker {
    fn lookup<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
        Box::pin(std::future::ready(Err(ResolveError::NotFound)))
    }

    fn watch(&self, _: &Name) -> Watch<Option<SignedRecord>> {
        Watched::new(None).watch()
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        let address = record.record().addrs[0];
        let open = std::net::TcpStream::connect(address).is_ok();
        self.0.send((address, open)).unwrap();
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Whoever hears of a new address dials it at once, and would have to wait before it tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_is_published_only_once_the_endpoint_is_heard_there() {
    let (endpoint, at) = endpoint(20).await;
    let (sender, mut published) = mpsc::unbounded_channel();
    endpoint.set_resolver(std::sync::Arc::new(Knocker(sender)));
    let _listener =
        endpoint.listen(ListenOptions::named("anna@example.org").allow(Allow::Any)).await.unwrap();
    assert!(published.recv().await.unwrap().1);
    for last in 21..121 {
        at.set([ip(last)]);
        let next = tokio::time::timeout(Duration::from_secs(5), published.recv());
        let (address, open) = next.await.expect("not published").unwrap();
        assert_eq!(address.ip(), ip(last));
        assert!(open, "nobody listens at {address}");
    }
}

/// A connection that was being made when the server lost its address must not stay there: on a real host it
/// would carry nothing, and nobody would be told that the address is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_comes_up_on_a_lost_address_is_given_up() {
    let pair = pair(121, 122).await;
    let slow = tokio::net::TcpListener::bind((ip(123), 0)).await.unwrap();
    let way = whimbrel_base::EndpointAddr::new(pair.server.id(), [slow.local_addr().unwrap()]);
    let server = pair.server.addr().addrs[0];
    tokio::spawn(async move {
        let (mut client, _) = slow.accept().await.unwrap();
        let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    let _connection = pair.client.connect_early(way).await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    pair.server_at.set([ip(124)]);
    let start = Instant::now();
    while pair.server.connections().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5), "the client never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    while !pair.server.connections()[0].stats.paths.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(2), "a path stays on the lost address");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A server that closes cannot dial. The client's answer is swallowed and its address taken away: it must
/// come back and say again that it has heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_close_is_agreed_even_if_the_clients_answer_is_lost() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (client, client_at) = endpoint(125).await;
    let (server, _) = endpoint(126).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let hole = tokio::net::TcpListener::bind((ip(127), 0)).await.unwrap();
    let way = whimbrel_base::EndpointAddr::new(server.id(), [hole.local_addr().unwrap()]);
    let address = server.addr().addrs[0];
    let swallow = std::sync::Arc::new(AtomicBool::new(false));
    let swallows = swallow.clone();
    tokio::spawn(async move {
        let (client, _) = hole.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let server = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from_client.read(&mut piece).await {
            if !swallows.load(Ordering::SeqCst) {
                to_server.write_all(&piece[..n]).await.unwrap();
            }
        }
        // The server hears nothing of the end of this path.
        std::future::pending::<()>().await;
    });
    let at_client = client.connect(way).await.unwrap();
    let at_server = listener.accept().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    swallow.store(true, Ordering::SeqCst);
    let code = whimbrel_transport::CloseCode::application(5);
    let closing = tokio::spawn(async move { at_server.close(code, "", Duration::from_secs(10)).await });
    assert_eq!(at_client.closed().await.code, code);
    // Time for the answer to leave.
    tokio::time::sleep(Duration::from_millis(20)).await;
    client_at.set([ip(128)]);
    closing.await.unwrap().expect("the server waits for an answer that was said");
}

/// The peer is out of reach and can only be told later; nobody here waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_without_any_path_ends_what_waits_for_streams_at_once() {
    let (client, _client_at) = endpoint(129).await;
    let (server, server_at) = endpoint(130).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let at_client = client.connect(server.addr()).await.unwrap();
    let mut first = at_client.open_stream().await.unwrap();
    first.write_all(b"hello").await.unwrap();
    let connection = listener.accept().await.unwrap();
    let (mut read, mut write) = connection.accept_stream().await.unwrap().into_split();
    read.read_exact(&mut [0; 5]).await.unwrap();
    server_at.set([]);
    while !connection.stats().paths.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reading = tokio::spawn(async move { read.read(&mut [0; 5]).await.unwrap_err() });
    let writing = tokio::spawn(async move { write.write_all(&vec![0; 64 << 20]).await.unwrap_err() });
    let accepting = tokio::spawn({
        let connection = connection.clone();
        async move { connection.accept_stream().await.unwrap_err() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let code = whimbrel_transport::CloseCode::application(6);
    connection.abort(code, "enough");
    let all = async { (reading.await.unwrap(), writing.await.unwrap(), accepting.await.unwrap()) };
    let ended = tokio::time::timeout(Duration::from_secs(2), all).await;
    let (reading, writing, accepting) = ended.expect("somebody still waits");
    assert_eq!(reading.kind(), std::io::ErrorKind::ConnectionAborted);
    assert_eq!(writing.kind(), std::io::ErrorKind::ConnectionAborted);
    assert!(accepting.to_string().contains("enough"), "{accepting}");
    assert!(connection.open_stream().await.is_err());
}

/// Whoever binds to one address dials from it, in every mode and with every carrier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_bound_to_an_address_dials_from_it() {
    let Pair { server, .. } = pair(201, 202).await;
    for mode in [HandoverMode::Single, HandoverMode::Full] {
        for kind in [CarrierKind::Tcp, CarrierKind::Quic] {
            let builder = Endpoint::builder().ip(ip(203)).handover(mode).carriers(Carriers::Only(kind));
            let client = builder.bind().await.unwrap();
            let connection = client.connect(server.addr()).await.unwrap();
            let paths = connection.stats().paths;
            assert!(paths.iter().all(|path| path.local.ip() == ip(203)), "{mode}, {kind}: {paths:?}");
        }
    }
}

/// Whoever starts a service anew at the same port needs no patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_a_closed_endpoint_is_free_at_once() {
    log();
    let mut port = None;
    for _ in 0..50 {
        let builder = Endpoint::builder().monitor(ManualMonitor::new([ip(60)]));
        let builder = if let Some(port) = port { builder.port(port) } else { builder };
        let server = builder.bind().await.unwrap();
        let _listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        port = Some(server.addr().addrs[0].port());
        server.close(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_listener_that_is_slow_to_answer_is_dialled_once_more_and_not_before_a_second() {
    let slow = tokio::net::TcpListener::bind((ip(61), 0)).await.unwrap();
    let addr = EndpointAddr::new(SecretKey::generate().id(), [slow.local_addr().unwrap()]);
    let monitor = ManualMonitor::new([ip(62)]);
    let client = Endpoint::builder().carriers(Carriers::Only(CarrierKind::Tcp)).monitor(monitor);
    let client = client.bind().await.unwrap();
    let dial = tokio::spawn(async move { client.connect(addr).await.map(drop) });
    let mut dials = Vec::new();
    // Its kernel acknowledges the first flight, and nobody answers it.
    while let Ok(dialled) = tokio::time::timeout(Duration::from_secs(3), slow.accept()).await {
        dials.push((Instant::now(), dialled.unwrap()));
    }
    dial.abort();
    assert_eq!(dials.len(), 2);
    assert!(
        dials[1].0 - dials[0].0 > Duration::from_millis(500),
        "that is not sooner than a busy one answers"
    );
}
