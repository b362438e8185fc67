//! README's lines for two machines that nobody can dial, as they are written there: ssh and curl from behind
//! one router to behind another, through a small server at first and directly a moment later.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use whimbrel_lab::{HostChild, NatKind, require};

use crate::homes::{Home, Internet};
use crate::shell::{self, LIMIT, Running, Shells};

const README: &str = include_str!("../../../README.md");
const SECTION: &str = "## Your own in two minutes on any small server";
/// What README writes for the service.
const SERVICE: &str = "whimbrel:<key>/203.0.113.5:443";
/// What both programs log, for a test that fails.
const LOG: &str = "export RUST_LOG=whimbrel_transport=debug";
const SIZE: usize = 24 << 20;

/// README's lines: of the small server, of both machines, at home, and on the laptop.
fn readme() -> [String; 4] {
    let section = README.split(SECTION).nth(1).unwrap();
    let block = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let bare = |line: &str| line.split("  #").next().unwrap().trim().to_owned();
    block.lines().map(bare).collect::<Vec<_>>().try_into().unwrap()
}

/// A small server, and two machines behind routers that can be opened for each other.
struct Scene {
    /// Before the machines that they run on.
    _serving: Running,
    _sshd: HostChild,
    shells: Shells,
    home: Home,
    laptop: Home,
    _internet: Internet,
    /// README's second line, with the key that the service has.
    export: String,
    /// The laptop's.
    id: String,
}

impl Scene {
    fn new(serve: &str, export: &str) -> Self {
        let internet = Internet::new();
        let (home, laptop) = (internet.public_home("home", 1), internet.public_home("laptop", 2));
        for machine in [&home, &laptop] {
            machine.gateway.set_kind(NatKind::PortRestricted).unwrap();
        }
        let shells = Shells::new(&["vps", "home", "laptop"]);
        let sshd = shells.sshd(&home.host);
        let serving = shells.start("vps", &internet.vps, serve);
        let service = serving.until(|line| line.starts_with("whimbrel:") && line.contains('/'));
        assert!(service.ends_with("/203.0.113.5:443"), "README says otherwise: {service}");
        assert!(export.contains(SERVICE), "{export}");
        let export = export.replace(SERVICE, service.trim());
        let id = shells.start("laptop", &laptop.host, "whimbrel id 2>/dev/null").next();
        Self { _serving: serving, _sshd: sshd, shells, home, laptop, _internet: internet, export, id }
    }

    /// Starts a line at home.
    fn at_home(&self, line: &str) -> Running {
        self.shells.start("home", &self.home.host, &format!("{}\n{LOG}\n{line}", self.export))
    }

    /// Starts a line on the laptop.
    fn on_laptop(&self, line: &str) -> Running {
        self.shells.start("laptop", &self.laptop.host, &format!("{}\n{LOG}\n{line}", self.export))
    }

    /// The paths of the laptop's connection to this name that work.
    fn paths(&self, name: &str) -> Vec<Value> {
        let (_, said) = self.shells.start("laptop", &self.laptop.host, "whimbrel status --json").finish();
        let reports: Value = said.last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let connections = list(&reports).into_iter().flat_map(|report| list(&report["connections"]));
        let paths =
            connections.filter(|one| one["name"] == name).flat_map(|connection| list(&connection["paths"]));
        paths.filter(|path| path["state"] == "active").collect()
    }

