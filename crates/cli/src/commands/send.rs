//! `whimbrel send`: a file to a peer.

mod going_on;
mod one;
mod several;

pub(crate) use self::going_on::{go_on, go_on_together};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde_json::{Value, json};
use whimbrel_transport::Stream;

use crate::failure::{self, Failure};
use crate::lasting::Lasting;
use crate::meeting::{self, Acquaintance, Message, Purpose};
use crate::moving::Sessions;
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish};
use crate::options::{Globals, after};
use crate::progress::Board;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::steering::SteeringFlags;
use crate::transfer::outbox::Outbox;
use crate::transfer::pace::Pace;
use crate::transfer::sending::{Outgoing, begin};
use crate::transfer::tree::Tree;
use crate::transfer::{self, Trouble};
use crate::{identity, output};

use self::one::{Fate, Way, carry};

const COMMAND: &str = "send";
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Send files and directories to a peer that runs `whimbrel receive`
///
/// Each arrives whole or not at all: its SHA-256 is compared. If either side moves, goes away or dies,
/// the transfer goes on where it was when both are back; if this command died, start it again. Of a
/// directory, symbolic links, special files and names that a receiver refuses are left out, and told.
/// What is left can go on at another device of yours: `whimbrel sessions` and `whimbrel handoff`.
/// Without --to, a code of three words is printed, for `whimbrel receive CODE` on the other machine.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel send holiday.tar                  (prints a code; there: whimbrel receive CODE)
  whimbrel send holiday.tar photos --to inbox.laptop.bob@example.org
  tar c . | whimbrel send - --as all.tar --to inbox.laptop.bob@example.org"))]
pub(crate) struct Send {
    /// Files and directories, or `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What the only file is to be called there
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// The receiver: a name, an id, or a ticket of `whimbrel receive`; without it, a code is printed
    #[arg(long, value_name = "NAME|TICKET")]
    to: Option<Peer>,
    /// Send at most so many MiB a second
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    paths: PathFlags,
    #[command(flatten)]
    steering: SteeringFlags,
    /// Print a JSON object when it has arrived
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Send) -> Result<()> {
    let what = What::of(&args)?;
    if let What::Tree(tree) = &what {
        for skipped in &tree.skipped {
            output::note(globals.quiet, format!("left out: {skipped}"));
        }
    }
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let wish = Wish { config: args.paths.config(), steered: args.steering.steered()?, ..Wish::default() };
    let network = Arc::new(Network::start(globals, identity::of_user(globals)?.key, wish).await?);
    let start = Instant::now();
    let result = tokio::select! {
        result = find_and_send(globals, &args, &what, &network) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    let (to, sent) = match result? {
        (to, Fate::Arrived(sent)) => (to, sent),
        (_, Fate::Moved(to)) => return moved(globals.quiet, args.json.then(|| what.told(&args)), &to),
    };
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let mut report = json!({
            "to": to.to_string(), "size": sent.size, "sent": sent.size - sent.resumed_from,
            "resumed_from": sent.resumed_from, "carried": sent.carried, "seconds": seconds,
        });
        match &what {
            What::Tree(tree) if tree.one_file().is_none() => {
                report["files"] = tree.entries.iter().filter(|entry| !entry.directory).count().into();
                report["left_out"] = tree.skipped.clone().into();
            }
            _ => {
                report["file"] = json!(args.files[0]);
                report["sha256"] = sent.sha256.into();
            }
        }
        return output::json(&report);
    }
    if globals.quiet {
        return Ok(());
    }
    let before = match sent.resumed_from {
        0 => String::new(),
        bytes => format!(", of which {} were there before", output::bytes(bytes)),
    };
    let (name, have) = (what.name(), if what.is_one() { "has" } else { "have" });
    output::line(format!("{name} {have} arrived: {} in {seconds:.1} s{before}", output::bytes(sent.size)))
}

/// Says that something goes on at another device; as JSON if this is what is told of it.
fn moved(quiet: bool, told: Option<Value>, to: &str) -> Result<()> {
    match told {
        Some(mut told) => {
            told["moved_to"] = json!(to);
            output::json(&told)
        }
        None => {
            output::note(quiet, format!("went on at {to}"));
            Ok(())
        }
    }
}

/// What is sent.
enum What {
    Tree(Tree),
    /// Standard input, under this name.
    Input(String),
}

impl What {
    fn of(args: &Send) -> Result<Self> {
        let input = args.files.iter().any(|file| file.as_os_str() == "-");
        match (&args.name, input) {
            (Some(_), _) if args.files.len() > 1 => {
                Err(Failure::usage("--as names one file; send the others without it"))
            }
            (_, true) if args.files.len() > 1 => {
                Err(Failure::usage("standard input is sent by itself; send the files without it"))
            }
            (None, true) => Err(Failure::usage("standard input has no name; give it one with --as NAME")),
            (Some(name), true) => {
                transfer::check_name(name)?;
                Ok(Self::Input(name.clone()))
            }
            (name, false) => Ok(Self::Tree(Tree::of(&args.files, name.as_deref())?)),
        }
    }

