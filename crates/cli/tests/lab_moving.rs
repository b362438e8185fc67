//! What runs on one device goes on at another one, without a gateway, where neither has a public address:
//! machines behind gateways of their own, and one relay.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Shutdown, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use whimbrel::Ticket;
use whimbrel::base::Place;
use whimbrel::base::relayed::places;
use whimbrel_lab::{Host, HostChild, require};

use crate::homes::{Internet, json_of, started, whimbrel};

/// What the server sends in all.
const SIZE: usize = 3 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn film() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends one half, and the other one once it is told to. Counts who came.
fn serve_in_halves(listener: TcpListener) -> (Sender<()>, Arc<AtomicUsize>) {
    let (go_on, may): (Sender<()>, Receiver<()>) = channel();
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        count.fetch_add(1, Ordering::SeqCst);
        let film = film();
        let (first, second) = film.split_at(SIZE / 2);
        socket.write_all(first).unwrap();
        may.recv().unwrap();
        // What breaks is seen by the test.
        let _ = socket.write_all(second);
        let _ = socket.shutdown(Shutdown::Write);
        while listener.accept().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (go_on, came)
}

#[track_caller]
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "no {what} after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for the end of a command, which is a good one.
#[track_caller]
fn succeeded(child: &mut HostChild) {
    let status = until("end of a command", || child.child().try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn a_pipe_between_homes_goes_on_in_a_third_one_through_a_relay() {
    if require!() {
        goes_on(false);
    }
}

#[test]
fn a_pipe_between_homes_goes_on_in_a_third_one_while_its_peer_moves() {
    if require!() {
        goes_on(true);
    }
}

fn goes_on(peer_moves: bool) {
    let internet = Internet::new();
    // The phone, the desk, and the peer of both: each behind a gateway that maps each flow anew.
    let (phone, desk) = (internet.home("phone", 1), internet.home("desk", 2));
    let mut home = internet.home("home", 3);
    let folder = tempfile::tempdir().unwrap();
    let on =
        |host: &Host, user: &str, arguments: &[&str]| whimbrel(host, folder.path(), user).args(arguments);
    let id = |host: &Host, user: &str| {
        let id = on(host, user, &["id"]).output().unwrap();
        String::from_utf8(id.stdout).unwrap().trim().to_owned()
    };
    let serve_relay = ["relay", "serve", "--listen", "203.0.113.5:443", "--allow", "any", "--json"];
    let (mut relay, said) = started(on(&internet.vps, "vps", &serve_relay));
    let relay_at = said["ticket"].as_str().unwrap().to_owned();

    let (go_on, came) = serve_in_halves(home.host.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap());
    let (phone_id, desk_id) = (id(&phone.host, "phone"), id(&desk.host, "desk"));
    let exposing =
        ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", &phone_id, "--allow", &desk_id];
    let reach = ["--relay", &relay_at, "--json"];
    let (mut exposed, said) = started(on(&home.host, "home", &[&exposing[..], &reach].concat()));
    let ticket = said["ticket"].as_str().unwrap().to_owned();

    let into = |path: &Path, host: &Host, user: &str, arguments: &[&str]| {
        let file = File::create(path).unwrap();
        let command = on(host, user, arguments).with(|c| {
            c.stdin(Stdio::null()).stdout(file);
        });
        command.spawn().unwrap()
    };
    let [first, second] = ["first", "second"].map(|part| folder.path().join(part));
    let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    let mut at_phone = into(&first, &phone.host, "phone", &["pipe", &ticket]);
    until("first half", || (length(&first) == SIZE as u64 / 2).then_some(()));
    let session = until("session", || {
        let listed = json_of(on(&phone.host, "phone", &["sessions", "--json"]));
        listed["sessions"][0]["id"].as_str().map(str::to_owned)
    });
    let word = ["handoff", &session, "--to", &desk_id, "--relay", &relay_at, "--json"];
    let given = json_of(on(&phone.host, "phone", &word));
    let at: Ticket = given["ticket"].as_str().unwrap().parse().unwrap();
    let relayed = places(at.addrs()).into_iter().any(|place| matches!(place, Place::Relayed(_)));
    assert!(relayed, "{given}");
    if peer_moves {
        // It is under way when the desk comes.
        home.move_on();
    }
    let mut at_desk = into(&second, &desk.host, "desk", &["take", &session, "--from", &at.to_string()]);
    succeeded(&mut at_phone);
    go_on.send(()).unwrap();
    succeeded(&mut at_desk);
    let [first, second] = [first, second].map(|part| fs::read(part).unwrap());
    assert_eq!((first.len(), second.len()), (SIZE / 2, SIZE - SIZE / 2));
    assert_eq!(sum(&[first, second].concat()), sum(&film()));
    assert_eq!(came.load(Ordering::SeqCst), 1, "the server saw one connection");
    for child in [&mut exposed, &mut relay] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
