//! A relay is replaced while two machines behind gateways of their own download through it: by a newer
//! program at another place, and as a service manager does it. Or it is stopped, and they go on through
//! another one.
#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};
use whimbrel_lab::{Host, HostChild, require};

use crate::homes::{Internet, PROGRAM, VPS, figures, json_of, program, serve, started, whimbrel};

const NAME: &str = "web.home.ada@example.org";
const SIZE: usize = 64 << 20;
/// Bytes a second that a download takes: half of what the links carry.
const SPEED: f64 = (6 << 20) as f64;
/// An instance that was taken over ends within this, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A download under way.
struct Download {
    came: Arc<AtomicUsize>,
    /// Returns what it sums up to, and the longest pause between two reads.
    reading: JoinHandle<(Vec<u8>, Duration)>,
}

impl Download {
    fn start(host: &Host, from: &'static str) -> Self {
        let mut socket = host.run(|| TcpStream::connect(from)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let came = Arc::new(AtomicUsize::new(0));
        let total = came.clone();
        let reading = std::thread::spawn(move || {
            let (mut sum, mut piece, mut longest) = (Sha256::new(), vec![0; 1 << 16], Duration::ZERO);
            let (start, mut all) = (Instant::now(), 0);
            loop {
                let begun = Instant::now();
                let count = socket.read(&mut piece).unwrap();
                longest = longest.max(begun.elapsed());
                if count == 0 {
                    return (sum.finalize().to_vec(), longest);
                }
                sum.update(&piece[..count]);
                all += count;
                total.store(all, Ordering::Relaxed);
                let due = Duration::from_secs_f64(all as f64 / SPEED);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        });
        Self { came, reading }
    }

    fn until(&self, size: usize) {
        let begun = Instant::now();
        while self.came.load(Ordering::Relaxed) < size {
            assert!(!self.reading.is_finished(), "it has ended");
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{} bytes came",
                self.came.load(Ordering::Relaxed)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!self.reading.is_finished(), "it has ended");
    }
}

/// Waits until an instance ends in order.
fn was_taken_over(mut instance: HostChild) {
    let begun = Instant::now();
    loop {
        if let Some(status) = instance.child().try_wait().unwrap() {
            return assert!(status.success(), "{status}");
        }
        assert!(begun.elapsed() < SOON, "it has not ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process of the only command of a user that runs.
fn running(host: &Host, folder: &Path, user: &str) -> Pid {
    let shown = whimbrel(host, folder, user).args(["status", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    let report = value.get(0).unwrap_or(&value);
    let pid = report["pid"].as_i64().unwrap_or_else(|| panic!("no process: {text}"));
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

fn replaced_under_a_download(serving: &[&str], carrier: &str) {
    let internet = Internet::new();
    let vps = &internet.vps;
    // Gateways that map each flow anew: no direct path comes of them, so that the relay carries.
    let (home, laptop) = (internet.home("home", 1), internet.home("laptop", 2));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let copy = folder.join("newer");
    std::fs::copy(PROGRAM, &copy).unwrap();

    let (first, said) = started(whimbrel(vps, folder, "vps").args(serving));
    let service = said["ticket"].as_str().unwrap().to_owned();
    let sent: Vec<u8> = (0..SIZE).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
    let expected = Sha256::digest(&sent).to_vec();
    serve(home.host.run(|| TcpListener::bind("127.0.0.1:80")).unwrap(), sent);
    let expose = ["expose", NAME, "--to", "127.0.0.1:80", "--allow", "any", "--json", "--ticket"];
    let relay = ["--relay", &service];
    let (mut exposed, said) = started(whimbrel(&home.host, folder, "home").args(expose).args(relay));
    let ticket = said["ticket"].as_str().unwrap().to_owned();
    let forward = |user: &str, at: &str, carrier: &str| {
        let forward = ["forward", &ticket, "--listen", at, "--carrier", carrier, "--json"];
        started(whimbrel(&laptop.host, folder, user).args(forward)).0
    };
    let mut others = vec![forward("first", "127.0.0.1:8080", carrier)];
    let download = Download::start(&laptop.host, "127.0.0.1:8080");
    download.until(SIZE / 16);
    let before = figures(vps);
    // A newer program, by hand.
    let newer = program(copy.to_str().unwrap(), vps, folder, "vps").args(serving).args(["--take-over"]);
    let (second, said) = started(newer);
    assert_eq!(said["ticket"], *service);
    was_taken_over(first);
    let after = figures(vps);
    assert_eq!(figure(&after, "whimbrel_relay_reservations"), 1);
    let total = if carrier == "tcp" { "whimbrel_relay_splices_total" } else { "whimbrel_relay_flows_total" };
    assert!(figure(&before, total) > 0 && figure(&after, total) >= figure(&before, total), "{after}");
    let new = |user: &str, at: &'static str, carrier: &str| {
        let forward = forward(user, at, carrier);
        let mut socket = laptop.host.run(|| TcpStream::connect(at)).unwrap();
        // A new client is served beside the first download, which goes on for longer.
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.read_exact(&mut [0; 1 << 16]).unwrap();
        forward
    };
    others.push(new("later", "127.0.0.1:8082", carrier));
    download.until(SIZE / 4);
    // The program that is there now, as `systemctl reload` has it started.
    let pid = running(vps, folder, "vps");
    kill_process(pid, Signal::USR2).unwrap();
    was_taken_over(second);
    let third = running(vps, folder, "vps");
    assert_ne!(third, pid);
    others.push(new("latest", "127.0.0.1:8083", carrier));
    let (sum, longest) = download.reading.join().unwrap();
    assert_eq!(sum, expected, "wrong bytes");
    println!("over {carrier} the longest pause was {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let end = figures(vps);
    assert_eq!(figure(&end, "whimbrel_relay_reservations"), 1);
    assert!(figure(&end, total) > figure(&after, total), "{end}");
    kill_process(third, Signal::KILL).unwrap();
    for child in others.iter_mut().chain([&mut exposed]) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

const METRICS: [&str; 3] = ["--metrics", "127.0.0.1:9090", "--json"];

#[test]
fn a_relay_is_replaced_under_a_download_over_tcp() {
    if !require!() {
        return;
    }
    let serving = ["relay", "serve", "--listen", "0.0.0.0:443", "--allow", "any"];
    replaced_under_a_download(&[&serving[..], &METRICS].concat(), "tcp");
}

#[test]
fn a_relay_beside_a_name_service_is_replaced_with_it_under_a_download_over_quic() {
    if !require!() {
        return;
    }
    let serving = ["serve", "--listen", "0.0.0.0:443", "--allow", "any", "--relay-allow", "any"];
    replaced_under_a_download(&[&serving[..], &METRICS].concat(), "quic");
}

/// Two relays, of which the one that carries is asked to end.
fn stopped_under_a_download(serving: &[&str], carrier: &str) {
    let internet = Internet::new();
    let (home, laptop) = (internet.home("home", 1), internet.home("laptop", 2));
    let (other, _link) = internet.server("other", 1);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let start = |host: &Host, user: &str, at: &str| {
        let (child, said) = started(whimbrel(host, folder, user).args(serving));
        (child, said["ticket"].as_str().unwrap().to_owned(), format!("{at}:443"))
    };
    let (first, one, at_first) = start(&internet.vps, "vps", VPS);
    let (second, two, at_second) = start(&other, "other", "198.51.1.5");
    let sent: Vec<u8> = (0..SIZE).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
    let expected = Sha256::digest(&sent).to_vec();
    serve(home.host.run(|| TcpListener::bind("127.0.0.1:80")).unwrap(), sent);
    let expose = ["expose", NAME, "--to", "127.0.0.1:80", "--allow", "any", "--json", "--ticket"];
    let relays = ["--relay", &one, "--relay", &two];
    let (mut exposed, said) = started(whimbrel(&home.host, folder, "home").args(expose).args(relays));
    let ticket = said["ticket"].as_str().unwrap();
    let status = |host: &Host, user: &str| json_of(whimbrel(host, folder, user).args(["status", "--json"]));
    let held = || status(&home.host, "home")[0]["relays"].as_array().map_or(0, Vec::len);
    until("two reservations", || held() == 2);
    let forward = ["forward", ticket, "--listen", "127.0.0.1:8080", "--carrier", carrier, "--json"];
    let (mut forward, _) = started(whimbrel(&laptop.host, folder, "laptop").args(forward));
    let download = Download::start(&laptop.host, "127.0.0.1:8080");
    download.until(SIZE / 8);
    let carries = |at: &str| {
        let report = status(&laptop.host, "laptop");
        let connections = report[0]["connections"].as_array().cloned().unwrap_or_default();
        let paths = connections.iter().filter_map(|connection| connection["paths"].as_array()).flatten();
        paths.into_iter().any(|path| path["remote"] == at && path["state"] == "active")
    };
    let ((mut stopped, from), (mut stays, to)) = match carries(&at_first) {
        true => ((first, at_first), (second, at_second)),
        false => ((second, at_second), (first, at_first)),
    };
    let pid = Pid::from_raw(i32::try_from(stopped.child().id()).unwrap()).unwrap();
    let begun = Instant::now();
    kill_process(pid, Signal::TERM).unwrap();
    until("the other relay carries", || carries(&to) && !carries(&from));
    until("the server has left it", || held() == 1);
    println!("over {carrier} the other relay carried within {:?}", begun.elapsed());
    let mut end = None;
    until("it has ended", || {
        end = stopped.child().try_wait().unwrap();
        end.is_some()
    });
    assert!(end.is_some_and(|end| end.code().is_some()), "it did not end by itself: {end:?}");
    let (sum, longest) = download.reading.join().unwrap();
    assert_eq!(sum, expected, "wrong bytes");
    println!("over {carrier} the longest pause was {longest:?}");
    // A second, but for a busy machine.
    assert!(longest < SOON / 2, "{longest:?}");
    for child in [&mut forward, &mut exposed, &mut stays] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "{what}: not after {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_relay_that_is_asked_to_end_sends_a_download_over_tcp_to_another_one() {
    if !require!() {
        return;
    }
    stopped_under_a_download(
        &["relay", "serve", "--listen", "0.0.0.0:443", "--allow", "any", "--json"],
        "tcp",
    );
}

#[test]
fn a_service_of_names_and_relay_that_is_asked_to_end_sends_a_download_over_quic_to_another_relay() {
    if !require!() {
        return;
    }
    let serving = ["serve", "--listen", "0.0.0.0:443", "--allow", "any", "--relay-allow", "any"];
    stopped_under_a_download(&[&serving[..], &["--ephemeral", "--json"]].concat(), "quic");
}