    /// What is told of it when it goes on elsewhere.
    fn told(&self, args: &Send) -> Value {
        match self {
            Self::Tree(tree) if tree.one_file().is_none() => json!({ "files": tree.entries.len() }),
            _ => json!({ "file": args.files[0] }),
        }
    }

    fn is_one(&self) -> bool {
        !matches!(self, Self::Tree(tree) if tree.roots.len() > 1)
    }

    fn name(&self) -> String {
        match self {
            Self::Input(name) => name.clone(),
            Self::Tree(tree) => match &tree.roots[..] {
                [name] => name.clone(),
                roots => format!("{} files and directories", roots.len()),
            },
        }
    }

    async fn send(&self, lasting: &Lasting, id: u64, way: &Way<'_>) -> Result<Fate, Trouble> {
        let lost = |error: anyhow::Error| Trouble::Lost(std::io::Error::other(error));
        let stream = lasting.stream().await.map_err(|error| match failure::code(&error) {
            Failure::REFUSED | Failure::USAGE => Trouble::Here(error),
            _ => lost(error),
        })?;
        let tree = match self {
            Self::Input(name) => {
                // What was read of it is gone.
                let sent = send_one(stream, &Outgoing::Input(name.clone()), way).await;
                return sent.map_err(|trouble| match trouble {
                    Trouble::Lost(error) => Trouble::Here(anyhow::Error::new(error).context(
                        "the connection was lost, and standard input cannot be sent again; start again",
                    )),
                    other => other,
                });
            }
            Self::Tree(tree) => tree,
        };
        match tree.one_file() {
            Some(entry) => send_one(stream, &Outgoing::File(entry.clone()), way).await,
            None => {
                let outbox = Outbox::begin(stream, id, tree).await?;
                several::carry(outbox, way).await
            }
        }
    }
}

async fn send_one(stream: Stream, file: &Outgoing, way: &Way<'_>) -> Result<Fate, Trouble> {
    carry(begin(stream, file).await?, way).await
}

async fn find_and_send(
    globals: &Globals,
    args: &Send,
    what: &What,
    network: &Arc<Network>,
) -> Result<(Peer, Fate)> {
    let to = match &args.to {
        Some(to) => to.clone(),
        None => meet(globals, args.json, network).await?,
    };
    let fate = until_sent(globals, args, what, network, &to).await?;
    Ok((to, fate))
}

/// Waits for a receiver who knows the code.
async fn meet(globals: &Globals, as_json: bool, network: &Network) -> Result<Peer> {
    let mut other = Acquaintance::wait(network, |code| {
        if as_json {
            return output::json(&json!({ "code": code.to_string() }));
        }
        meeting::show(globals.quiet, "receive", code)
    })
    .await?;
    other.say(&Message::Greeting { purpose: Purpose::File, user: None, ticket: None }).await?;
    let greeting = other.greeting(&[Purpose::File]).await?;
    let ticket = greeting.ticket.filter(|ticket| ticket.id() == other.id());
    let ticket = ticket.context("the other side does not say where it is; update the older program")?;
    other.end().await;
    Ok(Peer::Ticket(ticket))
}

async fn until_sent(
    globals: &Globals,
    args: &Send,
    what: &What,
    network: &Arc<Network>,
    to: &Peer,
) -> Result<Fate> {
    let (sessions, peer) = (Sessions::default(), to.to_string());
    let about = About::new(COMMAND, Some(peer.clone())).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let lasting = Lasting::new(network.clone(), to.clone());
    // Waits for a receiver only if it was reachable before.
    lasting.connection().await?;
    let board = Board::new(globals.quiet);
    let pace = Pace::new(args.limit.map(|limit| u64::from(limit) << 20));
    let way = Way { sessions: &sessions, peer: &peer, pace: &pace, board: &board };
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|error| anyhow!("the system gives no random numbers: {error}"))?;
    let id = u64::from_be_bytes(id);
    let mut pause = FIRST_PAUSE;
    loop {
        let begun = Instant::now();
        let problem = match what.send(&lasting, id, &way).await {
            Ok(fate) => return Ok(fate),
            Err(Trouble::Refused(reason)) => {
                return Err(anyhow!("{to} does not take {}: {reason}", what.name()));
            }
            Err(Trouble::Here(error)) => return Err(error),
            Err(Trouble::Lost(error)) => error.into(),
        };
        board.note(&format!("waiting for {to}: {}", failure::line(&problem)));
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
