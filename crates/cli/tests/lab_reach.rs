//! Two machines behind gateways of their own, and a small server: the commands of `docs/reach.md`.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use whimbrel_lab::{Host, HostChild, Lab, Link, require};

use crate::homes::{Home, Internet, figures, json_of, serve, started, whimbrel};

const NAME: &str = "ssh.home.ada@example.org";
const SIZE: usize = 12 << 20;

#[test]
fn two_machines_behind_gateways_meet_by_name_through_one_server() {
    if !require!() {
        return;
    }
    let internet = Internet::new();
    let vps = &internet.vps;
    let (mut home, mut laptop) = (internet.home("home", 1), internet.home("laptop", 2));
    let folder = tempfile::tempdir().unwrap();
    let on =
        |host: &Host, user: &str, arguments: &[&str]| whimbrel(host, folder.path(), user).args(arguments);

    let serving = [
        "serve",
        "--listen",
        "0.0.0.0:443",
        "--allow",
        "@example.org",
        "--ephemeral",
        "--metrics",
        "127.0.0.1:9090",
        "--json",
    ];
    let (mut server, said) = started(on(vps, "vps", &serving));
    let service = said["ticket"].as_str().unwrap().to_owned();
    let id = on(&laptop.host, "laptop", &["id"]).output().unwrap();
    let id = String::from_utf8(id.stdout).unwrap().trim().to_owned();

    let sent: Vec<u8> = (0..SIZE).map(|n| (n * n % 251) as u8).collect();
    serve(home.host.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap(), sent.clone());
    // Without a relay nobody elsewhere could reach it, which is said.
    let alone = ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any"];
    let alone = on(&home.host, "home", &alone).with(|c| {
        c.stderr(Stdio::piped()).stdout(Stdio::null());
    });
    let mut alone = alone.spawn().unwrap();
    let lines = BufReader::new(alone.child().stderr.take().unwrap()).lines();
    let told = lines.map(Result::unwrap).find(|line| line.contains("no public address")).unwrap();
    assert!(told.contains("--relay") && told.contains("--advertise"), "{told}");
    alone.kill().unwrap();
    alone.wait().unwrap();

    let exposing = ["expose", NAME, "--to", "127.0.0.1:2222", "--allow", &id, "--json"];
    let reach = ["--names", &service, "--relay", &service];
    let (mut exposed, _) = started(on(&home.host, "home", &[&exposing[..], &reach].concat()));
    let forwarding = ["forward", NAME, "--listen", "127.0.0.1:8080", "--names", &service, "--json"];
    let (mut forward, _) = started(on(&laptop.host, "laptop", &forwarding));

    let mut socket = laptop.host.run(|| TcpStream::connect("127.0.0.1:8080")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut received = vec![0; SIZE];
    let third = SIZE / 3;
    socket.read_exact(&mut received[..third]).unwrap();
    laptop.move_on();
    socket.read_exact(&mut received[third..2 * third]).unwrap();
    home.move_on();
    socket.read_exact(&mut received[2 * third..]).unwrap();
    assert!(received == sent, "wrong bytes");
    // It was the relay that carried all this.
    let shown = on(&laptop.host, "laptop", &["names", "lookup", NAME, "--names", &service]);
    let shown = String::from_utf8(shown.output().unwrap().stdout).unwrap();
    assert!(shown.contains("relay 203.0.113.5:443 for "), "{shown}");
    let figures = figures(vps);
    let is_told = |figure: &str| figures.lines().any(|line| line == figure);
    assert!(is_told("whimbrel_relay_reservations 1") && is_told("whimbrel_relay_splices 1"), "{figures}");
    assert!(!is_told("whimbrel_names_published_total 0"), "{figures}");
    for child in [&mut forward, &mut exposed, &mut server] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A home without a relay, whose router passes ports on when it is asked to.
#[test]
fn a_router_that_is_asked_passes_the_port_of_expose_on() {
    if !require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let internet = lab.router("internet").unwrap();
    let (home, laptop) = (Home::new(&lab, &internet, "home", 1), Home::new(&lab, &internet, "laptop", 2));
    // The router has a public address besides, as the Internet sees it.
    let router = home.gateway.router();
    router.add_address("wan0", "203.0.113.7/32").unwrap();
    internet.add_route("to1", "203.0.113.7", "10.0.1.10").unwrap();
    let outside = "203.0.113.7".parse().unwrap();
    let _speaking = home.gateway.speak_nat_pmp("192.168.1.1".parse().unwrap(), outside).unwrap();
    let folder = tempfile::tempdir().unwrap();
    serve(home.host.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap(), b"here".to_vec());

    let expose = ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any"];
    let expose =
        whimbrel(&home.host, folder.path(), "home").args(expose).args(["--advertise", "router", "--json"]);
    let (mut exposed, said) = started(expose);
    let ticket = said["ticket"].as_str().unwrap();
    assert!(ticket.contains("203.0.113.7"), "{ticket}");
    let pipe = whimbrel(&laptop.host, folder.path(), "laptop").args(["pipe", ticket]).with(|c| {
        c.stdin(Stdio::null());
    });
    let heard = pipe.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&heard.stdout), "here", "{}", String::from_utf8_lossy(&heard.stderr));
    exposed.kill().unwrap();
    exposed.wait().unwrap();
}

