//! Home directories of machines of the lab, the programs that documents use on them, and a real sshd.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use whimbrel_lab::{Host, HostChild, HostCommand};

pub use crate::running::{LIMIT, Running};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const SSHD: &str = "/usr/sbin/sshd";

/// Whether sshd can run here. Else it is said why not.
pub fn possible() -> bool {
    if rustix::process::getuid().is_root() {
        return true;
    }
    whimbrel_lab::skip("a test with sshd", "sshd changes users, which needs root");
    false
}

/// What machines have on their disks.
pub struct Shells {
    folder: tempfile::TempDir,
}

impl Shells {
    /// Home directories, and a directory with the programs: ours, and an `ssh` that has the key of the test.
    pub fn new(machines: &[&str]) -> Self {
        let shells = Self { folder: tempfile::Builder::new().prefix("wh-").tempdir().unwrap() };
        for machine in machines {
            fs::create_dir_all(shells.home(machine).join("run")).unwrap();
        }
        fs::create_dir_all(shells.bin()).unwrap();
        symlink(PROGRAM, shells.bin().join("whimbrel")).unwrap();
        let key = shells.folder.path().join("user_key");
        shells.program(
            "ssh",
            &format!(
                "mkdir -p \"$HOME/.ssh\"; touch \"$HOME/.ssh/config\"\nexec /usr/bin/ssh -F \"$HOME/.ssh/config\" \
                 -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
                 -o LogLevel=ERROR \"$@\"",
                key.display()
            ),
        );
        shells
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

    pub fn home(&self, machine: &str) -> PathBuf {
        self.folder.path().join(machine)
    }

    fn command(&self, machine: &str, host: &Host, script: &str) -> HostCommand {
        let home = self.home(machine);
        let path = format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap_or_default());
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

    /// Starts a script of the shell on a machine. Its standard error is in its output.
    pub fn start(&self, machine: &str, host: &Host, script: &str) -> Running {
        Running::start(self.command(machine, host, script))
    }

    /// A real sshd on port 22 of the host's loopback, which lets in one key made for this test.
    pub fn sshd(&self, host: &Host) -> HostChild {
        let folder = self.folder.path();
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
        let child = host.command(SSHD).args(["-D", "-e", "-f"]).arg(&config).spawn().unwrap();
        let start = Instant::now();
        while host.run(|| TcpStream::connect("127.0.0.1:22")).is_err() {
            assert!(start.elapsed() < LIMIT, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }
}
