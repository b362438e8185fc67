//! `whimbrel receive`: takes files from peers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;
use tokio::sync::mpsc;
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
use crate::options::{Globals, after};
use crate::progress::Board;
use crate::status::{About, Reporter};
use crate::transfer::Trouble;
use crate::transfer::receiving::{Inbox, Received, receive};
use crate::{output, serving};

/// How long a sender whose code was used may take to come.
const SENDER_LIMIT: Duration = Duration::from_secs(60);
/// Addresses of a ticket that is told in a meeting.
const TICKET_ADDRESSES: usize = 8;
/// Files that may be on their way at once on one connection.
const RESULTS: usize = 64;

/// Take files that peers send with `whimbrel send`, until stopped
///
/// Without --as, prints a ticket for the senders. Nobody may send but those named with --allow. No
/// file is ever replaced without --overwrite. What has arrived of a file is kept in
/// `.NAME.whimbrel-part`; if either side dies, the transfer goes on there.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel receive harvest-otter-violin
  whimbrel receive --as inbox.laptop.bob@example.org --allow ada@example.org --dir ~/incoming
  whimbrel receive --allow any --once"))]
pub(crate) struct Receive {
    /// The code that `whimbrel send` printed: takes what is sent with it, and ends
    #[arg(num_args = 0..=3, value_name = "CODE", conflicts_with_all = ["as", "allow", "allow_from"])]
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
    /// End after the first file
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    paths: PathFlags,
    /// Print a JSON object once files can come, and one for each that has arrived
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Receive) -> Result<()> {
    let code = match &args.code[..] {
        [] => {
            args.allow.check()?;
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
    let access = Access::open(&args.allow, network, globals.quiet).await?;
    let by_ticket = args.name.is_none();
    let guests = serving::listen(globals, network, args.name.as_ref(), by_ticket, access).await?;
    let about = About::new("receive", args.name.as_ref().map(ToString::to_string));
    let _reporter = Reporter::start(network, about, globals.quiet);
    let _ready = Ready::tell("waiting for files");
    let ticket = by_ticket.then(|| network.ticket(None).to_string());
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
    let inbox = Inbox::new(args.dir.clone(), args.overwrite, board.clone());
    take(args, None, guests, inbox, board).await
}

/// Takes what is sent by whoever made the code.
async fn take_by_code(globals: &Globals, args: &Receive, code: &Code, network: &Network) -> Result<()> {
    let mut other = Acquaintance::join(network, code).await?;
    let access = Access::only(other.id(), network, globals.quiet);
    let mut guests = serving::listen(globals, network, None, true, access).await?;
    other.greeting(&[Purpose::File]).await?;
    let ticket = Some(bounded(network.ticket(None)));
    other.say(&Message::Greeting { purpose: Purpose::File, user: None, ticket }).await?;
    other.end().await;
    let _reporter = Reporter::start(network, About::new("receive", None), globals.quiet);
    let board = Board::new(globals.quiet);
    let inbox = Inbox::new(args.dir.clone(), args.overwrite, board.clone());
    let first = tokio::time::timeout(SENDER_LIMIT, guests.accept()).await.ok().flatten();
    let first = first.context("the sender did not come; start again on both sides")?;
    take(args, Some(first), guests, inbox, board).await
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
        let Some((peer, result)) = done.recv().await else { break Ok(()) };
        match result {
            Ok(received) => {
                if let Err(error) = announce(args, &received, &board) {
                    break Err(error);
                }
                if once {
                    break Ok(());
                }
            }
            Err(Trouble::Here(error)) if once => break Err(error),
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

fn announce(args: &Receive, received: &Received, board: &Board) -> Result<()> {
    let Received { file, size, resumed_from, sha256 } = received;
    if args.json {
        return output::json(&json!({
            "file": file, "size": size, "received": size - resumed_from, "resumed_from": resumed_from,
            "sha256": sha256,
        }));
    }
    board.note(&format!("{} has arrived ({})", file.display(), output::bytes(*size)));
    Ok(())
}

type Results = mpsc::Sender<(String, Result<Received, Trouble>)>;

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
    while let Ok(stream) = connection.accept_stream().await {
        let (inbox, results, peer) = (inbox.clone(), results.clone(), peer.clone());
        tokio::spawn(async move {
            let result = receive(stream, &inbox).await;
            // The command may have ended meanwhile.
            let _ = results.send((peer, result)).await;
        });
    }
}