/// Three relays, of which the server uses two; the one that carries a download is killed.
#[test]
fn a_relay_of_a_group_that_is_killed_is_replaced_and_a_download_goes_on() {
    const GROUP: &str = "relays.ops@example.org";
    if !require!() {
        return;
    }
    let internet = Internet::new();
    let vps = &internet.vps;
    // Gateways that map each flow anew: no direct path comes of them, so that relays carry.
    let (home, laptop) = (internet.home("home", 1), internet.home("laptop", 2));
    let folder = tempfile::tempdir().unwrap();
    let on =
        |host: &Host, user: &str, arguments: &[&str]| whimbrel(host, folder.path(), user).args(arguments);

    let serve_names =
        ["names", "serve", "--listen", "203.0.113.5:4480", "--allow", "any", "--ephemeral", "--json"];
    let (_names, said) = started(on(vps, "vps", &serve_names));
    let service = said["ticket"].as_str().unwrap().to_owned();
    let members: Vec<String> = (1..=3).map(|number| format!("r.relay{number}@example.org")).collect();
    let add = ["names", "group", "add", GROUP, &members[0], &members[1], &members[2]];
    let add = on(vps, "ops", &add).args(["--readers", "any", "--names", &service]).output().unwrap();
    assert!(add.status.success(), "{add:?}");
    let join = |host: &Host, user: &str, name: &str, place: &str| {
        let serve = ["relay", "serve", "--allow", "any", "--names", &service, "--json"];
        on(host, user, &serve).args(["--group", GROUP, "--as", name, "--place", place])
    };
    // They have registered their users by themselves.
    let hosts: Vec<(Host, Link)> =
        (1..=3).map(|number| internet.server(&format!("relay{number}"), number)).collect();
    // One that its owner did not take in.
    let refused = join(&hosts[0].0, "stranger", "r.stranger@example.org", "p9").output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(5) && told.contains("is no member of"), "{refused:?}");
    let mut relays: Vec<HostChild> = Vec::new();
    for ((host, _), name) in hosts.iter().zip(&members) {
        let place = format!("p{}", relays.len() + 1);
        relays.push(started(join(host, &place, name, &place)).0);
    }

    let sent: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
    serve(home.host.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap(), sent.clone());
    let id = on(&laptop.host, "laptop", &["id"]).output().unwrap();
    let id = String::from_utf8(id.stdout).unwrap().trim().to_owned();
    let exposing = ["expose", NAME, "--to", "127.0.0.1:2222", "--allow", &id, "--json", "--names", &service];
    let (_exposed, _) = started(on(&home.host, "home", &exposing).args(["--relay", GROUP]));
    let shown = || {
        let shown =
            json_of(on(&laptop.host, "laptop", &["names", "lookup", NAME, "--json", "--names", &service]));
        let places =
            shown["places"].as_array().unwrap().iter().map(|place| place.as_str().unwrap().to_owned());
        let behind = |number: usize| format!("relay 198.51.{number}.5:443 for ");
        let places: Vec<String> = places.collect();
        (1..=3)
            .filter(|number| places.iter().any(|place| place.starts_with(&behind(*number))))
            .collect::<Vec<_>>()
    };
    let until = |what: &str, limit: Duration, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < limit, "{what}: not after {limit:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until("two relays", Duration::from_secs(10), &|| shown().len() == 2);
    let told = json_of(on(&home.host, "home", &["status", "--json"]));
    assert_eq!(told[0]["relays"].as_array().map(Vec::len), Some(2), "{told}");

    let forwarding = ["forward", NAME, "--listen", "127.0.0.1:8080", "--names", &service, "--json"];
    let (_forward, _) = started(on(&laptop.host, "laptop", &forwarding));
    let mut socket = laptop.host.run(|| TcpStream::connect("127.0.0.1:8080")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut received = vec![0; SIZE];
    let third = SIZE / 3;
    socket.read_exact(&mut received[..third]).unwrap();
    let before = shown();
    let paths = json_of(on(&laptop.host, "laptop", &["status", "--json"])).to_string();
    let carries = |number: &&usize| paths.contains(&format!("198.51.{number}.5:443"));
    let dying = *before.iter().find(carries).unwrap_or_else(|| panic!("no relay carries: {paths}"));
    relays[dying - 1].kill().unwrap();
    relays[dying - 1].wait().unwrap();
    let killed = Instant::now();
    // The server notices within a sign of life of two seconds and one of patience, and has two to change.
    until("another relay", Duration::from_secs(5), &|| {
        let now = shown();
        now.len() == 2 && !now.contains(&dying)
    });
    println!("another relay after {:?}", killed.elapsed());
    let listed =
        || json_of(on(&laptop.host, "laptop", &["relay", "list", GROUP, "--json", "--names", &service]));
    let left = Duration::from_secs(5).saturating_sub(killed.elapsed());
    until("out of the group's answer", left, &|| {
        let state = |number: usize| listed()["relays"][number - 1]["state"].as_str().unwrap().to_owned();
        state(dying) == "out"
    });
    println!("out of the group's answer after {:?}", killed.elapsed());
    socket.read_exact(&mut received[third..]).unwrap();
    assert!(received == sent, "wrong bytes");
    for mut relay in relays {
        // One is dead already.
        let _ = relay.kill();
        let _ = relay.wait();
    }
}
