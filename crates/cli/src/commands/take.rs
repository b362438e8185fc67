//! `whimbrel take`: a running session of another device goes on at this one.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use whimbrel_proxy::{Listed, Outcome, SessionsAt, Takers, read_request};

use crate::commands::sessions::{At, find, with_network};
use crate::failure::Failure;
use crate::network::Network;
use crate::options::{Globals, after};
use crate::{output, own_group};

/// Take a running connection of another device here: it goes on from the very byte
///
/// The first program that connects to the port that is printed gets what the program there has not taken,
/// and then what comes. The server sees one and the same connection. A program may be started for it:
/// {port} and {url} in its arguments stand for that port.
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
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
    let local = listener.local_addr().context("cannot tell where it listens")?;
    let id = session.id.to_string();
    if args.json {
        output::json(
            &json!({ "listening": local.to_string(), "session": id, "to": session.to.to_string() }),
        )?;
    } else if args.program.is_empty() {
        output::line(format!("{} to {} waits for a program on {local}", &id[..8], session.to))?;
    }
    let mut program = start(args, local)?;
    let (mut socket, request) = tokio::select! {
        accepted = accept(&listener, args.how) => accepted?,
        status = ended(&mut program) => {
            let status = status?;
            return Err(Failure::new(1, format!("the program ended before it connected: {status}")).into());
        }
    };
    drop(listener);
    // Only now, so that the program over there goes on for as long as it can.
    let takers = Takers::new(own_group::other_devices(&network.key));
    let attached = sessions.take(session.id, session.moves, takers).await?;
    let from = attached.offset();
    let carried = match request {
        None => {
            output::note(globals.quiet, format!("the session goes on here, from byte {from}"));
            attached.carry(socket, Vec::new()).await
        }
        Some(request) => match attached.rest(&request) {
            Ok(rest) => {
                output::note(globals.quiet, format!("the session goes on here, from byte {from}"));
                attached.carry_rest(socket, rest).await
            }
            Err(none) => {
                // It goes back to where it was.
                drop(attached);
                socket.write_all(&none.answer()).await.context("the program is gone")?;
                return Err(Failure::new(Failure::REFUSED, none.to_string()).into());
            }
        },
    };
    let outcome = carried.context("the session ended early")?;
    if outcome == Outcome::Moved {
        output::note(globals.quiet, "the session goes on at another device");
    }
    if program.is_some() {
        // It has an end to read, and perhaps something to do then.
        ended(&mut program).await?;
    }
    Ok(())
}

/// The first program that connects, and what it asks for, if it asks.
async fn accept(listener: &TcpListener, how: How) -> Result<(TcpStream, Option<Vec<u8>>)> {
    let (mut socket, _) = listener.accept().await.context("cannot accept a program's connection")?;
    let request = match how {
        How::Raw => None,
        How::Http => Some(read_request(&mut socket).await.context("the program asks for nothing by HTTP")?),
    };
    Ok((socket, request))
}

/// Starts the program, if one is given, without a shell.
fn start(args: &Take, local: SocketAddr) -> Result<Option<Child>> {
    let Some((program, arguments)) = args.program.split_first() else { return Ok(None) };
    let url = match args.how {
        How::Raw => format!("tcp://{local}"),
        How::Http => format!("http://{local}/"),
    };
    let filled = arguments.iter().map(|word| fill(word, &url, local.port()));
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
