//! `whimbrel receive`: takes files from peers.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use whimbrel_base::{Name, Ticket};
use whimbrel_names::Code;
use whimbrel_transport::Connection;

use crate::access::{Access, AllowFlags, Guests};
use crate::commands::invite;
use crate::failure;
use crate::manager::Ready;
use crate::meeting::{Acquaintance, Message, Purpose};
use crate::multipath::PathFlags;
use crate::network::{Network, Wish, log_events};
use crate::options::{Globals, after, size};
use crate::progress::Board;
use crate::status::{About, Reporter};
use crate::transfer::receiving::{Arrived, Outcome, Received, receive};
use crate::transfer::{Asker, Consent, Inbox, Limits, Trouble};
use crate::{output, reload, serving};

/// How long a sender whose code was used may take to come.
const SENDER_LIMIT: Duration = Duration::from_secs(60);
/// Addresses of a ticket that is told in a meeting.
const TICKET_ADDRESSES: usize = 8;
/// Files that are taken at once on one connection.
const STREAMS: usize = 32;
/// Results that wait to be told.
const RESULTS: usize = 64;

/// Take files that peers send with `whimbrel send`, until stopped
///
/// Only those let in with --allow may send. On a terminal you are asked about each transfer, unless
/// --yes; elsewhere, `--allow any` needs --yes. What has arrived goes on from `.NAME.whimbrel-part`.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel receive harvest-otter-violin
  whimbrel receive --as inbox.laptop.bob@example.org --allow ada@example.org --dir ~/incoming
  whimbrel receive --allow any --once --yes"))]
pub(crate) struct Receive {
    /// The code that `whimbrel send` printed: takes what is sent with it, and ends
    #[arg(num_args = 0..=3, value_name = "CODE", conflicts_with_all = ["as", "allow", "allow_from", "readers"])]
    code: Vec<String>,
    /// The name to be reached under; without it, a ticket is printed
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
    /// Take everything that those who are let in send, without a question
    #[arg(long)]
    yes: bool,
    /// Take no larger file; a number and K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size)]
    max_size: u64,
    /// Take no more until this command ends
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = size)]
    max_total: u64,
    /// End after the first transfer
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    paths: PathFlags,
    /// Print JSON once files can come, and for each that has arrived
    #[arg(long)]
    json: bool,
}

impl Receive {
    /// Who is let in.
    pub(crate) fn allow(&self) -> &AllowFlags {
        &self.allow
    }
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
    let serve = async |network: &Network| match &code {
        Some(code) => take_by_code(globals, &args, code, network).await,
        None => serve(globals, &args, network).await,
    };
    let wish = Wish { config: args.paths.config(), ..Wish::default() };
    serving::until_stopped(globals, wish, args.name.as_ref(), serve).await
}

async fn serve(globals: &Globals, args: &Receive, network: &Network) -> Result<()> {
    let access = Access::open(&args.allow, args.name.as_ref(), network, globals.quiet).await?;
    let by_ticket = args.name.is_none();
    let guests = serving::listen(globals, network, args.name.as_ref(), by_ticket, access.clone()).await?;
    let about = About::new("receive", args.name.as_ref().map(ToString::to_string));
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let _reloading = reload::follow_access("waiting for files", &args.allow, &access, network)?;
    let _ready = Ready::tell("waiting for files");
    let ticket = by_ticket.then(|| network.ticket(None, access.secret()).to_string());
    if args.json {
        output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string), "ticket": ticket,
        }))?;
    } else if let Some(ticket) = &ticket {
        output::note(
            globals.quiet,
            "waiting for files; send them with `whimbrel send FILE --to` and this ticket:",
        );
        output::line(ticket)?;
    } else {
        output::note(globals.quiet, "waiting for files");
    }
    let board = Board::new(globals.quiet);
    let inbox = inbox(globals, args, network, access, &board)?;
    take(args, None, guests, inbox, board).await
}

