//! A download goes on at another device: real programs, a real HTTP server that knows nothing of it, and
//! commands as people type them.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use common::{LIMIT, Process, World, dead_port, length, wait_for};
use sha2::{Digest as _, Sha256};

const SIZE: usize = 12 << 20;

fn random() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(SIZE / 8).flatten().collect()
}

/// Python's HTTP server for these files, which sends the first half of one and goes on when it may.
const SERVER: &str = r#"
import functools, http.server, os, sys, time

class Handler(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source, out):
        out.write(source.read(6 << 20))
        while not os.path.exists(sys.argv[3]):
            time.sleep(0.02)
        super().copyfile(source, out)

handler = functools.partial(Handler, directory=sys.argv[2])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"#;

/// A gateway, an ordinary HTTP server, and a phone whose curl downloads slowly from it.
struct Stage {
    world: World,
    file: Vec<u8>,
    ticket: String,
    server: Process,
    curl: Process,
    first: PathBuf,
    /// How the gateway was started.
    words: Vec<String>,
    gateway: Process,
    _socks: Process,
}

impl Stage {
    fn new(phone_lets: Option<&str>) -> Self {
        let world = World::new();
        let (file, first) = (random(), world.path("first"));
        fs::create_dir(world.path("site")).unwrap();
        fs::write(world.path("site/film"), &file).unwrap();
        let at = dead_port();
        let mut python = Command::new("python3");
        python.args(["-u", "-c", SERVER, &at.port().to_string()]);
        let server = Process::start(python.arg(world.path("site")).arg(world.path("go")));
        wait_for("the server listens", || TcpStream::connect(at).ok());
        let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
        let begin = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1"];
        let allow = ["--allow", &phone, "--allow", &desk];
        let words = [&begin[..], &allow].concat();
        let mut gateway = world.start("gate", &words);
        let words = words.into_iter().map(str::to_owned).collect();
        let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
        let through = ["proxy", "socks", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
        let mut socks = world.start("phone", &through);
        let proxy = format!("socks5h://{}", socks.next_json()["listening"].as_str().unwrap());
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--limit-rate", "2M", "--max-time", "300", "--proxy", &proxy, "-o"]);
        let curl = Process::start(curl.arg(&first).arg(format!("http://{at}/film")));
        wait_for("the download grows", || (length(&first) > 1 << 20).then_some(()));
        let stage = Self { world, file, ticket, server, curl, first, words, gateway, _socks: socks };
        if let Some(device) = phone_lets {
            let id = stage.session("phone")["id"].as_str().unwrap().to_owned();
            let device = stage.world.id(device);
            let said = stage.run("phone", &["handoff", &id[..6], "--to", &device, "--for", "2m"]);
            assert!(said.contains(&format!("whimbrel take {}", &id[..8])), "{said}");
        }
        stage
    }

    /// A newer gateway goes on in place of the one that runs.
    fn take_over(&mut self) {
        let words = self.words.iter().map(String::as_str).chain(["--take-over"]);
        let mut newer = self.world.start("gate", &words.collect::<Vec<_>>());
        assert_eq!(newer.next_json()["ticket"], self.ticket.as_str());
        let ended = std::mem::replace(&mut self.gateway, newer).finish(LIMIT);
        assert!(ended.succeeded().stderr.contains("has taken over"), "{}", ended.stderr);
    }

    /// Runs a command of a device about sessions at the gateway.
    fn run(&self, device: &str, args: &[&str]) -> String {
        let output = self.world.run(device, &[args, &["--through", &self.ticket]].concat());
        output.succeeded().stdout.clone()
    }

    /// The only session, as a device is told of it.
    fn session(&self, device: &str) -> serde_json::Value {
        let said = self.run(device, &["sessions", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["sessions"].as_array().unwrap().len(), 1, "{said}");
        said["sessions"][0].clone()
    }

    /// Has the server send the rest, once the desk has the session.
    fn go_on(&self) {
        wait_for("the desk has it", || (self.session("desk")["moves"] == 1).then_some(()));
        fs::write(self.world.path("go"), "").unwrap();
    }

    /// What the first curl got, once it has seen that its connection broke.
    fn first_part(&mut self) -> Vec<u8> {
        let ended = self.curl.finish(LIMIT);
        // "Failure with receiving network data", or a part of a file.
        assert!(matches!(ended.status.code(), Some(56 | 18)), "{:?}: {}", ended.status, ended.stderr);
        fs::read(&self.first).unwrap()
    }

    #[track_caller]
    fn are_the_file(&self, first: &[u8], second: &[u8]) {
        assert_eq!(first.len() + second.len(), self.file.len(), "bytes were lost, or came twice");
        assert_eq!(Sha256::digest([first, second].concat()), Sha256::digest(&self.file));
    }
}

/// How many requests and connections an HTTP server of Python has seen.
fn requests(server: Process) -> usize {
    server.signal(rustix::process::Signal::TERM);
    let said = server.output(LIMIT);
    said.stderr.lines().filter(|line| line.contains("\"GET ")).count()
}

#[test]
fn a_download_of_curl_on_the_phone_goes_on_at_the_desk_from_the_very_byte() {
    let mut stage = Stage::new(Some("desk"));
    let session = stage.session("desk");
    assert_eq!((&session["may"], &session["standing"]), (&"consent".into(), &"live".into()));
    let id = session["id"].as_str().unwrap();
    let mut take = stage.world.start("desk", &["take", &id[..8], "--through", &stage.ticket, "--json"]);
    let listening: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    // A program as it is: it connects, and reads.
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    stage.go_on();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    let first = stage.first_part();
    assert!(!first.is_empty() && !second.is_empty());
    stage.are_the_file(&first, &second);
    assert_eq!(requests(stage.server), 1, "the server saw one request, on one connection");
}

#[test]
fn a_download_goes_on_and_moves_while_newer_gateways_take_over() {
    let mut stage = Stage::new(Some("desk"));
    stage.take_over();
    let session = stage.session("desk");
    assert_eq!((&session["may"], &session["standing"]), (&"consent".into(), &"live".into()));
    let id = session["id"].as_str().unwrap();
    let mut take = stage.world.start("desk", &["take", &id[..8], "--through", &stage.ticket, "--json"]);
    let listening: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    stage.go_on();
    // Much of the second half is under way, and kept.
    stage.take_over();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    let first = stage.first_part();
    assert!(!first.is_empty() && !second.is_empty());
    stage.are_the_file(&first, &second);
    assert_eq!(requests(stage.server), 1, "the server saw one request, on one connection");
}

#[test]
fn a_program_that_asks_by_http_gets_the_rest_with_its_length() {
    let mut stage = Stage::new(Some("desk"));
    let id = stage.session("phone")["id"].as_str().unwrap().to_owned();
    let second = stage.world.path("second");
    // The flags that each command of a test gets go to the shell, which has no use for them.
    let script = format!("curl -sS --fail -D - -o {} \"$0\"", second.display());
    let curl = ["--as", "http", "--", "sh", "-c", &script, "{url}"];
    let args = [&["take", &id[..8], "--through", &stage.ticket][..], &curl].concat();
    let taken = stage.world.start("desk", &args);
    stage.go_on();
    let taken = taken.output(LIMIT);
    let said = &taken.succeeded().stdout;
    let (first, second) = (stage.first_part(), fs::read(&second).unwrap());
    stage.are_the_file(&first, &second);
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert!(
        said.lines().any(|line| line.trim_end() == format!("Content-Length: {}", second.len())),
        "{said}"
    );
    assert_eq!(requests(stage.server), 1);
}

#[test]
fn a_device_sees_and_takes_nothing_that_it_was_not_given() {
    let stage = Stage::new(None);
    let id = stage.session("phone")["id"].as_str().unwrap().to_owned();
    assert!(stage.run("desk", &["sessions"]).contains("no sessions of this device"));
    let through = ["--through", stage.ticket.as_str()];
    for (device, args) in [
        ("desk", &["take", &id][..]),
        ("desk", &["handoff", &id, "--to", &stage.world.id("desk")]),
        ("phone", &["take", "0000"]),
    ] {
        stage.world.run(device, &[args, &through].concat()).failed(3, &["no such session"]);
    }
    for (args, says) in [
        (&["take", "xyz"][..], "is no session"),
        (&["take", &id, "--listen", "0.0.0.0:0"], "listen on 127.0.0.1"),
        (&["handoff", &id, "--to", "nobody"], "no device or friend"),
    ] {
        let output = stage.world.run("phone", &[args, &through].concat());
        assert!(!output.status.success() && output.stderr.contains(says), "{args:?}: {}", output.stderr);
    }
    let session = stage.session("phone");
    assert_eq!(
        (&session["id"], &session["standing"]),
        (&id.into(), &"live".into()),
        "it was there all along"
    );
}
