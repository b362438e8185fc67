//! A laptop in a network that lets nothing out but what its HTTP proxy connects, or TCP only so.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::homes::{figures, json_of};
use crate::machines::{LIMIT, echo, random, wait_for, whimbrel};
use crate::tinyproxy::tinyproxy;
use whimbrel_base::relayed::{Place, places};
use whimbrel_base::{EndpointAddr, RelayedAddr, SecretKey, Ticket};
use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, require};
use whimbrel_relay::{Directory, Keeper, Listed, pool};
use whimbrel_transport::{
    Allow, Config, Connection, Endpoint, HttpProxy, ListenOptions, Locator, PathState, Proxied,
};

const PROXY: &str = "10.1.0.1:8888";
const VPS: &str = "203.0.113.5:443";
const FAR: &str = "198.51.1.5:443";
/// What goes through the relay, each way.
const SIZE: usize = 8 << 20;

/// What gets out of the laptop's network, beside what the proxy connects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Out {
    Nothing,
    /// UDP, and no TCP.
    Udp,
}

/// A laptop, a host with a proxy that lets little else through, and a small server beyond.
struct Office {
    _proxy: HostChild,
    folder: tempfile::TempDir,
    laptop: Host,
    between: Host,
    vps: Host,
    _links: [Link; 2],
    lab: Lab,
}

