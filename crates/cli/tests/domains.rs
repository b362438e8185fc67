//! What a domain's owner says in DNS of the name service, asked of a small DNS server.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use crate::common::{self, Output, World, shouting_server};

const USER: &str = "ada@example.org";
const RECORD: &str = "_whimbrel.example.org";

/// Answers with TXT records, over UDP; until the test ends.
struct Dns {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

#[derive(Default)]
struct Zone {
    texts: HashMap<&'static str, Vec<String>>,
    asked: Vec<String>,
    /// Every answer is that the server failed.
    broken: bool,
}

impl Dns {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (address, zone) = (socket.local_addr().unwrap(), Arc::<Mutex<Zone>>::default());
        let served = zone.clone();
        std::thread::spawn(move || {
            let mut query = [0; 2048];
            while let Ok((length, peer)) = socket.recv_from(&mut query) {
                let answer = served.lock().unwrap().answer(&query[..length]);
                let _ = socket.send_to(&answer, peer);
            }
        });
        Self { address, zone }
    }

    fn say(&self, texts: &[String]) {
        self.zone.lock().unwrap().texts.insert(RECORD, texts.to_vec());
    }

    /// What it was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.zone.lock().unwrap().asked)
    }

    fn run(&self, world: &World, user: &str, args: &[&str]) -> Output {
        let dns = self.address.to_string();
        world.run(user, &[args, &["--prove-domain", "example.org", "--dns", &dns, "-q"]].concat())
    }
}

impl Zone {
    /// RFC 1035, section 4.
    fn answer(&mut self, query: &[u8]) -> Vec<u8> {
        let mut at = 12;
        let mut labels = Vec::new();
        while query[at] != 0 {
            let end = at + 1 + usize::from(query[at]);
            labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap().to_lowercase());
            at = end;
        }
        let end = at + 5;
        assert_eq!(query[at + 1..end], [0, 16, 0, 1], "TXT in IN");
        let name = labels.join(".");
        let texts = self.texts.get(name.as_str()).filter(|_| !self.broken);
        let code = match (self.broken, texts) {
            (true, _) => 2,
            (false, None) => 3,
            (false, Some(_)) => 0,
        };
        let texts = texts.map(Vec::as_slice).unwrap_or_default();
        let count = u8::try_from(texts.len()).unwrap();
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
        answer.extend(&query[12..end]);
        for text in texts {
            // In two strings, as longer ones have to be.
            let (one, two) = text.split_at(text.len() / 2);
            let length = u8::try_from(text.len() + 2).unwrap();
            answer.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60, 0, length]);
            for part in [one, two] {
                answer.push(u8::try_from(part.len()).unwrap());
                answer.extend(part.as_bytes());
            }
        }
        self.asked.push(name);
        answer
    }
}

/// The key of the world's name service.
fn service_id(world: &World) -> String {
    world.service().strip_prefix("whimbrel:").unwrap().split('/').next().unwrap().to_owned()
}

#[test]
fn a_service_that_the_domains_owner_named_is_used() {
    let (world, _names) = World::with_names();
    let (dns, ours) = (Dns::start(), service_id(&world));
    dns.say(&["v=spf1 -all".to_owned(), format!("service={}", world.id("old")), format!("service={ours}")]);
    dns.run(&world, "ada", &["id", "register", USER]).succeeded();
    let mut expose = world.command("ada", &["expose", "web.ada@example.org", "--allow", "any", "--json"]);
    expose.args(["--to", &shouting_server().to_string(), "--dns", &dns.address.to_string()]);
    let mut expose = common::Process::start(expose.args(["--prove-domain", "any"]));
    expose.next_json();
    dns.run(&world, "bob", &["names", "lookup", "web.ada@example.org"]).succeeded();
    assert!(dns.run(&world, "bob", &["pipe", "web.ada@example.org"]).succeeded().stdout.contains("THE END"));
    let asked = dns.asked();
    assert!(asked.len() >= 4 && asked.iter().all(|name| name == RECORD), "{asked:?}");
    // Names of other domains need no proof.
    dns.run(&world, "ada", &["id", "register", "ada@example.net"]).succeeded();
    assert_eq!(dns.asked(), Vec::<String>::new());
}

