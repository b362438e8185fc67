//! `whimbrel limit` and `--limits FILE`: what a running command may send.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{Process, World, tcp_server, wait_for};
use serde_json::Value;

/// What is let through at first, and what fills buffers, is not part of a rate.
const SETTLE: Duration = Duration::from_millis(1500);

/// A server that swallows what it gets, exposed, and a forward to it.
fn swallowing(world: &World, flags: &[&str]) -> (Process, Process, String) {
    let to = tcp_server(|mut socket| {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(1..) = socket.read(&mut buffer) {}
    });
    let to = to.to_string();
    let mut server = world.start("alice", &["expose", "--ticket", "--json", "--to", &to, "--allow", "any"]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut client = world.start("bob", &[&["forward", &ticket, "--json"], flags].concat());
    let listening = client.next_json()["listening"].as_str().unwrap().to_owned();
    (server, client, listening)
}

fn flood(listening: &str) {
    let mut socket = TcpStream::connect(listening).unwrap();
    std::thread::spawn(move || while socket.write_all(&[7; 32 * 1024]).is_ok() {});
}

fn report(world: &World) -> Value {
    world.run("bob", &["status", "--json"]).succeeded().json()[0].clone()
}

/// Bytes that were received by the peer, so far.
fn received(world: &World) -> (Instant, f64) {
    let report = world.run("alice", &["status", "--json"]).succeeded().json();
    let bytes = report[0]["connections"][0]["bytes_received"].as_f64().unwrap();
    (Instant::now(), bytes)
}

/// One test at a time: each measures what the machine does.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a limit of `limit` bytes a second lets through that is looked at every two milliseconds, by a thread
/// that gets its turns on this machine as others do: a late turn loses what goes beyond a burst.
struct Control {
    ended: Arc<AtomicBool>,
    counting: JoinHandle<f64>,
}

impl Control {
    fn start(limit: f64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let counting = std::thread::spawn(move || {
            let (begun, mut at, mut passed) = (Instant::now(), Instant::now(), 0.0);
            while !end.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let now = Instant::now();
                passed += now.duration_since(std::mem::replace(&mut at, now)).as_secs_f64().min(1.0 / 40.0);
            }
            passed * limit / begun.elapsed().as_secs_f64()
        });
        Self { ended, counting }
    }

    fn rate(self) -> f64 {
        self.ended.store(true, Relaxed);
        self.counting.join().unwrap()
    }
}

/// Fails unless `measured` bytes a second are the limit, within `percent`, as far as the machine let it.
#[track_caller]
fn is_kept(measured: f64, limit: f64, control: Control, percent: f64) {
    let possible = control.rate();
    println!(
        "{:+.2} % (control {:+.2} %)",
        measured / limit * 100.0 - 100.0,
        possible / limit * 100.0 - 100.0
    );
    let (least, most) = (possible * (1.0 - percent / 100.0), limit * (1.0 + percent / 100.0));
    assert!(
        (least..=most).contains(&measured),
        "{measured} bytes a second instead of {limit} (control {possible})"
    );
}

/// Bytes a second that arrive, over this time.
fn rate(world: &World, time: Duration) -> f64 {
    let (begun, before) = received(world);
    std::thread::sleep(time);
    let (ended, after) = received(world);
    (after - before) / ended.duration_since(begun).as_secs_f64()
}

#[test]
fn a_running_forward_is_limited_within_three_percent_over_ten_seconds_and_set_free_again() {
    let _alone = alone();
    let world = World::new();
    let (_server, _client, listening) = swallowing(&world, &[]);
    flood(&listening);
    let said = world.run("bob", &["limit", "forward", "--rate", "8Mbit"]).succeeded().stdout.clone();
    assert!(said.contains("limited to 8 Mbit/s"), "{said}");
    std::thread::sleep(SETTLE);
    let control = Control::start(1e6);
    // Streams' bytes alone are counted here; the limit counts frames too, a few bytes in each segment.
    is_kept(rate(&world, Duration::from_secs(10)), 1e6, control, 3.0);
    assert_eq!(report(&world)["connections"][0]["rate_limit"], 1_000_000);
    world.run("bob", &["limit", "--rate", "off"]).succeeded();
    let free = rate(&world, Duration::from_secs(1));
    assert!(free > 5e6, "{free}");
    assert!(world.run("bob", &["limit"]).succeeded().stdout.contains("has no limits"));
}

