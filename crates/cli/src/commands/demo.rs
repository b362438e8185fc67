//! `whimbrel demo`: shows on this machine, in under a minute, what the others promise.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use tokio::sync::watch;

use crate::demo::Outcome;
use crate::demo::client::{Kind, Seen, download};
use crate::demo::events::{EVENTS, happen};
use crate::demo::links::{Links, links};
use crate::demo::reach::{Reach, reach};
use crate::demo::stage::{FILE, Stage};
use crate::options::{Globals, after};
use crate::output;
use crate::progress::{Board, Progress};
use crate::shutdown::Shutdown;

/// About how long the download takes, without the events.
const SECONDS: u64 = 16;
/// The part with two links has a shorter one.
const LINKS_SHARE: u64 = 4;

/// Show a download that survives moves of either side, on this machine
///
/// Starts a name service, a web server behind `expose`, and a `forward`, as processes with addresses
/// in 127.0.0.0/8. An ordinary HTTP client downloads a file through them, while the client moves, the
/// server moves, both move at once, and the client disappears for five seconds. Then a client with two
/// links uses both, while one is taken away and brought back. Then a server that nobody can dial is reached
/// through a relay, directly while its router lets that in, and through the relay again. Needs no rights, and
/// leaves nothing behind. Fails if a byte differs or an event does not recover.
#[derive(Args)]
#[command(after_help = after("Examples:\n  whimbrel demo\n  whimbrel demo --size 64 --json"))]
pub(crate) struct Demo {
    /// Size of the file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65536))]
    size: u64,
    /// Print a JSON object on the last line
    #[arg(long)]
    json: bool,
}

struct Finished {
    client: Kind,
    outcomes: Vec<Outcome>,
    seconds: f64,
    /// None if the download did not end.
    sha256: Option<String>,
    expected: String,
    requests: u64,
    connections: usize,
    /// The part with two links.
    links: Option<Links>,
    /// The part with a relay.
    reach: Option<Reach>,
}

impl Finished {
    fn is_equal(&self) -> bool {
        self.sha256.as_ref() == Some(&self.expected)
    }

    fn is_good(&self) -> bool {
        self.is_equal()
            && self.outcomes.iter().all(|outcome| outcome.recovery_ms.is_some())
            && self.links.as_ref().is_some_and(|links| links.equal)
            && self.reach.as_ref().is_some_and(|reach| reach.equal)
    }
}

pub(crate) async fn run(globals: &Globals, args: Demo) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let finished = tokio::select! {
        result = perform(globals, &args) => result?,
        request = shutdown.requested() => return Err(request.error()),
    };
    if args.json {
        output::json(&json!({
            "client": finished.client.name(), "size": args.size << 20, "seconds": finished.seconds,
            "events": finished.outcomes, "sha256": finished.sha256, "expected_sha256": finished.expected,
            "requests": finished.requests, "connections": finished.connections, "links": finished.links,
            "reach": finished.reach, "ok": finished.is_good(),
        }))?;
    } else {
        output::line(table(&args, &finished))?;
    }
    if let Some(outcome) = finished.outcomes.iter().find(|outcome| outcome.recovery_ms.is_none()) {
        bail!("the download did not go on: {}", outcome.event);
    }
    if !finished.is_equal() {
        bail!("the file arrived with other bytes: its SHA-256 differs");
    }
    if !finished.is_good() {
        let how = if finished.links.as_ref().is_some_and(|links| links.equal) {
            "through a relay and past it"
        } else {
            "over two links"
        };
        bail!("the file arrived {how} with other bytes: its SHA-256 differs");
    }
    Ok(())
}

async fn perform(globals: &Globals, args: &Demo) -> Result<Finished> {
    let size = args.size << 20;
    let board = Board::new(globals.quiet);
    board.note(&format!("making a file of {} MiB, starting name service, expose, forward", args.size));
    let mut stage = Stage::set(size, size / SECONDS).await?;
    let finished = play(&mut stage, size, &board).await;
    let requests = stage.requests();
    stage.strike().await?;
    let finished = finished?;
    if !finished.is_equal() {
        return Ok(Finished { requests, ..finished });
    }
    board.note("the same with two links at once, of which one is taken away and brought back");
    let links = Some(links(size / LINKS_SHARE, SECONDS / LINKS_SHARE).await?);
    board.note(
        "the same through a relay, past it while the server's router allows that, and through it again",
    );
    let reach = Some(reach().await?);
    Ok(Finished { requests, links, reach, ..finished })
}

