//! A newer instance takes over from a running one: with its sockets, its connections, and the bytes under
//! way.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Process, World, length, shouting_server, tcp_server, wait_for};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const NAME: &str = "web.home.ada@example.org";
const MIB: usize = 1 << 20;
/// A newer instance begins within this, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn expose_args(to: &str, more: &[&str]) -> Vec<String> {
    let args = ["expose", NAME, "--to", to, "--allow", "any", "--json"];
    args.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
}

fn start(world: &World, user: &str, args: &[String]) -> Process {
    world.start(user, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn expose(world: &World, to: SocketAddr, more: &[&str]) -> (Process, Value) {
    let mut process = start(world, "ada", &expose_args(&to.to_string(), more));
    let ready = process.next_json();
    (process, ready)
}

fn forward(world: &World, more: &[&str]) -> (Process, String) {
    let args = [&["forward", NAME, "--json"], more].concat();
    let mut process = world.start("bob", &args);
    let ready = process.next_json();
    (process, ready["listening"].as_str().unwrap().to_owned())
}

/// The instance ends in order, because another one has taken over.
#[track_caller]
fn was_taken_over(mut process: Process) {
    let output = process.finish(SOON);
    assert!(output.succeeded().stderr.contains("has taken over"), "{}", output.stderr);
}

/// The bytes from `at` on of what the server sends: any part tells where it belongs.
fn content(at: usize, buffer: &mut [u8]) {
    for (n, word) in buffer.chunks_mut(8).enumerate() {
        let number = ((at / 8 + n) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&number.to_le_bytes()[..word.len()]);
    }
}

/// Sends so many MiB, and then reads to the end.
fn large_server(mib: usize) -> SocketAddr {
    tcp_server(move |mut socket| {
        let mut buffer = vec![0; MIB];
        for n in 0..mib {
            content(n * MIB, &mut buffer);
            if socket.write_all(&buffer).is_err() {
                return;
            }
        }
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    })
}

/// What a download of so many MiB sums up to.
fn sum_of(mib: usize) -> Vec<u8> {
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; MIB]);
    for n in 0..mib {
        content(n * MIB, &mut buffer);
        sum.update(&buffer);
    }
    sum.finalize().to_vec()
}

/// A download under way: the bytes that have come, and the longest pause between two reads.
struct Download {
    came: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    reading: JoinHandle<(Vec<u8>, Duration)>,
}

impl Download {
    /// Reads at most so fast, so that it lasts.
    fn start(from: &str, mib_a_second: usize) -> Self {
        let mut socket = TcpStream::connect(from).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let came = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = came.clone();
        let reading = std::thread::spawn(move || {
            let (mut sum, mut buffer) = (Sha256::new(), vec![0; 256 * 1024]);
            let (begun, mut last, mut longest, mut all) =
                (Instant::now(), Instant::now(), Duration::ZERO, 0usize);
            loop {
                let n = socket.read(&mut buffer).unwrap();
                longest = longest.max(last.elapsed());
                if n == 0 {
                    return (sum.finalize().to_vec(), longest);
                }
                sum.update(&buffer[..n]);
                all += n;
                count.store(all, std::sync::atomic::Ordering::Relaxed);
                let due = Duration::from_secs_f64(all as f64 / (mib_a_second * MIB) as f64);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
                last = Instant::now();
            }
        });
        Self { came, reading }
    }

    fn until(&self, mib: usize) {
        wait_for("bytes", || {
            assert!(!self.reading.is_finished(), "it has ended");
            (self.came.load(std::sync::atomic::Ordering::Relaxed) >= mib * MIB).then_some(())
        });
    }
}

/// Four times what may be under way on a stream, so that some is left at each side when it is taken over.
const DOWNLOAD_MIB: usize = 32;

