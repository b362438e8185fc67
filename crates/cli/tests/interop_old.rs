//! Today's program with one from before, as `make interop` builds it from history: either side may be the
//! older.
//!
//! `WHIMBREL_OLD` names the older program, `WHIMBREL_OLD_TAKE_OVER` one that can be taken over from. Without
//! them these tests fail rather than pass, so they are run by name only.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{LIMIT, PROGRAM, Process, World, tcp_server, wait_for};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const NAME: &str = "sum.home.ada@example.org";
const BYTES: usize = 32 << 20;
/// Moves of each side in one transfer.
const MOVES: u8 = 3;
const BETWEEN_MOVES: Duration = Duration::from_millis(150);

/// A download that is read slowly has so long between two blocks of 64 KiB: five seconds in all.
const PAUSE: Duration = Duration::from_millis(10);

fn old() -> PathBuf {
    named_by("WHIMBREL_OLD")
}

fn named_by(variable: &str) -> PathBuf {
    let named = std::env::var_os(variable);
    named.unwrap_or_else(|| panic!("{variable} names no program; run `make interop`")).into()
}

fn block(number: usize) -> Vec<u8> {
    (0..65_536u32).map(|i| ((i ^ number as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn expected() -> String {
    let mut sum = Sha256::new();
    (0..BYTES / 65_536).for_each(|number| sum.update(block(number)));
    hex(sum)
}

/// Sends all bytes to who begins with `d`; tells others the sum of what they send.
fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    let mut what = [0];
    socket.read_exact(&mut what)?;
    if what == *b"d" {
        (0..BYTES / 65_536).try_for_each(|number| socket.write_all(&block(number)))?;
    } else {
        let sum = sum_of(&mut socket)?;
        socket.write_all(sum.as_bytes())?;
    }
    socket.shutdown(Shutdown::Write)
}

fn sum_of(socket: &mut TcpStream) -> std::io::Result<String> {
    let (mut sum, mut piece) = (Sha256::new(), vec![0; 65_536]);
    loop {
        match socket.read(&mut piece)? {
            0 => return Ok(hex(sum)),
            n => sum.update(&piece[..n]),
        }
    }
}

fn download(to: SocketAddr) -> String {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(b"d").unwrap();
    sum_of(&mut socket).unwrap()
}

fn upload(to: SocketAddr) -> String {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.write_all(b"u").unwrap();
    for number in 0..BYTES / 65_536 {
        socket.write_all(&block(number)).unwrap();
    }
    socket.shutdown(Shutdown::Write).unwrap();
    let mut sum = String::new();
    socket.read_to_string(&mut sum).unwrap();
    sum
}

/// A user's running command, which is moved by hand.
struct Side {
    first: Ipv4Addr,
    socket: PathBuf,
}

impl Side {
    fn new(world: &World, user: &str, process: &Process) -> Self {
        let file = format!("run/whimbrel/{}.sock", process.child.id());
        Self { first: world.address(user).parse().unwrap(), socket: world.path(user).join(file) }
    }

    /// Moves it to another address for each number. Tells its state.
    fn move_to(&self, number: u8) -> Value {
        let address = Ipv4Addr::from(u32::from(self.first) ^ (u32::from(number) << 8));
        let mut socket = UnixStream::connect(&self.socket).unwrap();
        write!(socket, "{{\"addresses\":[\"{address}\"]}}").unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

/// `expose` of one program and `forward` and `pipe` of the other: bytes both ways, while both sides move.
fn check(server: PathBuf, client: PathBuf, carrier: &str) {
    let (world, _names) = World::with_names();
    let to = tcp_server(|socket| drop(serve(socket))).to_string();
    let bob = world.id("bob");
    let expose = ["expose", NAME, "--to", &to, "--allow", &bob, "--json", "--carrier", carrier];
    let mut expose = Process::start(&mut world.command_of(&server, "ada", &expose));
    assert_eq!(expose.next_json()["name"], NAME);
    let forward = ["forward", NAME, "--json", "--carrier", carrier];
    let mut forward = Process::start(&mut world.command_of(&client, "bob", &forward));
    let port: SocketAddr = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ada, bobs) = (Side::new(&world, "ada", &expose), Side::new(&world, "bob", &forward));
        let over = &over;
        let moving = scope.spawn(move || {
            let mut state = Value::Null;
            for step in 1.. {
                if over.load(Ordering::Relaxed) && step > MOVES {
                    break;
                }
                std::thread::sleep(BETWEEN_MOVES);
                state = bobs.move_to(step % 16);
                std::thread::sleep(BETWEEN_MOVES);
                ada.move_to(step % 16);
            }
            state
        });
        assert_eq!(download(port), expected(), "downloaded");
        assert_eq!(upload(port), expected(), "uploaded");
        over.store(true, Ordering::Relaxed);
        let state = moving.join().unwrap();
        let moves = state["connections"].as_array().unwrap().iter().map(|c| c["moves"].as_u64().unwrap());
        assert!(moves.max() >= Some(u64::from(MOVES)), "{state}");
    });
    let pipe = ["pipe", NAME, "--carrier", carrier];
    let mut pipe = world.command_of(&client, "bob", &pipe);
    let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    pipe.stdin.take().unwrap().write_all(b"uhello").unwrap();
    let answer = pipe.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), hex(Sha256::new_with_prefix(b"hello")));
}

