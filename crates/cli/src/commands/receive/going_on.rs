//! A file goes on here that another device of the user was receiving.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use whimbrel_transport::Connection;

use super::COMMAND;
use super::taker::{News, Taker, break_off};
use crate::failure;
use crate::halt::Halter;
use crate::moving::{Arriving, Giver, Sessions};
use crate::network::Network;
use crate::options::Globals;
use crate::output;
use crate::plain::plain;
use crate::progress::Board;
use crate::status::{About, Reporter};
use crate::transfer::receiving::Outcome;
use crate::transfer::source::{self, Source};
use crate::transfer::underway::{SoFar, Underway};
use crate::transfer::{Consent, Inbox, Limits, Trouble};

/// Characters of a peer's name that another device tells.
const LONGEST: usize = 200;

/// Fetches what has arrived of a file at another device into a directory, takes its connection, and goes on until the
/// file is whole or has gone to the next device.
///
/// # Errors
/// When the file may not come here, is not given, or breaks.
pub(crate) async fn go_on(
    globals: &Globals,
    network: &Network,
    (giver, file): (Giver, Arriving),
    (directory, json): (&Path, bool),
) -> Result<()> {
    let Arriving { name, size, before, at, chunks, most, .. } = file.clone();
    let so_far = SoFar::of(name.clone(), size, (before, at), chunks);
    let board = Board::new(globals.quiet);
    let opening = || {
        // The word of the user's own device: what it fetches and what the sender begins anew is one file.
        let limits = Limits { file: most, total: u64::MAX };
        let consent = Consent::Begun(name.clone());
        Inbox::open(directory, false, limits, consent, network.known.clone(), board.clone())
    };
    let sessions = Sessions::default();
    // What can fail here does before the file is asked to come.
    let _reporter = Reporter::start(network, About::new(COMMAND, None).moving(&sessions), globals.quiet)?;
    let (connection, inbox) = fetch(network, giver, (opening, &so_far, file.waiting.len())).await?;
    let peer = plain(&file.peer, LONGEST);
    output::note(globals.quiet, format!("{name} from {peer} goes on here, from byte {at}"));
    let mut streams = connection.streams();
    let found = streams.iter().position(|stream| stream.id() == file.stream);
    let under_way = found.map(|found| {
        let (read, write) = streams.swap_remove(found).into_split();
        Underway { read: Source::going_on(read, file.waiting), write, so_far }
    });
    // Without it the sender begins anew, on another one.
    streams.iter().for_each(break_off);
    // Nothing halts everything.
    let halter = Halter::new();
    let (taker, mut news) = Taker::new(inbox, halter.tie(), sessions);
    taker.serve(connection, under_way.into_iter().collect());
    drop(taker);
    let mut why = "its sender is gone".to_owned();
    while let Some(news) = news.recv().await {
        if let Some(trouble) = trouble(&news) {
            why = trouble;
        }
        let is_last = is_last(&news);
        super::told(json, news, false, &board)?;
        if is_last {
            return Ok(());
        }
    }
    bail!("{name} from {peer} has not arrived, and what has is kept: {why}")
}

/// Whether the file is here, or goes on elsewhere. What else its sender tries ends nothing.
fn is_last(news: &News) -> bool {
    matches!(news, News::Moved { .. } | News::Ended(_, Outcome { result: Ok(_), .. }))
}

/// What kept something from arriving.
fn trouble(news: &News) -> Option<String> {
    match news {
        News::Ended(_, Outcome { result: Err(Trouble::Here(error)), .. }) => Some(failure::line(error)),
        News::Lost { why, .. } => Some(why.clone()),
        _ => None,
    }
}

/// Has what is there of the file in the directory, and the connection here.
async fn fetch(
    network: &Network,
    mut giver: Giver,
    (open, so_far, waiting): (impl FnOnce() -> Result<Inbox>, &SoFar, usize),
) -> Result<(Connection, Arc<Inbox>)> {
    let opened = open().and_then(|inbox| {
        if waiting > source::MOST {
            bail!("the other device sends more than a file has under way");
        }
        let kept = inbox.keep_for(so_far)?;
        Ok((inbox, kept))
    });
    let (inbox, mut kept) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            giver.refuse(&failure::line(&error)).await;
            return Err(error.context("the file stays at the other device"));
        }
    };
    giver.fetch(so_far.at(), |bytes| kept.write(bytes)).await?;
    let connection = giver.accept(network).await.context("what was fetched of the file is removed")?;
    kept.stays();
    Ok((connection, Arc::new(inbox)))
}
