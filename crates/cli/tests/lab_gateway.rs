//! Programs that nobody here wrote, through SOCKS and a gateway, from servers that know nothing of Whimbrel,
//! while the laptop moves.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::machines::{HTTP, length, random, wait_for, wait_for_server, web_server, whimbrel};
use sha2::{Digest as _, Sha256};
use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, Rate};

const SIZE: usize = 64 << 20;
const SOCKS: &str = "127.0.0.1:1080";

/// A laptop that reaches nothing but the gateway, which is in the internet as well, where a server is.
struct Stage {
    laptop: Host,
    link: Link,
    folder: tempfile::TempDir,
    at: u8,
    gateway: Host,
    _outside: Link,
    _server: Host,
    _lab: Lab,
    /// They end with the stage.
    running: Vec<HostChild>,
}

impl Stage {
    fn new() -> Self {
        Self::over(LinkSpec::default().delay(Duration::from_millis(10)).rate(Rate::mbit(100)))
    }

    /// The laptop is at the end of this link.
    fn over(spec: LinkSpec) -> Self {
        let lab = Lab::new().unwrap();
        let [laptop, gateway, server] = ["laptop", "gateway", "server"].map(|name| lab.host(name).unwrap());
        let link = lab.link(&laptop, &gateway, spec).unwrap();
        link.end(&gateway).add_address("10.0.0.1/24").unwrap();
        link.end(&laptop).add_address("10.0.0.10/24").unwrap();
        let outside = lab.link(&gateway, &server, LinkSpec::default()).unwrap();
        outside.end(&gateway).add_address("203.0.113.1/24").unwrap();
        outside.end(&server).add_address("203.0.113.80/24").unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("site")).unwrap();
        let running = vec![web_server(&server, &folder.path().join("site"))];
        wait_for_server(&gateway, HTTP);
        Self { laptop, link, folder, at: 10, gateway, _outside: outside, _server: server, _lab: lab, running }
    }

    /// Starts the gateway, whose ticket this returns, and the proxy. The server is in the gateway's own
    /// network, so it is listed.
    fn serve(&mut self, args: &[&str]) -> String {
        let gate = ["gateway", "serve", "--ticket", "--allow", "any", "--to", HTTP, "--json"];
        let gate = whimbrel(&self.gateway, &self.path("gate")).args(gate).args(args);
        let (gate, ticket) = started(gate, "ticket");
        let socks = ["proxy", "socks", "--through", &ticket, "--listen", SOCKS, "--json"];
        let (socks, listening) = started(whimbrel(&self.laptop, &self.path("home")).args(socks), "listening");
        assert_eq!(listening, SOCKS);
        self.running.extend([gate, socks]);
        ticket
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The laptop loses its address, and has another one a moment later.
    fn move_laptop(&mut self) {
        let end = self.link.end(&self.laptop);
        self.laptop.del_address(end.name(), &format!("10.0.0.{}/24", self.at)).unwrap();
        self.at += 1;
        end.add_address(&format!("10.0.0.{}/24", self.at)).unwrap();
    }

    fn curl(&self, url: &str) -> HostCommand {
        let command = self.laptop.command("curl").args(["-sS", "--fail", "--max-time", "100"]);
        command.args(["--socks5-hostname", SOCKS, url])
    }
}

/// Starts a command that says in JSON that it is ready, and what it says of `field`.
fn started(command: HostCommand, field: &str) -> (HostChild, String) {
    let mut child = command
        .with(|command| {
            command.stdout(Stdio::piped());
        })
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    (child, said[field].as_str().unwrap().to_owned())
}

#[test]
fn a_download_from_an_ordinary_server_survives_moves_of_the_laptop() {
    if !whimbrel_lab::require!() {
        return;
    }
    let mut stage = Stage::new();
    let bytes = random(SIZE);
    fs::write(stage.path("site/original"), &bytes).unwrap();
    stage.serve(&["--metrics", "127.0.0.1:9090"]);
    let (copy, url) = (stage.path("copy"), format!("http://{HTTP}/original"));
    let mut client = stage.curl(&url).arg("-o").arg(&copy).spawn().unwrap();
    for sixth in 1..6 {
        wait_for("the download grows", || (length(&copy) >= (SIZE / 6 * sixth) as u64).then_some(()));
        stage.move_laptop();
    }
    assert!(client.child().wait().unwrap().success());
    assert_eq!(Sha256::digest(fs::read(&copy).unwrap()), Sha256::digest(&bytes));
    let figures = ["-sS", "--max-time", "20", "http://127.0.0.1:9090/metrics"];
    let figures = stage.gateway.command("curl").args(figures).output().unwrap();
    let figures = String::from_utf8_lossy(&figures.stdout).into_owned();
    let says = |line: &str| figures.lines().any(|one| one == line);
    assert!(says("whimbrel_gateway_connected_total 1"), "all moves were of one connection: {figures}");
    assert!(says("whimbrel_gateway_declined_total 0"), "{figures}");
}

