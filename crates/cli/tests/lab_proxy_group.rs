//! A group of relays between a server and its clients, each side in a network that lets nothing out but what
//! its HTTP proxy connects.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::homes::{Internet, VPS, figures, json_of, started};
use crate::machines::{LIMIT, echo, random, wait_for, whimbrel};
use crate::tinyproxy::{self, tinyproxy};
use whimbrel_lab::{Host, HostChild, HostCommand, Link, LinkSpec, require};

const NAME: &str = "ssh.home.ada@example.org";
const GROUP: &str = "relays.ops@example.org";
/// Where a server is that is exposed, and where its client forwards.
const SERVED: &str = "127.0.0.1:2222";
const FORWARD: &str = "127.0.0.1:8080";
/// What goes there and back at a time.
const SIZE: usize = 1 << 20;

/// A machine in a network of its own, 192.168.N.0/24, with an HTTP proxy and nothing else on the way out.
struct Firm {
    machine: Host,
    proxy: String,
    _serving: HostChild,
    _between: Host,
    _links: [Link; 2],
}

impl Firm {
    fn new(internet: &Internet, name: &str, number: u8, folder: &Path) -> Self {
        let lab = &internet.lab;
        let (machine, between) = (lab.host(name).unwrap(), lab.host(&format!("{name}-proxy")).unwrap());
        let spec = || LinkSpec::default().delay(Duration::from_millis(3));
        let outer = spec().interface_names("wan0", &format!("to{number}"));
        let outside = lab.link(&between, &internet.router, outer).unwrap();
        outside.end(&internet.router).add_address(&format!("10.0.{number}.1/24")).unwrap();
        outside.end(&between).add_address(&format!("10.0.{number}.10/24")).unwrap();
        outside.end(&between).add_default_route(&format!("10.0.{number}.1"), 1).unwrap();
        let inside = lab.link(&machine, &between, spec().interface_names("eth0", "lan0")).unwrap();
        inside.end(&between).add_address(&format!("192.168.{number}.1/24")).unwrap();
        inside.end(&machine).add_address(&format!("192.168.{number}.10/24")).unwrap();
        inside.end(&machine).add_default_route(&format!("192.168.{number}.1"), 1).unwrap();
        let network = format!("192.168.{number}");
        let serving = tinyproxy(&between, &network, folder);
        let firm = Self {
            machine,
            proxy: format!("http://{}", tinyproxy::address(&network)),
            _serving: serving,
            _between: between,
            _links: [inside, outside],
        };
        let direct: SocketAddr = format!("{VPS}:443").parse().unwrap();
        let dialled = firm.machine.run(|| TcpStream::connect_timeout(&direct, Duration::from_secs(1)));
        assert_eq!(dialled.unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing but the proxy connects");
        firm
    }

    /// Tells a command of the proxy.
    fn told(&self, command: HostCommand) -> HostCommand {
        command.env("HTTPS_PROXY", &self.proxy)
    }
}

/// A relay of the group, at 198.51.N.5.
struct Member {
    host: Host,
    at: String,
    serving: HostChild,
    _link: Link,
}

impl Member {
    /// How many bytes it has passed on.
    fn bytes(&self) -> u64 {
        let figures = figures(&self.host);
        let found = figures.lines().find_map(|line| line.strip_prefix("whimbrel_relay_bytes_total "));
        found.unwrap_or_else(|| panic!("{figures}")).parse().unwrap()
    }
}

/// What is sent comes back as it was.
#[track_caller]
fn exchange(socket: &mut TcpStream) {
    let (bytes, mut heard) = (random(SIZE), vec![0; SIZE]);
    let mut to = socket.try_clone().unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| to.write_all(&bytes));
        socket.read_exact(&mut heard).unwrap();
        sending.join().unwrap().unwrap();
    });
    assert!(heard == bytes, "wrong bytes");
}