/// `WHIMBREL_DOWNLOAD_MIB=1024` for the long one.
#[test]
fn a_download_goes_on_while_both_sides_are_taken_over() {
    let mib = std::env::var("WHIMBREL_DOWNLOAD_MIB").map_or(DOWNLOAD_MIB, |mib| mib.parse().unwrap());
    taken_over_under_a_download(mib, "auto");
}

#[test]
fn a_download_over_quic_goes_on_too() {
    taken_over_under_a_download(DOWNLOAD_MIB, "quic");
}

fn taken_over_under_a_download(mib: usize, carrier: &str) {
    let (world, _names) = World::with_names();
    let to = large_server(mib);
    let (first, ready) = expose(&world, to, &[]);
    let (first_forward, local) = forward(&world, &["--carrier", carrier]);
    let download = Download::start(&local, (mib / 8).clamp(1, 100));
    download.until(mib / 8);
    let (second, again) = expose(&world, to, &["--take-over"]);
    assert_eq!(ready["port"], again["port"]);
    was_taken_over(first);
    download.until(mib * 3 / 8);
    let (_forward, same) = forward(&world, &["--carrier", carrier, "--take-over"]);
    assert_eq!(local, same);
    was_taken_over(first_forward);
    download.until(mib * 5 / 8);
    let (_third, _) = expose(&world, to, &["--take-over"]);
    was_taken_over(second);
    let (sum, longest) = download.reading.join().unwrap();
    assert_eq!(sum, sum_of(mib), "wrong bytes");
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    println!("{mib} MiB over {carrier} through three takeovers; the longest pause was {longest:?}");
    // Those who come now are served as before.
    let download = Download::start(&local, 1000);
    download.until(1);
}

