//! `whimbrel doctor` on what works, and on what was broken for it.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{self, World, shouting_server};
use serde_json::Value;
use whimbrel_base::{Record, SecretKey, SignedRecord, UnixTime, next_sequence};
use whimbrel_lab::{Block, Host, HostChild, HostCommand, Lab, LinkSpec};
use whimbrel_names::{Admission, Limits, MemoryStore, Service};
use whimbrel_transport::{Endpoint, ManualMonitor};

fn state(report: &Value, check: &str) -> String {
    let all = report["findings"].as_array().unwrap();
    let found = all.iter().find(|finding| finding["check"].as_str().unwrap().contains(check));
    found.unwrap_or_else(|| panic!("no {check}: {report}"))["state"].as_str().unwrap().to_owned()
}

#[test]
fn all_is_well_where_everything_works() {
    let (world, _names) = World::with_names();
    let (to, bob) = (shouting_server().to_string(), world.id("bob"));
    let name = "web.home.ada@example.org";
    let mut expose = world.start("ada", &["expose", name, "--to", &to, "--allow", &bob, "--json"]);
    expose.next_json();
    let output = world.run("bob", &["doctor", name, "--json"]);
    let report = output.succeeded().json();
    assert_eq!(report["well"], true);
    let checks = [
        "name service over tcp",
        "name service over quic",
        "home.ada@example.org over tcp",
        "identity",
        "MTU to",
    ];
    for check in checks {
        assert_eq!(state(&report, check), "good", "{report}");
    }
    assert_eq!(state(&report, "over quic"), "good");
    assert_eq!(state(&report, "relay"), "note");
    let text = world.run("bob", &["doctor"]).succeeded().stdout.clone();
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.contains("wh-")), "{text}");
    // Somebody who is not allowed learns what to do.
    let refused = world.run("eve", &["doctor", name, "--json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stdout.contains("have this key allowed"), "{}", refused.stdout);
}

/// A name service in this process that holds user names for so long without a sign of life, and its ticket.
fn service_that_holds(world: &World, held: Duration) -> (tokio::runtime::Runtime, Service, String) {
    let at = ManualMonitor::new([world.address("names").parse().unwrap()]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let service = runtime.block_on(async {
        let builder =
            Endpoint::builder().secret_key(SecretKey::generate()).monitor(at).config(Service::config());
        let limits = Limits { user_grace: held, ..Limits::default() };
        let endpoint = builder.bind().await.unwrap();
        Service::start(endpoint, MemoryStore::new(), Admission::any(), limits).await.unwrap()
    });
    let addr = service.addr();
    let ticket = format!("{}@{}", addr.id, addr.addrs[0]);
    (runtime, service, ticket)
}

/// Registers a user by a record that does not last, as a program of the user's own may: the service counts
/// from its end on.
fn register_for_a_while(world: &World, runtime: &tokio::runtime::Runtime, user: &str, ticket: &str) {
    world.id(user);
    let key = whimbrel::Identity::in_file(world.config(user, "identity")).unwrap().key;
    let at = ManualMonitor::new([world.address("elsewhere").parse().unwrap()]);
    let service: whimbrel::ServiceAddress = ticket.parse().unwrap();
    runtime.block_on(async {
        let endpoint = whimbrel::Endpoint::builder().identity(key.clone()).monitor(at).names(service);
        let endpoint = endpoint.bind().await.unwrap();
        let now = UnixTime::from(SystemTime::now());
        let record = Record {
            name: format!("{user}@example.org").parse().unwrap(),
            id: key.id(),
            addrs: Vec::new(),
            sequence: next_sequence(None, now.as_millis()),
            expires: now.saturating_add(Duration::from_secs(3600)),
            lifetime: Duration::from_secs(3600),
            revoked: false,
        };
        let record = SignedRecord::sign(record, &key, None).unwrap();
        endpoint.names().unwrap().publish_record(record).await.unwrap();
    });
}

#[test]
fn an_owner_is_told_a_week_before_its_name_may_be_anothers() {
    for (days, near) in [(6, true), (8, false)] {
        let mut world = World::new();
        let (runtime, _service, ticket) = service_that_holds(&world, Duration::from_secs(days * 86_400));
        world.set_service(&ticket);
        register_for_a_while(&world, &runtime, "ada", &ticket);
        let args = ["--allow", "any", "--json"];
        let expose = ["expose", "web.ada@example.org", "--to", "127.0.0.1:1"];
        let mut expose = world.start("ada", &[&expose[..], &args].concat());
        expose.next_json();
        expose.signal(rustix::process::Signal::TERM);
        let said = expose.output(common::LIMIT).succeeded().stderr.clone();
        assert_eq!(said.contains("warning: the name service holds ada@example.org for"), near, "{said}");
        let report = world.run("ada", &["doctor", "--json"]);
        assert_eq!(report.status.code(), Some(i32::from(near)), "{}", report.stdout);
        assert_eq!(state(&report.json(), "name ada@example.org"), if near { "bad" } else { "good" });
        assert_eq!(report.stdout.contains("that begins the time anew"), near, "{}", report.stdout);
        // It says nothing of another service.
        if near {
            let other = format!("{}@127.0.0.1:1", world.id("bob"));
            let report = world.run("ada", &["doctor", "--json", "--names", &other]);
            assert!(!report.stdout.contains("name ada@example.org"), "{}", report.stdout);
        }
    }
}

#[test]
fn a_relay_is_what_gives_this_key_a_reservation_and_nothing_else_that_answers() {
    let (world, names) = World::with_names();
    let bob = world.id("bob");
    let mut relay = world.start("vps", &["relay", "serve", "--port", "0", "--allow", &bob, "--json"]);
    let ticket = relay.next_json()["ticket"].as_str().unwrap().to_owned();
    let of = |user: &str, relay: &str| world.run(user, &["doctor", "--relay", relay, "--json"]);
    let served = of("bob", &ticket);
    assert!(served.stdout.contains("would relay for this key"), "{}", served.stdout);
    let refused = of("eve", &ticket);
    assert!(refused.stdout.contains("have its operator allow this key"), "{}", refused.stdout);
    // A name service lets everybody in, under any name.
    let other = of("bob", world.service());
    assert!(other.stdout.contains("no relay") && other.stdout.contains("check --relay"), "{}", other.stdout);
    relay.kill();
    let gone = of("bob", &ticket);
    assert!(gone.stdout.contains("firewalls"), "{}", gone.stdout);
    for (output, expected, code) in
        [(served, "good", 0), (refused, "bad", 1), (other, "bad", 1), (gone, "bad", 1)]
    {
        let report = output.json();
        assert_eq!(output.status.code(), Some(code), "{report}");
        let all = report["findings"].as_array().unwrap();
        let of_relays = all.iter().filter(|finding| finding["check"].as_str().unwrap().starts_with("relay "));
        let states: Vec<&str> = of_relays.map(|finding| finding["state"].as_str().unwrap()).collect();
        assert_eq!(states, [expected, expected], "{report}");
    }
    drop(names);
}

/// What was found of relays: what each check is called, its state and its remedy.
fn of_relays(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    let told = all.map(|found| (text(&found["check"]), text(&found["state"]), text(&found["remedy"])));
    told.filter(|(check, ..)| check.starts_with("relay ")).collect()
}

#[test]
fn a_relay_is_tried_by_its_name_and_a_group_by_each_of_its_relays() {
    const GROUP: &str = "pool.ops@example.org";
    const MEMBERS: [&str; 2] = ["fra.vps@example.org", "nyc.away@example.org"];
    let (world, _names) = World::with_names();
    let bob = world.id("bob");
    let group = ["names", "group", "add", GROUP, MEMBERS[0], MEMBERS[1], "--readers", "any"];
    world.run("ops", &group).succeeded();
    let serve = ["relay", "serve", "--port", "0", "--allow", &bob, "--json"];
    let serve = [&serve[..], &["--group", GROUP, "--as", MEMBERS[0], "--place", "fra1"]].concat();
    let mut relay = world.start("vps", &serve);
    relay.next_json();
    common::wait_for("the relay registers its name", || {
        let looked_up = world.run("bob", &["names", "lookup", MEMBERS[0]]);
        looked_up.status.success().then_some(())
    });
    let of = |user: &str, relay: &str| world.run(user, &["doctor", "--relay", relay, "--json"]).json();
    let check = |name: &str, kind: &str| format!("relay {name} over {kind}");
    let found = of_relays(&of("bob", MEMBERS[0]));
    let expected = ["tcp", "quic"].map(|kind| (check(MEMBERS[0], kind), "good".to_owned(), String::new()));
    assert_eq!(found, expected);
    let refused = of_relays(&of("eve", MEMBERS[0]));
    assert!(refused.iter().all(|(_, state, remedy)| state == "bad" && remedy.contains("allow this key")));
    assert_eq!(refused.len(), 2, "{refused:?}");
    // Of a group, each is told apart: one runs, the other one has not registered yet.
    let found = of_relays(&of("bob", GROUP));
    let told: Vec<(&str, &str)> = found.iter().map(|(check, state, _)| (&**check, &**state)).collect();
    let expected = ["tcp", "quic"].map(|kind| MEMBERS.map(|name| check(name, kind)));
    let expected: Vec<(&str, &str)> =
        expected.iter().flat_map(|[one, other]| [(&**one, "good"), (&**other, "bad")]).collect();
    assert_eq!(told, expected);
    assert!(found[1].2.contains("relay serve --group"), "{found:?}");
    let unknown = of_relays(&of("bob", "nobody.ops@example.org"));
    assert!(unknown.iter().all(|(_, state, remedy)| state == "bad" && remedy.contains("check the name")));
    assert_eq!(unknown.len(), 2, "{unknown:?}");
}

#[test]
fn a_relay_that_only_tcp_reaches_is_told_with_a_remedy() {
    if !whimbrel_lab::require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let (laptop, vps) = (lab.host("laptop").unwrap(), lab.host("vps").unwrap());
    let link = lab.link(&laptop, &vps, LinkSpec::default()).unwrap();
    link.end(&laptop).add_address("10.0.1.2/24").unwrap();
    link.end(&vps).add_address("10.0.1.1/24").unwrap();
    laptop.block(Block::Udp).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let serve = ["relay", "serve", "--listen", "10.0.1.1:443", "--allow", "any", "--json"];
    let (_relay, said) = started(on(&vps, &folder.path().join("vps"), &serve));
    let ticket = said["ticket"].as_str().unwrap();
    let output = on(&laptop, &folder.path().join("laptop"), &["doctor", "--relay", ticket, "--json"]);
    let output = output.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let relay = |kind: &str| {
        let all = report["findings"].as_array().unwrap();
        let is_it = |check: &str| check.starts_with("relay ") && check.ends_with(kind);
        all.iter().find(|finding| is_it(finding["check"].as_str().unwrap())).unwrap()
    };
    assert_eq!(relay("over tcp")["state"], "good", "{report}");
    assert_eq!(relay("over quic")["state"], "bad", "{report}");
    assert!(relay("over quic")["remedy"].as_str().unwrap().contains("--carrier tcp"), "{report}");
}

#[test]
fn what_is_broken_is_found_in_time_with_a_remedy() {
    let (world, mut names) = World::with_names();
    world.id("bob");
    fs::set_permissions(world.config("bob", "identity"), Permissions::from_mode(0o644)).unwrap();
    names.kill();
    let start = Instant::now();
    let output = world.run("bob", &["doctor", "--json"]);
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1), "{} {}", output.stdout, output.stderr);
    let report = output.json();
    for check in ["identity", "name service over tcp", "name service over quic"] {
        assert_eq!(state(&report, check), "bad", "{report}");
    }
    assert!(output.stdout.contains("chmod 600"), "{}", output.stdout);
    let bad = report["findings"].as_array().unwrap().iter().filter(|finding| finding["state"] == "bad");
    assert!(bad.into_iter().all(|finding| finding["remedy"].is_string()), "{report}");
}

