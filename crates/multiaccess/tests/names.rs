//! Names are looked up by each interface for itself: two networks, whose DNS says different things.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::{Client, LIMIT, Running};
use serde_json::{Value, json};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use whimbrel_lab::{Host, Lab, Link, LinkSpec, require};
use whimbrel_multiaccess::ClientError;
use whimbrel_multiaccess::protocol::Ask;

/// A DNS server that has one address of each family for every name under `test`, and none for others. It says
/// nothing to questions for names that begin with `slow`.
struct Dns {
    answers: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Dns {
    fn start(host: &Host, at: &str, v4: [u8; 4], v6: &str) -> Self {
        let socket = host.run(|| UdpSocket::bind((at.parse::<IpAddr>().unwrap(), 53))).unwrap();
        let v6: std::net::Ipv6Addr = v6.parse().unwrap();
        let (answers, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (answering, counting) = (Arc::clone(&answers), Arc::clone(&asked));
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                counting.fetch_add(1, Ordering::Relaxed);
                let is_slow = buffer[13..length].starts_with(b"slow");
                if answering.load(Ordering::Relaxed) && !is_slow {
                    let answer = answer(&buffer[..length], v4, v6.octets());
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        Self { answers, asked }
    }
}

/// An answer to a question with one name, as in RFC 1035, §4.
fn answer(question: &[u8], v4: [u8; 4], v6: [u8; 16]) -> Vec<u8> {
    let (mut at, mut last) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        last = question[at + 1..=at + length].to_ascii_lowercase();
        at += length + 1;
    }
    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    let data: Option<&[u8]> = match kind {
        1 if last == b"test" => Some(&v4),
        28 if last == b"test" => Some(&v6),
        _ => None,
    };
    let mut out = question[..2].to_vec();
    let code = if last == b"test" { 0 } else { 3 };
    out.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(data.is_some()), 0, 0, 0, 0]);
    out.extend(&question[12..at + 5]);
    if let Some(data) = data {
        out.extend([0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
        out.extend(data);
    }
    out
}

struct World {
    client: Host,
    dns: [Dns; 2],
    links: Vec<Link>,
    networks: Vec<Host>,
    _lab: Lab,
}

/// Two networks, each with a DNS server at the same address 10.0.0.53 of its own.
fn world() -> World {
    let lab = Lab::new().unwrap();
    let client = lab.host("client").unwrap();
    let (mut links, mut networks, mut dns) = (Vec::new(), Vec::new(), Vec::new());
    for n in 1..=2u8 {
        let network = lab.host(&format!("network{n}")).unwrap();
        let spec = LinkSpec::default().delay(Duration::from_millis(5));
        let name = format!("link{n}");
        let link = lab.link(&client, &network, spec.interface_names(&name, &name)).unwrap();
        link.end(&client).add_address(&format!("10.0.{n}.1/24")).unwrap();
        link.end(&client).add_address(&format!("fd00:{n}::1/64")).unwrap();
        link.end(&network).add_address(&format!("10.0.{n}.2/24")).unwrap();
        link.end(&network).add_address(&format!("fd00:{n}::2/64")).unwrap();
        // The same in both networks: only by its interface can it be told which one is asked.
        link.end(&network).add_address("10.0.0.53/32").unwrap();
        link.end(&client).add_default_route(&format!("10.0.{n}.2"), u32::from(n)).unwrap();
        link.end(&client).add_default_route(&format!("fd00:{n}::2"), u32::from(n)).unwrap();
        dns.push(Dns::start(&network, "10.0.0.53", [192, 0, 2, n], &format!("2001:db8::{n}")));
        links.push(link);
        networks.push(network);
    }
    let dns = dns.try_into().ok().unwrap();
    World { client, dns, links, networks, _lab: lab }
}

const SETTINGS: &str = r#"
[policy]
name = "eaf"
[[interface]]
name = "link1"
servers = ["10.0.0.53"]
search = ["nowhere.example", "test"]
[[interface]]
name = "link2"
servers = ["10.0.0.53"]
search = ["test"]
"#;

fn ask(client: &mut Client, host: &str) -> Value {
    let ask = json!({"ask": {"intents": {"size-received": 1000}, "to": format!("{host}:443")}});
    client.ask(&ask.to_string())
}

/// The destinations with their interfaces, none of which may be the other network's.
fn ways(answer: &Value) -> Vec<(String, String)> {
    let ways = answer["decision"]["ways"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
    let text = |way: &Value, key: &str| way[key].as_str().unwrap().to_owned();
    let mut ways: Vec<_> =
        ways.iter().map(|way| (text(way, "interface"), text(way, "destination"))).collect();
    for (interface, to) in &ways {
        let number = interface.trim_start_matches("link");
        let own = [format!("192.0.2.{number}:443"), format!("[2001:db8::{number}]:443")];
        assert!(own.contains(to), "{to} was used on {interface}: {answer}");
    }
    ways.sort();
    ways
}

#[test]
fn answers_of_two_networks_are_never_mixed_and_both_families_and_search_lists_count() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let mut client = running.client();
    let end = Instant::now() + LIMIT;
    // The addresses of IPv6 are tentative at first.
    let all = loop {
        let ways = ways(&ask(&mut client, "www.test"));
        if ways.len() == 4 || Instant::now() > end {
            break ways;
        }
    };
    let expected = [
        ("link1", "192.0.2.1:443"),
        ("link1", "[2001:db8::1]:443"),
        ("link2", "192.0.2.2:443"),
        ("link2", "[2001:db8::2]:443"),
    ];
    assert_eq!(all, expected.map(|(interface, to)| (interface.to_owned(), to.to_owned())));
    // A short name is looked for in each interface's own domains.
    assert_eq!(ways(&ask(&mut client, "www")), all);
    // Answers are kept, each by its interface.
    let asked = || world.dns.each_ref().map(|dns| dns.asked.load(Ordering::Relaxed));
    let before = asked();
    for _ in 0..50 {
        assert_eq!(ways(&ask(&mut client, "www.test")), all);
    }
    assert_eq!(asked(), before);
    let nothing = ask(&mut client, "www.nowhere.example.");
    assert_eq!(
        nothing["error"],
        "DNS of link1: there is no www.nowhere.example.; DNS of link2: there is no www.nowhere.example."
    );
}

#[test]
fn dns_that_is_dead_on_one_interface_is_told_once_and_holds_up_nobody() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let mut client = running.client();
    let limit = Instant::now() + LIMIT;
    while !ways(&ask(&mut client, "cached.test")).iter().any(|(interface, _)| interface == "link1") {
        assert!(Instant::now() < limit, "link1 has no answer");
    }
    world.dns[0].answers.store(false, Ordering::Relaxed);
    let first = ask(&mut client, "a.test");
    assert!(ways(&first).iter().all(|(interface, _)| interface == "link2"), "{first}");
    let problems = first["decision"]["problems"].as_array().unwrap().clone();
    assert_eq!(problems.len(), 1, "{first}");
    assert!(problems[0].as_str().unwrap().starts_with("DNS of link1: 10.0.0.53 "), "{first}");
    // From now on it is not waited for: an answer takes two round trips, and no delay.
    let mut quickest = LIMIT;
    for n in 0..20 {
        let began = Instant::now();
        let answer = ask(&mut client, &format!("b{n}.test"));
        quickest = quickest.min(began.elapsed());
        assert!(ways(&answer).iter().all(|(interface, _)| interface == "link2"), "{answer}");
        let problem = answer["decision"]["problems"][0].as_str().unwrap().to_owned();
        assert!(problem.starts_with("DNS of link1: 10.0.0.53 does not answer"), "{problem}");
    }
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    // What is out of a cache is no answer of a server.
    ways(&ask(&mut client, "cached.test"));
    let answer = ask(&mut client, "d.test");
    let problem = answer["decision"]["problems"][0].as_str().unwrap().to_owned();
    assert!(problem.starts_with("DNS of link1: 10.0.0.53 does not answer"), "{problem}");
    world.dns[0].answers.store(true, Ordering::Relaxed);
    world.dns[1].answers.store(false, Ordering::Relaxed);
    let end = Instant::now() + LIMIT;
    let mut n = 0;
    loop {
        n += 1;
        let answer = ask(&mut client, &format!("c{n}.test"));
        if answer.get("decision").is_some() && ways(&answer).iter().any(|(interface, _)| interface == "link1")
        {
            break;
        }
        assert!(Instant::now() < end, "the interface is not used again: {answer}");
    }
}

fn ask_for(id: u64, host: &str) -> String {
    json!({"id": id, "ask": {"to": format!("{host}:443")}}).to_string()
}

#[test]
fn slow_names_of_one_client_hold_up_no_other_and_all_names_get_their_turn() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let mut slow = running.client();
    const SLOW: u64 = 300;
    for id in 0..SLOW {
        slow.say(&ask_for(id, &format!("slow{id}.test.")));
    }
    // More than may wait: when one of these is refused, all others are under way or wait.
    slow.until(|line| line["busy"] == true);
    let mut other = running.client();
    let answer = ask(&mut other, "other.test.");
    assert!(!ways(&answer).is_empty(), "{answer}");
    // More names at once than may be looked up at once.
    let mut many = running.client();
    for id in 0..100 {
        many.say(&ask_for(id, &format!("many{id}.test.")));
    }
    for _ in 0..100 {
        let answer = many.hear().unwrap();
        assert!(answer.get("decision").is_some(), "{answer}");
    }
    // Each slow one is answered, as busy or with what is wrong.
    let (mut busy, mut dead) = (1, 0);
    while busy + dead < SLOW {
        let answer = slow.hear().unwrap();
        assert!(answer["error"].is_string(), "{answer}");
        match answer["busy"] == true {
            true => busy += 1,
            false => dead += 1,
        }
    }
    assert!(busy >= SLOW - 256 && dead >= 16, "{busy} busy, {dead} dead");
}

