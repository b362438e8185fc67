//! Real OpenSSH through `whimbrel ssh` and through what `whimbrel setup ssh` writes.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use crate::common::{self, LIMIT, Process, World, dead_port, terminal, wait_for};

const NAME: &str = "ssh.home.ada@example.org";

/// A real sshd on a port of its own, which lets in one key; `None` where it may not be run.
fn sshd(folder: &Path) -> Option<(Process, u16)> {
    if !rustix::process::getuid().is_root() {
        whimbrel_lab::skip("a test with sshd", "sshd changes users, which needs root");
        return None;
    }
    for key in ["host_key", "user_key"] {
        let file = folder.join(key);
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).status();
        assert!(made.unwrap().success());
    }
    let allowed = folder.join("authorized_keys");
    fs::copy(folder.join("user_key.pub"), &allowed).unwrap();
    fs::create_dir_all("/run/sshd").unwrap();
    fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755)).unwrap();
    let port = dead_port().port();
    let config = folder.join("sshd_config");
    let text = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         PermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\nSubsystem sftp internal-sftp\n\
         SetEnv TMUX_TMPDIR={}\n",
        folder.join("host_key").display(),
        allowed.display(),
        folder.display(),
    );
    fs::write(&config, text).unwrap();
    let server = Process::start(Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(&config));
    wait_for("sshd to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
    Some((server, port))
}

/// Options with which ssh asks nothing.
fn options(folder: &Path) -> Vec<String> {
    let common =
        ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"];
    let options = common.iter().flat_map(|option| ["-o", option]).map(str::to_owned);
    options.chain(["-i".to_owned(), folder.join("user_key").display().to_string()]).collect()
}

/// Has a program run in a user's home, without the flags that each command of a test gets.
fn at_home(world: &World, user: &str, command: &mut Command) {
    let template = world.command(user, &[]);
    for (name, value) in template.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
}

/// Exposes that sshd to bob.
fn exposed(world: &World, port: u16) -> Process {
    let (bob, to) = (world.id("bob"), format!("127.0.0.1:{port}"));
    let mut expose = world.start("ada", &["expose", NAME, "--to", &to, "--allow", &bob, "--json"]);
    expose.next_json();
    expose
}

#[test]
fn ssh_and_scp_reach_a_peer_by_name_and_the_exit_code_is_theirs() {
    let (world, _names) = World::with_names();
    let folder = world.dir.path();
    let Some((_sshd, port)) = sshd(folder) else { return };
    let _expose = exposed(&world, port);
    let options = options(folder);
    let host = format!("root@{NAME}");
    let address = world.address("bob");
    // What comes before `ssh` is whimbrel's; all behind it is ssh's.
    let before = ["--names", world.service(), "--address", &address, "ssh", "-F", "none"];
    let script = "echo \"$0 and $#\"; exit 7";
    let mut command = Command::new(common::PROGRAM);
    at_home(&world, "bob", &mut command);
    command.args(before).args(&options).args([&host, "sh", "-c"]).arg(format!("'{script}' a b c"));
    let output = Process::start(&mut command).output(LIMIT);
    assert_eq!((output.status.code(), output.stdout.trim()), (Some(7), "a and 2"), "{}", output.stderr);

    world.run("bob", &["setup", "ssh"]).succeeded();
    let config = world.path("bob").join(".ssh/config");
    let text = fs::read_to_string(&config).unwrap();
    assert!(world.run("bob", &["setup", "ssh"]).succeeded().stdout.contains("had already"));
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
    assert_eq!(world.run("bob", &["setup", "ssh", "--print"]).succeeded().stdout, text);
    let (original, copy) = (folder.join("original"), folder.join("copy"));
    fs::write(&original, "words ".repeat(100_000)).unwrap();
    let mut command = Command::new("scp");
    at_home(&world, "bob", &mut command);
    let host = format!("root@{}:{}", NAME.replace('@', "+"), copy.display());
    command.arg("-F").arg(&config).args(&options).arg(&original).arg(host);
    let output = Process::start(&mut command).output(LIMIT);
    output.succeeded();
    assert!(fs::read(&original).unwrap() == fs::read(&copy).unwrap());
}

