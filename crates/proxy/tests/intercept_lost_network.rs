//! A network goes away under a page that comes over HTTP/2 on both sides of the proxy, where TLS ends in it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::http2::{self, HELD, Http2Origin};
use crate::networks::{Object, World, content};
use crate::secure::{Authority, Key, head_of};
use crate::shop::{self, SHOP};
use crate::support::until;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper::{Method, Request, Version};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use whimbrel_lab::{Direction, Link, require};

/// The objects of the page.
const OBJECTS: usize = 24;
/// Their sizes, in turn: in one step, in two, and in parts.
const SIZES: [usize; 4] = [6_000, 150_000, 600_000, 900_000];
/// The network goes away when so much of it has come: a fifth.
const BEFORE: usize = 2_000_000;
/// For all of it. A connection that is dead is waited for 20 s, and the page has 10 Mbit/s afterwards.
const PATIENCE: Duration = Duration::from_secs(180);

/// An object of the page: no two have the same bytes.
fn object(n: usize) -> Vec<u8> {
    content(SIZES[n % SIZES.len()] + n).split_off(n)
}

/// The status of an answer, and its body.
type Answered = Result<(u16, Vec<u8>), hyper::Error>;

/// Asks for something on a connection of HTTP/2, and counts the bytes that come.
async fn ask(
    client: SendRequest<Full<Bytes>>,
    method: Method,
    path: String,
    came: Arc<AtomicUsize>,
) -> Answered {
    let mut client = client;
    let request = Request::builder().method(method).uri(format!("https://{SHOP}{path}"));
    let request = request.version(Version::HTTP_2).body(Full::new(Bytes::new())).unwrap();
    let answer = client.send_request(request).await?;
    let (status, mut body, mut all) = (answer.status().as_u16(), answer.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame?.into_data() {
            came.fetch_add(bytes.len(), Ordering::Relaxed);
            all.extend_from_slice(&bytes);
        }
    }
    Ok((status, all))
}

/// Waits for a request's answer.
fn answered(runtime: &tokio::runtime::Runtime, end: Instant, asking: JoinHandle<Answered>) -> Answered {
    let left = end.saturating_duration_since(Instant::now());
    let waited = runtime.block_on(async { tokio::time::timeout(left, asking).await });
    waited.unwrap_or_else(|_| panic!("a request has no end")).unwrap()
}

/// The link of this address of the client's.
fn link_of(world: &World, from: IpAddr) -> &Link {
    let IpAddr::V4(from) = from else { panic!("{from}") };
    &world.links[usize::from(from.octets()[2])]
}

