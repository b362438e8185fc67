//! `scripts/setup.sh`, on machines that lack this and that: it runs with nothing in PATH but stand-ins that
//! each test chooses.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/setup.sh");
/// What every Linux has. `id`, and all that may be missing, is left to the stand-ins.
const USUAL: [&str; 15] = [
    "sh",
    "sed",
    "head",
    "cut",
    "sort",
    "uname",
    "mktemp",
    "rm",
    "cat",
    "sha256sum",
    "mkdir",
    "chmod",
    "dirname",
    "env",
    "true",
];

/// A program that is being written cannot be run, and a process that is being started still holds what its
/// parent was writing: so one thread at a time writes or starts one.
static STARTING: Mutex<()> = Mutex::new(());

/// A machine: its programs, and root's home.
struct Machine {
    dir: TempDir,
    home: PathBuf,
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Machine {
    /// Has a compiler, curl, and an apt-get that does nothing but leave a mark; no Rust.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        fs::create_dir(&home).unwrap();
        let path = std::env::var("PATH").unwrap();
        for tool in USUAL {
            let place =
                path.split(':').map(|dir| Path::new(dir).join(tool)).find(|file| file.exists()).unwrap();
            symlink(place, dir.path().join("bin").join(tool)).unwrap();
        }
        let machine = Self { dir, home };
        machine.program("id", "echo 0").program("cc", "cat >/dev/null").program("curl", "exit 1");
        machine.program("apt-get", &format!("echo \"$@\" >>{}", machine.mark("apt").display()));
        machine
    }

