//! The manager's process is killed under load, which comes through the process of `whimbrel proxy http`.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_lab::{Host, HostCommand, Lab, Link, LinkSpec, require};

use crate::running::{LIMIT, Running};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const FAR: &str = "10.9.9.9:8000";
/// More than the proxy asks for first, so that each object is decided about twice.
const SIZE: usize = 40_000;
/// Programs that load objects one after the other.
const LOADERS: usize = 4;
/// Objects that come before something else is done.
const SOME: usize = 20;

/// The bytes of an object.
fn content(number: usize) -> Vec<u8> {
    let begin = (number * 104_729) as u32;
    (0..SIZE as u32).map(|n| (n.wrapping_add(begin).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A laptop with two links to a web server.
struct World {
    laptop: Host,
    home: tempfile::TempDir,
    _net: Host,
    _links: Vec<Link>,
    _lab: Lab,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (laptop, net) = (lab.host("laptop").unwrap(), lab.host("net").unwrap());
        let links = ["wlan0", "usb0"].iter().enumerate().map(|(n, name)| {
            let spec = LinkSpec::default().delay(Duration::from_millis(5)).interface_names(name, name);
            let link = lab.link(&laptop, &net, spec).unwrap();
            link.end(&laptop).add_address(&format!("10.0.{n}.1/24")).unwrap();
            link.end(&net).add_address(&format!("10.0.{n}.2/24")).unwrap();
            link.end(&laptop).add_default_route(&format!("10.0.{n}.2"), n as u32 + 1).unwrap();
            link
        });
        let links: Vec<Link> = links.collect();
        links[0].end(&net).add_address("10.9.9.9/32").unwrap();
        let listener = net.run(|| TcpListener::bind(FAR)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || serve(stream));
            }
        });
        let home = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        Self { laptop, home, _net: net, _links: links, _lab: lab }
    }

    fn command(&self, args: &[&str]) -> HostCommand {
        self.laptop.command(PROGRAM).args(args).with(|command| {
            command
                .env("HOME", self.home.path())
                .env("XDG_RUNTIME_DIR", self.home.path().join("run"))
                .env_remove("XDG_CONFIG_HOME")
                .env_remove("RUST_LOG");
        })
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    fn manager(&self) -> Running {
        let manager = self.start(&["access", "serve", "--json", "--policy", "round-robin"]);
        let told: Value = serde_json::from_str(&manager.next()).unwrap();
        assert_eq!(told["interfaces"], json!(["wlan0", "usb0"]));
        manager
    }

    /// The manager decides about the load, by turns over both links.
    fn until_decided(&self) {
        let watching = self.start(&["access", "watch"]);
        for interface in ["wlan0", "usb0"] {
            let way = format!("): {interface} from ");
            watching.until(|line| line.starts_with(FAR) && line.contains(&way));
        }
        watching.kill();
    }
}

/// Loads an object through the proxy, and checks every byte of it.
fn load(laptop: &Host, proxy: SocketAddr, number: usize) {
    let mut stream = laptop.run(|| TcpStream::connect(proxy)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let ask = format!("GET http://{FAR}/{number} HTTP/1.1\r\nHost: {FAR}\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&answer[..end]);
    assert!(head.starts_with("HTTP/1.1 200 "), "{number}: {head}");
    assert!(answer[end..] == content(number)[..], "{number}: {} bytes came", answer.len() - end);
}

/// Answers with the object that is asked for, or a part of it. A connection is used a few times.
fn serve(mut stream: TcpStream) {
    for left in (0..3).rev() {
        let Some(head) = read_head(&mut stream) else { return };
        let number = head.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        let content = content(number);
        let range = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse().map_or(SIZE - 1, |last: usize| last.min(SIZE - 1));
            name.eq_ignore_ascii_case("range").then_some((first.parse::<usize>().ok()?, last))
        });
        let (status, (first, last)) = match range {
            Some(range) => ("206 Partial Content", range),
            None => ("200 OK", (0, SIZE - 1)),
        };
        let connection = if left == 0 { "close" } else { "keep-alive" };
        let answer = format!(
            "HTTP/1.1 {status}\r\nETag: \"{number}\"\r\nAccept-Ranges: bytes\r\nConnection: {connection}\r\n\
             Content-Range: bytes {first}-{last}/{SIZE}\r\nContent-Length: {}\r\n\r\n",
            last + 1 - first
        );
        if stream.write_all(&[answer.as_bytes(), &content[first..=last]].concat()).is_err() {
            return;
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// Waits until so many objects more have come.
#[track_caller]
fn until_more(loaded: &AtomicUsize, failed: &AtomicBool) {
    let (begin, end) = (loaded.load(Ordering::Relaxed), Instant::now() + 2 * LIMIT);
    while loaded.load(Ordering::Relaxed) < begin + SOME {
        assert!(!failed.load(Ordering::Relaxed), "an object did not come right");
        assert!(Instant::now() < end, "the load does not go on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the load, however the test ends.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says that a loader did not end in order.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_manager_that_is_killed_under_load_breaks_no_object_and_the_next_one_decides_again() {
    if !require!() {
        return;
    }
    let world = World::new();
    let mut manager = world.manager();
    let proxy = world.start(&["proxy", "http", "--listen", "127.0.0.1:0", "--json"]);
    let told: Value = serde_json::from_str(&proxy.next()).unwrap();
    assert_eq!(told["manager"], true, "{told}");
    let address: SocketAddr = told["listening"].as_str().unwrap().parse().unwrap();
    let (loaded, ends, failed) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ending = Ending(&ends);
        for loader in 0..LOADERS {
            let (laptop, loaded, ends, failed) = (&world.laptop, &loaded, &ends, &failed);
            scope.spawn(move || {
                let _failing = Failing(failed);
                for number in (loader..).step_by(LOADERS) {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    load(laptop, address, number);
                    loaded.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        world.until_decided();
        for _ in 0..3 {
            manager.kill();
            // No manager decides now.
            until_more(&loaded, &failed);
            manager = world.manager();
            until_more(&loaded, &failed);
            world.until_decided();
        }
    });
    assert!(!failed.load(Ordering::Relaxed));
}
