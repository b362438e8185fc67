//! `whimbrel run`: a program, and a proxy of its own.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use whimbrel_proxy::HttpProxy;

use crate::commands::proxy::http::HttpFlags;
use crate::commands::proxy::reaching;
use crate::failure::Failure;
use crate::options::{Globals, after};
use crate::{files, output};

/// Where programs look for their proxies.
const VARIABLES: [&str; 4] = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"];
/// Programs that are known not to look there.
const IGNORING: [&str; 12] =
    ["dig", "host", "mosh", "nc", "ncat", "nslookup", "ping", "scp", "sftp", "ssh", "telnet", "traceroute"];
/// For the last connections of a program that has ended to end, and how often that is looked at.
const LAST: Duration = Duration::from_secs(2);
const LOOKS: Duration = Duration::from_millis(2);
/// As shells say that a program is not there, or none.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Run a program whose HTTP(S) goes by the best networks or a gateway
///
/// It gets a proxy of its own (as `whimbrel proxy http`), which http_proxy and https_proxy name to it;
/// NO_PROXY stays as it is. Signals are passed on, and the exit code is the program's: 127 if there is no
/// such program, 126 if it is none. A program that does not read these variables uses the network as it
/// always does; that is said.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel run -- curl http://example.org/
  whimbrel run --through gate.home.ada@example.org -- curl http://example.org/
  whimbrel run --first-step 16KiB -- firefox --no-remote"))]
pub(crate) struct Run {
    #[command(flatten)]
    flags: HttpFlags,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) async fn run(globals: &Globals, args: Run) -> Result<()> {
    args.flags.reach.check(globals)?;
    files::raise_limit();
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::usage("which program? see `whimbrel run --help`"));
    };
    warn(globals, program);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on 127.0.0.1")?;
    let local = listener.local_addr().context("cannot tell where the proxy listens")?;
    let network = args.flags.reach.network(globals).await?;
    let (proxy, _) = args.flags.proxy(globals, network.as_ref(), None).await?;
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    for name in VARIABLES {
        command.env(name, format!("http://{local}"));
    }
    // Before the program is there, so that none is lost.
    let mut signals = catch()?;
    let child = command.spawn().map_err(|error| unrunnable(program, &error))?;
    // The proxy ends before the network does.
    let status = {
        let mut serving = pin!(proxy.serve(listener));
        let status = tokio::select! {
            status = wait(child, &mut signals) => status?,
            () = &mut serving => anyhow::bail!("the proxy has ended"),
            never = reaching::renewing(network.as_ref()) => match never {},
        };
        if args.flags.reach.through.is_some() {
            // A session that does not hear that its program has ended would be held for another one.
            tokio::select! {
                () = serving => {}
                () = settled(&proxy) => {}
            }
        }
        status
    };
    if let Some(network) = network {
        network.close().await;
    }
    let is_unexplained = !is_ignoring(program) && !is_kept_from_proxies();
    if proxy.stats().requests == 0 && status.signal().is_none() && is_unexplained {
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
    if is_kept_from_proxies() {
        let text =
            "NO_PROXY has a `*`, so the program asks no proxy: its traffic goes the system's way; unset it";
        output::note(globals.quiet, text);
    }
    let other = VARIABLES.iter().find_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty());
    if let Some(other) = other {
        output::note(globals.quiet, format!("the proxy {other}, which the environment names, is not asked"));
    }
}

/// Waits until the program's connections are over, or for a moment.
async fn settled(proxy: &HttpProxy) {
    let over = async {
        while proxy.stats().connections > 0 {
            tokio::time::sleep(LOOKS).await;
        }
    };
    let _ = tokio::time::timeout(LAST, over).await;
}

/// Whether the environment tells programs to use no proxy at all.
fn is_kept_from_proxies() -> bool {
    let of = |name| std::env::var(name).unwrap_or_default();
    let is_all = |list: String| list.split([',', ' ']).any(|one| one == "*");
    is_all(of("NO_PROXY")) || is_all(of("no_proxy"))
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
/// itself. Needs a thread, which ends with the process.
fn catch() -> Result<mpsc::Receiver<Signal>> {
    let (sender, signals) = mpsc::channel(16);
    let passed = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    let mut caught = SignalsInfo::<WithOrigin>::new(passed).context("cannot catch signals")?;
    let passing = move || {
        for origin in caught.forever().filter(|origin| !came_from_terminal(origin)) {
            let signal = Signal::from_named_raw(origin.signal);
            if signal.is_some_and(|signal| sender.blocking_send(signal).is_err()) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(passing).context("cannot start a thread")?;
    Ok(signals)
}

async fn wait(mut child: Child, signals: &mut mpsc::Receiver<Signal>) -> Result<ExitStatus> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    loop {
        tokio::select! {
            status = child.wait() => return status.context("cannot wait for the program"),
            Some(signal) = signals.recv() => {
                if let Some(pid) = pid {
                    // One that has just ended needs none.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

/// Whether the terminal has sent it, for a key: it has sent it to the program too.
fn came_from_terminal(origin: &Origin) -> bool {
    matches!(origin.signal, SIGINT | SIGQUIT) && matches!(origin.cause, Cause::Kernel)
}
