//! Programs that a bench runs on a host of the lab: they end with their guard, and with this process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use whimbrel_lab::{Host, HostChild};

/// How long a program may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Where system programs are, even if an ordinary user's PATH leaves it out.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Finds a program, or says which package brings it.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let found = places.find_map(|folder| Some(folder.join(program)).filter(|file| file.is_file()));
    found.with_context(|| format!("`{program}` was not found; install it with `apt-get install {package}`"))
}

/// The program `whimbrel`, as it was built beside this one.
pub(crate) fn whimbrel() -> Result<PathBuf> {
    let file = std::env::current_exe()?.with_file_name("whimbrel");
    let shown = file.display();
    ensure!(file.is_file(), "{shown} is missing: build it with `cargo build --release --bin whimbrel`");
    Ok(file)
}

/// A folder for what programs need, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("whimbrel-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a program that says nothing that matters.
pub(crate) fn start(host: &Host, program: &Path, arguments: &[impl AsRef<OsStr>]) -> Result<HostChild> {
    let command = host.command(&program.to_string_lossy()).args(arguments);
    let quiet = command.with(|command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    Ok(quiet.spawn()?)
}

/// Runs a program to its end and returns what it prints.
pub(crate) fn run(host: &Host, program: &Path, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
    let output = host.command(&program.to_string_lossy()).args(arguments).output()?;
    let [printed, errors] = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    if !output.status.success() {
        bail!("{} failed: {} {}", program.display(), errors.trim(), printed.trim());
    }
    Ok(printed)
}

/// Waits until something listens there.
pub(crate) fn wait_for_port(host: &Host, address: SocketAddr) -> Result<()> {
    let began = Instant::now();
    while host.run(|| std::net::TcpStream::connect(address)).is_err() {
        ensure!(began.elapsed() < START_LIMIT, "nothing listens on {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// `whimbrel expose` on one host and `whimbrel forward` on another, or on the same.
pub(crate) struct Tunnel {
    _expose: HostChild,
    _forward: HostChild,
}

impl Tunnel {
    /// Leads from `listen` at the client to `to` at the server. `flags` are given to both commands.
    pub(crate) fn start(
        folder: &Folder,
        [client, server]: [&Host; 2],
        listen: SocketAddr,
        to: SocketAddr,
        flags: &[&str],
    ) -> Result<Self> {
        let [listen, to] = [listen, to].map(|address| address.to_string());
        let user = |side: &str| folder.join(&format!("{side}-{listen}"));
        let expose = ["expose", "-q", "--ticket", "--allow", "any", "--json", "--to", &to];
        let (_expose, said) = say(server, &user("expose"), &[&expose[..], flags].concat())?;
        let ticket = said["ticket"].as_str().context("`whimbrel expose` gave no ticket")?.to_owned();
        let forward = ["forward", "-q", &ticket, "--json", "--listen", &listen];
        let (_forward, _) = say(client, &user("forward"), &[&forward[..], flags].concat())?;
        Ok(Self { _expose, _forward })
    }
}

/// Starts the program for a user of its own and waits for its first line, which is JSON.
pub(crate) fn say(host: &Host, home: &Path, arguments: &[&str]) -> Result<(HostChild, Value)> {
    std::fs::create_dir_all(home)?;
    let command = host.command(&whimbrel()?.to_string_lossy()).args(arguments);
    let command = command.env("HOME", home).env("XDG_CONFIG_HOME", home).env("XDG_RUNTIME_DIR", home);
    let mut child = command
        .with(|command| {
            command.env_remove("WHIMBREL_NAMES").stdin(Stdio::null()).stdout(Stdio::piped());
        })
        .spawn()?;
    let printed = child.child().stdout.take().context("no output")?;
    let (sender, received) = mpsc::channel();
    // It ends with the child, if not before.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(printed).read_line(&mut line);
        // An answer that came too late has no receiver any more.
        let _ = sender.send(read.map(|_| line));
    });
    let what = arguments.first().copied().unwrap_or_default();
    let late = || format!("`whimbrel {what}` says nothing within {START_LIMIT:?}");
    let line = received.recv_timeout(START_LIMIT).with_context(late)??;
    ensure!(!line.is_empty(), "`whimbrel {what}` ended; its message is above");
    Ok((child, serde_json::from_str(&line)?))
}