#[test]
#[ignore = "needs an older program: make interop"]
fn an_older_client_and_todays_server_understand_each_other() {
    for carrier in ["tcp", "quic", "auto"] {
        check(PROGRAM.into(), old(), carrier);
    }
}

#[test]
#[ignore = "needs an older program: make interop"]
fn todays_client_and_an_older_server_understand_each_other() {
    for carrier in ["tcp", "quic", "auto"] {
        check(old(), PROGRAM.into(), carrier);
    }
}

/// One file goes either way; what an older receiver does not know is refused with one line.
#[test]
#[ignore = "needs an older program: make interop"]
fn files_go_between_programs_of_today_and_of_before() {
    let old = old();
    let new = PathBuf::from(PROGRAM);
    for (sender, receiver) in [(&new, &old), (&old, &new)] {
        let world = World::new();
        let (ada, inbox) = (world.id("ada"), world.path("inbox"));
        std::fs::create_dir(&inbox).unwrap();
        let args = ["receive", "--allow", &ada, "--dir", inbox.to_str().unwrap(), "--json", "-q"];
        let mut receive = Process::start(&mut world.command_of(receiver, "bob", &args));
        let ticket = receive.next_json()["ticket"].as_str().unwrap().to_owned();
        let file = world.path("ada").join("f");
        std::fs::write(&file, b"words ".repeat(100_000)).unwrap();
        let args = ["send", file.to_str().unwrap(), "--to", &ticket, "--json", "-q"];
        Process::start(&mut world.command_of(sender, "ada", &args)).output(LIMIT).succeeded();
        assert!(std::fs::read(&file).unwrap() == std::fs::read(inbox.join("f")).unwrap());
        if receiver == &old {
            std::fs::write(world.path("ada").join("g"), "x").unwrap();
            let args = ["send", file.to_str().unwrap(), "g", "--to", &ticket, "-q"];
            let output = Process::start(&mut world.command_of(sender, "ada", &args)).output(LIMIT);
            output.failed(1, &["too new", "update"]);
        }
    }
}

/// A download that lasts.
struct Slow {
    came: Arc<AtomicUsize>,
    /// The sum of what came.
    reading: JoinHandle<String>,
}

impl Slow {
    fn start(from: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(from).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.write_all(b"d").unwrap();
        let came = Arc::<AtomicUsize>::default();
        let count = came.clone();
        let reading = std::thread::spawn(move || {
            let (mut sum, mut piece) = (Sha256::new(), vec![0; 65_536]);
            loop {
                let n = socket.read(&mut piece).unwrap();
                if n == 0 {
                    return hex(sum);
                }
                sum.update(&piece[..n]);
                count.fetch_add(n, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        Self { came, reading }
    }

    fn until(&self, bytes: usize) {
        wait_for("bytes", || {
            assert!(!self.reading.is_finished(), "it has ended");
            (self.came.load(Ordering::Relaxed) >= bytes).then_some(())
        });
    }
}

/// The older instance ends in order, because today's has taken over.
#[track_caller]
fn was_taken_over(mut process: Process) {
    let output = process.finish(LIMIT);
    assert!(output.succeeded().stderr.contains("has taken over"), "{}", output.stderr);
}

/// As in an upgrade: what the older program has put to sleep and handed over, today's wakes.
#[test]
#[ignore = "needs an older program: make interop"]
fn todays_program_takes_over_from_an_older_one_under_a_download() {
    let old = named_by("WHIMBREL_OLD_TAKE_OVER");
    for carrier in ["tcp", "quic", "auto"] {
        let (world, _names) = World::with_names();
        let to = tcp_server(|socket| drop(serve(socket))).to_string();
        let bob = world.id("bob");
        let expose = ["expose", NAME, "--to", &to, "--allow", &bob, "--json", "--carrier", carrier];
        let mut first_expose = Process::start(&mut world.command_of(&old, "ada", &expose));
        let ready = first_expose.next_json();
        assert_eq!(ready["name"], NAME);
        let forward = ["forward", NAME, "--json", "--carrier", carrier];
        let mut first_forward = Process::start(&mut world.command_of(&old, "bob", &forward));
        let local = first_forward.next_json()["listening"].clone();
        let at: SocketAddr = local.as_str().unwrap().parse().unwrap();
        let download = Slow::start(at);
        download.until(BYTES / 8);
        let mut todays_expose = world.start("ada", &[&expose[..], &["--take-over"]].concat());
        assert_eq!(todays_expose.next_json()["port"], ready["port"]);
        was_taken_over(first_expose);
        download.until(BYTES * 3 / 8);
        let mut todays_forward = world.start("bob", &[&forward[..], &["--take-over"]].concat());
        assert_eq!(todays_forward.next_json()["listening"], local);
        was_taken_over(first_forward);
        assert!(!download.reading.is_finished(), "nothing was left for today's programs to carry");
        assert_eq!(download.reading.join().unwrap(), expected(), "downloaded over {carrier}");
        assert_eq!(upload(at), expected(), "uploaded over {carrier}");
    }
}
