//! `expose --public` and `gateway serve --publish`, as real processes, with clients and servers that nobody
//! here wrote: curl, openssl and python.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{self, LIMIT, Output, Process, World, tcp_server, wait_for};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A file server with TLS, which says on which port.
const TLS_SERVER: &str = "\
import http.server, ssl, sys
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()";

/// The same without.
const SERVER: &str = "\
import http.server
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()";

fn python(folder: &Path, script: &str) -> (Process, String) {
    fs::create_dir_all(folder).unwrap();
    let mut server = Process::start(Command::new("python3").args(["-c", script]).current_dir(folder));
    let at = format!("127.0.0.1:{}", server.line());
    (server, at)
}

/// A key and a certificate for a host that signs itself.
fn certificate(folder: &Path, host: &str) {
    fs::create_dir_all(folder).unwrap();
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test"]);
    command.args(["-addext", &format!("subjectAltName=DNS:{host}")]);
    Process::start(command.current_dir(folder)).output(LIMIT).succeeded();
}

/// A gateway that lets everybody in, and what it says.
fn gateway(world: &World, args: &[&str]) -> (Process, Value) {
    let begin = ["gateway", "serve", "--ticket", "--json", "--allow", "any"];
    let mut gateway = world.start("gate", &[&begin[..], args].concat());
    let said = gateway.next_json();
    (gateway, said)
}

fn expose(world: &World, user: &str, public: &[&str], gate: &Value, to: &str) -> (Process, Value) {
    let public = public.iter().flat_map(|what| ["--public", what]);
    let rest = ["--gateway", gate["ticket"].as_str().unwrap(), "--to", to, "--json"];
    let args: Vec<&str> = ["expose"].into_iter().chain(public).chain(rest).collect();
    let mut expose = world.start(user, &args);
    let said = expose.next_json();
    (expose, said)
}

fn curl(args: &[&str]) -> Output {
    Process::start(Command::new("curl").args(["-sS", "--noproxy", "*", "--max-time", "20"]).args(args))
        .output(LIMIT)
}

/// How curl finds a host at this address.
fn resolve(host: &str, at: &str) -> String {
    let (ip, port) = at.rsplit_once(':').unwrap();
    format!("{host}:{port}:{ip}")
}

fn port(at: &str) -> &str {
    at.rsplit_once(':').unwrap().1
}

/// An address of the gateway with a port that nobody has.
fn free(world: &World) -> SocketAddr {
    TcpListener::bind((world.address("gate"), 0)).unwrap().local_addr().unwrap()
}