/// Loads the page, and cuts the network that what was posted has gone over: so that its interface is down, or
/// silently.
fn loads_a_page_whose_network_goes(silently: bool) {
    let (key, servers) = (Key::made_for(&[SHOP]), Authority::new());
    let world = shop::intercepted(&key, &servers);
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&large);
    let origin = Http2Origin::serving(shop::door(&world), servers.config(SHOP), |path| {
        object(path.trim_start_matches('/').parse().unwrap()).into()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let authority = key.certificate();
    let client = runtime.block_on(http2::client(world.connect(), (SHOP, 443), &authority));
    let came = Arc::new(AtomicUsize::new(0));
    let ask = |method, path| runtime.spawn(ask(client.clone(), method, path, Arc::clone(&came)));

    let posting = ask(Method::POST, HELD.to_owned());
    until("the server has what was posted", || !origin.seen().is_empty());
    let lost = origin.seen()[0].0;
    let link = link_of(&world, lost);
    let loading: Vec<_> = (0..OBJECTS).map(|n| ask(Method::GET, format!("/{n}"))).collect();
    until("a part of the page has come", || came.load(Ordering::Relaxed) >= BEFORE);
    match silently {
        true => link.set_blackhole(Direction::Both, true),
        false => link.end(&world.client).set_up(false).unwrap(),
    }
    let before = origin.seen();
    assert!(before[1..].iter().any(|(from, _)| *from == lost), "no object is asked for over it");
    assert!(loading.iter().any(|one| !one.is_finished()), "all of it had come");

    let end = Instant::now() + PATIENCE;
    for (n, asking) in loading.into_iter().enumerate() {
        let (status, bytes) = answered(&runtime, end, asking).unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(status, 200, "{n}: {}", String::from_utf8_lossy(&bytes));
        assert!(bytes == object(n), "{n}: other bytes, {} of them", bytes.len());
    }
    // Whether it had its effect is not known: the user decides whether to post again.
    let (status, bytes) = answered(&runtime, end, posting).unwrap();
    assert_eq!(status, 502, "{}", String::from_utf8_lossy(&bytes));
    let seen = origin.seen();
    assert!(seen.iter().all(|(_, head)| head.version == Version::HTTP_2), "{seen:?}");
    assert_eq!(seen.iter().filter(|(_, head)| head.method == Method::POST).count(), 1, "it is posted again");
    assert!(
        seen[before.len()..].iter().any(|(from, _)| *from != lost),
        "nothing is asked for over the other"
    );
}

#[test]
fn a_page_over_http2_is_completed_when_a_network_goes_down_under_it_and_nothing_is_posted_twice() {
    if require!() {
        loads_a_page_whose_network_goes(false);
    }
}

#[test]
fn a_page_over_http2_is_completed_when_a_network_falls_silent_under_it_and_nothing_is_posted_twice() {
    if require!() {
        loads_a_page_whose_network_goes(true);
    }
}

/// A server of HTTP/1.1 that never answers what is posted. Behind the first of that, it leaves the next
/// client alone that begins with TLS.
#[derive(Default)]
struct Leaving {
    has_post: bool,
    left: Option<IpAddr>,
}

/// Serves one connection, unless it is the one that is left alone.
fn serve_or_leave(stream: TcpStream, config: Arc<ServerConfig>, leaving: &Mutex<Leaving>) {
    // Clients try several ways, and leave those that were slower.
    if !stream.peek(&mut [0]).is_ok_and(|n| n > 0) {
        return;
    }
    {
        let mut leaving = leaving.lock().unwrap();
        if leaving.has_post && leaving.left.is_none() {
            leaving.left = stream.peer_addr().ok().map(|from| from.ip());
            drop(leaving);
            std::thread::sleep(PATIENCE);
            return;
        }
    }
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    while let Some(head) = head_of(&mut stream) {
        if head.starts_with("POST ") {
            leaving.lock().unwrap().has_post = true;
            std::thread::sleep(PATIENCE);
            return;
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        if stream.write_all(answer).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

#[test]
fn a_request_whose_network_goes_under_the_handshake_with_its_server_goes_over_another_one() {
    if !require!() {
        return;
    }
    let (key, servers) = (Key::made_for(&[SHOP]), Authority::new());
    let world = shop::intercepted(&key, &servers);
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&large);
    let (listener, config) = (shop::door(&world), Arc::new(servers.config(SHOP)));
    let leaving = Arc::<Mutex<Leaving>>::default();
    let serving = Arc::clone(&leaving);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (config, leaving) = (Arc::clone(&config), Arc::clone(&serving));
            std::thread::spawn(move || serve_or_leave(stream, config, &leaving));
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let authority = key.certificate();
    let client = runtime.block_on(http2::client(world.connect(), (SHOP, 443), &authority));
    let ask =
        |method, path: &str| runtime.spawn(ask(client.clone(), method, path.to_owned(), Arc::default()));

    // It has a connection to itself. Of the others one may find another that is open, and no more.
    let _posting = ask(Method::POST, HELD);
    until("the server has what was posted", || leaving.lock().unwrap().has_post);
    let asking: Vec<_> = (0..3).map(|_| ask(Method::GET, "/")).collect();
    until("a handshake is begun", || leaving.lock().unwrap().left.is_some());
    let lost = leaving.lock().unwrap().left.unwrap();
    link_of(&world, lost).set_blackhole(Direction::Both, true);
    let end = Instant::now() + PATIENCE;
    for asking in asking {
        let (status, bytes) = answered(&runtime, end, asking).unwrap();
        assert_eq!((status, &*String::from_utf8_lossy(&bytes)), (200, "hello"));
    }
}
