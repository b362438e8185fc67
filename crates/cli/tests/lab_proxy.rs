//! A laptop in a network that lets nothing out but what its HTTP proxy connects.
#![allow(clippy::unwrap_used)]

#[path = "common/machines.rs"]
mod machines;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use machines::{silent, wait_for_server, whimbrel};
use whimbrel_lab::{Host, HostChild, Lab, Link, LinkSpec, require};

const PROXY: &str = "10.1.0.1:8888";
const VPS: &str = "203.0.113.5:443";

/// tinyproxy, which connects to port 443 only, as such proxies do.
fn tinyproxy(host: &Host, folder: &Path) -> HostChild {
    let file = folder.join("tinyproxy.conf");
    fs::write(&file, "Port 8888\nListen 10.1.0.1\nAllow 10.1.0.0/24\nConnectPort 443\nTimeout 600\n")
        .unwrap();
    let child = silent(host.command("tinyproxy").arg("-d").arg("-c").arg(&file)).spawn().unwrap();
    wait_for_server(host, PROXY);
    child
}

/// A laptop, a host with a proxy that passes no packets on, and a small server beyond.
struct Office {
    _proxy: HostChild,
    folder: tempfile::TempDir,
    laptop: Host,
    vps: Host,
    _links: [Link; 2],
    lab: Lab,
}

impl Office {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (laptop, between, vps) =
            (lab.host("laptop").unwrap(), lab.host("between").unwrap(), lab.host("vps").unwrap());
        let inside = lab.link(&laptop, &between, LinkSpec::default()).unwrap();
        inside.end(&between).add_address("10.1.0.1/24").unwrap();
        inside.end(&laptop).add_address("10.1.0.2/24").unwrap();
        inside.end(&laptop).add_default_route("10.1.0.1", 1).unwrap();
        let outside = lab.link(&between, &vps, LinkSpec::default()).unwrap();
        outside.end(&between).add_address("203.0.113.1/24").unwrap();
        outside.end(&vps).add_address("203.0.113.5/24").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let proxy = tinyproxy(&between, folder.path());
        let direct: SocketAddr = VPS.parse().unwrap();
        laptop.run(|| TcpStream::connect_timeout(&direct, Duration::from_secs(1))).unwrap_err();
        Self { _proxy: proxy, folder, laptop, vps, _links: [inside, outside], lab }
    }

    /// Starts a command that goes on, and returns the ticket that it says.
    fn start(&self, host: &Host, user: &str, args: &[&str]) -> (HostChild, String) {
        let command = whimbrel(host, &self.folder.path().join(user)).args(args).with(|command| {
            command.stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        (child, said["ticket"].as_str().unwrap().to_owned())
    }

    /// The laptop hears, through the proxy, what is behind a ticket.
    #[track_caller]
    fn hears(&self, ticket: &str) {
        let pipe = whimbrel(&self.laptop, &self.folder.path().join("laptop")).args(["pipe", ticket]);
        let piped = pipe.env("HTTPS_PROXY", format!("http://{PROXY}")).output().unwrap();
        let problem = String::from_utf8_lossy(&piped.stderr);
        assert_eq!(String::from_utf8_lossy(&piped.stdout), "here", "{problem}");
        assert!(piped.status.success(), "{problem}");
    }
}

/// Says that it is here to everybody.
fn greet(host: &Host) {
    let listener = host.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            // A client that goes away is noticed by the test.
            let _ = socket.write_all(b"here");
        }
    });
}

const EXPOSE: [&str; 7] = ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any", "--json"];

#[test]
fn where_only_an_http_proxy_connects_a_peer_is_reached_through_it() {
    if !require!() {
        return;
    }
    let office = Office::new();
    greet(&office.vps);
    let (_exposed, ticket) = office.start(&office.vps, "vps", &[&EXPOSE[..], &["--port", "443"]].concat());
    office.hears(&ticket);
}

#[test]
fn a_server_whose_network_lets_out_what_a_proxy_connects_says_that_nobody_reaches_it() {
    if !require!() {
        return;
    }
    let office = Office::new();
    let relay = ["relay", "serve", "--listen", "0.0.0.0:443", "--advertise", VPS, "--allow", "any", "--json"];
    let (_relay, through) = office.start(&office.vps, "vps", &relay);
    let expose = [&EXPOSE[..], &["--relay", &through]].concat();
    let exposing = whimbrel(&office.laptop, &office.folder.path().join("laptop")).args(expose);
    let exposing = exposing.env("HTTPS_PROXY", format!("http://{PROXY}")).with(|command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    });
    let mut exposing = exposing.spawn().unwrap();
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
    while !all.iter().any(|line: &String| line.contains(&what)) {
        let left = Duration::from_secs(120).saturating_sub(begun.elapsed());
        let line = hears.recv_timeout(left).unwrap_or_else(|_| panic!("it says only {all:#?}"));
        all.push(line);
    }
    let status = || whimbrel(&office.laptop, &office.folder.path().join("laptop")).args(["status", "--json"]);
    loop {
        let told = String::from_utf8(status().output().unwrap().stdout).unwrap();
        if told.contains(&what) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(150), "{told}");
        std::thread::sleep(Duration::from_millis(200));
    }
    exposing.kill().unwrap();
}

#[test]
fn where_only_an_http_proxy_connects_a_server_behind_a_relay_is_reached_through_both() {
    if !require!() {
        return;
    }
    let office = Office::new();
    // The server reaches the relay, and nobody else reaches the server.
    let home = office.lab.host("home").unwrap();
    let link = office.lab.link(&home, &office.vps, LinkSpec::default()).unwrap();
    link.end(&office.vps).add_address("10.9.0.1/24").unwrap();
    link.end(&home).add_address("10.9.0.2/24").unwrap();
    link.end(&home).add_default_route("10.9.0.1", 1).unwrap();
    let relay = ["relay", "serve", "--listen", "0.0.0.0:443", "--advertise", VPS, "--allow", "any", "--json"];
    let (_relay, through) = office.start(&office.vps, "vps", &relay);
    greet(&home);
    let (_exposed, ticket) = office.start(&home, "home", &[&EXPOSE[..], &["--relay", &through]].concat());
    office.hears(&ticket);
}