impl Office {
    fn new(out: Out) -> Self {
        let lab = Lab::new().unwrap();
        let (laptop, vps) = (lab.host("laptop").unwrap(), lab.host("vps").unwrap());
        let between = match out {
            Out::Nothing => lab.host("between"),
            Out::Udp => lab.router("between"),
        };
        let between = between.unwrap();
        if out == Out::Udp {
            let drops = "type filter hook forward priority 0; policy accept; meta l4proto tcp drop";
            between.nft(format!("table inet office {{\n chain forward {{ {drops}; }}\n}}\n")).unwrap();
        }
        let inside = lab.link(&laptop, &between, LinkSpec::default()).unwrap();
        inside.end(&between).add_address("10.1.0.1/24").unwrap();
        inside.end(&laptop).add_address("10.1.0.2/24").unwrap();
        inside.end(&laptop).add_default_route("10.1.0.1", 1).unwrap();
        let outside = lab.link(&between, &vps, LinkSpec::default()).unwrap();
        outside.end(&between).add_address("203.0.113.1/24").unwrap();
        outside.end(&vps).add_address("203.0.113.5/24").unwrap();
        outside.end(&vps).add_default_route("203.0.113.1", 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let proxy = tinyproxy(&between, "10.1.0", folder.path());
        let direct: SocketAddr = VPS.parse().unwrap();
        let dialled = laptop.run(|| TcpStream::connect_timeout(&direct, Duration::from_secs(1)));
        assert_eq!(dialled.unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing but the proxy connects");
        Self { _proxy: proxy, folder, laptop, between, vps, _links: [inside, outside], lab }
    }

    fn command(&self, host: &Host, user: &str) -> HostCommand {
        whimbrel(host, &self.folder.path().join(user))
    }

    /// A command on the laptop, which is told of the proxy.
    fn proxied(&self) -> HostCommand {
        self.command(&self.laptop, "laptop").env("HTTPS_PROXY", format!("http://{PROXY}"))
    }

    /// A server, and its ticket, which names the relay.
    fn exposed(&self, command: HostCommand, through: &str) -> (HostChild, String) {
        let (exposed, ticket) = self.start(command.args(EXPOSE).args(["--relay", through]));
        let places = places(ticket.parse::<Ticket>().unwrap().addrs());
        assert!(places.iter().any(|place| matches!(place, Place::Relayed(_))), "{ticket}");
        (exposed, ticket)
    }

    /// Starts a command that goes on, and returns the ticket that it says.
    fn start(&self, command: HostCommand) -> (HostChild, String) {
        let command = command.with(|command| {
            command.stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        (child, said["ticket"].as_str().unwrap().to_owned())
    }

    /// A relay on the small server, and its ticket.
    fn relay(&self) -> (HostChild, String) {
        self.relay_at(VPS, &self.vps, "vps")
    }

    /// A relay on some host that is reached there, and its ticket.
    fn relay_at(&self, at: &str, host: &Host, user: &str) -> (HostChild, String) {
        let relay = ["relay", "serve", "--listen", "0.0.0.0:443", "--advertise", at, "--allow", "any"];
        let told = ["--metrics", "127.0.0.1:9090", "--json"];
        self.start(self.command(host, user).args(relay).args(told))
    }

    /// A host that is so far away from the proxy.
    fn far(&self, away: Duration) -> (Host, Link) {
        let far = self.lab.host("far").unwrap();
        let link = self.lab.link(&far, &self.between, LinkSpec::default().delay(away)).unwrap();
        link.end(&self.between).add_address("198.51.1.1/24").unwrap();
        link.end(&far).add_address("198.51.1.5/24").unwrap();
        (far, link)
    }

    /// Waits until the relay has all spares that it wants of a server.
    #[track_caller]
    fn spares_wait(&self) {
        let has_all = || figures(&self.vps).lines().any(|line| line == "whimbrel_relay_spares 8");
        wait_for("spares wait at the relay", || has_all().then_some(()));
    }

    /// A host beside the small server, which reaches that and nobody else.
    fn neighbour(&self) -> (Host, Link) {
        let home = self.lab.host("home").unwrap();
        let link = self.lab.link(&home, &self.vps, LinkSpec::default()).unwrap();
        link.end(&self.vps).add_address("10.9.0.1/24").unwrap();
        link.end(&home).add_address("10.9.0.2/24").unwrap();
        link.end(&home).add_default_route("10.9.0.1", 1).unwrap();
        (home, link)
    }

    /// The laptop hears, through the proxy, what is behind a ticket.
    #[track_caller]
    fn hears(&self, ticket: &str) {
        let piped = self.proxied().args(["pipe", ticket]).output().unwrap();
        let problem = String::from_utf8_lossy(&piped.stderr);
        assert_eq!(String::from_utf8_lossy(&piped.stdout), "here", "{problem}");
        assert!(piped.status.success(), "{problem}");
    }

    /// What a host sends over TCP to what is behind a ticket comes back as it was.
    #[track_caller]
    fn echoes(&self, host: &Host, ticket: &str) {
        let (sent, heard) = (self.folder.path().join("sent"), self.folder.path().join("heard"));
        let bytes = random(SIZE);
        fs::write(&sent, &bytes).unwrap();
        let pipe = self.command(host, "home").args(["pipe", ticket, "--carrier", "tcp"]).with(|command| {
            command.stdin(File::open(&sent).unwrap()).stdout(File::create(&heard).unwrap());
        });
        let mut piping = pipe.spawn().unwrap();
        let end = wait_for("the pipe ends", || piping.child().try_wait().unwrap());
        assert!(end.success(), "{end}");
        assert!(fs::read(&heard).unwrap() == bytes, "wrong bytes");
    }
}

/// Says that it is here to everybody.
fn greet(host: &Host) {
    let listener = host.run(|| TcpListener::bind(SERVED)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            // A client that goes away is noticed by the test.
            let _ = socket.write_all(b"here");
        }
    });
}

/// Where a server is that is exposed.
const SERVED: &str = "127.0.0.1:2222";
const EXPOSE: [&str; 7] = ["expose", "--ticket", "--to", SERVED, "--allow", "any", "--json"];

#[test]
fn where_only_an_http_proxy_connects_a_peer_is_reached_through_it() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Nothing);
    greet(&office.vps);
    let expose = office.command(&office.vps, "vps").args(EXPOSE).args(["--port", "443"]);
    let (_exposed, ticket) = office.start(expose);
    office.hears(&ticket);
}

