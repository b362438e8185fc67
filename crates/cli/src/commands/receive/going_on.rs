//! What another device of the user was receiving goes on here: a file, or several that are sent together.

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
use crate::transfer::together::Together;
use crate::transfer::underway::{Halted, SoFar, Underway};
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
    let under_way = under_way.into_iter().map(Halted::from).collect();
    match until_done((connection, under_way), (inbox, sessions), (json, &board)).await? {
        None => Ok(()),
        Some(why) => bail!("{name} from {peer} has not arrived, and what has is kept: {why}"),
    }
}

/// Fetches what has arrived of several files at another device into a directory, takes their connection, and
/// goes on until all are whole or have gone to the next device.
///
/// # Errors
/// As [`go_on`].
pub(crate) async fn go_on_together(
    globals: &Globals,
    network: &Network,
    (mut giver, told): (Giver, Together),
    (directory, json): (&Path, bool),
) -> Result<()> {
    let board = Board::new(globals.quiet);
    let (files, peer) = (told.entries(), plain(&told.peer, LONGEST));
    let sessions = Sessions::default();
    // What can fail here does before the files are asked to come.
    let _reporter = Reporter::start(network, About::new(COMMAND, None).moving(&sessions), globals.quiet)?;
    let limits = Limits { file: told.most, total: u64::MAX };
    let consent = Consent::BegunTogether(told.announced());
    let opened = Inbox::open(directory, false, limits, consent, network.known.clone(), board.clone());
    let opened = opened.and_then(|inbox| Ok((inbox.keep_together(&told)?, Arc::new(inbox))));
    let (mut kept, inbox) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            giver.refuse(&failure::line(&error)).await;
            return Err(error.context("the files stay at the other device"));
        }
    };
    giver.fetch(told.length, &mut |bytes: &[u8]| kept.take(bytes)).await?;
    let connection = giver.accept(network).await.context("what was fetched of the files is removed")?;
    output::note(
        globals.quiet,
        format!("{files} files from {peer} go on here; those that have arrived by themselves stay there"),
    );
    for aside in kept.aside() {
        let text = format!("what another transfer had left is in {} now", aside.display());
        output::note(globals.quiet, text);
    }
    let under_way = inbox.go_on_together((told, kept), &connection).await?;
    match until_done((connection, under_way), (inbox, sessions), (json, &board)).await? {
        None => Ok(()),
        Some(why) => bail!("not all files from {peer} have arrived, and what has is kept: {why}"),
    }
}

/// Takes what comes on a connection until what it is for is here, or goes on elsewhere. Returns why neither
/// is so if the connection ends before.
async fn until_done(
    (connection, under_way): (Connection, Vec<Halted>),
    (inbox, sessions): (Arc<Inbox>, Sessions),
    (json, board): (bool, &Board),
) -> Result<Option<String>> {
    // Nothing halts everything.
    let halter = Halter::new();
    let (taker, mut news) = Taker::new(inbox, halter.tie(), sessions);
    taker.serve(connection, under_way);
    drop(taker);
    let mut why = "its sender is gone".to_owned();
    while let Some(news) = news.recv().await {
        if let Some(trouble) = trouble(&news) {
            why = trouble;
        }
        let is_last = is_last(&news);
        super::told(json, news, false, board)?;
        if is_last {
            return Ok(None);
        }
    }
    Ok(Some(why))
}

/// Whether the file is here, or all are, or it goes on elsewhere. What else its sender tries ends nothing.
fn is_last(news: &News) -> bool {
    matches!(news, News::Moved { .. } | News::Ended(_, Outcome { part: false, result: Ok(_), .. }))
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
    giver.fetch(so_far.at(), &mut |bytes: &[u8]| kept.write(bytes)).await?;
    let connection = giver.accept(network).await.context("what was fetched of the file is removed")?;
    kept.stays();
    Ok((connection, Arc::new(inbox)))
}