/// One line, and its answer.
fn ask(socket: &mut BufReader<TcpStream>, line: &str) -> String {
    writeln!(socket.get_mut(), "{line}").unwrap();
    let mut answer = String::new();
    socket.read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

fn connect(to: &str) -> BufReader<TcpStream> {
    let socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    BufReader::new(socket)
}

fn control_socket(world: &World, user: &str, process: &Process) -> PathBuf {
    world.path(user).join(format!("run/whimbrel/{}.sock", process.child.id()))
}

/// Asks a running command to hand over, and reads the first line of its answer.
fn ask_to_take_over(file: &PathBuf, versions: &str) -> (BufReader<UnixStream>, String) {
    let mut socket = UnixStream::connect(file).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    writeln!(socket, "{{\"take_over\":{{\"versions\":{versions}}}}}").unwrap();
    let (mut socket, mut line) = (BufReader::with_capacity(1, socket), String::new());
    socket.read_line(&mut line).unwrap();
    (socket, line)
}

#[test]
fn an_instance_goes_on_if_the_newer_one_dies_half_way_or_speaks_another_version() {
    let (world, names) = World::with_names();
    let (expose, _) = expose(&world, shouting_server(), &[]);
    let (forward, local) = forward(&world, &[]);
    let mut open = connect(&local);
    assert_eq!(ask(&mut open, "one"), "ONE");
    for (user, process) in [("ada", &expose), ("bob", &forward)] {
        let file = control_socket(&world, user, process);
        let (_, refusal) = ask_to_take_over(&file, "[7]");
        assert!(refusal.contains("error") && refusal.contains("version [1]"), "{refusal}");
        assert_eq!(ask(&mut open, "still"), "STILL");
        // It dies when it has read a little.
        let (mut socket, answer) = ask_to_take_over(&file, "[7,1]");
        assert!(answer.contains("\"version\":1"), "{answer}");
        socket.read_exact(&mut [0; 40]).unwrap();
        drop(socket);
        process.until_said("did not take over", 1);
        assert_eq!(ask(&mut open, "on"), "ON");
        assert_eq!(ask(&mut connect(&local), "new"), "NEW");
    }
    // The name service opens its store again.
    drop(ask_to_take_over(&control_socket(&world, "names", &names), "[1]"));
    names.until_said("did not take over", 1);
    world.run("bob", &["names", "lookup", NAME]).succeeded();
    // What does not need the running instance fails before it is disturbed.
    let args = ["expose", NAME, "--to", "127.0.0.1:1", "--allow-from", "/nonexistent", "--take-over"];
    assert!(!world.run("ada", &args).status.success());
    expose.until_said("did not take over", 2);
    assert_eq!(ask(&mut open, "and on"), "AND ON");
}

#[test]
fn without_a_running_instance_there_is_nothing_to_take_over() {
    let (world, _names) = World::with_names();
    let to = shouting_server();
    world.id("ada");
    let args = expose_args(&to.to_string(), &["--take-over"]);
    let refused = |args: &[String], code, says: &[&str]| {
        world.run("ada", &args.iter().map(String::as_str).collect::<Vec<_>>()).failed(code, says);
    };
    refused(&args, 3, &["nothing to take over", NAME, "whimbrel status"]);
    let (running, _) = expose(&world, to, &[]);
    let pid = running.child.id().to_string();
    // Another name, another command, another process.
    world.run("ada", &["forward", NAME, "--take-over"]).failed(3, &["nothing to take over", "forward"]);
    let other = ["expose", "x.home.ada@example.org", "--to", "x:1", "--allow", "any", "--take-over"];
    world.run("ada", &other).failed(3, &["nothing to take over", "x.home.ada"]);
    refused(&expose_args("x:1", &["--take-over=1"]), 3, &["process 1"]);
    // One that does not hand over says so.
    let mut pipe = world.command("bob", &["pipe", NAME]);
    let pipe = Process::start(pipe.stdin(std::process::Stdio::piped()));
    let file = control_socket(&world, "bob", &pipe);
    // There is a moment in which it has a name and nobody listens yet.
    wait_for("the pipe's socket", || UnixStream::connect(&file).ok());
    let (_, refusal) = ask_to_take_over(&file, "[1]");
    assert!(refusal.contains("cannot hand over"), "{refusal}");
    let (_third, _) = expose(&world, to, &[&format!("--take-over={pid}")[..]]);
    was_taken_over(running);
}

/// The directory of the control sockets is the user's alone, and who asks is checked once more.
#[test]
fn another_user_cannot_take_over() {
    let (world, _names) = World::with_names();
    let (running, _) = expose(&world, shouting_server(), &[]);
    let (_forward, local) = forward(&world, &[]);
    let mut open = connect(&local);
    assert_eq!(ask(&mut open, "one"), "ONE");
    let file = control_socket(&world, "ada", &running);
    let directory = file.parent().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory), 0o700);
    let Some(denied) = as_nobody(|| UnixStream::connect(&file).map(drop)) else {
        assert!(!rustix::process::geteuid().is_root(), "root may become anybody");
        return;
    };
    assert_eq!(denied.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // As if somebody had opened all doors.
    for path in directory.ancestors().take_while(|path| path.starts_with(world.dir.path())).chain([&*file]) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let (_, refusal) = as_nobody(|| ask_to_take_over(&file, "[1]")).unwrap();
    assert!(refusal.contains("only the user that runs this may take over"), "{refusal}");
    assert_eq!(ask(&mut open, "two"), "TWO");
}

/// Does something as a user without any rights, in a thread that becomes that one. `None` if it may not.
fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> Option<T> {
    let thread =
        || rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).ok().map(|()| what());
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// The newer one knows them before it has asked the name service.
#[test]
fn peers_that_were_let_in_by_name_stay() {
    let (world, _names) = World::with_names();
    let to = shouting_server().to_string();
    let (phone, owner) = ("phone.bob@example.org", format!("bob@example.org={}", world.id("bob")));
    let args = ["expose", NAME, "--to", &to, "--allow", phone, "--pin", &owner, "--json"];
    let mut first = world.start("ada", &args);
    first.next_json();
    let _phone = world.start("bob", &["receive", "--as", phone, "--allow", "any", "-q"]);
    wait_for("bob to be let in", || world.run("bob", &["pipe", NAME]).status.success().then_some(()));
    let (forward, local) = forward(&world, &[]);
    let mut open = connect(&local);
    assert_eq!(ask(&mut open, "one"), "ONE");
    let mut second = world.start("ada", &[&args[..], &["--take-over"]].concat());
    second.next_json();
    was_taken_over(first);
    assert_eq!(ask(&mut open, "two"), "TWO");
    // Rules are looked at again when they change; nobody is ended by that.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ask(&mut open, "three"), "THREE");
    drop(forward);
}

