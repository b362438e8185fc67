//! The client library against a real manager, and without one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::{LIMIT, Running, World, world};
use futures_util::FutureExt as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use whimbrel_access::Intents;
use whimbrel_lab::{Runtime, require};
use whimbrel_multiaccess::protocol::{Ask, Report, Verdict};
use whimbrel_multiaccess::{Candidate, Client, ClientError, Pool};

/// A server beyond both links that sends bytes back; `hangs_up` makes it close what it has.
struct Echo {
    _runtime: Runtime,
    accepted: Arc<AtomicUsize>,
    hang_up: tokio::sync::watch::Sender<u32>,
}

const FAR: &str = "10.9.9.9";

impl Echo {
    fn start(world: &World) -> Self {
        world.links[0].end(&world.server).add_address(&format!("{FAR}/32")).unwrap();
        let runtime = world.server.runtime(1).unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let hang_up = tokio::sync::watch::Sender::new(0);
        let listener = runtime
            .block_on(async { TcpListener::bind((FAR.parse::<IpAddr>().unwrap(), 7000)).await })
            .unwrap();
        let (counting, hanging_up) = (Arc::clone(&accepted), hang_up.clone());
        runtime.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counting.fetch_add(1, Ordering::Relaxed);
                let mut ends = hanging_up.subscribe();
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    tokio::select! {
                        _ = tokio::io::copy(&mut reader, &mut writer) => {}
                        _ = ends.changed() => {}
                    }
                });
            }
        });
        Self { _runtime: runtime, accepted, hang_up }
    }
}

fn intents(text: &str) -> Intents {
    text.parse().unwrap()
}

async fn exchange(stream: &mut tokio::net::TcpStream) {
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
}

