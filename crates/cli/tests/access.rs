//! `whimbrel access` as processes on a host with two links.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use whimbrel_lab::{Host, HostCommand, Lab, Link, LinkSpec, require};

use crate::running::{LIMIT, Running};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const FAR: &str = "10.9.9.9:443";

/// A host with two links, `wlan0` and `usb0`, and a home directory.
struct World {
    host: Host,
    links: Vec<Link>,
    home: tempfile::TempDir,
    _other: Host,
    _lab: Lab,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (host, other) = (lab.host("laptop").unwrap(), lab.host("net").unwrap());
        let links = ["wlan0", "usb0"].iter().enumerate().map(|(n, name)| {
            let spec = LinkSpec::default().delay(Duration::from_millis(5)).interface_names(name, name);
            let link = lab.link(&host, &other, spec).unwrap();
            link.end(&host).add_address(&format!("10.0.{n}.1/24")).unwrap();
            link.end(&other).add_address(&format!("10.0.{n}.2/24")).unwrap();
            link.end(&host).add_default_route(&format!("10.0.{n}.2"), n as u32 + 1).unwrap();
            link
        });
        let links = links.collect();
        let home = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        Self { host, links, home, _other: other, _lab: lab }
    }

    fn command(&self, program: &str, args: &[&str]) -> HostCommand {
        self.host.command(program).args(args).with(|command| {
            command
                .env("HOME", self.home.path())
                .env("XDG_RUNTIME_DIR", self.home.path().join("run"))
                .env_remove("XDG_CONFIG_HOME")
                .env_remove("RUST_LOG");
        })
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("run/whimbrel/access")
    }

    fn start_as(&self, program: &str, args: &[&str]) -> Running {
        Running::start(self.command(program, args))
    }

    fn serve(&self, flags: &[&str]) -> Running {
        let running = self.start_as(PROGRAM, &[&["access", "serve", "--json"], flags].concat());
        let told: Value = serde_json::from_str(&running.next()).unwrap();
        assert_eq!(told["interfaces"], json!(["wlan0", "usb0"]));
        running
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(PROGRAM, args).output().unwrap()
    }

    #[track_caller]
    fn ask(&self, flags: &[&str]) -> Value {
        let output = self.run(&[&["access", "ask", "--json", "--to", FAR], flags].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn failed(output: &Output, code: i32, says: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(says) && stderr.trim_end().lines().count() == 1, "{stderr}");
}

#[test]
fn a_manager_is_asked_and_watched_and_goes_on_in_the_place_of_a_dead_one() {
    if !require!() {
        return;
    }
    let world = World::new();
    failed(&world.run(&["access", "ask", "--to", FAR]), 4, "start one with `whimbrel access serve`");
    failed(&world.run(&["access", "watch"]), 4, "start one with `whimbrel access serve`");
    let running = world.serve(&["--metered", "usb0"]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(world.socket().parent().unwrap()), 0o700);
    failed(&world.run(&["access", "serve"]), 2, "answers on");

    let watching = world.start_as(PROGRAM, &["access", "watch"]);
    let path = watching.until(|line| line.contains("usb0"));
    assert!(path.starts_with("2 usb0 (10.0.1.1): rtt") && path.ends_with(", metered"), "{path}");
    let told = world.run(&["access", "ask", "--to", FAR, "--intent", "size-received=300KB"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.starts_with("wlan0 from 10.0.0.1 to 10.9.9.9:443 by tcp"), "{told}");
    assert!(told.ends_with("decided by whimbrel\n"), "{told}");
    watching.until(|line| line.starts_with("10.9.9.9:443 (size-received=300000): wlan0 from 10.0.0.1"));
    let free = world.ask(&["--intent", "cost=no-expense"]);
    assert!(free["ways"].as_array().unwrap().iter().all(|way| way["interface"] == "wlan0"), "{free}");

    // An interface goes away: what may cost nothing has to wait.
    world.links[0].set_carrier(&world.host, false).unwrap();
    let end = Instant::now() + LIMIT;
    let waits = loop {
        let output = world.run(&["access", "ask", "--to", FAR, "--intent", "cost=no-expense"]);
        if !output.status.success() || Instant::now() > end {
            break output;
        }
    };
    failed(&waits, 4, "it has to wait");
    assert_eq!(world.ask(&[])["ways"][0]["interface"], "usb0");
    world.links[0].set_carrier(&world.host, true).unwrap();

    running.kill();
    assert!(world.socket().exists(), "a killed manager leaves its socket");
    failed(&world.run(&["access", "ask", "--to", FAR]), 4, "no manager answers");
    let end = Instant::now() + LIMIT;
    let again = loop {
        // The carrier takes a moment.
        let running = world.start_as(PROGRAM, &["access", "serve", "--json"]);
        let told: Value = serde_json::from_str(&running.next()).unwrap();
        if told["interfaces"] == json!(["wlan0", "usb0"]) {
            break running;
        }
        assert!(Instant::now() < end, "{told}");
        running.kill();
    };
    assert_eq!(world.ask(&["--intent", "cost=no-expense"])["policy"], "whimbrel");
    let mut again = again;
    let child = &mut again.child;
    let pid = rustix::process::Pid::from_child(child.child());
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!world.socket().exists(), "one that ends in order takes its socket away");
}

#[test]
fn of_many_that_start_at_once_in_the_place_of_a_dead_one_one_manager_serves() {
    if !require!() {
        return;
    }
    let world = World::new();
    world.serve(&[]).kill();
    assert!(world.socket().exists());
    // Each either answers until it is stopped, or ends because another one does.
    let mut all: Vec<Running> =
        (0..12).map(|_| world.start_as(PROGRAM, &["access", "serve", "--json"])).collect();
    let end = Instant::now() + LIMIT;
    while all.len() > 1 {
        all.retain_mut(|running| running.child.child().try_wait().unwrap().is_none());
        assert!(Instant::now() < end, "{} serve", all.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    let told: Value = serde_json::from_str(&all[0].next()).unwrap();
    assert_eq!(told["interfaces"], json!(["wlan0", "usb0"]));
    assert_eq!(world.ask(&[])["policy"], "whimbrel");
}

#[test]
fn settings_are_read_and_refused_with_what_would_be_right() {
    if !require!() {
        return;
    }
    let world = World::new();
    let file = world.home.path().join(".config/whimbrel/access.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (text, says) in [
        ("[policy]\nname = \"eaff\"", "access.toml: there is no policy `eaff`"),
        ("\nmeterd = [\"usb0\"]", "access.toml: line 2: unknown field `meterd`"),
        ("interval = 1", "must be from 10 to 60000 milliseconds"),
    ] {
        std::fs::write(&file, text).unwrap();
        failed(&world.run(&["access", "serve"]), 2, says);
    }
    std::fs::remove_file(&file).unwrap();
    failed(&world.run(&["access", "serve", "--policy", "eaff"]), 2, "there is no policy `eaff`");
    failed(
        &world.run(&["access", "serve", "--settings", "/nowhere"]),
        2,
        "cannot read the settings /nowhere",
    );
    failed(&world.run(&["access", "ask", "--intent", "speed=1"]), 2, "`speed` is no intent");
    failed(&world.run(&["access", "ask", "--to", "example.org"]), 2, "write it as HOST:PORT");
    std::fs::write(&file, "[policy]\nname = \"single\"\npath = 2").unwrap();
    let _running = world.serve(&[]);
    let told = world.ask(&[]);
    assert_eq!((&told["policy"], &told["ways"][0]["interface"]), (&json!("single"), &json!("usb0")));
}

#[test]
fn a_program_of_another_language_decides_and_where_it_does_not_the_policy_does() {
    if !require!() {
        return;
    }
    let world = World::new();
    // Long enough for a busy machine; what is late is late by much more.
    let _running = world.serve(&["--external", "1000"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/access_policy.py");
    assert!(include_str!("../examples/access_policy.py").lines().count() <= 30);
    let deciding = world.start_as("python3", &[script]);
    assert_eq!(deciding.next(), "deciding");
    let told = world.ask(&["--intent", "size-received=1KB"]);
    assert_eq!(told["policy"], "small-or-large");
    assert_eq!(told["ways"][0]["why"], "it is small: the shortest round trip");
    let told = world.ask(&["--intent", "size-received=10MB"]);
    assert_eq!(told["ways"][0]["why"], "it is large: the highest rate");
    let other = world.command("python3", &[script]).output().unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("decides already"), "{other:?}");
    deciding.kill();
    let end = Instant::now() + LIMIT;
    while world.ask(&[])["policy"] != "whimbrel" {
        assert!(Instant::now() < end, "a dead program still decides");
    }

    // One that never answers costs the limit, and is dismissed.
    let mut mute = UnixStream::connect(world.socket()).unwrap();
    mute.write_all(b"{\"policy\":{\"name\":\"mute\"}}\n").unwrap();
    let mut lines = BufReader::new(mute.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), r#"{"ok":true}"#);
    let began = Instant::now();
    let told = world.ask(&[]);
    assert_eq!(told["policy"], "whimbrel");
    assert_eq!(told["problems"][0], "mute said nothing within 1000 ms; the policy decided");
    assert!(began.elapsed() >= Duration::from_secs(1));
    for _ in 0..7 {
        world.ask(&[]);
    }
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(said.iter().filter(|line| line.contains("\"decide\"")).count(), 8);
    assert!(said.last().unwrap().contains("not answered in time"), "{said:?}");
    assert!(world.ask(&[]).get("problems").is_none());
}

#[test]
fn the_hosts_manager_and_its_helper_stand_where_all_users_reach_them_and_nobody_takes_their_place() {
    if !require!() {
        return;
    }
    let world = World::new();
    let socket = |name: &str| world.home.path().join(name).join("socket");
    let args = |name: &str, flags: &[&str]| -> Vec<String> {
        let first = ["access"].into_iter().chain(flags.iter().copied()).map(str::to_owned);
        first.chain(["--socket".to_owned(), socket(name).to_str().unwrap().to_owned()]).collect()
    };
    let start = |name: &str, flags: &[&str]| {
        let args = args(name, flags);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let running = world.start_as(PROGRAM, &args);
        let told: Value = serde_json::from_str(&running.next()).unwrap();
        assert_eq!(told["socket"].as_str().unwrap(), socket(name).to_str().unwrap());
        running
    };
    let serve = ["serve", "--host", "--json", "--metered", "usb0"];
    let _manager = start("host", &serve);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(socket("host").parent().unwrap()), mode(&socket("host"))), (0o755, 0o666));
    let again = args("host", &serve);
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    failed(&world.run(&again), 2, "a manager answers on");
    let mut client = UnixStream::connect(socket("host")).unwrap();
    client.write_all(b"{\"id\":1,\"ask\":{\"intents\":{\"cost\":\"no-expense\"}}}\n").unwrap();
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
    let told: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(told["decision"]["ways"][0]["interface"], "wlan0", "{told}");
    // In a directory where others can write, somebody else could stand in its place.
    std::fs::create_dir(world.home.path().join("open")).unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(world.home.path().join("open"), open).unwrap();
    let refused = args("open", &serve);
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    failed(&world.run(&refused), 1, "you alone can write");

    if !Path::new("/proc/sys/net/mptcp/pm_type").exists() {
        return whimbrel_lab::skip("the helper as a process", "the kernel lets no program manage paths");
    }
    let _helper = start("steer", &["steer", "--json"]);
    assert_eq!((mode(socket("steer").parent().unwrap()), mode(&socket("steer"))), (0o755, 0o666));
    let again = args("steer", &["steer"]);
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    failed(&world.run(&again), 2, "a helper answers on");
    let mut client = UnixStream::connect(socket("steer")).unwrap();
    client.write_all(b"{\"id\":1,\"flush\":{}}\n").unwrap();
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
    let told = lines.next().unwrap().unwrap();
    assert!(told.contains("this line is no order"), "{told}");
    assert!(lines.next().is_none(), "it goes on to listen");
}

#[test]
fn a_name_is_answered_by_whimbrel_and_so_is_what_must_not_break_where_there_is_a_gateway() {
    if !require!() {
        return;
    }
    let world = World::new();
    let file = world.home.path().join(".config/whimbrel/access.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "gateway = \"gate.home.ada@example.org\"").unwrap();
    let _running = world.serve(&[]);
    let watching = world.start_as(PROGRAM, &["access", "watch"]);
    watching.until(|line| line.contains("usb0"));
    let name = "ssh.laptop.ada@example.org";
    let told = world.run(&["access", "ask", "--to", name]);
    assert!(told.status.success(), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.starts_with(&format!("by whimbrel to {name}\n    {name} is a name of Whimbrel")), "{told}");
    assert!(told.contains("\n    it uses wlan0 from 10.0.0.1: "), "{told}");
    let decided = format!("{name} (no intents): by whimbrel to {name} over wlan0");
    watching.until(|line| line.starts_with(&decided));
    let host = "ssh.laptop.ada.at.example.org.whimbrel:22";
    let told = world.run(&["access", "ask", "--json", "--to", host]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["whimbrel"]["endpoint"], name, "{told}");
    failed(&world.run(&["access", "ask", "--to", "ada@"]), 2, "a domain is missing");

    let sensitive = ["--to", "9.9.9.9:443", "--about", "connection", "--intent", "resilience=sensitive"];
    let told = world.run(&[&["access", "ask"], &sensitive[..]].concat());
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.starts_with("by whimbrel through gate.home.ada@example.org\n"), "{told}");
    assert!(told.contains("\nelse wlan0 from 10.0.0.1 to 9.9.9.9:443 by tcp"), "{told}");
}
