//! `whimbrel receive`: takes files from peers.

mod going_on;
mod taker;

pub(crate) use self::going_on::{go_on, go_on_together};

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;
use whimbrel_base::{Name, Ticket};
use whimbrel_names::Code;
use whimbrel_transport::Connection;

use crate::access::{Access, AllowFlags, Guests};
use crate::commands::invite;
use crate::failure;
use crate::halt::Halter;
use crate::manager::Ready;
use crate::meeting::{Acquaintance, Message, Purpose};
use crate::moving::Sessions;
use crate::multipath::PathFlags;
use crate::network::{Network, Wish};
use crate::options::{Globals, after, size};
use crate::progress::Board;
use crate::serving::Start;
use crate::status::{About, Reporter};
use crate::takeover::{Estate, Inherited, Served, TakeOver};
use crate::transfer::receiving::{Arrived, Outcome, Received};
use crate::transfer::underway::Halted;
use crate::transfer::{Asker, Consent, Inbox, Limits, Trouble};
use crate::{output, reload, serving};

use self::taker::{News, Taker, Which};

const COMMAND: &str = "receive";
/// How long a transfer that is just beginning or ending may take before it is begun again elsewhere.
const HALT_LIMIT: Duration = Duration::from_secs(1);
/// How long a sender whose code was used may take to come.
const SENDER_LIMIT: Duration = Duration::from_secs(60);
/// Addresses of a ticket that is told in a meeting.
const TICKET_ADDRESSES: usize = 8;

/// Take files that peers send with `whimbrel send`, until stopped
///
/// Only those let in with --allow may send. On a terminal you are asked; elsewhere `any` needs --yes.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel receive harvest-otter-violin
  whimbrel receive --allow any --once --yes
  whimbrel receive --as inbox.laptop.bob@example.org --allow ada@example.org --dir ~/incoming"))]
pub(crate) struct Receive {
    /// The code that `whimbrel send` printed: takes that, and ends
    #[arg(num_args = 0..=3, value_name = "CODE", conflicts_with_all = ["as", "allow", "allow_from", "readers", "take_over"])]
    code: Vec<String>,
    /// Be reached under this name, else by a ticket
    #[arg(long = "as", id = "as", value_name = "NAME")]
    name: Option<Name>,
    /// Where files go
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    allow: AllowFlags,
    /// Replace files that exist
    #[arg(long)]
    overwrite: bool,
    /// Take all that they send, without a question
    #[arg(long)]
    yes: bool,
    /// Take no larger file; a number and K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size)]
    max_size: u64,
    /// Take no more altogether
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size)]
    max_total: u64,
    /// End after the first transfer
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    paths: PathFlags,
    /// Print JSON once files can come, and for each that has arrived
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Receive) -> Result<()> {
    let code = match &args.code[..] {
        [] => {
            args.allow.check(args.name.is_none(), args.name.as_ref())?;
            None
        }
        words => Some(invite::code(words)?),
    };
    let directory = std::fs::metadata(&args.dir)
        .with_context(|| format!("cannot receive into {}", args.dir.display()))?;
    if !directory.is_dir() {
        bail!("cannot receive into {}: it is no directory", args.dir.display());
    }
    let Some(code) = code else {
        let serve = async |network: &Network, inherited| serve(globals, &args, network, inherited).await;
        let (name, config) = (args.name.as_ref(), args.paths.config());
        return serving::until_taken_over(
            globals,
            &args.take_over,
            COMMAND,
            name,
            (config, Vec::new()),
            serve,
        )
        .await;
    };
    let serve = async |network: &Network| take_by_code(globals, &args, &code, network).await;
    let wish = Wish { config: args.paths.config(), ..Wish::default() };
    serving::until_stopped(globals, wish, None, serve).await
}