#[test]
fn a_manager_that_is_busy_is_asked_again_and_is_no_lost_one() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let client = whimbrel_multiaccess::Client::at(&running.socket());
    let ask = |to: String| Ask { to: Some(to), ..Ask::default() };
    let (busy, others) = running.runtime.block_on(async {
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..300 {
            let (client, ask) = (client.clone(), ask(format!("slow{n}.test.:443")));
            asking.spawn(async move { client.ask(ask).await });
        }
        let first = asking.join_next().await.unwrap().unwrap();
        // While the others wait.
        (first, client.ask(ask("192.0.2.1:443".to_owned())).await)
    });
    assert!(matches!(busy, Err(ClientError::Busy(_))), "{busy:?}");
    assert!(others.is_ok(), "{others:?}");
}

#[test]
fn a_name_that_one_network_says_is_not_there_waits_for_no_dead_one() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let mut client = running.client();
    world.dns[0].answers.store(false, Ordering::Relaxed);
    let began = Instant::now();
    let answer = ask(&mut client, "www.nowhere.example.");
    // A server has one and a half seconds before it is asked once more.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("DNS of link2: there is no www.nowhere.example."), "{error}");
    assert!(error.contains("DNS of link1: 10.0.0.53 "), "{error}");
    assert!(answer.get("busy").is_none(), "{answer}");
}