#[test]
fn local_programs_on_a_unix_socket_and_half_closed_connections_stay() {
    let (world, _names) = World::with_names();
    let to = shouting_server();
    let (expose_first, _) = expose(&world, to, &["--ticket", "--secret"]);
    let place = format!("unix:{}", world.path("s").display());
    let (forward_first, local) = forward(&world, &["--listen", &place]);
    assert_eq!(local, place);
    let open = || {
        let socket = UnixStream::connect(world.path("s")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    };
    let (mut half, mut idle) = (open(), open());
    writeln!(half, "hello").unwrap();
    let mut answers = BufReader::new(half.try_clone().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert_eq!(line, "HELLO\n");
    let (forward_second, _) = forward(&world, &["--listen", &place, "--take-over"]);
    was_taken_over(forward_first);
    let (_expose, _) = expose(&world, to, &["--ticket", "--secret", "--take-over"]);
    was_taken_over(expose_first);
    let (_forward, _) = forward(&world, &["--listen", &place, "--take-over"]);
    was_taken_over(forward_second);
    // One that fails takes nothing away.
    let limits = world.path("no-limits");
    let fails = ["forward", NAME, "--listen", &place, "--take-over", "--limits", limits.to_str().unwrap()];
    assert!(!world.run("bob", &fails).status.success());
    writeln!(half, "world").unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    answers.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "WORLD\nTHE END\n");
    idle.write_all(b"x\n").unwrap();
    idle.shutdown(std::net::Shutdown::Write).unwrap();
    rest.clear();
    idle.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "X\nTHE END\n");
    assert!(world.path("s").exists());
}

#[test]
fn the_secret_of_a_printed_ticket_stays() {
    let world = World::new();
    let to = shouting_server().to_string();
    let args = ["expose", "--ticket", "--secret", "--to", &to, "--json"];
    let mut first = world.start("ada", &args);
    let ticket = first.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut forward = world.start("bob", &["forward", &ticket, "--json"]);
    let local = forward.next_json()["listening"].as_str().unwrap().to_owned();
    let mut open = connect(&local);
    assert_eq!(ask(&mut open, "one"), "ONE");
    let mut second = world.start("ada", &[&args[..], &["--take-over"]].concat());
    assert_eq!(second.next_json()["ticket"], *ticket);
    was_taken_over(first);
    assert_eq!(ask(&mut open, "two"), "TWO");
    let mut later = world.start("eve", &["forward", &ticket, "--json"]);
    let local = later.next_json()["listening"].as_str().unwrap().to_owned();
    assert_eq!(ask(&mut connect(&local), "three"), "THREE");
}

#[test]
fn watchers_of_names_go_on_while_the_service_is_taken_over() {
    let mut world = World::new();
    let first = world.serve_names(&[]);
    let ticket = world.service().to_owned();
    let (_expose, _) = expose(&world, shouting_server(), &[]);
    let mut watch = world.start("bob", &["names", "watch", NAME, "--json"]);
    let seen = watch.next_json();
    let second = world.serve_names(&["--take-over"]);
    assert_eq!(world.service(), ticket);
    was_taken_over(first);
    // A move is told by the new one.
    let record = world.run("bob", &["names", "lookup", NAME]);
    record.succeeded();
    let other = [&expose_args("127.0.0.1:9", &[])[..], &["--port".to_owned(), "0".to_owned()]].concat();
    drop(_expose);
    let mut again = start(&world, "ada", &other);
    again.next_json();
    let moved = watch.next_json();
    assert_ne!(seen, moved);
    assert!(moved.to_string().contains(NAME), "{moved}");
    drop(second);
}

