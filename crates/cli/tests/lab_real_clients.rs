//! Programs that nobody here wrote, through the real `whimbrel`, across moves in the lab: OpenSSH's
//! ssh and scp through `pipe`, curl through `forward`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, Rate};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const SSHD: &str = "/usr/sbin/sshd";
const SIZE: usize = 24 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A laptop and a home machine with a service exposed, each with its own configuration.
struct Stage {
    laptop: Host,
    link: Link,
    ticket: String,
    folder: tempfile::TempDir,
    at: u8,
    _home: Host,
    _lab: Lab,
    /// Servers at home; they end with the stage.
    _servers: Vec<HostChild>,
}

impl Stage {
    /// `serve` starts the service at home, on port 2222 of its loopback.
    fn new(serve: impl FnOnce(&Host, &Path) -> HostChild) -> Self {
        let lab = Lab::new().unwrap();
        let (laptop, home) = (lab.host("laptop").unwrap(), lab.host("home").unwrap());
        let spec = LinkSpec::default().delay(Duration::from_millis(10)).rate(Rate::mbit(100));
        let link = lab.link(&laptop, &home, spec).unwrap();
        link.end(&home).add_address("10.0.0.1/24").unwrap();
        link.end(&laptop).add_address("10.0.0.10/24").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let service = serve(&home, folder.path());
        let (expose, line) = started(whimbrel(&home, folder.path(), "home").args([
            "expose",
            "--ticket",
            "--to",
            "127.0.0.1:2222",
            "--allow",
            "any",
            "--json",
        ]));
        let ticket = field(&line, "ticket");
        Self { laptop, link, ticket, folder, at: 10, _home: home, _lab: lab, _servers: vec![service, expose] }
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
}

fn whimbrel(host: &Host, folder: &Path, user: &str) -> HostCommand {
    let home = folder.join(user);
    fs::create_dir_all(&home).unwrap();
    host.command(PROGRAM)
        .env("HOME", &home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_RUNTIME_DIR", &home)
        .with(|c| {
            c.env_remove("WHIMBREL_NAMES");
        })
}

/// Starts a server and waits for its first line.
fn started(command: HostCommand) -> (HostChild, String) {
    let mut child = command
        .with(|c| {
            c.stdout(Stdio::piped());
        })
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.child().stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the command ended without saying anything");
    (child, line)
}

fn field(line: &str, name: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
}

/// Waits for a child for a bounded time.
fn finish(child: &mut HostChild) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.child().try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < LIMIT, "still running after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn random_file(path: &Path) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(SIZE / 8)
    .flatten()
    .collect();
    fs::write(path, &bytes).unwrap();
    bytes
}

/// A real sshd that lets in one key made for this test.
fn sshd(home: &Host, folder: &Path) -> HostChild {
    for key in ["host_key", "user_key"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(folder.join(key))
            .status()
            .unwrap();
        assert!(made.success());
    }
    let allowed = folder.join("authorized_keys");
    fs::copy(folder.join("user_key.pub"), &allowed).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.join("sshd_config");
    let text = format!(
        "ListenAddress 127.0.0.1:2222\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\n\
         Subsystem sftp internal-sftp\n",
        folder.join("host_key").display(),
        allowed.display(),
    );
    fs::write(&config, text).unwrap();
    let child = home.command(SSHD).args(["-D", "-e", "-f"]).arg(&config).spawn().unwrap();
    wait_for_port(home);
    child
}

fn wait_for_port(host: &Host) {
    let start = Instant::now();
    while host.run(|| std::net::TcpStream::connect("127.0.0.1:2222")).is_err() {
        assert!(start.elapsed() < LIMIT, "nothing listens on port 2222");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `ssh` or `scp` on the laptop, through `whimbrel pipe`.
fn ssh(stage: &Stage, program: &str) -> HostCommand {
    let home = stage.path("laptop");
    fs::create_dir_all(&home).unwrap();
    let proxy = format!("ProxyCommand={PROGRAM} pipe {}", stage.ticket);
    stage
        .laptop
        .command(program)
        .env("HOME", &home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_RUNTIME_DIR", &home)
        .args(["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"])
        .args(["-o", "LogLevel=ERROR", "-o", &proxy, "-i"])
        .arg(stage.path("user_key"))
}

fn root() -> bool {
    if rustix::process::getuid().is_root() {
        return true;
    }
    whimbrel_lab::skip("a test with sshd", "sshd changes users, which needs root");
    false
}

#[test]
fn an_ssh_session_goes_on_while_the_laptop_moves() {
    if !whimbrel_lab::require!() || !root() {
        return;
    }
    let mut stage = Stage::new(sshd);
    let count = "for i in $(seq 1 40); do echo line $i; sleep 0.1; done";
    let command = ssh(&stage, "ssh").args(["root@home", count]);
    let mut session = command
        .with(|c| {
            c.stdout(Stdio::piped());
        })
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(session.child().stdout.take().unwrap()).lines();
    for expected in 1..=40 {
        assert_eq!(lines.next().unwrap().unwrap(), format!("line {expected}"));
        if expected % 10 == 0 {
            stage.move_laptop();
        }
    }
    assert!(lines.next().is_none());
    assert!(finish(&mut session).success());
}

#[test]
fn scp_copies_exactly_while_the_laptop_moves() {
    if !whimbrel_lab::require!() || !root() {
        return;
    }
    let mut stage = Stage::new(sshd);
    let bytes = random_file(&stage.path("original"));
    let copy = stage.path("copy");
    let command = ssh(&stage, "scp").arg(stage.path("original"));
    let mut session = command.arg(format!("root@home:{}", copy.display())).spawn().unwrap();
    for part in [4, 2] {
        let start = Instant::now();
        while fs::metadata(&copy).map_or(0, |m| m.len()) < (SIZE / part) as u64 {
            assert!(start.elapsed() < LIMIT, "the copy does not grow");
            std::thread::sleep(Duration::from_millis(5));
        }
        stage.move_laptop();
    }
    assert!(finish(&mut session).success());
    assert!(fs::read(copy).unwrap() == bytes, "the copy differs");
}

#[test]
fn curl_downloads_exactly_while_the_laptop_moves() {
    if !whimbrel_lab::require!() {
        return;
    }
    let mut bytes = Vec::new();
    let mut stage = Stage::new(|home, folder| {
        bytes = random_file(&folder.join("original"));
        let server = home
            .command("python3")
            .args(["-m", "http.server", "2222", "--bind", "127.0.0.1", "--directory"])
            .arg(folder)
            .with(|c| {
                c.stdout(Stdio::null()).stderr(Stdio::null());
            })
            .spawn()
            .unwrap();
        wait_for_port(home);
        server
    });
    let (_forward, line) = started(whimbrel(&stage.laptop, stage.folder.path(), "laptop").args([
        "forward",
        &stage.ticket,
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]));
    let url = format!("http://{}/original", field(&line, "listening"));
    let copy = stage.path("copy");
    let command = stage.laptop.command("curl").args(["-sS", "--fail", "-o"]).arg(&copy).arg(url);
    let mut client = command.spawn().unwrap();
    for part in [4, 2] {
        let start = Instant::now();
        while fs::metadata(&copy).map_or(0, |m| m.len()) < (SIZE / part) as u64 {
            assert!(start.elapsed() < LIMIT, "the download does not grow");
            std::thread::sleep(Duration::from_millis(5));
        }
        stage.move_laptop();
    }
    assert!(finish(&mut client).success());
    assert!(fs::read(copy).unwrap() == bytes, "the download differs");
}