fn random(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Tells a command that was started with --address where it is now.
fn move_to(world: &World, user: &str, process: &Process, addresses: &str) {
    let socket = world.path(user).join(format!("run/whimbrel/{}.sock", process.child.id()));
    let mut socket = UnixStream::connect(socket).unwrap();
    write!(socket, "{{\"addresses\":[{addresses}]}}").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    socket.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn tls_reaches_the_server_that_it_asks_for_and_ends_there_and_http_by_its_host() {
    let world = World::new();
    let (ada, bob) = (world.id("ada"), world.id("bob"));
    for (folder, host) in [("one", "one.example.org"), ("two", "two.example.org")] {
        certificate(&world.path(folder), host);
        fs::write(world.path(folder).join("file"), host).unwrap();
    }
    let (_one, one) = python(&world.path("one"), TLS_SERVER);
    let (_two, two) = python(&world.path("two"), TLS_SERVER);
    let (_plain, plain) = python(&world.path("two"), SERVER);
    let (at, own) = (format!("{}:0", world.address("gate")), format!("one.example.org={ada}"));
    let (others, third) = (format!("*.example.org={bob}"), format!("plain.example.org={ada}"));
    let args = ["--publish", &own, "--publish", &others, "--publish", &third];
    let doors = ["--public-tls", &at, "--public-http", &at];
    let (_gate, gate) = gateway(&world, &[&args[..], &doors].concat());
    let (tls, http) = (gate["public_tls"][0].as_str().unwrap(), gate["public_http"][0].as_str().unwrap());
    let (_ada, said) = expose(&world, "ada", &["one.example.org"], &gate, &one);
    assert_eq!(said["public"][0], "one.example.org");
    let (_bob, _) = expose(&world, "bob", &["two.example.org"], &gate, &two);
    let (_third, _) = expose(&world, "ada", &["http://plain.example.org"], &gate, &plain);
    for (folder, host) in [("one", "one.example.org"), ("two", "two.example.org")] {
        let cert = world.path(folder).join("cert.pem");
        let url = format!("https://{host}:{}/file", port(tls));
        let got = curl(&["--cacert", cert.to_str().unwrap(), "--resolve", &resolve(host, tls), &url]);
        assert_eq!(got.succeeded().stdout.trim_end(), host);
    }
    // The certificate is that server's, and no other's.
    let cert = world.path("one").join("cert.pem");
    let url = format!("https://two.example.org:{}/file", port(tls));
    let resolved = resolve("two.example.org", tls);
    let wrong = curl(&["--cacert", cert.to_str().unwrap(), "--resolve", &resolved, &url]);
    assert_eq!(wrong.status.code(), Some(60), "curl's code for a certificate of nobody: {}", wrong.stderr);
    let url = format!("http://plain.example.org:{}/file", port(http));
    let got = curl(&["--resolve", &resolve("plain.example.org", http), &url]);
    assert_eq!(got.succeeded().stdout.trim_end(), "two.example.org");
    let url = format!("http://other.example.org:{}/file", port(http));
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    let got = curl(&[&status[..], &["--resolve", &resolve("other.example.org", http), &url]].concat());
    assert_eq!(got.succeeded().stdout.trim_end(), "404");
    // What is published for TLS is not for HTTP.
    let url = format!("http://one.example.org:{}/file", port(http));
    let got = curl(&[&status[..], &["--resolve", &resolve("one.example.org", http), &url]].concat());
    assert_eq!(got.succeeded().stdout.trim_end(), "404");
    let mut unknown = Command::new("openssl");
    unknown.args(["s_client", "-connect", tls, "-servername", "other.example.org"]);
    let told = Process::start(unknown.stdin(std::process::Stdio::null())).output(LIMIT);
    assert!(told.stderr.contains("unrecognized name"), "{}", told.stderr);
}

#[test]
fn a_download_by_a_port_goes_on_while_the_server_moves() {
    const SIZE: usize = 48 << 20;
    let (world, bytes) = (World::new(), random(SIZE));
    let ada = world.id("ada");
    fs::create_dir_all(world.path("site")).unwrap();
    fs::write(world.path("site/file"), &bytes).unwrap();
    let (_site, site) = python(&world.path("site"), SERVER);
    let at = free(&world);
    let (_gate, gate) = gateway(&world, &["--publish", &format!("{at}={ada}")]);
    let (expose, said) = expose(&world, "ada", &[&at.port().to_string()], &gate, &site);
    assert_eq!(said["public"][0], at.to_string());
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
    let (mut hash, mut got, mut head) = (Sha256::new(), 0, Vec::new());
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0; 1];
        client.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
    let here = world.address("ada");
    let elsewhere = world.address("elsewhere");
    let mut piece = vec![0; SIZE / 6];
    for place in [&elsewhere, &here, &elsewhere, &here, &elsewhere] {
        client.read_exact(&mut piece).unwrap();
        hash.update(&piece);
        got += piece.len();
        // It has no address for a moment, as in a move from one network to another.
        for addresses in [String::new(), format!("\"{place}\"")] {
            move_to(&world, "ada", &expose, &addresses);
        }
    }
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    hash.update(&rest);
    assert_eq!(got + rest.len(), SIZE);
    assert_eq!(hash.finalize(), Sha256::digest(&bytes));
    // The client may have all of it before the last move is done.
    let until = Instant::now() + LIMIT;
    loop {
        let report = world.run("ada", &["status", "--json"]).succeeded().json();
        if report[0]["connections"][0]["moves"].as_u64().unwrap() >= 5 {
            break;
        }
        assert!(Instant::now() < until, "{report}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_is_not_allowed_or_makes_no_sense_is_told_in_one_line() {
    let world = World::new();
    let (ada, _eve) = (world.id("ada"), world.id("eve"));
    let publish = format!("www.example.org={ada}");
    let at = format!("{}:0", world.address("gate"));
    let (_gate, gate) = gateway(&world, &["--publish", &publish, "--public-tls", &at]);
    let try_it = |user: &str, what: &str, gate: &Value| {
        let ticket = gate["ticket"].as_str().unwrap();
        world.run(user, &["expose", "--public", what, "--gateway", ticket, "--to", "127.0.0.1:1"])
    };
    for (user, what) in [("eve", "www.example.org"), ("ada", "other.example.org"), ("ada", "2222")] {
        try_it(user, what, &gate).failed(5, &["not for this key to publish"]);
    }
    let (_none, none) = gateway(&world, &[]);
    try_it("ada", "www.example.org", &none).failed(5, &["publishes nothing", "--publish"]);
    let mut strict = world.start("gate", &["gateway", "serve", "--ticket", "--json", "--allow", &ada]);
    try_it("eve", "www.example.org", &strict.next_json()).failed(5, &["not allowed"]);
    let to = ["--to", "127.0.0.1:1"];
    let usage = |args: &[&str], says: &[&str]| {
        let output = world.run("ada", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", output.stderr);
        assert!(says.iter().all(|part| output.stderr.contains(part)), "{args:?}: {}", output.stderr);
    };
    usage(&[&["expose", "--public", "80"][..], &to].concat(), &["--gateway"]);
    usage(
        &[&["expose", "--public", "192.0.2.1", "--gateway", "x.ada@example.org"][..], &to].concat(),
        &["neither a port"],
    );
    let named = ["expose", "ssh.home.ada@example.org", "--public", "80", "--gateway", "x.ada@example.org"];
    usage(&[&named[..], &to].concat(), &["--public", "NAME"]);
    let serve = ["gateway", "serve", "--ticket", "--allow", "any", "--publish"];
    usage(&[&serve[..], &[publish.as_str()]].concat(), &["--public-tls", "--public-http"]);
    usage(&[&serve[..], &["www.example.org"]].concat(), &["HOST=ID"]);
    let other = format!("www.example.org={}", world.id("eve"));
    let twice = [publish.as_str(), "--publish", &other, "--public-tls", &at];
    usage(&[&serve[..], &twice].concat(), &["given to two keys"]);
}

#[test]
fn a_gateway_that_was_started_again_publishes_again() {
    let world = World::new();
    let ada = world.id("ada");
    let to = tcp_server(|mut socket| socket.write_all(b"hello").unwrap()).to_string();
    let (at, own) = (free(&world), common::dead_port().port().to_string());
    let rule = format!("{at}={ada}");
    let args = ["--publish", &rule, "--port", &own];
    let (gate, said) = gateway(&world, &args);
    let (_expose, _) = expose(&world, "ada", &[&at.port().to_string()], &said, &to);
    let hears = || {
        let mut all = String::new();
        let heard = TcpStream::connect(at).and_then(|mut client| client.read_to_string(&mut all));
        heard.ok().filter(|_| all == "hello")
    };
    assert!(hears().is_some());
    gate.signal(rustix::process::Signal::TERM);
    gate.output(LIMIT).succeeded();
    assert!(hears().is_none());
    let (_gate, _) = gateway(&world, &args);
    wait_for("it is published again", hears);
}

#[test]
fn a_local_server_is_told_where_clients_are_if_it_wants_to_know() {
    let world = World::new();
    let ada = world.id("ada");
    let to = tcp_server(|mut socket| {
        let mut head = [0; 28];
        socket.read_exact(&mut head).unwrap();
        socket.write_all(&head).unwrap();
    });
    let at = free(&world);
    let (_gate, gate) = gateway(&world, &["--publish", &format!("{at}={ada}")]);
    let (port, ticket, to) = (at.port().to_string(), gate["ticket"].as_str().unwrap(), to.to_string());
    let args = ["expose", "--public", &port, "--gateway", ticket, "--to", &to, "--json", "--proxy-protocol"];
    let mut expose = world.start("ada", &args);
    expose.next_json();
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let mut head = [0; 28];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
    let SocketAddr::V4(here) = client.local_addr().unwrap() else { panic!("not over IPv4") };
    assert_eq!((&head[16..20], &head[24..26]), (&here.ip().octets()[..], &here.port().to_be_bytes()[..]));
}