async fn serve(
    globals: &Globals,
    args: &Receive,
    network: &Network,
    inherited: Option<Inherited>,
) -> Result<Served> {
    let before = inherited.as_ref().map(|inherited| inherited.estate.before.clone()).unwrap_or_default();
    let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
    let access = Access::open(&args.allow, args.name.as_ref(), network, globals.quiet, before).await?;
    let board = Board::new(globals.quiet);
    let inbox = Arc::new(inbox(globals, args, network, access.clone(), &board)?);
    let waking = match inherited {
        Some(inherited) => Some(inherited.ready(network).await?),
        None => None,
    };
    let by_ticket = args.name.is_none();
    let start = if waking.is_some() { Start::GoingOn } else { Start::Anew };
    let guests =
        serving::listen(globals, network, args.name.as_ref(), by_ticket, access.clone(), start).await?;
    let halter = Halter::new();
    let sessions = Sessions::default();
    let (taker, mut news) = Taker::new(inbox, halter.tie(), sessions.clone());
    if let Some(waking) = waking {
        let (connections, woken) = waking.begin()?;
        taker.go_on(connections, woken, &guests);
    }
    let about = About::new(COMMAND, args.name.as_ref().map(ToString::to_string)).moving(&sessions);
    let mut reporter = Reporter::start(network, about.handing_over(), globals.quiet)?;
    let _reloading =
        reload::follow_access(&globals.source, "waiting for files", &args.allow, &access, network)?;
    let ready = Ready::tell("waiting for files");
    if !is_told {
        let ticket = by_ticket.then(|| network.ticket(None, access.secret()).to_string());
        start.needs(tell(globals, args, network, ticket))?;
    }
    let mut guests = guests;
    let (asker, leaving) = loop {
        tokio::select! {
            connection = guests.accept() => match connection {
                Some(connection) => taker.serve(connection, Vec::new()),
                None => return Ok(Served::Ended),
            },
            // The taker has the other end.
            Some(news) = news.recv() => {
                if told(args.json, news, args.once, &board)? {
                    return Ok(Served::Ended);
                }
            }
            asker = reporter.asked() => match network.endpoint.transport().stop_listening() {
                Ok(leaving) => break (asker, leaving),
                Err(error) => asker.refuse(error.to_string()).await,
            },
        }
    };
    ready.leave();
    drop(taker);
    let halting = halter.halt(HALT_LIMIT);
    tokio::pin!(halting);
    let files = loop {
        tokio::select! {
            files = &mut halting => break files,
            Some(news) = news.recv() => {
                told(args.json, news, false, &board)?;
            }
        }
    };
    let estate = Estate::of(leaving, &guests.leave(), Vec::new()).await;
    let files = files.into_iter().filter_map(Halted::into_file).collect();
    let estate = estate.with_access(access.known()).with_files(files);
    Ok(Served::Left(asker, Box::new(estate)))
}

fn tell(globals: &Globals, args: &Receive, network: &Network, ticket: Option<String>) -> Result<()> {
    if args.json {
        return output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string), "ticket": ticket,
        }));
    }
    if let Some(ticket) = ticket {
        output::note(
            globals.quiet,
            "waiting for files; send them with `whimbrel send FILE --to` and this ticket:",
        );
        return output::line(ticket);
    }
    output::note(globals.quiet, "waiting for files");
    Ok(())
}

/// Takes what is sent by whoever made the code.
async fn take_by_code(globals: &Globals, args: &Receive, code: &Code, network: &Network) -> Result<()> {
    let mut other = Acquaintance::join(network, code).await?;
    let access = Access::only(other.id(), network, globals.quiet);
    let mut guests = serving::listen(globals, network, None, true, access.clone(), Start::Anew).await?;
    other.greeting(&[Purpose::File]).await?;
    let ticket = Some(bounded(network.ticket(None, None)));
    other.say(&Message::Greeting { purpose: Purpose::File, user: None, ticket }).await?;
    other.end().await;
    let sessions = Sessions::default();
    let _reporter = Reporter::start(network, About::new(COMMAND, None).moving(&sessions), globals.quiet)?;
    let board = Board::new(globals.quiet);
    let inbox = inbox(globals, args, network, access, &board)?;
    let first = tokio::time::timeout(SENDER_LIMIT, guests.accept()).await.ok().flatten();
    let first = first.context("the sender did not come; start again on both sides")?;
    take_one(args.json, (first, guests), (inbox, sessions), board).await
}