#[test]
fn a_file_on_its_way_arrives_although_its_receiver_is_taken_over() {
    let (world, _names) = World::with_names();
    let bob = world.id("bob");
    let inbox = world.path("inbox");
    std::fs::create_dir(&inbox).unwrap();
    let args = ["receive", "--as", "in.home.ada@example.org", "--allow", &bob, "--json", "--dir"];
    let args = [&args[..], &[inbox.to_str().unwrap()]].concat();
    let mut first = world.start("ada", &args);
    first.next_json();
    let mut bytes = vec![0; 24 * MIB];
    getrandom::fill(&mut bytes).unwrap();
    // Standard input could not be sent twice.
    let send = ["send", "-", "--as", "film", "--to", "in.home.ada@example.org", "--limit", "8"];
    let mut send = world.command("bob", &send);
    let mut send = Process::start(send.stdin(std::process::Stdio::piped()));
    let mut input = send.child.stdin.take().unwrap();
    let sent = bytes.clone();
    let feeding = std::thread::spawn(move || input.write_all(&sent));
    let part = inbox.join(".film.whimbrel-part");
    wait_for("a part of the file", || (length(&part) > 4 * MIB as u64).then_some(()));
    let mut second = world.start("ada", &[&args[..], &["--take-over"]].concat());
    second.next_json();
    was_taken_over(first);
    feeding.join().unwrap().unwrap();
    send.finish(LIMIT).succeeded();
    let arrived = second.next_json();
    assert_eq!(arrived["size"], bytes.len());
    assert_eq!(std::fs::read(inbox.join("film")).unwrap(), bytes);
}

/// Ends a process that is no child of the test's.
struct Foreign(Pid);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
    }
}

/// As `systemctl reload` has it done, with the notifications of `Type=notify`.
#[test]
fn a_service_manager_is_told_which_process_goes_on() {
    let (world, _names) = World::with_names();
    let socket = UnixDatagram::bind(world.path("n")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let told = || {
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let to = shouting_server().to_string();
    let args = expose_args(&to, &[]);
    let mut command = world.command("ada", &args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut expose = Process::start(command.env("NOTIFY_SOCKET", world.path("n")));
    expose.next_json();
    let ready = told();
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    let (_forward, local) = forward(&world, &[]);
    let mut open = connect(&local);
    assert_eq!(ask(&mut open, "one"), "ONE");
    expose.signal(Signal::USR2);
    assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    let main = told();
    let pid: i32 = main.strip_prefix("MAINPID=").and_then(|pid| pid.trim().parse().ok()).unwrap();
    let newer = Foreign(Pid::from_raw(pid).unwrap());
    assert_ne!(pid as u32, expose.child.id());
    assert_eq!(told(), ready);
    // The newer one has its output too, which therefore does not end.
    expose.until_said("has taken over", 1);
    let status = wait_for("the older one's end", || expose.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(ask(&mut open, "two"), "TWO");
    // And once more, by the newer one.
    rustix::process::kill_process(newer.0, Signal::USR2).unwrap();
    assert!(told().starts_with("RELOADING=1"));
    let main = told();
    let pid: i32 = main.strip_prefix("MAINPID=").and_then(|pid| pid.trim().parse().ok()).unwrap();
    let newest = Foreign(Pid::from_raw(pid).unwrap());
    assert_eq!(told(), ready);
    assert_eq!(ask(&mut open, "three"), "THREE");
    rustix::process::kill_process(newest.0, Signal::TERM).unwrap();
    assert_eq!(told(), "STOPPING=1\n");
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 16]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
}