#[test]
fn git_pushes_and_clones_by_name_once_ssh_is_set_up() {
    let (world, _names) = World::with_names();
    let folder = world.dir.path();
    let Some((_sshd, port)) = sshd(folder) else { return };
    let _expose = exposed(&world, port);
    world.run("bob", &["setup", "ssh"]).succeeded();
    let config = world.path("bob").join(".ssh/config");
    let ssh = format!("ssh -F {} {}", config.display(), options(folder).join(" "));
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        at_home(&world, "bob", &mut command);
        command.env("GIT_SSH_COMMAND", &ssh);
        command.args(["-c", "user.name=bob", "-c", "user.email=bob@example.org"]).args(args);
        Process::start(&mut command).output(LIMIT).succeeded();
    };
    let [there, here, again] =
        ["there.git", "here", "again"].map(|name| folder.join(name).display().to_string());
    let url = format!("root@{}:{there}", NAME.replace('@', "+"));
    git(&["init", "-q", "--bare", &there]);
    git(&["clone", "-q", &url, &here]);
    let words = "words ".repeat(100_000);
    fs::write(format!("{here}/file"), &words).unwrap();
    git(&["-C", &here, "add", "file"]);
    git(&["-C", &here, "commit", "-q", "-m", "one"]);
    git(&["-C", &here, "push", "-q", "origin", "HEAD"]);
    git(&["clone", "-q", &url, &again]);
    assert!(fs::read_to_string(format!("{again}/file")).unwrap() == words);
}

/// A terminal with a program in it.
struct Screen {
    person: File,
    seen: Arc<Mutex<Vec<u8>>>,
    program: Child,
}

impl Screen {
    fn start(mut command: Command) -> Self {
        let (person, end) = terminal(80, 24);
        let [input, output] = [(); 2].map(|()| end.try_clone().unwrap());
        let program = command.stdin(input).stdout(output).stderr(end).env("TERM", "xterm").spawn().unwrap();
        let (seen, mut reader) = (Arc::<Mutex<Vec<u8>>>::default(), person.try_clone().unwrap());
        let seeing = seen.clone();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            // It fails once nobody has the other side.
            while let Ok(n @ 1..) = reader.read(&mut some) {
                seeing.lock().unwrap().extend_from_slice(&some[..n]);
            }
        });
        Self { person, seen, program }
    }

    fn types(&mut self, text: &str) {
        self.person.write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        wait_for(&format!("the screen shows {text}"), || {
            let seen = self.seen.lock().unwrap();
            String::from_utf8_lossy(&seen).contains(text).then_some(())
        });
    }

    /// Waits for the end of its program, and returns the exit code.
    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        wait_for("the program ends", || self.program.try_wait().unwrap()).code()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Ends what keeps sessions, with its sessions.
struct Keeping(PathBuf);

impl Drop for Keeping {
    fn drop(&mut self) {
        // It would be the one that this test was started in otherwise.
        let mut tmux = Command::new("tmux");
        let _ = tmux.arg("kill-server").env_remove("TMUX").env("TMUX_TMPDIR", &self.0).output();
    }
}

#[test]
fn a_remote_shell_goes_on_at_another_device_with_its_screen_and_the_first_is_told() {
    if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return whimbrel_lab::skip(
            "a test with tmux",
            "tmux is not installed; scripts/setup.sh test does it",
        );
    }
    let (world, _names) = World::with_names();
    let folder = world.dir.path();
    let Some((_sshd, port)) = sshd(folder) else { return };
    let _keeping = Keeping(folder.to_owned());
    let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
    let to = format!("127.0.0.1:{port}");
    let expose = ["expose", NAME, "--to", &to, "--allow", &phone, "--allow", &desk, "--json"];
    let mut expose = world.start("ada", &expose);
    expose.next_json();
    let attach = |device: &str| {
        let mut command = Command::new(common::PROGRAM);
        at_home(&world, device, &mut command);
        let before = ["--names", world.service(), "--address", &world.address(device)];
        command.args(before).args(["ssh", "--session", "work", "-F", "none"]).args(options(folder));
        command.arg(format!("root@{NAME}"));
        Screen::start(command)
    };
    let mut first = attach("phone");
    first.shows("[work]");
    // Nothing of it is left in this user's history.
    first.types("unset HISTFILE; X=40; echo $((X + 2))nd\r");
    first.shows("42nd");
    // It is redrawn, and it is the same shell.
    let mut second = attach("desk");
    second.shows("42nd");
    second.types("echo $((X + 3))rd\r");
    second.shows("43rd");
    first.shows("[detached (from session work)]");
    assert_eq!(first.end(), Some(0));
    second.types("exit\r");
    assert_eq!(second.end(), Some(0));
}

#[test]
fn a_session_is_a_shell_and_has_no_command() {
    let world = World::new();
    let host = format!("root@{NAME}");
    world.run("a", &["ssh", "--session", "work", &host, "uptime"]).failed(2, &["leave out the command"]);
}

#[test]
fn ssh_without_a_host_that_whimbrel_knows_is_told() {
    let world = World::new();
    world.run("a", &["ssh", "localhost", "-x"]).failed(2, &["'@'"]);
}
