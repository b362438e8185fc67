//! A download that begins on a phone, through a gateway: real programs, and a real HTTP server that knows
//! nothing of it.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use crate::common::{LIMIT, Process, World, dead_port, length, wait_for};
use sha2::{Digest as _, Sha256};

pub const SIZE: usize = 12 << 20;
/// So much of a file the server sends at once.
pub const HALF: usize = 6 << 20;

pub fn random() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

/// Python's HTTP server for these files, which sends the first half of one and goes on when it may.
pub const SERVER: &str = r#"
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
pub struct Stage {
    pub world: World,
    pub file: Vec<u8>,
    pub ticket: String,
    pub server: Process,
    pub curl: Process,
    /// The phone's proxy, if it has one of its own.
    pub proxy: String,
    first: PathBuf,
    /// How the gateway was started.
    words: Vec<String>,
    gateway: Process,
    _serving: Option<Process>,
}

/// How the phone's curl reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Socks,
    /// In a tunnel of the HTTP proxy.
    Http,
    /// In one of the proxy that `whimbrel run` has for it.
    Run,
}

impl Stage {
    pub fn new(phone_lets: Option<&str>) -> Self {
        Self::by(Way::Socks, phone_lets)
    }

    pub fn by(way: Way, phone_lets: Option<&str>) -> Self {
        let world = World::new();
        let (file, first) = (random(), world.path("first"));
        let (server, at) = serve(&world, &file);
        let [phone, desk, tablet] = ["phone", "desk", "tablet"].map(|device| world.id(device));
        let begin = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1"];
        let allow = ["--allow", &phone, "--allow", &desk, "--allow", &tablet];
        let words = [&begin[..], &allow].concat();
        let mut gateway = world.start("gate", &words);
        let words = words.into_iter().map(str::to_owned).collect();
        let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
        let (proxy, serving) = match way {
            Way::Socks => proxy(&world, "socks", &ticket),
            Way::Http => proxy(&world, "http", &ticket),
            Way::Run => (String::new(), None),
        };
        let by: &[&str] = match way {
            Way::Socks => &["--socks5-hostname", &proxy],
            Way::Http => &["--noproxy", "", "--proxytunnel", "--proxy", &proxy],
            Way::Run => &["--noproxy", "", "--proxytunnel"],
        };
        let slowly = ["-sS", "--limit-rate", "2M", "--max-time", "300", "-o", first.to_str().unwrap()];
        let url = format!("http://{at}/film");
        let words_of_curl = [&["curl"][..], &slowly, by, &[url.as_str()]].concat();
        let curl = match way {
            Way::Run => {
                // The flags that each command of a test gets go to the shell, which has no use for them.
                let quoted: Vec<_> = words_of_curl.iter().map(|word| format!("'{word}'")).collect();
                let script = format!("exec {}", quoted.join(" "));
                world.start("phone", &["run", "--through", &ticket, "--", "sh", "-c", &script])
            }
            Way::Socks | Way::Http => Process::start(Command::new("curl").args(&words_of_curl[1..])),
        };
        wait_for("the download grows", || (length(&first) > 1 << 20).then_some(()));
        let stage =
            Self { world, file, ticket, server, curl, proxy, first, words, gateway, _serving: serving };
        if let Some(device) = phone_lets {
            stage.hand_over("phone", device);
        }
        stage
    }

    /// A device lets another one take its only session. Returns what that is called.
    #[track_caller]
    pub fn hand_over(&self, from: &str, to: &str) -> String {
        let id = self.session(from)["id"].as_str().unwrap().to_owned();
        let device = self.world.id(to);
        let said = self.run(from, &["handoff", &id[..6], "--to", &device, "--for", "2m"]);
        assert!(said.contains(&format!("whimbrel take {}", &id[..8])), "{said}");
        id
    }

    /// A newer gateway goes on in place of the one that runs.
    pub fn take_over(&mut self) {
        let words = self.words.iter().map(String::as_str).chain(["--take-over"]);
        let mut newer = self.world.start("gate", &words.collect::<Vec<_>>());
        assert_eq!(newer.next_json()["ticket"], self.ticket.as_str());
        let ended = std::mem::replace(&mut self.gateway, newer).finish(LIMIT);
        assert!(ended.succeeded().stderr.contains("has taken over"), "{}", ended.stderr);
    }

    /// Runs a command of a device about sessions at the gateway.
    #[track_caller]
    pub fn run(&self, device: &str, args: &[&str]) -> String {
        let output = self.world.run(device, &[args, &["--through", &self.ticket]].concat());
        output.succeeded().stdout.clone()
    }

    /// The only session, as a device is told of it.
    #[track_caller]
    pub fn session(&self, device: &str) -> serde_json::Value {
        let said = self.run(device, &["sessions", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["sessions"].as_array().unwrap().len(), 1, "{said}");
        said["sessions"][0].clone()
    }

    /// Has the server send the rest, once the desk has the session.
    pub fn go_on(&self) {
        wait_for("the desk has it", || (self.session("desk")["moves"] == 1).then_some(()));
        self.go();
    }

    /// Has the server send the rest.
    pub fn go(&self) {
        fs::write(self.world.path("go"), "").unwrap();
    }

    /// What the first curl got, once it has seen that its connection broke.
    pub fn first_part(&mut self) -> Vec<u8> {
        let ended = self.curl.finish(LIMIT);
        // "Failure with receiving network data", or a part of a file.
        assert!(matches!(ended.status.code(), Some(56 | 18)), "{:?}: {}", ended.status, ended.stderr);
        fs::read(&self.first).unwrap()
    }

    #[track_caller]
    pub fn are_the_file(&self, first: &[u8], second: &[u8]) {
        assert_eq!(first.len() + second.len(), self.file.len(), "bytes were lost, or came twice");
        assert_eq!(Sha256::digest([first, second].concat()), Sha256::digest(&self.file));
    }
}

/// Starts the HTTP server, which has this file as `/film`. Its second half comes once there is a file `go`.
pub fn serve(world: &World, file: &[u8]) -> (Process, SocketAddr) {
    fs::create_dir(world.path("site")).unwrap();
    fs::write(world.path("site/film"), file).unwrap();
    let at = dead_port();
    let mut python = Command::new("python3");
    python.args(["-u", "-c", SERVER, &at.port().to_string()]);
    let server = Process::start(python.arg(world.path("site")).arg(world.path("go")));
    wait_for("the server listens", || TcpStream::connect(at).ok());
    (server, at)
}

/// A proxy of the phone through the gateway, and where it listens.
pub fn proxy(world: &World, kind: &str, ticket: &str) -> (String, Option<Process>) {
    let through = ["proxy", kind, "--listen", "127.0.0.1:0", "--json", "--through", ticket];
    let mut serving = world.start("phone", &through);
    let at = serving.next_json()["listening"].as_str().unwrap().to_owned();
    (at, Some(serving))
}

/// How many requests and connections an HTTP server of Python has seen.
pub fn requests(server: Process) -> usize {
    server.signal(rustix::process::Signal::TERM);
    let said = server.output(LIMIT);
    said.stderr.lines().filter(|line| line.contains("\"GET ")).count()
}
