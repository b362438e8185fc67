//! Commands that have the manager choose between two networks of a laptop.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use whimbrel_lab::{Host, HostCommand, Lab, Link, LinkSpec, Rate, require};

use crate::running::{LIMIT, Running};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
/// The laptop's interfaces; its routes prefer the first.
const NETWORKS: [&str; 2] = ["wlan0", "usb0"];
/// What the exposed program says first.
const GREETING: &[u8; 4] = b"here";
/// So much says by which network it came.
const MUCH: u64 = 512 << 10;

/// A laptop with two links, and a server behind them on which a program says more than anybody reads.
struct World {
    laptop: Host,
    folder: tempfile::TempDir,
    ticket: String,
    _exposed: Running,
    server: Host,
    _links: Vec<Link>,
    _lab: Lab,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let [laptop, server] = ["laptop", "server"].map(|name| lab.host(name).unwrap());
        let router = lab.router("net").unwrap();
        let spec = || LinkSpec::default().delay(Duration::from_millis(5)).rate(Rate::mbit(20));
        let mut links = Vec::new();
        for (number, name) in (0..).zip(NETWORKS) {
            let link = lab.link(&laptop, &router, spec().interface_names(name, name)).unwrap();
            link.end(&router).add_address(&format!("10.0.{number}.1/24")).unwrap();
            link.end(&laptop).add_address(&format!("10.0.{number}.10/24")).unwrap();
            link.end(&laptop).add_default_route(&format!("10.0.{number}.1"), number + 1).unwrap();
            links.push(link);
        }
        let far = lab.link(&server, &router, LinkSpec::default().interface_names("eth0", "far0")).unwrap();
        far.end(&router).add_address("203.0.113.1/24").unwrap();
        far.end(&server).add_address("203.0.113.5/24").unwrap();
        far.end(&server).add_default_route("203.0.113.1", 1).unwrap();
        links.push(far);
        let folder = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        talk(server.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap());
        let expose =
            ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any", "--port", "443", "--json"];
        let exposed = Running::start(command(&server, &folder, "server", &expose));
        let said: Value = serde_json::from_str(&exposed.next()).unwrap();
        let ticket = said["ticket"].as_str().unwrap().to_owned();
        Self { laptop, folder, ticket, _exposed: exposed, server, _links: links, _lab: lab }
    }

    fn command(&self, args: &[&str]) -> HostCommand {
        command(&self.laptop, &self.folder, "laptop", args)
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    fn run(&self, args: &[&str]) -> Output {
        let nothing = |command: &mut std::process::Command| {
            command.stdin(std::process::Stdio::null());
        };
        self.command(args).with(nothing).output().unwrap()
    }

    /// A manager for which this network costs money.
    fn serve(&self, metered: &str) -> Running {
        let manager = self.start(&["access", "serve", "--json", "--metered", metered]);
        manager.next();
        manager
    }

    /// Bytes that came by each network.
    fn received(&self) -> [u64; 2] {
        self.counted(0)
    }

    /// Bytes that left by each network.
    fn sent(&self) -> [u64; 2] {
        self.counted(8)
    }

    /// One of the figures that the kernel has of each network.
    fn counted(&self, column: usize) -> [u64; 2] {
        let text = self.laptop.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        NETWORKS.map(|name| {
            let line =
                text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).unwrap();
            line.split_whitespace().nth(column).unwrap().parse().unwrap()
        })
    }
}

fn command(host: &Host, folder: &tempfile::TempDir, user: &str, args: &[&str]) -> HostCommand {
    let home = folder.path().join(user);
    std::fs::create_dir_all(home.join("run")).unwrap();
    host.command(PROGRAM).args(args).env("HOME", &home).env("XDG_RUNTIME_DIR", home.join("run")).with(
        |command| {
            for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "WHIMBREL_NAMES", "RUST_LOG"] {
                command.env_remove(name);
            }
        },
    )
}

/// Says something to everybody for as long as it is heard.
fn talk(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            std::thread::spawn(move || {
                let more = [7; 16 << 10];
                if socket.write_all(GREETING).is_ok() {
                    while socket.write_all(&more).is_ok() {}
                }
            });
        }
    });
}