#[test]
fn connections_leave_by_the_network_that_the_manager_says() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let _echo = Echo::start(&world);
    let settings = |path: u8| format!("[policy]\nname = \"single\"\npath = {path}");
    let mut running = Running::start(&world.client, &settings(1));
    let client = Client::at(&running.socket());
    let own = |n: u8| IpAddr::from([10, 0, n, 1]);
    for (path, n) in [(1, 0), (2, 1)] {
        // The manager is another one from time to time, and the client goes on.
        running.again(&settings(path));
        let client = client.clone();
        let end = Instant::now() + LIMIT;
        let connected = running.runtime.block_on(async move {
            loop {
                // What is asked while it is restarted may be lost, and goes the system's way.
                let connected = client.connect(FAR, 7000, intents("category=query")).await.unwrap();
                if connected.by.interface.is_some() || Instant::now() > end {
                    break connected;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert_eq!(connected.by.interface.as_deref(), Some(&format!("link{n}")[..]));
        assert_eq!(connected.stream.local_addr().unwrap().ip(), own(n));
        assert!(connected.stream.nodelay().unwrap());
        let mut stream = connected.stream;
        running.runtime.block_on(async move { exchange(&mut stream).await });
    }
}

#[test]
fn resolved_ways_are_ranked_and_one_that_fails_is_told_and_tried_last() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let _echo = Echo::start(&world);
    let running = Running::start(&world.client, "[policy]\nname = \"eaf\"");
    let client = Client::at(&running.socket());
    let ways = running.runtime.block_on(client.resolve(FAR, 7000, intents("size-received=1000"))).unwrap();
    let named: Vec<_> = ways.iter().map(|way| way.interface.clone().unwrap()).collect();
    assert_eq!(named, ["link0", "link1"]);
    assert_eq!(ways[0].source, Some(IpAddr::from([10, 0, 0, 1])));
    assert_eq!(ways[0].destination, SocketAddr::new(FAR.parse().unwrap(), 7000));
    // Behind the first link nothing answers any more: the second way is tried beside it.
    let both = whimbrel_lab::Direction::Both;
    world.links[0].set_blackhole(both, true);
    let began = Instant::now();
    let connected =
        running.runtime.block_on(client.connect(FAR, 7000, intents("size-received=1000"))).unwrap();
    assert_eq!(connected.by.interface.as_deref(), Some("link1"));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // It is told of, though nobody waited for it: now the second way is the first.
    let first = || {
        let ways = running.runtime.block_on(client.resolve(FAR, 7000, intents("size-received=1000")));
        let way = ways.unwrap().swap_remove(0);
        (way.interface.unwrap(), way.failed_lately)
    };
    let until = |expected: (&str, bool), limit: Instant| {
        while first() != (expected.0.to_owned(), expected.1) {
            assert!(Instant::now() < limit, "{:?} is first, not {expected:?}", first());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until(("link1", false), Instant::now() + LIMIT);
    let failed = Instant::now();
    // Then the second one fails too: both are listed again, the better one first.
    let mut teller = running.client();
    teller.ask(&format!(r#"{{"report":{{"failed":{{"interface":"link1","destination":"{FAR}:7000"}}}}}}"#));
    assert_eq!(first(), ("link0".to_owned(), true));
    // It works again, and that is told: it is no more in doubt, long before that is forgotten.
    world.links[0].set_blackhole(both, false);
    let connected =
        running.runtime.block_on(client.connect(FAR, 7000, intents("size-received=1000"))).unwrap();
    assert_eq!(connected.by.interface.as_deref(), Some("link0"));
    until(("link0", false), failed + Duration::from_secs(8));
    // Where nobody listens the host was reached, so that no network is in doubt.
    for port in 7001..7005 {
        let refused = running.runtime.block_on(client.connect(FAR, port, intents("")));
        assert!(matches!(refused, Err(ClientError::Connect { .. })), "{refused:?}");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(first(), ("link0".to_owned(), false));
}

#[test]
fn where_the_only_way_of_a_policy_goes_just_then_the_manager_is_asked_for_another() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (5, 20)]);
    let _echo = Echo::start(&world);
    let running = Running::start(&world.client, "[policy]\nname = \"round-robin\"");
    let client = Client::at(&running.socket());
    let first = || running.runtime.block_on(client.resolve(FAR, 7000, intents(""))).unwrap();
    let by = |ways| running.runtime.block_on(client.connect_by_these_or_others(ways, FAR, 7000, intents("")));
    // It names one network, and then the other one: the first is the next one's.
    let (of_link0, of_link1) = (first(), first());
    let named = |ways: &[Candidate]| ways.iter().map(|way| way.interface.clone()).collect::<Vec<_>>();
    assert_eq!(named(&of_link0), [Some("link0".to_owned())]);
    assert_eq!(named(&of_link1), [Some("link1".to_owned())]);
    // Silent: it is waited for longer than for a packet that was lost, not until the system gives up.
    world.links[0].set_blackhole(whimbrel_lab::Direction::Both, true);
    first(); // Now it is the second one's turn.
    let began = Instant::now();
    let connected = by(of_link0.clone()).unwrap();
    assert_eq!(connected.by.interface.as_deref(), Some("link1"));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Gone: the other one carries it, though it would be the turn of the first again.
    world.links[0].set_blackhole(whimbrel_lab::Direction::Both, false);
    world.links[1].end(&world.client).set_up(false).unwrap();
    let connected = by(of_link1).unwrap();
    assert_eq!(connected.by.interface.as_deref(), Some("link0"));
    // A host that refuses was reached: nobody is asked for another way to it.
    let mut closed = of_link0;
    closed[0].destination.set_port(7001);
    let refused = by(closed);
    assert!(matches!(refused, Err(ClientError::Connect { .. })), "{refused:?}");
}

#[test]
fn a_question_that_is_given_up_leaves_nothing_scheduled() {
    const GIVEN_UP: u64 = 50;
    const MOST: usize = 500;
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start(&world.client, "rest = 50");
    let client = Client::at(&running.socket());
    let ask = || Ask { to: Some(format!("{FAR}:443")), track: true, ..Ask::default() };
    let unit = |verdict: Result<Verdict, ClientError>| verdict.unwrap().unit.unwrap();
    running.runtime.block_on(async {
        // It has a connection then.
        let first = unit(client.ask(ask()).await);
        let mut answered = vec![first];
        for _ in 0..MOST {
            // Most have gone out then, and nobody waits for the answer; some are answered at once.
            answered.extend(client.ask(ask()).now_or_never().map(unit));
            // Else the runtime holds later ones back.
            tokio::task::yield_now().await;
            let last = unit(client.ask(ask()).await);
            answered.push(last);
            // Units have one number after the other.
            if last - first + 1 >= answered.len() as u64 + GIVEN_UP {
                break;
            }
        }
        let last = answered.last().unwrap();
        assert!(last - first + 1 > answered.len() as u64, "none went out and was given up");
        for unit in answered {
            client.report(Report { done: Some(unit), ..Report::default() }).await.unwrap();
        }
    });
    // What is told first was measured 50 ms ago at most. Then within LIMIT; the manager forgets a unit after
    // a minute.
    std::thread::sleep(Duration::from_millis(500));
    let mut watcher = running.client();
    watcher.say(r#"{"watch":{}}"#);
    watcher.until(|line| line["paths"][0]["scheduled"] == 0);
}

#[test]
fn a_way_that_is_slow_and_not_dead_is_not_told_to_have_failed() {
    if !require!() {
        return;
    }
    // The first one answers after 600 ms, and nothing is known of either: it is tried first, and overtaken.
    let world = world(&[(300, 20), (5, 20)]);
    let _echo = Echo::start(&world);
    let running = Running::start(&world.client, "[policy]\nname = \"eaf\"");
    let client = Client::at(&running.socket());
    let ways = || running.runtime.block_on(client.resolve(FAR, 7000, intents(""))).unwrap();
    assert_eq!(ways()[0].interface.as_deref(), Some("link0"));
    let connected = running.runtime.block_on(client.connect(FAR, 7000, intents(""))).unwrap();
    assert_eq!(connected.by.interface.as_deref(), Some("link1"));
    // Longer than it is watched for. One that has failed is not listed beside another.
    std::thread::sleep(Duration::from_secs(2));
    let mut listed: Vec<_> = ways().into_iter().map(|way| way.interface.unwrap()).collect();
    listed.sort();
    assert_eq!(listed, ["link0", "link1"]);
}

#[test]
fn this_host_is_reached_by_the_systems_way_though_there_is_a_manager() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start(&world.client, "");
    let client = Client::at(&running.socket());
    let pool = Pool::new(client.clone());
    let listener = world.client.run(|| std::net::TcpListener::bind("0.0.0.0:7000")).unwrap();
    for host in ["127.0.0.1", "localhost", "10.0.0.1"] {
        let connected = running.runtime.block_on(client.connect(host, 7000, intents(""))).unwrap();
        assert_eq!((connected.by.interface, connected.by.options.bind_to_device), (None, None), "{host}");
        drop(listener.accept().unwrap());
        let pooled = running.runtime.block_on(pool.request(host, 7000, intents(""))).unwrap();
        assert!(pooled.is_new(), "{host}");
        drop(listener.accept().unwrap());
    }
    // A client that speaks the protocol itself is told too.
    let answer = running.client().ask(r#"{"ask":{"to":"10.0.0.1:7000"}}"#);
    assert_eq!(answer["decision"]["local"], true, "{answer}");
    assert!(answer["decision"]["ways"].as_array().unwrap().is_empty(), "{answer}");
}

#[test]
fn a_pool_hands_out_released_connections_that_still_work_and_only_those() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let echo = Echo::start(&world);
    let running = Running::start(&world.client, "[policy]\nname = \"eaf\"");
    let pool = Pool::new(Client::at(&running.socket()));
    let request =
        || running.runtime.block_on(pool.request(FAR, 7000, intents("size-received=1000"))).unwrap();
    let accepted = || echo.accepted.load(Ordering::Relaxed);
    let use_ = |mut pooled: whimbrel_multiaccess::Pooled| {
        running.runtime.block_on(async move {
            exchange(pooled.stream()).await;
            pooled
        })
    };
    let first = use_(request());
    assert!(first.is_new());
    // While it is in use, another one is opened.
    let second = use_(request());
    assert!(second.is_new());
    first.release();
    assert_eq!(pool.idle(), 1);
    let again = use_(request());
    assert!(!again.is_new() && pool.idle() == 0, "{}", again.why());
    assert_eq!(accepted(), 2);
    again.release();
    second.close();
    assert_eq!(pool.idle(), 1);
    // The server closes what is idle: it is not handed out.
    echo.hang_up.send_modify(|count| *count += 1);
    let end = Instant::now() + LIMIT;
    let fresh = loop {
        let pooled = request();
        if pooled.is_new() {
            break pooled;
        }
        pooled.release();
        assert!(Instant::now() < end, "a closed connection is handed out");
    };
    use_(fresh).release();
    // One on which something came that nobody asked for is not handed out either.
    let mut dirty = request();
    assert!(!dirty.is_new());
    running.runtime.block_on(async {
        dirty.stream().write_all(b"late").await.unwrap();
        dirty.stream().peek(&mut [0]).await.unwrap();
    });
    dirty.release();
    assert!(request().is_new());
}

#[test]
fn a_pool_opens_one_over_the_other_network_ahead_which_counts_as_new_until_it_has_carried_a_message() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let echo = Echo::start(&world);
    let mut running = Running::start(&world.client, "");
    let pool = Pool::new(Client::at(&running.socket()));
    let asked = || intents("size-received=1000 timeliness=interactive");
    let mut first = running.runtime.block_on(pool.request(FAR, 7000, asked())).unwrap();
    running.runtime.block_on(exchange(first.stream()));
    let end = Instant::now() + LIMIT;
    // The server may count it later than the client has it.
    while pool.idle() == 0 || echo.accepted.load(Ordering::Relaxed) < 2 {
        assert!(Instant::now() < end, "none is opened ahead");
        std::thread::sleep(Duration::from_millis(10));
    }
    let from = first.stream().local_addr().unwrap().ip();
    let (other, path) =
        if from == IpAddr::from([10, 0, 0, 1]) { ([10, 0, 1, 1], 2) } else { ([10, 0, 0, 1], 1) };
    let accepted = echo.accepted.load(Ordering::Relaxed);
    // While the first is in use, one is wanted over the other network.
    running.again(&format!("[policy]\nname = \"single\"\npath = {path}"));
    for is_new in [true, false] {
        let mut pooled = running.runtime.block_on(pool.request(FAR, 7000, asked())).unwrap();
        assert_eq!(pooled.is_new(), is_new, "{}", pooled.why());
        assert_eq!(pooled.stream().local_addr().unwrap().ip(), IpAddr::from(other));
        running.runtime.block_on(exchange(pooled.stream()));
        pooled.release();
    }
    assert_eq!(echo.accepted.load(Ordering::Relaxed), accepted, "it is the one that was open");
}

#[test]
fn without_a_manager_it_is_the_systems_way_and_released_connections_are_used_again() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let echo = Echo::start(&world);
    let folder = tempfile::tempdir().unwrap();
    let runtime = world.client.runtime(1).unwrap();
    let client = Client::at(&folder.path().join("access"));
    let asked = runtime.block_on(client.ask(whimbrel_multiaccess::protocol::Ask::default()));
    let told = asked.unwrap_err().to_string();
    assert!(told.contains("start one with `whimbrel access serve`"), "{told}");
    let connected = runtime.block_on(client.connect(FAR, 7000, intents("category=bulk"))).unwrap();
    assert_eq!((connected.by.interface, connected.by.source), (None, None));
    let pool = Pool::new(client);
    let mut pooled = runtime.block_on(pool.request(FAR, 7000, intents(""))).unwrap();
    runtime.block_on(exchange(pooled.stream()));
    pooled.release();
    assert!(!runtime.block_on(pool.request(FAR, 7000, intents(""))).unwrap().is_new());
    assert_eq!(echo.accepted.load(Ordering::Relaxed), 2);
}

#[test]
fn the_hosts_manager_is_asked_where_the_user_has_none() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let host = Running::start(&world.client, "[policy]\nname = \"eaf\"");
    let user = Running::start(&world.client, "");
    let absent = host.folder.path().join("none");
    let policy = |first: &std::path::Path, other: &std::path::Path| {
        let client = Client::at_either(first, other);
        host.runtime.block_on(async move { client.ask(Ask::default()).await }).map(|verdict| verdict.policy)
    };
    assert_eq!(policy(&absent, &host.socket()).unwrap(), "eaf");
    assert_eq!(policy(&user.socket(), &host.socket()).unwrap(), "whimbrel");
    match policy(&absent, &absent.with_extension("either")) {
        // It is told where the user's own was looked for.
        Err(ClientError::Absent { socket, .. }) => assert_eq!(socket, absent),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_manager_that_is_restarted_under_load_fails_nobody() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let echo = Echo::start(&world);
    let mut running = Running::start(&world.client, "[policy]\nname = \"round-robin\"");
    let pool = Pool::new(Client::at(&running.socket()));
    let ends = Arc::new(AtomicBool::new(false));
    let load = world.client.runtime(2).unwrap();
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (pool, ends) = (pool.clone(), Arc::clone(&ends));
            load.spawn(async move {
                let mut count = 0;
                while !ends.load(Ordering::Relaxed) {
                    let mut pooled = pool.request(FAR, 7000, intents("size-received=1")).await.unwrap();
                    exchange(pooled.stream()).await;
                    pooled.release();
                    count += 1;
                }
                count
            })
        })
        .collect();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        running.manager = None;
        std::thread::sleep(Duration::from_millis(200));
        running.again("[policy]\nname = \"round-robin\"");
    }
    // The last one is asked.
    let mut watcher = running.client();
    watcher.say(r#"{"watch":{"decisions":true}}"#);
    watcher.until(|line| line.get("decided").is_some());
    ends.store(true, Ordering::Relaxed);
    let total: usize = workers.into_iter().map(|worker| load.block_on(worker).unwrap()).sum();
    assert!(total > 100 && echo.accepted.load(Ordering::Relaxed) > 0, "{total}");
}