#[test]
fn a_look_up_that_outlives_its_network_says_nothing_of_the_next_one() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let mut client = running.client();
    // The second one answers, and the look-up on the first one goes on.
    world.dns[0].answers.store(false, Ordering::Relaxed);
    ways(&ask(&mut client, "old.test."));
    // The first one comes into another network, of the same servers.
    let end = world.links[0].end(&world.client);
    end.del_address("10.0.1.1/24").unwrap();
    end.del_address("fd00:1::1/64").unwrap();
    world.links[0].end(&world.networks[0]).add_address("10.0.3.2/24").unwrap();
    end.add_address("10.0.3.1/24").unwrap();
    end.add_default_route("10.0.3.2", 1).unwrap();
    world.dns[0].answers.store(true, Ordering::Relaxed);
    let limit = Instant::now() + LIMIT;
    let is_whole = |answer: &Value| {
        answer["decision"].get("problems").is_none()
            && answer["decision"]["ways"].as_array().is_some_and(|ways| ways.len() >= 2)
    };
    loop {
        let answer = ask(&mut client, "before.test.");
        if is_whole(&answer) {
            break;
        }
        assert!(Instant::now() < limit, "the new network is not used: {answer}");
    }
    // No look-up takes longer: what was begun in the old network has ended.
    std::thread::sleep(Duration::from_millis(5500));
    let answer = ask(&mut client, "after.test.");
    assert!(is_whole(&answer), "{answer}");
}

#[test]
fn a_name_of_whimbrel_is_looked_up_on_no_network() {
    if !require!() {
        return;
    }
    let world = world();
    let running = Running::start(&world.client, SETTINGS);
    let asked = || world.dns.iter().map(|dns| dns.asked.load(Ordering::Relaxed)).sum::<usize>();
    for to in ["ssh.laptop.ada@example.org", "ssh.laptop.ada.at.test.whimbrel:22", "no-name.whimbrel:22"] {
        let answer = running.client().ask(&json!({"ask": {"to": to}}).to_string());
        assert!(answer["decision"]["whimbrel"].is_object() || answer["error"].is_string(), "{answer}");
    }
    assert_eq!(asked(), 0);
    // As other names are.
    let answer = running.client().ask(&json!({"ask": {"to": "a.test:443"}}).to_string());
    assert!(!answer["decision"]["ways"].as_array().unwrap().is_empty() && asked() > 0, "{answer}");
}