/// Reads from a local port until nearly all of what comes to the laptop comes by this network.
#[track_caller]
fn read_until_carried_by(world: &World, socket: &mut TcpStream, network: usize) {
    let (began, mut buffer) = (Instant::now(), vec![0; 64 << 10]);
    loop {
        let before = world.received();
        let grown = loop {
            assert!(socket.read(&mut buffer).unwrap() > 0, "the connection ended");
            let now = world.received();
            let grown = [now[0] - before[0], now[1] - before[1]];
            if grown[0] + grown[1] >= MUCH {
                break grown;
            }
        };
        if grown[network] * 10 >= (grown[0] + grown[1]) * 9 {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{} should carry it: {grown:?}", NETWORKS[network]);
    }
}

#[test]
fn a_forwarded_port_uses_what_costs_nothing_is_watched_and_follows_the_manager() {
    if !require!() {
        return;
    }
    let world = World::new();
    let manager = world.serve("wlan0");
    let watching = world.start(&["access", "watch"]);
    watching.until(|line| line.contains("wlan0") && line.ends_with(", metered"));
    let before = world.received();
    let forward =
        ["forward", &world.ticket, "--listen", "127.0.0.1:8080", "--intent", "cost=no-expense", "--json"];
    let forward = world.start(&forward);
    forward.next();
    let mut socket = world.laptop.run(|| TcpStream::connect("127.0.0.1:8080")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut greeting = [0; GREETING.len()];
    socket.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, GREETING);
    read_until_carried_by(&world, &mut socket, 1);
    let spent = world.received()[0] - before[0];
    assert!(spent < 64 << 10, "{spent} bytes came by what costs money");
    let shown = watching.until(|line| line.starts_with("whimbrel "));
    assert!(shown.contains(" (cost=no-expense): usb0 from 10.0.1.10 "), "{shown}");

    manager.kill();
    let _manager = world.serve("usb0");
    read_until_carried_by(&world, &mut socket, 0);
}

#[test]
fn a_file_is_sent_by_what_costs_nothing() {
    if !require!() {
        return;
    }
    let world = World::new();
    let _manager = world.serve("wlan0");
    let [file, inbox] = ["file", "inbox"].map(|name| world.folder.path().join(name));
    let mut bytes = vec![0; 4 << 20];
    getrandom::fill(&mut bytes).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    std::fs::create_dir(&inbox).unwrap();
    let receive = ["receive", "--allow", "any", "--yes", "--dir", inbox.to_str().unwrap(), "--json", "-q"];
    let receiving = Running::start(command(&world.server, &world.folder, "receiver", &receive));
    let said: Value = serde_json::from_str(&receiving.next()).unwrap();
    let (file, ticket) = (file.to_str().unwrap(), said["ticket"].as_str().unwrap());
    let before = world.sent();
    let sending = world.run(&["send", file, "--to", ticket, "--intent", "cost=no-expense", "--json"]);
    assert!(sending.status.success(), "{}", String::from_utf8_lossy(&sending.stderr));
    let spent = world.sent()[0] - before[0];
    assert!(spent < 64 << 10, "{spent} bytes left by what costs money");
    assert!(std::fs::read(inbox.join("file")).unwrap() == bytes);
}

#[test]
fn without_a_manager_a_pipe_says_so_once_and_goes_its_own_way() {
    if !require!() {
        return;
    }
    let world = World::new();
    // What it carries ends when nobody reads any more.
    let first_bytes = |flags: &str| {
        let script = format!("{PROGRAM} pipe {} {flags} < /dev/null | head -c 4", world.ticket);
        let home = world.folder.path().join("laptop");
        let shell = world.laptop.command("sh").args(["-c", &script]);
        let shell = shell.env("HOME", &home).env("XDG_RUNTIME_DIR", home.join("run"));
        std::fs::create_dir_all(home.join("run")).unwrap();
        let output = shell.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.stdout, GREETING, "{said}");
        said.lines().filter(|line| line.contains("choose their networks themselves: no manager")).count()
    };
    assert_eq!(first_bytes("--intent category=bulk,size-received=1MB"), 1);
    assert_eq!(first_bytes("--manager auto"), 1);
    assert_eq!(first_bytes("--intent category=bulk --manager off"), 0);
    assert_eq!(first_bytes(""), 0);
    for (flags, says) in [
        (
            &["pipe", &world.ticket, "--intent", "cost=ignore", "--policy", "cheapest"][..],
            "cannot be used with",
        ),
        (&["pipe", &world.ticket, "--intent", "speed=1"], "`speed` is no intent"),
        (
            &["pipe", &world.ticket, "--intent", "cost=ignore", "--address", "10.0.0.10"],
            "manager knows interfaces",
        ),
        (
            &["proxy", "http", "--listen", "127.0.0.1:0", "--intent", "cost=ignore"],
            "with --through or --host",
        ),
    ] {
        let output = world.run(flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(says), "{flags:?}: {said}");
    }
}
