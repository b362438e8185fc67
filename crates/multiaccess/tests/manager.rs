//! The manager in a host of the lab, asked over its socket.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::{Client, LIMIT, Running, Traffic, interfaces, is_near, world};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use whimbrel_lab::{Host, require};
use whimbrel_multiaccess::MAX_CLIENTS;
use whimbrel_multiaccess::protocol::MAX_LINE;

const ASK: &str = r#"{"id":1,"ask":{"intents":{"size-received":300000},"to":"10.9.9.9:443"}}"#;
/// Measures next in a minute: what is heard before, the kernel told.
const ASLEEP: &str = "interval = 60000\nrest = 60000";

#[test]
fn changes_of_links_addresses_and_routes_are_heard_of_and_not_looked_for() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let running = Running::start(&world.client, ASLEEP);
    let mut watcher = running.client();
    assert_eq!(watcher.ask(r#"{"id":7,"watch":{"decisions":true}}"#), json!({"id": 7, "ok": true}));
    assert_eq!(interfaces(&watcher.hear().unwrap()), world.names);

    let began = Instant::now();
    let end = world.links[0].end(&world.client);
    end.del_address("10.0.0.1/24").unwrap();
    watcher.until(|line| interfaces(line) == ["link1"]);
    end.add_address("10.0.0.1/24").unwrap();
    watcher.until(|line| interfaces(line) == ["link0", "link1"]);
    // The routes went with the address: what is far is reached over the other link alone.
    let answer = running.client().ask(ASK);
    let ways = answer["decision"]["ways"].as_array().unwrap().clone();
    assert_eq!(ways.len(), 1, "{answer}");
    assert_eq!(ways[0]["interface"], "link1");
    assert_eq!(ways[0]["options"]["bind-to-device"], "link1");
    let decided = watcher.until(|line| line.get("decided").is_some());
    assert_eq!(decided["decided"]["to"], "10.9.9.9:443");
    end.add_default_route("10.0.0.2", 1).unwrap();
    let end = Instant::now() + LIMIT;
    while running.client().ask(ASK)["decision"]["ways"].as_array().unwrap().len() < 2 {
        assert!(Instant::now() < end, "the new route is not noticed");
    }
    world.links[1].set_carrier(&world.client, false).unwrap();
    watcher.until(|line| interfaces(line) == ["link0"]);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn round_trips_and_rates_of_known_links_are_right_within_seconds_and_decide() {
    if !require!() {
        return;
    }
    // 300 ms and 4 Mbit/s; 400 ms and 20 Mbit/s: so long that a busy machine does not matter.
    let world = world(&[(150, 4), (200, 20)]);
    let running = Running::start(&world.client, "[policy]\nname = \"eaf\"");
    let traffic = |port: u16, start: fn(&Host, &Host, SocketAddr) -> Traffic| {
        let to = |n: u8| SocketAddr::from(([10, 0, n, 2], port));
        [0, 1].map(|n| start(&world.client, &world.server, to(n)))
    };
    let mut watcher = running.client();
    watcher.say(r#"{"watch":{}}"#);
    // Until the estimates are right: what a busy machine held up is forgotten in time.
    let mut until = |key: &str, expected: [f64; 2], share: f64| {
        watcher.until(|line| {
            line["paths"].as_array().is_some_and(|paths| {
                let mut both = paths.iter().zip(expected);
                both.all(|(path, expected)| {
                    path[key].as_f64().is_some_and(|found| is_near(found, expected, share))
                })
            })
        });
    };
    // Round trips before something queues.
    let chatter = traffic(7000, Traffic::chatter);
    until("srtt_min_ms", [300.0, 400.0], 0.1);
    let open = chatter.map(Traffic::stop);
    let downloads = traffic(7001, Traffic::download);
    until("down_best", [4.0, 20.0].map(|mbit| mbit * 1e6 / 8.0), 0.15);
    drop(downloads.map(Traffic::stop));
    // 2 × 300 ms + 2.4 Mbit at 4 Mbit/s is later than 2 × 400 ms and the same at 20; a thousand bytes are
    // not.
    let ask = |size: u64| {
        let ask = json!({"ask": {"intents": {"size-received": size}, "to": "10.9.9.9:443"}});
        running.client().ask(&ask.to_string())["decision"]["ways"][0]["interface"].clone()
    };
    assert_eq!(ask(300_000), "link1");
    assert_eq!(ask(1000), "link0");
    drop(open);
}

#[test]
fn hostile_clients_are_dropped_and_others_are_served() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start(&world.client, "");
    let deep = format!("{{\"ask\":{}", "[".repeat(MAX_LINE / 2));
    let refused = [
        "hello".to_owned(),
        "{}".to_owned(),
        "[1]".to_owned(),
        "\0\0\0".to_owned(),
        r#"{"ask":{},"watch":{}}"#.to_owned(),
        r#"{"ask":{"intents":{"size-received":-1}}}"#.to_owned(),
        r#"{"ask":{"intents":{"speed":1}}}"#.to_owned(),
        r#"{"id":1e99,"ask":{}}"#.to_owned(),
        deep,
        "x".repeat(MAX_LINE),
    ];
    for line in refused {
        let mut client = running.client();
        let answer = client.ask(&line);
        assert!(answer["error"].is_string(), "{answer}");
        assert_eq!(client.hear(), None, "after {:.40}", line);
    }
    // What has the right form and makes no sense is answered, and the client stays.
    let mut client = running.client();
    let many = vec!["10.9.9.9:1"; 300];
    let told = json!({"interface": "link0", "srtt_ms": -5});
    for line in [
        json!({"id": 1, "ask": {"to": "nowhere"}}),
        json!({"id": 1, "ask": {"to": "10.9.9.9"}}),
        json!({"id": 1, "ask": {"addresses": many}}),
        json!({"id": 1, "ask": {"intents": {"duration": 0}}}),
        json!({"id": 1, "report": {"done": 99}}),
        json!({"id": 1, "report": {"failed": {"interface": "eth9", "destination": "10.9.9.9:1"}}}),
        json!({"id": 1, "report": {"measured": told}}),
        json!({"id": 1, "policy": {"name": "mine"}}),
    ] {
        let answer = client.ask(&line.to_string());
        assert_eq!(answer["id"], 1);
        assert!(answer["error"].is_string(), "{line}: {answer}");
    }
    assert_eq!(client.ask(ASK)["decision"]["ways"][0]["interface"], "link0");

    // One that asks and never reads: it gets what the sockets hold, and the manager reads no further.
    let mut slow = UnixStream::connect(running.socket()).unwrap();
    slow.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let many = format!("{ASK}\n").repeat(500);
    let mut taken = 0;
    while let Ok(count) = slow.write(many.as_bytes()) {
        taken += count;
        assert!(taken < 64 << 20, "the manager reads without end from one who does not");
    }
    // One that says half a line and nothing more.
    let mut half = UnixStream::connect(running.socket()).unwrap();
    half.write_all(&ASK.as_bytes()[..20]).unwrap();
    // As many as there is room for, and one more.
    let others: Vec<Client> = (0..MAX_CLIENTS - 3).map(|_| running.client()).collect();
    let mut last = running.client();
    let told = last.hear().unwrap();
    assert!(told["error"].as_str().unwrap().contains("clients already"), "{told}");
    assert_eq!(client.ask(ASK)["decision"]["ways"][0]["interface"], "link0");
    drop((others, slow, half));
    let end = Instant::now() + LIMIT;
    loop {
        let mut next = running.client();
        next.say(ASK);
        if next.hear().is_some_and(|answer| answer.get("decision").is_some()) {
            break;
        }
        assert!(Instant::now() < end, "there is no room again");
    }
}

#[test]
fn a_client_of_another_user_is_told_that_it_is_not_let_in() {
    if !require!() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        whimbrel_lab::skip("a client of another user", "it needs root to become one");
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start(&world.client, "");
    // The directory and the socket let everybody in, so that it is the manager that does not.
    for path in [running.folder.path(), &running.socket()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])\n\
                  try: s.sendall(sys.argv[2].encode() + b'\\n')\n\
                  except OSError: pass\n\
                  print(s.makefile().read())";
    let ask = |user: u32| {
        let mut command = Command::new("python3");
        command.args(["-c", script, running.socket().to_str().unwrap(), ASK]).uid(user);
        command.stdin(Stdio::null()).current_dir("/");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        // It may not end by itself if it is let in.
        let mut output = child.stdout.take().unwrap();
        if user != 0 {
            output.read_to_string(&mut said).unwrap();
        }
        let _ = child.kill();
        child.wait().unwrap();
        said
    };
    let told = ask(65_534);
    assert!(told.contains("and you are user 65534"), "{told}");
    assert!(!told.contains("decision"), "{told}");
    // The same user is let in by the same socket.
    assert_eq!(running.client().ask(ASK)["decision"]["ways"][0]["interface"], "link0");
}

#[test]
fn what_clients_tell_counts_and_goes_with_them() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let running = Running::start(&world.client, "rest = 50\n[policy]\nname = \"lowest-latency\"");
    let mut teller = running.client();
    let measured = |interface: &str, millis: u64| json!({"id": 1, "report": {"measured": {"interface": interface, "srtt_ms": millis, "rate": 1e6}}});
    assert_eq!(teller.ask(&measured("link0", 30).to_string())["ok"], true);
    assert_eq!(teller.ask(&measured("link1", 10).to_string())["ok"], true);
    let mut watcher = running.client();
    watcher.say(r#"{"watch":{}}"#);
    watcher.until(|line| line["paths"][1]["srtt_min_ms"] == 10.0);
    assert_eq!(teller.ask(ASK)["decision"]["ways"][0]["interface"], "link1");
    let failed = json!({"report": {"failed": {"interface": "link1", "destination": "10.9.9.9:443"}}});
    assert_eq!(teller.ask(&failed.to_string())["ok"], true);
    assert_eq!(teller.ask(ASK)["decision"]["ways"][0]["interface"], "link0");
    let track = json!({"ask": {"intents": {"size-received": 5000}, "to": "10.9.9.9:443", "track": true}});
    let unit = teller.ask(&track.to_string())["decision"]["unit"].as_u64().unwrap();
    watcher.until(|line| line["paths"][0]["scheduled"] == 1);
    assert_eq!(teller.ask(&json!({"report": {"done": unit}}).to_string())["ok"], true);
    watcher.until(|line| line["paths"][0]["scheduled"] == 0);
    teller.ask(&track.to_string());
    watcher.until(|line| line["paths"][0]["scheduled"] == 1);
    drop(teller);
    watcher.until(|line| line["paths"][0]["scheduled"] == 0 && line["paths"][1]["srtt_min_ms"].is_null());
}

#[test]
fn a_client_that_says_all_at_once_gets_all_its_answers() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start(&world.client, "");
    let mut client = running.client();
    let lines: String =
        (0..2000).map(|id| format!("{{\"id\":{id},\"ask\":{{\"to\":\"10.9.9.9:443\"}}}}\n")).collect();
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        writer.write_all(lines.as_bytes()).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    for id in 0..2000 {
        let answer = client.hear().unwrap();
        assert_eq!(answer["id"], id);
        assert_eq!(answer["decision"]["ways"][0]["source"], "10.0.0.1");
    }
    assert_eq!(client.hear(), None);
    writing.join().unwrap();
}

#[test]
fn one_that_says_very_much_at_once_and_reads_is_not_dropped() {
    if !require!() {
        return;
    }
    let world = world(&[(5, 20), (20, 20)]);
    let running = Running::start(&world.client, "");
    let mut client = running.client();
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        writer.write_all("{\"ask\":{}}\n".repeat(20_000).as_bytes()).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    for n in 0..20_000 {
        let answer = client.hear().unwrap_or_else(|| panic!("nothing after {n} answers"));
        assert_eq!(answer["decision"]["ways"].as_array().unwrap().len(), 2, "{answer}");
    }
    assert_eq!(client.hear(), None);
    writing.join().unwrap();
}