#[test]
fn a_file_of_limits_is_followed_and_a_mistake_in_it_changes_nothing() {
    let _alone = alone();
    let world = World::new();
    let file = world.path("limits.toml");
    fs::write(&file, "[[limit]]\nrate = \"4Mbit\"\n").unwrap();
    let (_server, client, listening) = swallowing(&world, &["--limits", file.to_str().unwrap()]);
    flood(&listening);
    std::thread::sleep(SETTLE);
    let control = Control::start(5e5);
    is_kept(rate(&world, Duration::from_secs(3)), 5e5, control, 6.0);
    world.run("bob", &["limit", "--rate", "off"]).failed(1, &["--limits file"]);

    fs::write(&file, "[[limit]]\nrate = \"fast\"\n").unwrap();
    client.until_said("the limits from before stay in force", 1);
    assert_eq!(report(&world)["connections"][0]["rate_limit"], 500_000);
    fs::write(&file, "[[limit]]\nname = \"other@example.org\"\nrate = \"1Mbit\"\n").unwrap();
    wait_for("the limit to be gone", || {
        report(&world)["connections"][0]["rate_limit"].is_null().then_some(())
    });
    assert!(rate(&world, Duration::from_secs(1)) > 5e6);
    let missing = world.path("missing");
    world
        .run("bob", &["forward", "x.y@z", "--limits", missing.to_str().unwrap()])
        .failed(1, &["cannot read", "missing"]);
}

#[test]
fn connections_that_one_limit_covers_share_it_and_the_busy_one_gets_what_the_idle_leave() {
    let _alone = alone();
    let world = World::new();
    // What one that exposes sends to two peers.
    let to = tcp_server(|mut socket| while socket.write_all(&[7; 32 * 1024]).is_ok() {}).to_string();
    let mut server = world.start("carol", &["expose", "--ticket", "--json", "--to", &to, "--allow", "any"]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    world.run("carol", &["limit", "--rate", "8Mbit"]).succeeded();
    let read = |user: &str| {
        let mut client = world.start(user, &["forward", &ticket, "--json"]);
        let listening = client.next_json()["listening"].as_str().unwrap().to_owned();
        let mut socket = TcpStream::connect(listening).unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(1..) = socket.read(&mut buffer) {}
        });
        client
    };
    let sent = || {
        let report = world.run("carol", &["status", "--json"]).succeeded().json();
        let connections = report[0]["connections"].as_array().unwrap().clone();
        (
            Instant::now(),
            connections.iter().map(|one| one["bytes_sent"].as_f64().unwrap()).collect::<Vec<_>>(),
        )
    };
    let rates = || {
        let (begun, before) = sent();
        std::thread::sleep(Duration::from_secs(4));
        let (ended, after) = sent();
        let time = ended.duration_since(begun).as_secs_f64();
        let mut rates: Vec<f64> =
            after.iter().zip(before).map(|(after, before)| (after - before) / time).collect();
        rates.sort_by(f64::total_cmp);
        rates
    };
    let _one = read("dave");
    std::thread::sleep(SETTLE);
    let control = Control::start(1e6);
    is_kept(rates()[0], 1e6, control, 6.0);
    let _other = read("erin");
    std::thread::sleep(SETTLE);
    let control = Control::start(1e6);
    let both = rates();
    assert_eq!(both.len(), 2);
    is_kept(both.iter().sum(), 1e6, control, 6.0);
    assert!(both[0] / both[1] > 0.8, "{both:?}");
}

/// Bytes a second of all that a user's command receives, over this time.
fn rate_of_all(world: &World, user: &str, time: Duration) -> f64 {
    let all = || {
        let report = world.run(user, &["status", "--json"]).succeeded().json();
        let connections = report[0]["connections"].as_array().unwrap();
        let bytes = connections.iter().map(|one| one["bytes_received"].as_f64().unwrap()).sum::<f64>();
        (Instant::now(), bytes)
    };
    let (begun, before) = all();
    std::thread::sleep(time);
    let (ended, after) = all();
    (after - before) / ended.duration_since(begun).as_secs_f64()
}