#[test]
fn a_server_whose_network_lets_out_what_a_proxy_connects_is_reached_through_its_relay() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Nothing);
    let (home, _link) = office.neighbour();
    echo(&office.laptop, SERVED);
    let (mut relay, through) = office.relay();
    let (_exposed, ticket) = office.exposed(office.proxied(), &through);
    office.spares_wait();
    office.echoes(&home, &ticket);
    // Nothing of before is left at the relay: the server goes there anew, through the proxy.
    relay.kill().unwrap();
    let (_relay, again) = office.relay();
    let id = |ticket: &str| ticket.parse::<Ticket>().unwrap().id();
    assert_eq!(id(&again), id(&through), "it is the same relay");
    office.spares_wait();
    office.echoes(&home, &ticket);
    // Told once it is known whether datagrams pass, too.
    let relay = wait_for("the status names the relay", || {
        let status = json_of(office.command(&office.laptop, "laptop").args(["status", "--json"]));
        let relays = status[0]["relays"].as_array()?;
        (relays.len() == 1).then(|| relays[0].clone())
    });
    assert!(relay["unserved"].is_null(), "{relay}");
}

#[test]
fn relays_of_a_group_are_measured_through_a_proxy_where_nothing_else_gets_out() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Nothing);
    let away = Duration::from_millis(400);
    let (far, _link) = office.far(away);
    let member = |host: &Host, name: &str, at: &str| {
        let (name, at): (_, SocketAddr) = (name.parse().unwrap(), at.parse().unwrap());
        let listener = host.run(|| TcpListener::bind(at)).unwrap();
        let addr = EndpointAddr::new(SecretKey::generate().id(), [at]);
        (listener, Listed { name, addr, state: None })
    };
    let (_near, near) = member(&office.vps, "near.ada@example.org", VPS);
    let (_far, far) = member(&far, "far.ada@example.org", FAR);
    let runtime = office.laptop.runtime(1).unwrap();
    let measured = |http_proxy: Option<Arc<HttpProxy>>, member: &Listed| {
        runtime.block_on(async {
            let config = Config { http_proxy, ..Config::default() };
            let endpoint = Endpoint::builder().config(config).bind().await.unwrap();
            pool::measure(&endpoint, std::slice::from_ref(member)).await.get(&member.id()).copied()
        })
    };
    assert_eq!(measured(None, &near), None, "it is reached without the proxy");
    let proxy = || Some(Arc::new(HttpProxy::new(PROXY.parse().unwrap())));
    let far = wait_for("the far relay is measured", || measured(proxy(), &far));
    assert!(far >= away + away / 2, "the way behind the proxy counts: {far:?}");
    // Where the machine is busy, not at the first try.
    wait_for("the near relay is measured as near", || measured(proxy(), &near).filter(|rtt| *rtt < away));
}

/// The relay that a connection goes through, by the proxy.
fn relay_of(connection: &Connection) -> Option<SocketAddr> {
    let paths = connection.stats().paths;
    let path = paths.iter().find(|path| path.state == PathState::Active)?;
    match path.remote {
        Locator::Proxied(Proxied { place: Place::Relayed(relayed), .. }) => Some(relayed.relay),
        _ => None,
    }
}