/// Three relays, of which the server uses two, and one of these dies.
#[test]
fn between_networks_with_http_proxies_a_group_of_relays_carries_on_when_one_of_them_dies() {
    if !require!() {
        return;
    }
    let (internet, folder) = (Internet::new(), tempfile::tempdir().unwrap());
    let on = |host: &Host, user: &str, arguments: &[&str]| {
        whimbrel(host, &folder.path().join(user)).args(arguments)
    };
    // The proxies connect to port 443 alone.
    let listen = format!("{VPS}:443");
    let serve = ["names", "serve", "--listen", &listen, "--allow", "any", "--ephemeral", "--json"];
    let (_names, said) = started(on(&internet.vps, "vps", &serve));
    let service = said["ticket"].as_str().unwrap().to_owned();
    let names: Vec<String> = (1..=3).map(|number| format!("r.relay{number}@example.org")).collect();
    let add = ["names", "group", "add", GROUP, &names[0], &names[1], &names[2], "--readers", "any"];
    let added = on(&internet.vps, "ops", &add).args(["--names", &service]).output().unwrap();
    assert!(added.status.success(), "{added:?}");
    let mut members: Vec<Member> = Vec::new();
    for (number, name) in (1..).zip(&names) {
        let user = format!("relay{number}");
        let (host, link) = internet.server(&user, number);
        let serve = ["relay", "serve", "--allow", "any", "--metrics", "127.0.0.1:9090", "--json"];
        let join = ["--names", &service, "--group", GROUP, "--as", name, "--place", &user];
        let (serving, _) = started(on(&host, &user, &serve).args(join));
        members.push(Member { host, at: format!("198.51.{number}.5:443"), serving, _link: link });
    }

    let firm = |name, number| Firm::new(&internet, name, number, folder.path());
    let (home, laptop) = (firm("home", 1), firm("laptop", 2));
    echo(&home.machine, SERVED);
    let id = on(&laptop.machine, "laptop", &["id"]).output().unwrap();
    let id = String::from_utf8(id.stdout).unwrap().trim().to_owned();
    let expose = ["expose", NAME, "--to", SERVED, "--allow", &id, "--names", &service, "--json"];
    let expose = on(&home.machine, "home", &expose).args(["--relay", GROUP]);
    let (_exposed, _) = started(home.told(expose));
    // Relays through which the server is reached over TCP.
    let kept = || -> Vec<String> {
        let told = json_of(on(&home.machine, "home", &["status", "--json"]));
        let relays = told[0]["relays"].as_array().cloned().unwrap_or_default();
        let served = relays.iter().filter(|relay| relay["unserved"].is_null());
        served.map(|relay| relay["addresses"][0].as_str().unwrap().to_owned()).collect()
    };
    wait_for("the server has two relays", || (kept().len() == 2).then_some(()));

    let forward = ["forward", NAME, "--listen", FORWARD, "--names", &service, "--json"];
    let (_forward, _) = started(laptop.told(on(&laptop.machine, "laptop", &forward)));
    let mut socket = laptop.machine.run(|| TcpStream::connect(FORWARD)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.set_write_timeout(Some(LIMIT)).unwrap();
    exchange(&mut socket);
    let carries = (0..members.len()).max_by_key(|index| members[*index].bytes()).unwrap();
    let mut dead = members.remove(carries);
    // Of three that may have had a part of it.
    assert!(dead.bytes() >= 2 * SIZE as u64 / 3, "no relay carries it: {}", dead.bytes());
    dead.serving.kill().unwrap();
    dead.serving.wait().unwrap();
    exchange(&mut socket);

    let path = |name: &str| folder.path().join(name);
    let bytes = random(SIZE);
    fs::write(path("sent"), &bytes).unwrap();
    let pipe = on(&laptop.machine, "laptop", &["pipe", NAME, "--names", &service]).with(|command| {
        command.stdin(File::open(path("sent")).unwrap()).stdout(File::create(path("heard")).unwrap());
    });
    let mut pipe = laptop.told(pipe).spawn().unwrap();
    let end = wait_for("a new connection ends", || pipe.child().try_wait().unwrap());
    assert!(end.success(), "{end}");
    assert!(fs::read(path("heard")).unwrap() == bytes, "wrong bytes");

    wait_for("the server has another relay in its place", || {
        let kept = kept();
        (kept.len() == 2 && !kept.contains(&dead.at)).then_some(())
    });
    exchange(&mut socket);
}
