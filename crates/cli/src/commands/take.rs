//! `whimbrel take`: a running session of another device goes on at this one.

mod carry;
mod direct;
mod ports;
mod program;
mod waiting;
mod web;

pub(crate) use carry::{Begun, carry};
pub(crate) use ports::go_on as go_on_at_ports;
pub(crate) use program::{Place, ended, start};
pub(crate) use waiting::{Asking, How, Waiting};

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tokio::process::Child;
use whimbrel_proxy::{Listed, Outcome, SessionsAt};

use crate::commands::sessions::{At, find, with_network};
use crate::failure::Failure;
use crate::network::{Network, Peer};
use crate::options::{Globals, after};
use crate::{output, rule};

/// Take a running connection of another device here, at the very byte
///
/// The first program of yours that connects to what is printed goes on where the program there was. The
/// server sees one and the same connection. A program may be started for it: {port} and {url} in its
/// arguments stand for where. With `--as http` or `http-time` it must ask for that very URL. With `--as line`
/// it is greeted as the first one was, and the server does not hear its greeting again.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel take SESSION --from TICKET        (`whimbrel handoff` prints it)
  whimbrel take SESSION --from phone.ada@example.org    (an agent there)
  whimbrel take SESSION --from TICKET --as http -- curl -o rest {url}
  whimbrel take SESSION --through gate.home.ada@example.org
  whimbrel take SESSION --through gate.home.ada@example.org --as http-time -- mpv {url}
  whimbrel take SESSION --through gate.home.ada@example.org --as line -- irssi -c {host} -p {port}"))]
pub(crate) struct Take {
    /// The first digits of its id, as `whimbrel sessions` has it
    session: String,
    #[command(flatten)]
    at: At,
    /// The device that has it, without a gateway; HTTPS of `proxy http --intercept` with --as http
    #[arg(long, value_name = "NAME|TICKET", conflicts_with_all = ["through", "own_lines"])]
    from: Option<Peer>,
    /// Where a received file goes [default: here]
    #[arg(long, value_name = "DIR", requires = "from")]
    dir: Option<PathBuf>,
    /// How the program begins: `raw` takes the bytes as they are; `http` asks anew and gets the rest;
    /// `http-time` a film from where it plays; `line` begins a protocol anew, as IRC
    #[arg(long = "as", value_enum, value_name = "HOW", default_value_t = How::Raw, hide_possible_values = true)]
    how: How,
    /// With `--as line`: so many first lines of the program are not for the server again
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    own_lines: u16,
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value_t = ANY_PORT)]
    listen: SocketAddr,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
    /// The program, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Any port of this host.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A program that was started and has not connected by then may not know where: that is told.
const LATE: Duration = Duration::from_secs(15);

/// For a program to read what it was given, when its session broke or went on elsewhere.
pub(crate) const LAST: Duration = Duration::from_secs(10);

pub(crate) async fn run(globals: &Globals, args: Take) -> Result<()> {
    if !args.listen.ip().is_loopback() {
        return Err(Failure::usage("whoever reached that address would get the bytes; listen on 127.0.0.1"));
    }
    if let Some(from) = &args.from {
        if args.how == How::Http {
            if args.dir.is_some() {
                return Err(Failure::usage("--dir is for files of `whimbrel receive`, not for --as http"));
            }
            return web::take(globals, &args, from).await;
        }
        if args.how != How::Raw || !args.program.is_empty() || args.listen != ANY_PORT {
            let text =
                "without a gateway a program gets only the rest of what came over HTTPS: say --as http";
            return Err(Failure::usage(text));
        }
        let directory = args.dir.as_deref().unwrap_or(Path::new("."));
        return direct::take(globals, &args.session, from, (directory, args.json)).await;
    }
    if args.at.through.is_none() {
        let text =
            "say where the session is: --from TICKET, as `whimbrel handoff` prints it, or --through GATEWAY";
        return Err(Failure::usage(text));
    }
    if args.own_lines > 0 && args.how != How::Line {
        return Err(Failure::usage("--own-lines is for programs that begin anew: say --as line"));
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
    let waiting = Waiting::new(args.listen, (args.how, args.own_lines)).await?;
    let place = waiting.place()?;
    let id = session.id.to_string();
    if args.json {
        output::json(&json!({
            "listening": place.at.to_string(), "url": place.url, "session": id, "to": session.to.to_string(),
        }))?;
    } else if args.program.is_empty() {
        let asks = matches!(args.how, How::Http | How::HttpTime);
        let place = if asks { place.url.clone() } else { place.at.to_string() };
        output::line(format!("{} to {} waits for a program on {place}", &id[..8], session.to))?;
    }
    let (mut program, asking) = asking(globals, args, waiting, &place).await?;
    let takers = rule::takers(&network.key);
    let carrying = carry(sessions, session, takers.clone(), asking, |begun| tell(globals, begun));
    let following = rule::follow(network.key.clone(), takers, |takers| sessions.set_rule(takers));
    let carried = tokio::select! {
        carried = carrying => carried,
        never = following => match never {},
    };
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

/// Starts the program, if one is given, and waits for one that asks.
async fn asking(
    globals: &Globals,
    args: &Take,
    waiting: Waiting,
    place: &Place,
) -> Result<(Option<Child>, Asking)> {
    let mut program = start(&args.program, place, |_| Ok(()))?;
    let telling = async {
        tokio::time::sleep(LATE).await;
        if let Some(program) = args.program.first() {
            let name = program.display();
            output::note(globals.quiet, format!("{name} has not connected to {} yet; waiting", place.at));
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        asking = waiting.program() => Ok((program, asking?)),
        status = ended(&mut program) => {
            let status = status?;
            Err(Failure::new(1, format!("the program ended before it connected: {status}")).into())
        }
        never = telling => match never {},
    }
}

/// Waits for the end of the program that was started, if one was.
async fn succeeded(program: &mut Option<Child>) -> Result<()> {
    if program.is_none() {
        return Ok(());
    }
    let status = ended(program).await?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(1, format!("the program failed: {status}")).into()),
    }
}

fn tell(globals: &Globals, begun: Begun<'_>) {
    output::note(globals.quiet, format!("the session goes on here, from byte {}", begun.from));
    if let Some(warning) = begun.warning {
        output::note(globals.quiet, format!("warning: {warning}"));
    }
}
