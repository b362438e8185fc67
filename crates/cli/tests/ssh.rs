//! Real OpenSSH through `whimbrel ssh` and through what `whimbrel setup ssh` writes.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use common::{LIMIT, Process, World, dead_port, wait_for};

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
         PermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\nSubsystem sftp internal-sftp\n",
        folder.join("host_key").display(),
        allowed.display(),
    );
    fs::write(&config, text).unwrap();
    let server = Process::start(Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(&config));
    wait_for("sshd to listen", || TcpStream::connect(("127.0.0.1", port)).ok());
    Some((server, port))
}

#[test]
fn ssh_and_scp_reach_a_peer_by_name_and_the_exit_code_is_theirs() {
    let (world, _names) = World::with_names();
    let folder = world.dir.path();
    let Some((_sshd, port)) = sshd(folder) else { return };
    let bob = world.id("bob");
    let to = format!("127.0.0.1:{port}");
    let mut expose = world.start("ada", &["expose", NAME, "--to", &to, "--allow", &bob, "--json"]);
    expose.next_json();
    let key = folder.join("user_key");
    let common =
        ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"];
    let options: Vec<&str> = common.iter().flat_map(|option| ["-o", option]).collect();
    let options = [&options[..], &["-i", key.to_str().unwrap()]].concat();
    let host = format!("root@{NAME}");
    let address = world.address("bob");
    // What comes before `ssh` is whimbrel's; all behind it is ssh's.
    let before = ["--names", world.service(), "--address", &address, "ssh", "-F", "none"];
    let script = "echo \"$0 and $#\"; exit 7";
    let mut command = Command::new(common::PROGRAM);
    let template = world.command("bob", &[]);
    for (name, value) in template.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
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
    for (name, value) in template.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    let host = format!("root@{}:{}", NAME.replace('@', "+"), copy.display());
    command.arg("-F").arg(&config).args(&options).arg(&original).arg(host);
    let output = Process::start(&mut command).output(LIMIT);
    output.succeeded();
    assert!(fs::read(&original).unwrap() == fs::read(&copy).unwrap());
}

#[test]
fn ssh_without_a_host_that_whimbrel_knows_is_told() {
    let world = World::new();
    world.run("a", &["ssh", "localhost", "-x"]).failed(2, &["'@'"]);
}
