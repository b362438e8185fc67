//! `whimbrel run`: a program, and a proxy of its own.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::commands::proxy::http::HttpFlags;
use crate::failure::Failure;
use crate::options::{Globals, after};
use crate::{files, output};

/// Where programs look for their proxies.
const VARIABLES: [&str; 4] = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"];
/// Programs that are known not to look there.
const IGNORING: [&str; 12] =
    ["dig", "host", "mosh", "nc", "ncat", "nslookup", "ping", "scp", "sftp", "ssh", "telnet", "traceroute"];
/// As shells say that a program is not there, or none.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Run a program whose HTTP and HTTPS go over the networks that the manager chooses
///
/// It gets a proxy of its own (as `whimbrel proxy http`), which http_proxy and https_proxy name to it;
/// NO_PROXY stays as it is. Signals are passed on, and the exit code is the program's: 127 if there is no
/// such program, 126 if it is none. A program that does not read these variables uses the network as it
/// always does; that is said.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel run -- curl http://example.org/
  whimbrel run --first-step 16KiB -- firefox --no-remote"))]
pub(crate) struct Run {
    #[command(flatten)]
    flags: HttpFlags,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) async fn run(globals: &Globals, args: Run) -> Result<()> {
    files::raise_limit();
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::usage("which program? see `whimbrel run --help`"));
    };
    warn(globals, program);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on 127.0.0.1")?;
    let local = listener.local_addr().context("cannot tell where the proxy listens")?;
    let (proxy, _) = args.flags.proxy(globals).await;
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    for name in VARIABLES {
        command.env(name, format!("http://{local}"));
    }
    // Before the program is there, so that none is lost.
    let mut signals = catch()?;
    let child = command.spawn().map_err(|error| unrunnable(program, &error))?;
    let status = tokio::select! {
        status = wait(child, &mut signals) => status?,
        () = proxy.serve(listener) => anyhow::bail!("the proxy has ended"),
    };
    if proxy.stats().requests == 0 && status.signal().is_none() && !is_ignoring(program) {
        let shown = program.display();
        output::note(
            globals.quiet,
            format!(
                "{shown} asked nothing of its proxy; if it used the network, it does not read http_proxy"
            ),
        );
    }
    ended(status)
}

/// Says what will not go as one may expect.
fn warn(globals: &Globals, program: &OsStr) {
    if is_ignoring(program) {
        let shown = program.display();
        output::note(
            globals.quiet,
            format!("{shown} does not read http_proxy: its traffic goes the system's way"),
        );
    }
    let other = VARIABLES.iter().find_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty());
    if let Some(other) = other {
        output::note(globals.quiet, format!("the proxy {other}, which the environment names, is not asked"));
    }
}

fn is_ignoring(program: &OsStr) -> bool {
    Path::new(program).file_name().and_then(OsStr::to_str).is_some_and(|name| IGNORING.contains(&name))
}

fn unrunnable(program: &OsStr, error: &std::io::Error) -> anyhow::Error {
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Failure::new(code, format!("cannot run {}: {error}", program.display())).into()
}

/// As the program ended.
fn ended(status: ExitStatus) -> Result<()> {
    let by_signal = status.signal().and_then(|signal| u8::try_from(128 + signal).ok());
    match status.code().and_then(|code| u8::try_from(code).ok()).or(by_signal) {
        Some(0) => Ok(()),
        code => Err(Failure::silent(code.unwrap_or(1))),
    }
}

/// The signals that are passed on, as they come. SIGTSTP stops both, and SIGWINCH reaches the program by
/// itself.
fn catch() -> Result<mpsc::Receiver<Signal>> {
    let (sender, signals) = mpsc::channel(16);
    for (kind, passed) in [
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ] {
        let mut caught = signal(kind).context("cannot catch signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                if sender.send(passed).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(signals)
}

async fn wait(mut child: Child, signals: &mut mpsc::Receiver<Signal>) -> Result<ExitStatus> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    loop {
        tokio::select! {
            status = child.wait() => return status.context("cannot wait for the program"),
            Some(signal) = signals.recv() => {
                if let Some(pid) = pid.filter(|_| !came_from_terminal(signal)) {
                    // One that has just ended needs none.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

/// Whether the terminal has sent it, which sends it to the program too: in the foreground that is where keys
/// lead.
fn came_from_terminal(signal: Signal) -> bool {
    let in_foreground =
        || rustix::termios::tcgetpgrp(rustix::stdio::stdin()).is_ok_and(|group| group == getpgrp());
    matches!(signal, Signal::INT | Signal::QUIT) && in_foreground()
}