/// Takes what is sent by whoever made the code.
async fn take_by_code(globals: &Globals, args: &Receive, code: &Code, network: &Network) -> Result<()> {
    let mut other = Acquaintance::join(network, code).await?;
    let access = Access::only(other.id(), network, globals.quiet);
    let mut guests = serving::listen(globals, network, None, true, access.clone()).await?;
    other.greeting(&[Purpose::File]).await?;
    let ticket = Some(bounded(network.ticket(None, None)));
    other.say(&Message::Greeting { purpose: Purpose::File, user: None, ticket }).await?;
    other.end().await;
    let _reporter = Reporter::start(network, About::new("receive", None), globals.quiet)?;
    let board = Board::new(globals.quiet);
    let inbox = inbox(globals, args, network, access, &board)?;
    let first = tokio::time::timeout(SENDER_LIMIT, guests.accept()).await.ok().flatten();
    let first = first.context("the sender did not come; start again on both sides")?;
    take(args, Some(first), guests, inbox, board).await
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

/// Takes files until stopped, or until the first one is done with: with --once, and by code, where its sender is
/// there already.
async fn take(
    args: &Receive,
    first: Option<Connection>,
    guests: Guests,
    inbox: Inbox,
    board: Board,
) -> Result<()> {
    let (results, mut done) = mpsc::channel(RESULTS);
    let once = args.once || first.is_some();
    let accepting = tokio::spawn(accept(first, guests, Arc::new(inbox), results));
    let result = loop {
        let Some((peer, Outcome { part, result, .. })) = done.recv().await else { break Ok(()) };
        // A file of a batch is not the end of it.
        let last = once && !part;
        match result {
            Ok(arrived) => {
                if let Err(error) = announce(args, &arrived, &board) {
                    break Err(error);
                }
                if last {
                    break Ok(());
                }
            }
            Err(Trouble::Here(error)) if last => break Err(error),
            Err(Trouble::Here(error)) => board.note(&format!("from {peer}: {}", failure::line(&error))),
            Err(Trouble::Refused(reason)) => board.note(&format!("from {peer}: {reason}")),
            Err(Trouble::Lost(error)) => {
                board.note(&format!("from {peer}: the sender is gone; what has arrived is kept ({error})"));
            }
        }
    };
    accepting.abort();
    result
}

fn announce(args: &Receive, arrived: &Arrived, board: &Board) -> Result<()> {
    let Received { file, size, resumed_from, sha256 } = match arrived {
        Arrived::File(received) => received,
        Arrived::Batch(directories) => return announce_all(args, directories, board),
        Arrived::Nothing => return Ok(()),
    };
    if args.json {
        return output::json(&json!({
            "file": file, "size": size, "received": size - resumed_from, "resumed_from": resumed_from,
            "sha256": sha256,
        }));
    }
    board.note(&format!("{} has arrived ({})", file.display(), output::bytes(*size)));
    Ok(())
}

/// Directories have their names once everything in them has arrived.
fn announce_all(args: &Receive, directories: &[PathBuf], board: &Board) -> Result<()> {
    directories.iter().try_for_each(|directory| {
        if args.json {
            return output::json(&json!({ "directory": directory }));
        }
        board.note(&format!("{} has arrived, with everything in it", directory.display()));
        Ok(())
    })
}

type Results = mpsc::Sender<(String, Outcome)>;

async fn accept(first: Option<Connection>, mut guests: Guests, inbox: Arc<Inbox>, results: Results) {
    let serve = |connection: Connection| {
        tokio::spawn(log_events(connection.events(), connection.peer_id().short()));
        tokio::spawn(serve_connection(connection, inbox.clone(), results.clone()));
    };
    if let Some(first) = first {
        serve(first);
    }
    while let Some(connection) = guests.accept().await {
        serve(connection);
    }
}

async fn serve_connection(connection: Connection, inbox: Arc<Inbox>, results: Results) {
    let peer = connection.peer_id().short();
    let places = Arc::new(Semaphore::new(STREAMS));
    // Who opens more streams waits until some have ended.
    while let Ok(place) = places.clone().acquire_owned().await {
        let Ok(stream) = connection.accept_stream().await else { return };
        let (inbox, results, peer) = (inbox.clone(), results.clone(), peer.clone());
        tokio::spawn(async move {
            let mut outcome = receive(stream, &inbox).await;
            let confirmation = outcome.confirmation();
            // The command may have ended meanwhile.
            let _ = results.send((peer, outcome)).await;
            confirmation.send().await;
            drop(place);
        });
    }
}