/// The download, and the events in it. Whichever fails first ends it, and so does an event that does
/// not recover.
async fn play(stage: &mut Stage, size: u64, board: &Board) -> Result<Finished> {
    let client = Kind::choose().await;
    let start = Instant::now();
    let (sender, mut seen) = watch::channel(Seen { bytes: 0, at: start });
    board.note(&format!("{} downloads it from http://{}/{FILE}", client.name(), stage.port));
    let expected = stage.sha256.clone();
    let downloading = download(client, stage.port, FILE, sender);
    let showing = show(board.file("download", size, 0), seen.clone());
    let events = through_events(stage, &mut seen, size, board);
    tokio::pin!(downloading, events, showing);
    let mut happened = None;
    let mut sha256 = None;
    while happened.is_none() || sha256.is_none() {
        tokio::select! {
            result = &mut downloading, if sha256.is_none() => sha256 = Some(result?.1),
            result = &mut events, if happened.is_none() => {
                let (outcomes, connections) = result?;
                let lost = outcomes.iter().any(|outcome| outcome.recovery_ms.is_none());
                happened = Some((outcomes, connections));
                if lost {
                    break;
                }
            }
            () = &mut showing => {}
        }
    }
    let (outcomes, connections) = happened.unwrap_or_default();
    let seconds = start.elapsed().as_secs_f64();
    Ok(Finished {
        client,
        outcomes,
        seconds,
        sha256,
        expected,
        requests: 0,
        connections,
        links: None,
        reach: None,
    })
}

/// All events; ends with one that does not recover. Also tells how many connections there were.
async fn through_events(
    stage: &mut Stage,
    seen: &mut watch::Receiver<Seen>,
    size: u64,
    board: &Board,
) -> Result<(Vec<Outcome>, usize)> {
    let (mut outcomes, mut connections) = (Vec::new(), BTreeSet::new());
    for event in &EVENTS {
        let outcome = happen(event, stage, seen, size).await?;
        board.note(&describe(&outcome));
        let lost = outcome.recovery_ms.is_none();
        outcomes.push(outcome);
        connections.extend(stage.count().await?.connection);
        if lost {
            break;
        }
    }
    Ok((outcomes, connections.len()))
}

/// Shows the download's progress for as long as it runs.
async fn show(mut progress: Progress, mut seen: watch::Receiver<Seen>) {
    while seen.changed().await.is_ok() {
        let bytes = seen.borrow_and_update().bytes;
        progress.at(bytes);
    }
    drop(progress);
    std::future::pending().await
}

fn describe(outcome: &Outcome) -> String {
    match outcome.recovery_ms {
        Some(took) => format!("{}: new bytes after {took:.1} ms", outcome.event),
        None => format!("{}: no new bytes", outcome.event),
    }
}

fn table_of_links(links: &Links) -> String {
    let [one, other] = links.shares.map(output::bytes);
    let pause = format!("{:.1} ms", links.pause_ms);
    let back = format!("{:.1} ms", links.back_ms);
    format!(
        "one of two links is gone {pause:>31}\nit is there again {back:>23}\n\n\
         two links at once brought {one} and {other} of the first third\n"
    )
}

fn table_of_reach(reach: &Reach) -> String {
    let direct = format!("{:.1} ms", reach.direct_ms);
    let pause = format!("{:.1} ms", reach.pause_ms);
    let [relayed, directly, back] =
        [reach.relayed_bytes, reach.direct_bytes, reach.back_bytes].map(output::bytes);
    format!(
        "\nrelayed, then direct after {direct:>14}\nthe direct way is gone {pause:>33}\n\n\
         the relay brought {relayed}, the direct path {directly}, then the relay {back} and the rest\n"
    )
}

fn table(args: &Demo, finished: &Finished) -> String {
    let mut text =
        format!("\n{:<28} {:>12} {:>14} {:>14}\n", "event", "recovery", "client waited", "sent again");
    for outcome in &finished.outcomes {
        let time = |value: Option<f64>| value.map_or("never".to_owned(), |value| format!("{value:.1} ms"));
        text += &format!(
            "{:<28} {:>12} {:>14} {:>14}\n",
            outcome.event,
            time(outcome.recovery_ms),
            time(outcome.silence_ms),
            output::bytes(outcome.bytes_resent),
        );
    }
    if let Some(links) = &finished.links {
        text += &table_of_links(links);
    }
    if let Some(reach) = &finished.reach {
        text += &table_of_reach(reach);
    }
    text +=
        "\nrecovery: from the moment the new address is usable to the first new byte at the HTTP client\n";
    let same = if finished.is_equal() { "SHA-256 equal" } else { "SHA-256 NOT EQUAL" };
    text += &format!(
        "{} MiB in {:.1} s by {}, {} request, {} whimbrel connection; {same}",
        args.size,
        finished.seconds,
        finished.client.name(),
        finished.requests,
        finished.connections,
    );
    text
}
