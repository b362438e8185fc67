//! Three machines of the lab on which documents come true: `vps`, `home` with an sshd, and `laptop` with two
//! links. Each has a home directory and the programs that the documents use.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "running.rs"]
mod running;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, Rate};

pub use running::{LIMIT, Running};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const SSHD: &str = "/usr/sbin/sshd";

/// The machines' addresses, as the documents write them.
pub const VPS: &str = "203.0.113.5";
const HOME: &str = "198.51.100.7";
/// The laptop's links: interface, network and the time that a packet takes on it, in milliseconds.
const LINKS: [(&str, &str, u64); 2] = [("wlan0", "192.168.1", 5), ("usb0", "100.64.3", 15)];

pub struct Stage {
    hosts: BTreeMap<&'static str, Host>,
    links: BTreeMap<&'static str, Link>,
    pub folder: tempfile::TempDir,
    _sshd: HostChild,
    _lab: Lab,
}

/// Whether the stage can be built. Else it is said why not.
pub fn possible() -> bool {
    if rustix::process::getuid().is_root() {
        return true;
    }
    whimbrel_lab::skip("a test with sshd", "sshd changes users, which needs root");
    false
}

impl Stage {
    pub fn new() -> Self {
        let lab = Lab::new().unwrap();
        let net = lab.router("net").unwrap();
        let hosts: BTreeMap<_, _> =
            ["vps", "home", "laptop"].into_iter().map(|name| (name, lab.host(name).unwrap())).collect();
        let mut links = BTreeMap::new();
        for (host, address) in [("vps", VPS), ("home", HOME)] {
            let spec = LinkSpec::default().delay(Duration::from_millis(2)).interface_names("eth0", host);
            let link = lab.link(&hosts[host], &net, spec).unwrap();
            let gateway = format!("{}.1", address.rsplit_once('.').unwrap().0);
            link.end(&net).add_address(&format!("{gateway}/24")).unwrap();
            link.end(&hosts[host]).add_address(&format!("{address}/24")).unwrap();
            link.end(&hosts[host]).add_default_route(&gateway, 1).unwrap();
            links.insert(host, link);
        }
        let laptop = &hosts["laptop"];
        for (number, (interface, network, delay)) in (1_u8..).zip(LINKS) {
            let spec = LinkSpec::default().delay(Duration::from_millis(delay)).rate(Rate::mbit(40));
            let link = lab.link(laptop, &net, spec.interface_names(interface, interface)).unwrap();
            let [address, gateway] = [10, 1].map(|last| format!("{network}.{last}"));
            link.end(&net).add_address(&format!("{gateway}/24")).unwrap();
            let end = link.end(laptop);
            end.add_address(&format!("{address}/24")).unwrap();
            end.add_default_route(&gateway, u32::from(number)).unwrap();
            let [source, gateway]: [IpAddr; 2] = [address, gateway].map(|text| text.parse().unwrap());
            laptop.add_source_route(interface, source, gateway, number).unwrap();
            links.insert(interface, link);
        }
        let folder = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        let sshd = sshd(&hosts["home"], folder.path());
        let stage = Self { hosts, links, folder, _sshd: sshd, _lab: lab };
        stage.lay_out();
        stage
    }

    /// Home directories, and a directory with the programs: ours, and an `ssh` that has the key of the test.
    fn lay_out(&self) {
        for host in self.hosts.keys() {
            fs::create_dir_all(self.home(host).join("run")).unwrap();
        }
        let bin = self.bin();
        fs::create_dir_all(&bin).unwrap();
        symlink(PROGRAM, bin.join("whimbrel")).unwrap();
        let key = self.folder.path().join("user_key");
        self.program(
            "ssh",
            &format!(
                "mkdir -p \"$HOME/.ssh\"; touch \"$HOME/.ssh/config\"\nexec /usr/bin/ssh -F \"$HOME/.ssh/config\" \
                 -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
                 -o LogLevel=ERROR \"$@\"",
                key.display()
            ),
        );
    }

    fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// A script that stands for a program.
    pub fn program(&self, name: &str, script: &str) {
        let file = self.bin().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    }

    pub fn home(&self, host: &str) -> PathBuf {
        self.folder.path().join(host)
    }

    /// Takes a link of the laptop away.
    pub fn unplug(&self, interface: &str) {
        self.links[interface].end(&self.hosts["laptop"]).set_up(false).unwrap();
    }

    /// Brings it back.
    pub fn plug(&self, interface: &str) {
        self.links[interface].end(&self.hosts["laptop"]).set_up(true).unwrap();
        self.hosts["laptop"].restore(interface).unwrap();
    }

    fn command(&self, host: &str, script: &str) -> HostCommand {
        let home = self.home(host);
        let path = format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap_or_default());
        let host = self.hosts.get(host).unwrap_or_else(|| panic!("there is no machine {host}"));
        host.command("sh").args(["-c", &format!("exec 2>&1\n{script}")]).with(|command| {
            command
                .env("HOME", &home)
                .env("XDG_RUNTIME_DIR", home.join("run"))
                .env("PATH", path)
                .env("PYTHONUNBUFFERED", "1")
                .current_dir(&home)
                .stderr(Stdio::null());
            for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "RUST_LOG", "WHIMBREL_NAMES"] {
                command.env_remove(name);
            }
        })
    }

    /// Starts a script of the shell. Its standard error is in its output.
    pub fn start(&self, host: &str, script: &str) -> Running {
        Running::start(self.command(host, script))
    }
}

/// A real sshd on port 22 of the host's loopback, which lets in one key made for this test.
fn sshd(home: &Host, folder: &Path) -> HostChild {
    for key in ["host_key", "user_key"] {
        let mut command = Command::new("ssh-keygen");
        let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status();
        assert!(made.unwrap().success());
    }
    let allowed = folder.join("authorized_keys");
    fs::copy(folder.join("user_key.pub"), &allowed).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    fs::set_permissions("/run/sshd", Permissions::from_mode(0o755)).unwrap();
    let config = folder.join("sshd_config");
    let text = format!(
        "ListenAddress 127.0.0.1:22\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         PermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\nSubsystem sftp internal-sftp\n\
         PrintMotd no\nPrintLastLog no\n",
        folder.join("host_key").display(),
        allowed.display(),
    );
    fs::write(&config, text).unwrap();
    let child = home.command(SSHD).args(["-D", "-e", "-f"]).arg(&config).spawn().unwrap();
    let start = Instant::now();
    while home.run(|| TcpStream::connect("127.0.0.1:22")).is_err() {
        assert!(start.elapsed() < LIMIT, "sshd does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}