/// The program on a host of the lab, with a home directory of its own.
fn on(host: &Host, home: &std::path::Path, args: &[&str]) -> whimbrel_lab::HostCommand {
    fs::create_dir_all(home).unwrap();
    let command = host.command(common::PROGRAM).args(args).env("HOME", home).env("XDG_RUNTIME_DIR", home);
    command.with(|command| {
        command.env_remove("XDG_CONFIG_HOME").env_remove("RUST_LOG");
    })
}

/// Starts a command that goes on, and waits for its first line, which is JSON.
fn started(command: HostCommand) -> (HostChild, Value) {
    let piped = command.with(|command| {
        command.stdout(std::process::Stdio::piped());
    });
    let mut child = piped.spawn().unwrap();
    let mut line = String::new();
    let output = child.child().stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

#[test]
fn a_way_with_small_packets_is_found_with_a_remedy() {
    if !whimbrel_lab::require!() {
        return;
    }
    for (mtu, expected) in [(1500, "good"), (1200, "bad")] {
        let lab = Lab::new().unwrap();
        let (laptop, home) = (lab.host("laptop").unwrap(), lab.host("home").unwrap());
        let router = lab.router("router").unwrap();
        let near = lab.link(&laptop, &router, LinkSpec::default()).unwrap();
        let far = lab.link(&home, &router, LinkSpec::default().mtu(mtu)).unwrap();
        for (link, host, network) in [(&near, &laptop, 1), (&far, &home, 2)] {
            link.end(&router).add_address(&format!("10.0.{network}.1/24")).unwrap();
            link.end(host).add_address(&format!("10.0.{network}.2/24")).unwrap();
            link.end(host).add_default_route(&format!("10.0.{network}.1"), 1).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let args = ["expose", "--ticket", "--to", "127.0.0.1:1", "--allow", "any", "--json"];
        let (_expose, said) = started(on(&home, &folder.path().join("home"), &args));
        let ticket = said["ticket"].as_str().unwrap().to_owned();
        let doctor = on(&laptop, &folder.path().join("laptop"), &["doctor", &ticket, "--json"]);
        let output = doctor.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(state(&report, "MTU to"), expected, "{report}");
        if expected == "bad" {
            assert!(report.to_string().contains("packets of 1200 bytes"), "{report}");
        }
    }
}