#[test]
fn a_service_that_the_domains_owner_did_not_name_is_not_believed() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", USER]).succeeded();
    let (dns, ours, other) = (Dns::start(), service_id(&world), world.id("elsewhere"));
    let refused = |code: i32, says: &[&str]| {
        for args in [
            &["names", "lookup", USER][..],
            &["names", "watch", USER],
            &["pipe", USER],
            &["id", "register", "eve@example.org"],
            &["expose", "web.eve@example.org", "--to", "127.0.0.1:1", "--allow", "any"],
        ] {
            let output = dns.run(&world, "eve", args);
            output.failed(code, says);
            assert_eq!(output.stdout, "");
            assert!(!dns.asked().is_empty(), "{args:?}");
        }
    };
    world.id("eve");
    refused(6, &["example.org", &ours, "publish a TXT record"]);
    dns.say(&[format!("service={other}")]);
    refused(6, &["example.org", &ours, &other]);
    dns.say(&["service=us".to_owned()]);
    refused(6, &["_whimbrel.example.org", "service=ID"]);
    dns.zone.lock().unwrap().broken = true;
    refused(4, &["example.org", "DNS"]);
    // Nothing of it is remembered, and without the wish nobody asks.
    assert!(world.run("eve", &["trust", "show"]).succeeded().stdout.contains("no names"));
    world.run("bob", &["names", "lookup", USER]).succeeded();
    assert!(dns.asked().is_empty());
}

/// ssh starts the program anew, and that one has to be as careful.
#[test]
fn ssh_believes_no_service_that_the_domains_owner_did_not_name() {
    let (world, _names) = World::with_names();
    let mut ada = world
        .start("ada", &["expose", "ssh.ada@example.org", "--to", "127.0.0.1:1", "--allow", "any", "--json"]);
    ada.next_json();
    let (dns, address) = (Dns::start(), world.address("bob"));
    let other = world.id("elsewhere");
    dns.say(&[format!("service={other}")]);
    let server = dns.address.to_string();
    let flags = ["--prove-domain", "example.org", "--dns", &server];
    let printed = world.run("bob", &[&["setup", "ssh", "--print"][..], &flags].concat());
    assert!(printed.succeeded().stdout.contains(&flags.join(" ")), "{}", printed.stdout);
    // As the template, but what comes behind `ssh` would be ssh's.
    let template = world.command("bob", &[]);
    let mut command = std::process::Command::new(common::PROGRAM);
    command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(flags).args(["--names", world.service(), "--address", &address, "ssh", "-F", "none"]);
    command.args(["-o", "BatchMode=yes", "root@ssh.ada@example.org", "true"]);
    let output = common::Process::start(&mut command).output(common::LIMIT);
    assert_eq!(output.status.code(), Some(255), "{}", output.stderr);
    let told = ["the owner of example.org says in DNS", &other];
    assert!(told.iter().all(|part| output.stderr.contains(part)), "{}", output.stderr);
    assert!(dns.asked().iter().all(|name| name == RECORD));
    assert!(world.run("bob", &["trust", "show"]).succeeded().stdout.contains("no names"));
}

#[test]
fn the_wish_for_proof_can_stand_in_the_configuration() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", USER]).succeeded();
    let dns = Dns::start();
    let config = format!("prove-domain = [\"example.org\"]\ndns = \"{}\"\n", dns.address);
    fs::write(world.config("bob", "config.toml"), config).unwrap();
    world.id("bob");
    world.run("bob", &["names", "lookup", USER, "-q"]).failed(6, &["_whimbrel.example.org"]);
    dns.say(&[format!("service={}", service_id(&world))]);
    world.run("bob", &["names", "lookup", USER]).succeeded();
    world.run("bob", &["names", "lookup", USER, "--prove-domain", "no domain"]).failed(2, &["no domain"]);
}