    fn mark(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("mark-{name}"))
    }

    fn program(&self, name: &str, script: &str) -> &Self {
        write_program(&self.dir.path().join("bin").join(name), script);
        self
    }

    fn without(&self, name: &str) -> &Self {
        fs::remove_file(self.dir.path().join("bin").join(name)).unwrap();
        self
    }

    fn rust(&self, version: &str) -> &Self {
        self.program("cargo", &format!("echo cargo {version} '(0123 2026-01-01)'"));
        self.program("rustc", &format!("echo rustc {version} '(0123 2026-01-01)'"))
    }

    /// An installer that puts this version where rustup puts it, and says what it was asked for.
    fn installer(&self, version: &str) -> PathBuf {
        let file = self.dir.path().join("rustup-init");
        let script = format!(
            "echo \"$@\" >{}; mkdir -p $HOME/.cargo/bin; cd $HOME/.cargo/bin\n\
             printf '#!/bin/sh\\necho cargo {version}\\n' >cargo; cat cargo >rustc; chmod 755 cargo rustc",
            self.mark("installer").display()
        );
        write_program(&file, &script);
        file
    }

    fn set_up(&self, installer: Option<&Path>, command: &[&str]) -> Ran {
        let mut script = Command::new("/bin/sh");
        script.arg(SCRIPT).arg("build").args(command).env_clear();
        script
            .env("PATH", self.dir.path().join("bin"))
            .env("HOME", &self.home)
            .env("TMPDIR", self.dir.path());
        script.env("SSL_CERT_FILE", "/dev/null");
        if let Some(installer) = installer {
            script.env("WHIMBREL_RUSTUP_INIT", installer);
        }
        let child = {
            let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            script.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap()
        };
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn write_program(file: &Path, script: &str) {
    let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    fs::write(file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Ran {
    /// It failed, and its last line has all of these in it.
    #[track_caller]
    fn failed(&self, says: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        assert!(self.stderr.lines().all(|line| line.starts_with("setup: ")), "{}", self.stderr);
        let last = self.stderr.lines().last().unwrap();
        for part in says {
            assert!(last.contains(part), "no {part:?} in: {last}");
        }
    }
}

#[test]
fn where_nothing_is_missing_nothing_is_said_or_installed() {
    let machine = Machine::new();
    for version in ["1.91.0", "1.95.0", "1.100.0", "2.0.0"] {
        let ran = machine.rust(version).set_up(None, &["sh", "-c", "echo ran"]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "ran\n", ""), "{version}");
        assert!(!machine.mark("apt").exists());
    }
    // Its temporary files are gone.
    let left = fs::read_dir(machine.dir.path()).unwrap().count();
    assert_eq!(left, 2, "bin and home");
}

#[test]
fn a_command_that_fails_fails_with_its_own_code() {
    let machine = Machine::new();
    assert_eq!(machine.rust("1.95.0").set_up(None, &["sh", "-c", "exit 7"]).code, Some(7));
}

#[test]
fn a_distributions_older_rust_is_recognised_and_not_used() {
    for older in ["1.63.0", "1.85.0", "1.90.9", "1.9.0"] {
        let machine = Machine::new();
        let installer = machine.installer("1.95.0");
        let ran = machine.rust(older).set_up(Some(&installer), &["cargo", "--version"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "cargo 1.95.0\n"), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("found: {older}; needed: 1.91 or newer")), "{}", ran.stderr);
        let asked = fs::read_to_string(machine.mark("installer")).unwrap();
        assert!(asked.contains("-y --no-modify-path") && asked.contains("1.95.0"), "{asked}");
        // The second time it is there, and nothing needs to be said.
        let again = machine.set_up(None, &["cargo", "--version"]);
        assert_eq!((again.stdout.as_str(), again.stderr.as_str()), ("cargo 1.95.0\n", ""));
    }
}

#[test]
fn an_installer_with_another_checksum_is_not_run() {
    let machine = Machine::new();
    let mark = machine.mark("ran");
    let script = format!(
        "while [ \"$1\" != -o ]; do shift; done\nprintf '#!/bin/sh\\ntouch {}\\n' >\"$2\"",
        mark.display()
    );
    let ran = machine.program("curl", &script).set_up(None, &[]);
    ran.failed(&["SHA-256", "was not run"]);
    assert!(!mark.exists());
    let left = fs::read_dir(machine.home.join(".cargo/bin")).unwrap().count();
    assert_eq!(left, 0, "the installer is still there");
}

#[test]
fn without_a_network_one_line_says_so() {
    let machine = Machine::new();
    let told = "curl: (6) Could not resolve host: example.org";
    machine.program("curl", &format!("echo '{told}' >&2; exit 6"));
    machine.set_up(None, &[]).failed(&[told, "network", "1.91"]);
    let told = "E: Package 'gcc' has no installation candidate";
    machine.program("cc", "exit 1").program("apt-get", &format!("echo \"{told}\"; exit 100"));
    machine.set_up(None, &[]).failed(&["gcc libc6-dev", told, "network"]);
}

#[test]
fn without_root_the_command_to_run_is_told() {
    let machine = Machine::new();
    machine.rust("1.95.0").program("id", "echo 1000").program("cc", "exit 1");
    machine.set_up(None, &[]).failed(&["root must run", "apt-get install -y gcc libc6-dev"]);
    // A sudo that would ask is not used.
    machine.program("sudo", "[ \"$1\" = -n ] && exit 1; touch asked");
    machine.set_up(None, &[]).failed(&["root must run"]);
    assert!(!machine.mark("apt").exists());
    // One that asks nothing is.
    machine.program("sudo", "shift; exec \"$@\"");
    machine.set_up(None, &[]);
    assert!(fs::read_to_string(machine.mark("apt")).unwrap().contains("install -y"));
}

#[test]
fn without_apt_get_the_packages_are_named() {
    let machine = Machine::new();
    machine.rust("1.95.0").program("cc", "exit 1").without("curl").without("apt-get");
    machine.set_up(None, &[]).failed(&["no apt-get", "gcc libc6-dev curl"]);
}

#[test]
fn an_installer_that_brings_too_little_is_told() {
    let machine = Machine::new();
    let installer = machine.installer("1.80.0");
    machine.set_up(Some(&installer), &[]).failed(&["1.95.0 was installed", "cargo 1.80.0"]);
}
