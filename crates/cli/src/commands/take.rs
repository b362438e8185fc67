//! `whimbrel take`: a running session of another device goes on at this one.

mod waiting;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use waiting::{Asking, Waiting};
use whimbrel_proxy::{Listed, Outcome, SessionsAt};

use crate::commands::sessions::{At, find, with_network};
use crate::failure::Failure;
use crate::network::Network;
use crate::options::{Globals, after};
use crate::{output, rule};

/// Take a running connection of another device here: it goes on from the very byte
///
/// The first program of yours that connects to what is printed gets what the program there has not taken,
/// and then what comes. The server sees one and the same connection. A program may be started for it:
/// {port} and {url} in its arguments stand for where. With `--as http` it must ask for that very URL.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel take SESSION --through gate.home.ada@example.org
  whimbrel take SESSION --through gate.home.ada@example.org --as http -- curl -o rest {url}"))]
pub(crate) struct Take {
    /// The session: the first digits of its id, as `whimbrel sessions` shows it
    session: String,
    #[command(flatten)]
    at: At,
    /// How the program begins: `raw` takes the bytes as they are, `http` asks anew and gets the rest
    #[arg(long = "as", value_enum, value_name = "HOW", default_value_t = How::Raw)]
    how: How,
    /// Where to listen for the program; any free port of this host by default
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
    /// The program, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// For a program to read what it was given, when its session broke or went on elsewhere.
const LAST: Duration = Duration::from_secs(10);

/// How a program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    Raw,
    Http,
}

pub(crate) async fn run(globals: &Globals, args: Take) -> Result<()> {
    if !args.listen.ip().is_loopback() {
        return Err(Failure::usage("whoever reached that address would get the bytes; listen on 127.0.0.1"));
    }
    with_network(globals, async |network| {
        let sessions = args.at.reach(network).await?;
        let session = find(&sessions, &args.session).await?;
        take(globals, &args, network, &sessions, &session).await
    })
    .await
}

async fn take(
    globals: &Globals,
    args: &Take,
    network: &Arc<Network>,
    sessions: &SessionsAt,
    session: &Listed,
) -> Result<()> {
    let waiting = Waiting::new(args.listen, args.how).await?;
    let (local, url) = (waiting.local()?, waiting.url()?);
    let id = session.id.to_string();
    if args.json {
        output::json(&json!({
            "listening": local.to_string(), "url": url, "session": id, "to": session.to.to_string(),
        }))?;
    } else if args.program.is_empty() {
        let place = if args.how == How::Http { url.clone() } else { local.to_string() };
        output::line(format!("{} to {} waits for a program on {place}", &id[..8], session.to))?;
    }
    let mut program = start(args, local, &url)?;
    let asking = tokio::select! {
        asking = waiting.program() => asking?,
        status = ended(&mut program) => {
            let status = status?;
            return Err(Failure::new(1, format!("the program ended before it connected: {status}")).into());
        }
    };
    let carried = carry(globals, network, sessions, session, asking).await;
    // It has an end to read, or a break, and perhaps something to do then.
    let status = match (&carried, &mut program) {
        (_, None) => None,
        (Ok(Outcome::Ended), Some(_)) => Some(ended(&mut program).await?),
        (_, Some(_)) => {
            let _ = tokio::time::timeout(LAST, ended(&mut program)).await;
            None
        }
    };
    if carried? == Outcome::Moved {
        output::note(globals.quiet, "the session goes on at another device");
    }
    match status.filter(|status| !status.success()) {
        Some(status) => Err(Failure::new(1, format!("the program failed: {status}")).into()),
        None => Ok(()),
    }
}

/// Takes the session, and carries it until it is over or goes on elsewhere.
async fn carry(
    globals: &Globals,
    network: &Arc<Network>,
    sessions: &SessionsAt,
    session: &Listed,
    (mut socket, request): Asking,
) -> Result<Outcome> {
    let takers = rule::takers(&network.key);
    // Only now, so that the program over there goes on for as long as it can.
    let attached = sessions.take(session.id, session.moves, takers.clone()).await?;
    let from = attached.offset();
    let rest = match request.map(|request| attached.rest(&request)).transpose() {
        Ok(rest) => rest,
        Err(none) => {
            // It goes back to where it was.
            drop(attached);
            socket.write_all(&none.answer()).await.context("the program is gone")?;
            return Err(Failure::new(Failure::REFUSED, none.to_string()).into());
        }
    };
    output::note(globals.quiet, format!("the session goes on here, from byte {from}"));
    if let Some(warning) = attached.warning() {
        output::note(globals.quiet, format!("warning: {warning}"));
    }
    let carrying = async {
        match rest {
            None => attached.carry(socket, Vec::new()).await,
            Some(rest) => attached.carry_rest(socket, rest).await,
        }
    };
    let following = rule::follow(network.key.clone(), takers, |takers| sessions.set_rule(takers));
    tokio::select! {
        carried = carrying => carried.context("the session ended early"),
        never = following => match never {},
    }
}

/// Starts the program, if one is given, without a shell.
fn start(args: &Take, local: SocketAddr, url: &str) -> Result<Option<Child>> {
    let Some((program, arguments)) = args.program.split_first() else { return Ok(None) };
    let filled = arguments.iter().map(|word| fill(word, url, local.port()));
    let child = Command::new(program).args(filled).kill_on_drop(true).spawn();
    child.map(Some).with_context(|| format!("cannot run {}", program.display()))
}

/// An argument with this host's address in the place of its words.
fn fill(word: &OsString, url: &str, port: u16) -> OsString {
    match word.to_str() {
        Some(text) => text.replace("{url}", url).replace("{port}", &port.to_string()).into(),
        None => word.clone(),
    }
}

async fn ended(program: &mut Option<Child>) -> Result<std::process::ExitStatus> {
    match program {
        Some(child) => child.wait().await.context("cannot wait for the program"),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_for_this_hosts_address_and_nothing_else_is_changed() {
        let filled = |word: &str| fill(&OsString::from(word), "http://127.0.0.1:4000/", 4000);
        assert_eq!(filled("{port}"), "4000");
        assert_eq!(filled("--to={url}"), "--to=http://127.0.0.1:4000/");
        assert_eq!(filled("$(reboot);{x}"), "$(reboot);{x}");
    }
}
