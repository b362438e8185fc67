//! Which way tunnels go, with a real manager that chooses, and tunnels over Multipath TCP.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::multipath::{self, listed};
use crate::networks::{FAR, Object, World};
use crate::support::{LIMIT, read_head, status};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::{Answer, Decided, Protocol};
use whimbrel_proxy::HttpProxy;

/// A tunnel to a server, through the proxy.
pub(crate) fn tunnel(world: &World, to: SocketAddr) -> TcpStream {
    let mut stream = world.connect();
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).unwrap();
    let head = read_head(&mut stream).unwrap();
    assert_eq!(status(&head), 200, "{head}");
    stream
}

/// A server that is told in a line how many bytes to send.
fn sender(world: &World) -> SocketAddr {
    let listener = world.server.run(|| TcpListener::bind((FAR, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                let (mut line, mut stream) = (String::new(), stream);
                if lines.read_line(&mut line).is_ok()
                    && let Ok(bytes) = line.trim().parse::<usize>()
                {
                    // A client that goes away is noticed by the test.
                    let _ = stream.write_all(&vec![7_u8; bytes]);
                }
            });
        }
    });
    address
}

/// So many bytes come in a tunnel, of which the proxy has then taken note.
fn receive(world: &World, proxy: &HttpProxy, from: SocketAddr, bytes: usize) {
    let mut stream = tunnel(world, from);
    stream.write_all(format!("{bytes}\n").as_bytes()).unwrap();
    let mut came = Vec::new();
    stream.read_to_end(&mut came).unwrap();
    assert_eq!(came.len(), bytes);
    drop(stream);
    let end = Instant::now() + LIMIT;
    while proxy.stats().connections > 0 {
        assert!(Instant::now() < end, "the tunnel does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Hears of so many decisions from now on.
fn decisions(world: &World, count: usize) -> JoinHandle<Vec<Decided>> {
    let mut watcher = world.watch();
    world.runtime.spawn(async move {
        let mut decided = Vec::new();
        while decided.len() < count {
            let answer: Answer = serde_json::from_str(&watcher.next().await.unwrap()).unwrap();
            decided.extend(answer.decided);
        }
        decided
    })
}

/// Waits until all of them were heard of.
fn all(world: &World, deciding: JoinHandle<Vec<Decided>>) -> Vec<Decided> {
    let heard = async move { tokio::time::timeout(LIMIT, deciding).await };
    world.runtime.block_on(heard).unwrap().unwrap()
}

/// The bytes that are expected to come.
fn expected(decided: &Decided) -> Option<u64> {
    decided.intents.split(' ').find_map(|intent| intent.strip_prefix("size-received=")?.parse().ok())
}

#[test]
fn a_tunnel_goes_the_way_that_fits_what_came_in_the_last_one_to_the_same_server() {
    if !require!() {
        return;
    }
    // 20 ms and 8 Mbit/s beside 100 ms and 20 Mbit/s.
    let mut made: Option<HttpProxy> = None;
    let world = World::made(
        &[(10, 8), (50, 20)],
        "[policy]\nname = \"eaf\"",
        |_| {},
        |upstream, settings| made.insert(HttpProxy::new(upstream, settings)).clone(),
    );
    let proxy = made.unwrap();
    let object = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&object);
    world.until_seen("each link has a rate", |path| path.down_best.is_some());
    let deciding = decisions(&world, 4);
    let (large, small) = (sender(&world), sender(&world));
    for (server, bytes) in [(large, 2_000_000), (large, 2_000_000), (small, 1_000), (small, 1_000)] {
        // What flows takes its share of what a link carries.
        world.until_seen("nothing flows", |path| path.down_now.is_none_or(|now| now < 50_000.0));
        receive(&world, &proxy, server, bytes);
    }
    let decided = all(&world, deciding);
    let to: Vec<_> = decided.iter().map(|decided| decided.to.clone().unwrap()).collect();
    assert_eq!(to, [large, large, small, small].map(|server| server.to_string()));
    let sizes: Vec<_> = decided.iter().map(expected).collect();
    assert_eq!((sizes[0], sizes[2]), (None, None), "nothing is known of a server yet");
    assert!(sizes[1].is_some_and(|size| (2_000_000..2_001_000).contains(&size)), "{sizes:?}");
    assert!(sizes[3].is_some_and(|size| (1_000..2_000).contains(&size)), "{sizes:?}");
    // Two megabytes: 2.0 s over the first link, 0.2 s and 0.8 s over the second. A thousand bytes: two round
    // trips.
    let way = |n: usize| decided[n].way.clone().unwrap().interface;
    assert_eq!((way(1).as_str(), way(3).as_str()), ("link1", "link0"), "{decided:?}");
    // What was passed on is told by network, and nothing twice.
    let told = proxy.networks();
    assert!(told.iter().all(|one| ["link0", "link1"].contains(&one.network.as_str())), "{told:?}");
    assert_eq!(told.iter().map(|one| one.received).sum::<u64>(), 4_002_000, "{told:?}");
    let asked = 2 * ("2000000\n".len() + "1000\n".len());
    assert_eq!(told.iter().map(|one| one.sent).sum::<u64>(), asked as u64, "{told:?}");
}

/// A server of Multipath TCP that sends back what comes.
fn echo(world: &World) -> SocketAddr {
    let listener = multipath::listener(world);
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut input, mut output) = (stream.try_clone().unwrap(), stream);
                // A client that goes away is noticed by the test.
                let _ = std::io::copy(&mut input, &mut output);
            });
        }
    });
    address
}

#[test]
fn a_tunnel_runs_over_multipath_tcp_and_over_both_links_where_the_policy_says_so() {
    if !require!() {
        return;
    }
    let world = World::new(&[(5, 20), (5, 20)], "[policy]\nname = \"mptcp\"");
    if !multipath::is_allowed(&world, "a tunnel over Multipath TCP") {
        return;
    }
    let server = echo(&world);
    let deciding = decisions(&world, 1);
    let mut stream = tunnel(&world, server);
    let end = Instant::now() + LIMIT;
    loop {
        // Both sides know by what comes back that the other speaks it.
        stream.write_all(b"hello").unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
        // The server's own list: a client's socket stays one of Multipath TCP when it fell back to TCP.
        let connections = listed(&world, "-M", server.port());
        assert_eq!(connections.len(), 1, "{connections:?}");
        let subflows = listed(&world, "-t", server.port());
        if ["10.0.0.1:", "10.0.1.1:"].iter().all(|from| subflows.iter().any(|one| one.contains(from))) {
            break;
        }
        assert!(Instant::now() < end, "not over both links: {subflows:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let way = all(&world, deciding)[0].way.clone().unwrap();
    assert_eq!((way.protocol, way.options.bind_to_device), (Protocol::Mptcp, None));
}