/// Streams are of urgency 3, unless something else is said. How exact a limit is, the first test shows: here
/// it is which of them holds, and none is near another.
#[test]
fn a_limit_by_name_or_by_urgency_holds_what_it_covers_and_nothing_else() {
    const NAME: &str = "sink.home.alice@example.org";
    const TIME: Duration = Duration::from_secs(4);
    const PERCENT: f64 = 25.0;
    let _alone = alone();
    let (world, _names) = World::with_names();
    let to = tcp_server(|mut socket| {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(1..) = socket.read(&mut buffer) {}
    });
    let to = to.to_string();
    let mut server = world.start("alice", &["expose", NAME, "--to", &to, "--allow", "any", "--json"]);
    assert_eq!(server.next_json()["name"], NAME);
    let mut client = world.start("bob", &["forward", NAME, "--json"]);
    let listening = client.next_json()["listening"].as_str().unwrap().to_owned();
    flood(&listening);
    let limit = |flags: &[&str]| _ = world.run("bob", &[&["limit", "forward"], flags].concat()).succeeded();

    limit(&["--name", "other.home.alice@example.org", "--rate", "1Mbit"]);
    limit(&["--urgency", "7", "--rate", "1Mbit"]);
    std::thread::sleep(SETTLE);
    let free = rate_of_all(&world, "alice", Duration::from_secs(1));
    assert!(free > 5e6, "neither this name nor this urgency is its own: {free}");

    limit(&["--name", NAME, "--rate", "8Mbit"]);
    std::thread::sleep(SETTLE);
    let control = Control::start(1e6);
    is_kept(rate_of_all(&world, "alice", TIME), 1e6, control, PERCENT);

    limit(&["--urgency", "3", "--rate", "4Mbit"]);
    std::thread::sleep(SETTLE);
    let control = Control::start(5e5);
    is_kept(rate_of_all(&world, "alice", TIME), 5e5, control, PERCENT);

    // Each is lifted by itself.
    limit(&["--name", NAME, "--rate", "off"]);
    limit(&["--urgency", "3", "--rate", "off"]);
    let free = rate_of_all(&world, "alice", Duration::from_secs(1));
    assert!(free > 5e6, "{free}");
    let left = world.run("bob", &["limit", "forward"]).succeeded().stdout.clone();
    assert!(left.contains("of urgency 7") && left.contains("for other.home.alice@example.org"), "{left}");
    assert_eq!(left.lines().count(), 2, "{left}");
}

/// Which of two connections a limit is given to. That it is kept, the tests above show.
#[test]
fn a_limit_for_a_peer_or_a_connection_is_given_to_that_one_alone() {
    const USERS: [&str; 2] = ["dave", "erin"];
    let _alone = alone();
    let world = World::new();
    let to = tcp_server(|mut socket| {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(1..) = socket.read(&mut buffer) {}
    });
    let to = to.to_string();
    let mut server = world.start("carol", &["expose", "--ticket", "--json", "--to", &to, "--allow", "any"]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    let _clients = USERS.map(|user| {
        let mut client = world.start(user, &["forward", &ticket, "--json"]);
        let listening = client.next_json()["listening"].as_str().unwrap().to_owned();
        (client, TcpStream::connect(listening).unwrap())
    });
    let peers = USERS.map(|user| world.id(user));
    // The connection of each, and its limit.
    let connections = || -> Option<[(String, Option<u64>); 2]> {
        let report = world.run("carol", &["status", "--json"]).succeeded().json();
        let all = report[0]["connections"].as_array().unwrap().clone();
        let of = |peer: &String| {
            let one = all.iter().find(|one| one["peer"] == peer.as_str())?;
            Some((one["id"].as_str().unwrap().to_owned(), one["rate_limit"].as_u64()))
        };
        Some([of(&peers[0])?, of(&peers[1])?])
    };
    let limits = |wanted: [Option<u64>; 2]| {
        wait_for("each to have its limit", || {
            let [(_, one), (_, other)] = connections()?;
            ([one, other] == wanted).then_some(())
        });
    };
    let limit = |flags: &[&str]| {
        world.run("carol", &[&["limit", "expose"], flags].concat()).succeeded().stdout.clone()
    };
    let [_, (erins, _)] = wait_for("both connections", &connections);

    let said = limit(&["--peer", &peers[0], "--rate", "8Mbit"]);
    assert!(said.contains("8 Mbit/s for peer"), "{said}");
    limits([Some(1_000_000), None]);
    let said = limit(&["--connection", &erins[..8], "--rate", "4Mbit"]);
    assert!(said.contains(&format!("4 Mbit/s for connection {}", &erins[..8])), "{said}");
    limits([Some(1_000_000), Some(500_000)]);
    limit(&["--peer", &peers[0], "--rate", "off"]);
    limits([None, Some(500_000)]);
    // Of somebody else: nobody's.
    limit(&["--peer", &world.id("frank"), "--rate", "1Mbit"]);
    limit(&["--connection", &erins[..8], "--rate", "off"]);
    limits([None, None]);
}