    /// Waits until the connection has a direct path other than this one, and a relayed one that stands by.
    /// Returns the number of the direct one.
    #[track_caller]
    fn becomes_direct(&self, name: &str, before: Option<u64>) -> Option<u64> {
        let begun = Instant::now();
        loop {
            let paths = self.paths(name);
            let number = |path: &Value| path["id"].as_u64();
            let is_new = |path: &&Value| path["relayed"] == false && number(path) != before;
            let carries = paths.iter().find(|path| is_new(path) && path["priority"] == "normal");
            let stands_by = paths.iter().any(|path| path["relayed"] == true && path["priority"] == "backup");
            if let (Some(direct), true) = (carries, stands_by) {
                return number(direct);
            }
            assert!(begun.elapsed() < LIMIT, "not direct: {paths:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Lines that a session counts, without end.
struct Counted {
    session: Running,
    last: u64,
}

impl Counted {
    /// Each of the next lines comes, once.
    #[track_caller]
    fn goes_on(&mut self) {
        for _ in 0..10 {
            self.last += 1;
            let line = self.session.until(|line| line.starts_with("line "));
            assert_eq!(line, format!("line {}", self.last));
        }
    }
}

#[test]
fn readmes_ssh_is_direct_a_moment_later_and_goes_on_when_either_machine_moves() {
    const NAME: &str = "ssh.home.ada@example.org";
    if !require!() || !shell::possible() {
        return;
    }
    let [serve, export, expose, ssh] = readme();
    let mut scene = Scene::new(&serve, &export);
    let exposed = scene.at_home(&expose.replace("LAPTOP-ID", &scene.id));
    exposed.until(|line| line.contains("can be reached as"));
    // What is typed there: it counts until a file is there.
    let over = scene.shells.home("home").join("over");
    let typed = format!(
        "n=0; while [ ! -e {} ]; do n=$((n+1)); echo line $n; sleep 0.1; done; echo that was all",
        over.display()
    );
    // The test's sshd lets in root.
    let session = scene.on_laptop(&format!("echo '{typed}' | {}", ssh.replace(" ada@ssh.", " root@ssh.")));
    let mut counted = Counted { session, last: 0 };
    counted.goes_on();
    let first = scene.becomes_direct(NAME, None);
    counted.goes_on();
    scene.laptop.move_on();
    counted.goes_on();
    let second = scene.becomes_direct(NAME, first);
    scene.home.move_on();
    counted.goes_on();
    scene.becomes_direct(NAME, second);
    counted.goes_on();
    fs::write(&over, "").unwrap();
    counted.session.until(|line| line == "that was all");
    assert_eq!(counted.session.finish().0, Some(0));
}

#[test]
fn curl_through_a_forward_between_the_same_machines_brings_each_byte_while_both_move() {
    const NAME: &str = "web.home.ada@example.org";
    if !require!() || !shell::possible() {
        return;
    }
    let [serve, export, expose, _] = readme();
    let mut scene = Scene::new(&serve, &export);
    let site = scene.shells.home("home").join("site");
    fs::create_dir(&site).unwrap();
    let film: Vec<u8> = (0..SIZE).map(|n| (n.wrapping_mul(n) >> 5) as u8).collect();
    fs::write(site.join("film"), &film).unwrap();
    let web = scene.at_home("exec python3 -m http.server 8080 --bind 127.0.0.1 --directory site");
    web.next();
    let expose = expose.replace("LAPTOP-ID", &scene.id).replace("ssh.home", "web.home");
    let exposed = scene.at_home(&expose.replace("127.0.0.1:22", "127.0.0.1:8080"));
    exposed.until(|line| line.contains("can be reached as"));
    let forward = format!("whimbrel forward {NAME} --listen 127.0.0.1:8080 --names \"$NAMES\"");
    let forward = scene.on_laptop(&forward);
    forward.until(|line| line.contains("leads to"));
    let mut curl = scene.on_laptop("curl -sS --fail --limit-rate 3M -o film http://127.0.0.1:8080/film");
    let copy = scene.shells.home("laptop").join("film");
    grows(&copy, SIZE / 8);
    scene.becomes_direct(NAME, None);
    scene.laptop.move_on();
    grows(&copy, SIZE / 2);
    scene.home.move_on();
    let (code, said) = curl.finish();
    assert_eq!(code, Some(0), "{said:?}");
    assert_eq!(Sha256::digest(fs::read(copy).unwrap()), Sha256::digest(film));
}

/// Waits until a file has so many bytes.
#[track_caller]
fn grows(file: &Path, to: usize) {
    let begun = Instant::now();
    while fs::metadata(file).map_or(0, |file| file.len()) < to as u64 {
        assert!(begun.elapsed() < LIMIT, "the download does not grow");
        std::thread::sleep(Duration::from_millis(5));
    }
}
