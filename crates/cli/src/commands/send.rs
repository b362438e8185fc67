//! `whimbrel send`: a file to a peer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use serde_json::json;

use crate::failure::{self, Failure};
use crate::lasting::Lasting;
use crate::meeting::{self, Acquaintance, Message, Purpose};
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish};
use crate::options::{Globals, after};
use crate::progress::Board;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::transfer::Trouble;
use crate::transfer::sending::{Outgoing, Sent, send};
use crate::{identity, output};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Send a file to a peer that runs `whimbrel receive`
///
/// The file arrives whole or not at all: its SHA-256 is compared. If either side moves, goes away or
/// dies, the transfer goes on where it was when both are back; if this command died, start it again.
/// Without --to, a code of three words is printed, for `whimbrel receive CODE` on the other machine.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel send holiday.tar                  (prints a code; there: whimbrel receive CODE)
  whimbrel send holiday.tar --to inbox.laptop.bob@example.org"))]
pub(crate) struct Send {
    /// The file
    file: PathBuf,
    /// The receiver: a name, or a ticket that `whimbrel receive` printed; without it, a code is printed
    #[arg(long, value_name = "NAME|TICKET")]
    to: Option<Peer>,
    /// Send at most so many MiB a second
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(flatten)]
    paths: PathFlags,
    /// Print a JSON object when it has arrived
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Send) -> Result<()> {
    let name = check(&args.file)?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let wish = Wish { config: args.paths.config(), ..Wish::default() };
    let network = Arc::new(Network::start(globals, identity::of_user(globals)?.key, wish).await?);
    let start = Instant::now();
    let result = tokio::select! {
        result = find_and_send(globals, &args, &name, &network) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    let (to, sent) = result?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        return output::json(&json!({
            "file": args.file, "to": to.to_string(), "size": sent.size,
            "sent": sent.size - sent.resumed_from, "resumed_from": sent.resumed_from,
            "sha256": sent.sha256, "seconds": seconds,
        }));
    }
    if globals.quiet {
        return Ok(());
    }
    let before = match sent.resumed_from {
        0 => String::new(),
        bytes => format!(", of which {} were there before", output::bytes(bytes)),
    };
    output::line(format!("{name} has arrived: {} in {seconds:.1} s{before}", output::bytes(sent.size)))
}

/// The name that the file is sent under.
fn check(file: &std::path::Path) -> Result<String> {
    let metadata = std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    if !metadata.is_file() {
        bail!("{} is not a file; pack a directory with tar first", file.display());
    }
    let name = file.file_name().and_then(|name| name.to_str());
    Ok(name
        .with_context(|| format!("{} has no name that every machine can read", file.display()))?
        .to_owned())
}

async fn find_and_send(
    globals: &Globals,
    args: &Send,
    name: &str,
    network: &Arc<Network>,
) -> Result<(Peer, Sent)> {
    let to = match &args.to {
        Some(to) => to.clone(),
        None => meet(globals, args.json, network).await?,
    };
    let sent = until_sent(globals, args, name, network, &to).await?;
    Ok((to, sent))
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
    name: &str,
    network: &Arc<Network>,
    to: &Peer,
) -> Result<Sent> {
    let about = About::new("send", Some(to.to_string()));
    let _reporter = Reporter::start(network, about, globals.quiet);
    let lasting = Lasting::new(network.clone(), to.clone());
    // Who never was there is not waited for; who was there once is.
    lasting.connection().await?;
    let board = Board::new(globals.quiet);
    let rate = args.limit.map(|limit| u64::from(limit) << 20);
    let file = Outgoing { path: args.file.clone(), name: name.to_owned(), rate };
    let mut pause = FIRST_PAUSE;
    loop {
        let problem = match lasting.stream().await {
            Ok(stream) => match send(stream, &file, &board).await {
                Ok(sent) => return Ok(sent),
                Err(Trouble::Refused(reason)) => {
                    return Err(anyhow!("{to} does not take {name}: {reason}"));
                }
                Err(Trouble::Here(error)) => return Err(error),
                Err(Trouble::Lost(error)) => {
                    pause = FIRST_PAUSE;
                    error.into()
                }
            },
            Err(error) if [Failure::REFUSED, Failure::USAGE].contains(&failure::code(&error)) => {
                return Err(error);
            }
            Err(error) => error,
        };
        board.note(&format!("waiting for {to}: {}", failure::line(&problem)));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