/// Where files go, and who agrees to it.
fn inbox(
    globals: &Globals,
    args: &Receive,
    network: &Network,
    access: Access,
    board: &Board,
) -> Result<Inbox> {
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && !globals.until_eof;
    let consent = match (args.yes, terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask(Asker::new(board.clone())),
        (false, false) => Consent::Named(access),
    };
    let limits = Limits { file: args.max_size, total: args.max_total };
    Inbox::open(&args.dir, args.overwrite, limits, consent, network.known.clone(), board.clone())
}

/// A ticket that fits into a message of a meeting.
fn bounded(ticket: Ticket) -> Ticket {
    Ticket::new(ticket.id(), ticket.addrs().iter().copied().take(TICKET_ADDRESSES), None)
}

/// Takes what the one sender sends, until the first transfer is done with, or goes on elsewhere.
async fn take_one(
    json: bool,
    (sender, mut guests): (Connection, Guests),
    (inbox, sessions): (Inbox, Sessions),
    board: Board,
) -> Result<()> {
    let halter = Halter::new();
    let (taker, mut news) = Taker::new(Arc::new(inbox), halter.tie(), sessions);
    taker.serve(sender, Vec::new());
    loop {
        tokio::select! {
            connection = guests.accept() => match connection {
                Some(connection) => taker.serve(connection, Vec::new()),
                None => return Ok(()),
            },
            Some(news) = news.recv() => {
                if told(json, news, true, &board)? {
                    return Ok(());
                }
            }
        }
    }
}

/// Tells the user of a transfer. True if nothing more is to come, because the first one that is `once` done
/// with is the last.
fn told(json: bool, news: News, once: bool, board: &Board) -> Result<bool> {
    let (peer, Outcome { part, result, .. }) = match news {
        News::Ended(peer, outcome) => (peer, outcome),
        News::Moved { which, to } => {
            moved(json, &which, &to)?;
            let rest = match which {
                Which::File(_) => "",
                Which::Several(_) => "; those that have arrived here by themselves stay",
            };
            board.note(&format!("{which} went on at {to}{rest}"));
            return Ok(once);
        }
        News::Stays { peer, why } => {
            board.note(&format!("from {peer}: this stays here: {why}"));
            return Ok(false);
        }
        News::Lost { which, why } if once => bail!("lost the sender of {which}: {why}"),
        News::Lost { which, why } => {
            board.note(&format!("lost the sender of {which}: {why}"));
            return Ok(false);
        }
    };
    // A file of a batch is not the end of it.
    let last = once && !part;
    match result {
        Ok(arrived) => {
            announce(json, &arrived, board)?;
            return Ok(last);
        }
        Err(Trouble::Here(error)) if last => return Err(error),
        Err(Trouble::Here(error)) => board.note(&format!("from {peer}: {}", failure::line(&error))),
        Err(Trouble::Refused(reason)) => board.note(&format!("from {peer}: {reason}")),
        Err(Trouble::Lost(error)) => {
            board.note(&format!("from {peer}: the sender is gone; what has arrived is kept ({error})"));
        }
    }
    Ok(false)
}

/// Says that something goes on elsewhere.
fn moved(in_json: bool, which: &Which, to: &str) -> Result<()> {
    if !in_json {
        return Ok(());
    }
    output::json(&match which {
        Which::File(file) => json!({ "file": file, "moved_to": to }),
        Which::Several(files) => json!({ "files": files, "moved_to": to }),
    })
}

fn announce(in_json: bool, arrived: &Arrived, board: &Board) -> Result<()> {
    let Received { file, size, resumed_from, sha256 } = match arrived {
        Arrived::File(received) => received,
        Arrived::Batch(directories) => return announce_all(in_json, directories, board),
        Arrived::Nothing => return Ok(()),
    };
    if in_json {
        return output::json(&json!({
            "file": file, "size": size, "received": size - resumed_from, "resumed_from": resumed_from,
            "sha256": sha256,
        }));
    }
    board.note(&format!("{} has arrived ({})", file.display(), output::bytes(*size)));
    Ok(())
}

/// Directories have their names once everything in them has arrived.
fn announce_all(in_json: bool, directories: &[PathBuf], board: &Board) -> Result<()> {
    directories.iter().try_for_each(|directory| {
        if in_json {
            return output::json(&json!({ "directory": directory }));
        }
        board.note(&format!("{} has arrived, with everything in it", directory.display()));
        Ok(())
    })
}