#[test]
fn a_client_behind_a_proxy_measures_a_servers_relays_through_it_and_begins_with_the_nearest() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Nothing);
    // A connection through the far one stands before another one is tried.
    let away = Duration::from_millis(30);
    let (far, _long) = office.far(away);
    // The server has a way of its own to each relay.
    let (home, _link) = office.neighbour();
    let beside = office.lab.link(&home, &far, LinkSpec::default()).unwrap();
    beside.end(&far).add_address("10.8.0.1/24").unwrap();
    beside.end(&home).add_address("10.8.0.2/24").unwrap();
    home.add_route(beside.end(&home).name(), "198.51.1.0/24", "10.8.0.1").unwrap();
    let ((_near, near), (_far, far)) = (office.relay(), office.relay_at(FAR, &far, "far"));
    let (at_home, key) = (home.runtime(1).unwrap(), SecretKey::generate());
    let serving = async {
        let server = Endpoint::builder().secret_key(key.clone()).bind().await.unwrap();
        let listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let directory = |ticket: &String| {
            Arc::new(ticket.parse::<Ticket>().unwrap().to_endpoint_addr()) as Arc<dyn Directory>
        };
        let keeper = Keeper::start(server.clone(), &key, [&near, &far].map(directory).into());
        let mut news = keeper.news();
        let held = tokio::time::timeout(LIMIT, news.wait_for(|now| now.held == 2)).await;
        assert!(held.is_ok_and(|held| held.is_some()), "the server has not both relays");
        (server, listener, keeper)
    };
    let (server, _listener, _keeper) = at_home.block_on(serving);

    let [near, far]: [SocketAddr; 2] = [VPS, FAR].map(|at| at.parse().unwrap());
    let mut places: Vec<RelayedAddr> = server.relayed();
    places.sort_by_key(|place| place.relay != far);
    assert_eq!(places.len(), 2, "{places:?}");
    let target = EndpointAddr::new(server.id(), places.iter().flat_map(|place| place.pack()));
    let at_laptop = office.laptop.runtime(1).unwrap();
    // The far one is named first. What is near may seem far to a client once, where the machine is busy.
    wait_for("a client that has measured them begins with the near one", || {
        let http_proxy = Some(Arc::new(HttpProxy::new(PROXY.parse().unwrap())));
        let config = Config { http_proxy, ..Config::default() };
        let client = at_laptop.block_on(Endpoint::builder().config(config).bind()).unwrap();
        let connect = || {
            let connecting = async { tokio::time::timeout(LIMIT, client.connect(target.clone())).await };
            at_laptop.block_on(connecting).unwrap().unwrap()
        };
        let _first = connect();
        let [_, to_far] = [near, far].map(|relay| {
            let measured = || client.round_trip_to_relay(relay);
            wait_for(&format!("the way to {relay} is measured"), measured)
        });
        assert!(to_far >= away + away / 2, "the way behind the proxy counts: {to_far:?}");
        (relay_of(&connect()) == Some(near)).then_some(())
    });
}

#[test]
fn where_udp_gets_out_and_tcp_by_a_proxy_alone_a_server_is_reached_over_tcp_through_its_relay() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Udp);
    let (home, _link) = office.neighbour();
    echo(&office.laptop, SERVED);
    let (_relay, through) = office.relay();
    let (_exposed, ticket) = office.exposed(office.proxied(), &through);
    office.spares_wait();
    office.echoes(&home, &ticket);
}

#[test]
fn a_server_that_opens_no_tcp_connection_to_its_relay_says_so() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Udp);
    let (_relay, through) = office.relay();
    // It is not told of the proxy.
    let expose = office.command(&office.laptop, "laptop").args(EXPOSE).args(["--relay", &through]);
    let mut exposing = expose
        .with(|command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        })
        .spawn()
        .unwrap();
    let said = BufReader::new(exposing.child().stderr.take().unwrap());
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in said.lines().map_while(Result::ok) {
            // The test that has heard enough goes.
            let _ = told.send(line);
        }
    });
    // The first attempts take ten seconds, and it waits half a minute longer.
    let what = format!("no TCP connection to {VPS} can be opened");
    let (begun, mut all) = (std::time::Instant::now(), Vec::new());
    while !all.iter().any(|line: &String| line.contains(&what) && line.contains("HTTPS_PROXY")) {
        let left = LIMIT.saturating_sub(begun.elapsed());
        let line = hears.recv_timeout(left).unwrap_or_else(|_| panic!("it says only {all:#?}"));
        all.push(line);
    }
    let status = || office.command(&office.laptop, "laptop").args(["status", "--json"]);
    wait_for("the status tells it too", || {
        let told = String::from_utf8(status().output().unwrap().stdout).unwrap();
        told.contains(&what).then_some(())
    });
    exposing.kill().unwrap();
}

#[test]
fn where_only_an_http_proxy_connects_a_server_behind_a_relay_is_reached_through_both() {
    if !require!() {
        return;
    }
    let office = Office::new(Out::Nothing);
    // The server reaches the relay, and nobody else reaches the server.
    let (home, _link) = office.neighbour();
    let (_relay, through) = office.relay();
    greet(&home);
    let (_exposed, ticket) = office.exposed(office.command(&home, "home"), &through);
    office.hears(&ticket);
}