#[test]
fn git_clones_through_the_gateway_while_the_laptop_moves() {
    if !whimbrel_lab::require!() {
        return;
    }
    let mut stage = Stage::new();
    stage.serve(&[]);
    let script = "git init -q work && cd work && git config user.name a && git config user.email a@b \
                  && head -c 30000000 /dev/urandom > file && git add file && git commit -qm one && cd .. \
                  && git clone -q --bare work site/repo.git && git -C site/repo.git update-server-info";
    let made = Command::new("sh").args(["-c", script]).current_dir(stage.folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let proxy = format!("http.proxy=socks5h://{SOCKS}");
    let clone = stage.laptop.command("git").args(["-c", &proxy, "clone", "-q"]);
    let clone = clone.arg(format!("http://{HTTP}/repo.git")).arg(stage.path("cloned"));
    let mut clone = clone.spawn().unwrap();

    for part in 1..4 {
        wait_for("the clone grows", || {
            let has_ended = clone.child().try_wait().unwrap().is_some();
            let has_grown = stage.link.stats(stage.link.from(&stage.gateway)).bytes >= 7_000_000 * part;
            assert!(has_grown || !has_ended, "the clone ended before it could move");
            has_grown.then_some(())
        });
        stage.move_laptop();
    }
    assert!(clone.child().wait().unwrap().success());
    let [original, copy] = ["work/file", "cloned/file"].map(|file| fs::read(stage.path(file)).unwrap());
    assert!(original == copy);
}

#[test]
fn the_gateways_own_addresses_and_networks_are_not_reached_unless_they_are_listed() {
    if !whimbrel_lab::require!() {
        return;
    }
    let mut stage = Stage::new();
    // One on all addresses of the gateway: its public one as well.
    let listener = stage.gateway.run(|| TcpListener::bind("0.0.0.0:9000")).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            // Whether it was reached is noticed by the test.
            let _ = socket.write_all(b"HTTP/1.0 200 OK\r\n\r\nsecret");
        }
    });
    stage.serve(&["--to", "10.0.0.1:9000"]);
    for inside in [
        "203.0.113.1:9000",
        "127.0.0.1:9000",
        "0.0.0.0:9000",
        "[::ffff:10.0.0.1]:9000",
        "10.0.0.1:9001",
        // The server's other ports: its address is public, and it is behind the gateway's firewall.
        "203.0.113.80:9000",
    ] {
        let output = stage.curl(&format!("http://{inside}/")).output().unwrap();
        // curl's code for a refusal by the proxy.
        assert_eq!(output.status.code(), Some(97), "{inside}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stderr).contains("(2)"), "{inside}");
    }
    let listed = stage.curl("http://10.0.0.1:9000/").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "secret");
}

#[test]
fn a_long_way_to_the_laptop_carries_more_than_the_gateway_keeps_at_first_in_a_round_trip() {
    if !whimbrel_lab::require!() {
        return;
    }
    let mut stage = Stage::over(LinkSpec::default().delay(Duration::from_millis(150)));
    // It is not over before the test is.
    fs::File::create(stage.path("site/large")).unwrap().set_len(16 << 30).unwrap();
    let ticket = stage.serve(&[]);
    let mut client = stage.curl(&format!("http://{HTTP}/large")).arg("-o").arg("/dev/null").spawn().unwrap();
    let begun = Instant::now();
    loop {
        let asked = ["sessions", "--json", "--through", &ticket];
        let said = whimbrel(&stage.laptop, &stage.path("home")).args(asked).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let kept = said["sessions"].as_array().unwrap().iter().filter_map(|it| it["kept"].as_u64()).max();
        // At first 1 MiB is kept, which a round trip of 300 ms empties.
        if kept.is_some_and(|kept| kept > 2 << 20) {
            break;
        }
        assert!(client.child().try_wait().unwrap().is_none(), "the download ended");
        assert!(begun.elapsed() < Duration::from_secs(90), "no more is kept than {kept:?}");
    }
}
