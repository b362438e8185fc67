//! What another device of the user was sending goes on from here: a file, or several together.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::json;
use whimbrel_transport::Connection;

use super::one::{Fate, Way, carry};
use super::{COMMAND, moved, several};
use crate::failure;
use crate::moving::{Giver, Leaving, Sessions};
use crate::network::Network;
use crate::options::Globals;
use crate::output;
use crate::plain::plain;
use crate::progress::Board;
use crate::status::{About, Reporter};
use crate::transfer::Trouble;
use crate::transfer::outbox::{Kept, Outbox};
use crate::transfer::outflow::{MOST_WAITING, Outflow, SUM, Sent, Stopped};
use crate::transfer::pace::Pace;
use crate::transfer::spool::Spool;
use crate::transfer::together::Going;

/// Characters of what another device says.
const LONGEST: usize = 200;
/// Bytes that are taken of a file.
const MOST: u64 = 64 << 30;

/// Fetches what is left of a file at another device, takes its connection, and sends the rest, until the
/// receiver has it or it has gone to the next device.
///
/// # Errors
/// When what is left is not given, cannot be kept here, or is not taken by the receiver.
pub(crate) async fn go_on(
    globals: &Globals,
    network: &Network,
    (giver, file): (Giver, Leaving),
    json: bool,
) -> Result<()> {
    let [peer, name] = [&file.peer, &file.name].map(|text| plain(text, LONGEST));
    let sessions = Sessions::default();
    // What can fail here does before the file is asked to come.
    let about = About::new(COMMAND, Some(peer.clone())).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let (connection, fetched) = fetch(network, giver, &file).await?;
    output::note(globals.quiet, format!("{name} to {peer} goes on from here, from byte {}", file.at));
    let stream = connection.streams().into_iter().find(|stream| stream.id() == file.stream);
    let stream = stream.context("the connection came without its stream")?;
    let Leaving { before, at, left, chunks, carried, waiting, .. } = file;
    let stopped = Stopped { name: name.clone(), before, at, left, chunks, carried, waiting };
    let outflow = Outflow::going_on(stream, stopped, fetched.whole()?);
    let (pace, board, start) = (Pace::new(None), Board::new(globals.quiet), Instant::now());
    let way = Way { sessions: &sessions, peer: &peer, pace: &pace, board: &board };
    match carry(outflow, &way).await {
        Ok(Fate::Arrived(sent)) => tell(globals.quiet, json, (&name, &peer), (&sent, start)),
        Ok(Fate::Moved(to)) => moved(globals.quiet, json.then(|| json!({ "file": name })), &to),
        Err(Trouble::Refused(reason)) => bail!("{peer} does not take {name}: {reason}"),
        Err(Trouble::Here(error)) => Err(error),
        Err(Trouble::Lost(error)) => Err(anyhow::Error::new(error).context(format!(
            "lost {peer}, which keeps what has arrived; send {name} again from where it is"
        ))),
    }
}

/// Fetches what is left of several files at another device, takes their connection, and sends the rest, until
/// the receiver has all or they have gone to the next device.
///
/// # Errors
/// As [`go_on`].
pub(crate) async fn go_on_together(
    globals: &Globals,
    network: &Network,
    (mut giver, told): (Giver, Going),
    json: bool,
) -> Result<()> {
    let (peer, files) = (plain(&told.peer, LONGEST), told.entries());
    let sessions = Sessions::default();
    // What can fail here does before the files are asked to come.
    let about = About::new(COMMAND, Some(peer.clone())).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let mut kept = match Kept::begin(&told) {
        Ok(kept) => kept,
        Err(error) => {
            giver.refuse(&failure::line(&error)).await;
            return Err(error.context("the files stay at the other device"));
        }
    };
    giver.fetch(told.length, &mut |bytes: &[u8]| kept.keep(bytes)).await?;
    let connection = giver.accept(network).await?;
    output::note(globals.quiet, format!("what is left of {files} files to {peer} goes on from here"));
    let outbox = Outbox::going_on(told, kept, &connection)?;
    let (pace, board, start) = (Pace::new(None), Board::new(globals.quiet), Instant::now());
    let way = Way { sessions: &sessions, peer: &peer, pace: &pace, board: &board };
    match several::carry(outbox, &way).await {
        Ok(Fate::Arrived(sent)) => tell_all(globals.quiet, json, (files, &peer), (&sent, start)),
        Ok(Fate::Moved(to)) => moved(globals.quiet, json.then(|| json!({ "files": files })), &to),
        Err(Trouble::Refused(reason)) => bail!("{peer} does not take the files: {reason}"),
        Err(Trouble::Here(error)) => Err(error),
        Err(Trouble::Lost(error)) => Err(anyhow::Error::new(error).context(format!(
            "lost {peer}, which keeps what has arrived; send the files again from where they are"
        ))),
    }
}

fn tell_all(
    quiet: bool,
    json: bool,
    (files, peer): (u64, &str),
    (sent, start): (&Sent, Instant),
) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    if json {
        return output::json(&json!({
            "files": files, "to": peer, "size": sent.size,
            "sent": sent.size.saturating_sub(sent.resumed_from), "resumed_from": sent.resumed_from,
            "carried": sent.carried, "seconds": seconds,
        }));
    }
    if quiet {
        return Ok(());
    }
    output::line(format!(
        "{files} files have arrived: {}, the rest in {seconds:.1} s",
        output::bytes(sent.size)
    ))
}

fn tell(quiet: bool, json: bool, (name, peer): (&str, &str), (sent, start): (&Sent, Instant)) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    if json {
        return output::json(&json!({
            "file": name, "to": peer, "size": sent.size, "sent": sent.size - sent.resumed_from,
            "resumed_from": sent.resumed_from, "carried": sent.carried, "seconds": seconds,
            "sha256": sent.sha256,
        }));
    }
    if quiet {
        return Ok(());
    }
    output::line(format!("{name} has arrived: {}, the rest in {seconds:.1} s", output::bytes(sent.size)))
}

/// Has what is left of the file, and its connection, here.
async fn fetch(network: &Network, mut giver: Giver, file: &Leaving) -> Result<(Connection, Fetched)> {
    let mut fetched = match Fetched::begin(file) {
        Ok(fetched) => fetched,
        Err(error) => {
            giver.refuse(&failure::line(&error)).await;
            return Err(error.context("the file stays at the other device"));
        }
    };
    giver.fetch(file.left + SUM as u64, &mut |bytes: &[u8]| fetched.keep(bytes)).await?;
    let connection = giver.accept(network).await?;
    Ok((connection, fetched))
}

/// What was fetched of a file.
struct Fetched {
    spool: Spool,
    /// Bytes that are left of the file.
    left: u64,
    /// The SHA-256 of the whole, which comes behind these.
    sum: Vec<u8>,
}

impl Fetched {
    /// Nothing yet.
    ///
    /// # Errors
    /// When there cannot be such a file, or nothing can be kept.
    fn begin(file: &Leaving) -> Result<Self> {
        check(file)?;
        Ok(Self::of(Spool::new()?, file.left))
    }

    fn of(spool: Spool, left: u64) -> Self {
        Self { spool, left, sum: Vec::new() }
    }

    /// Keeps what comes. Blocks.
    fn keep(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = usize::try_from(self.left - self.spool.length()).unwrap_or(usize::MAX);
        let (film, sum) = bytes.split_at(missing.min(bytes.len()));
        self.spool.append(film)?;
        self.sum.extend_from_slice(sum);
        Ok(())
    }

    /// The bytes that are left, and the sum.
    fn whole(self) -> Result<(Spool, [u8; SUM])> {
        let sum: [u8; SUM] =
            self.sum.try_into().map_err(|_: Vec<u8>| anyhow!("the other device said no sum of the file"))?;
        Ok((self.spool, sum))
    }
}

fn check(file: &Leaving) -> Result<()> {
    if file.before > file.at || file.at.checked_add(file.left).is_none() || file.waiting.len() > MOST_WAITING
    {
        bail!("the other device says what no file can be; update the older program");
    }
    if file.left > MOST {
        bail!("more than {} GiB are left of it", MOST >> 30);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_comes_is_the_rest_of_the_file_and_then_its_sum_however_it_is_cut() {
        let (film, sum) = (b"the rest", [7u8; SUM]);
        let all = [&film[..], &sum].concat();
        for size in 1..=all.len() {
            let spool = Spool::of(tempfile::tempfile().unwrap());
            let mut fetched = Fetched::of(spool, film.len() as u64);
            all.chunks(size).for_each(|bytes| fetched.keep(bytes).unwrap());
            let (spool, found) = fetched.whole().unwrap();
            assert_eq!((spool.length(), found), (film.len() as u64, sum), "pieces of {size}");
        }
        let fetched = Fetched::of(Spool::of(tempfile::tempfile().unwrap()), 0);
        assert!(fetched.whole().is_err(), "nobody has said the sum");
    }

    fn leaving(before: u64, at: u64, left: u64, waiting: usize) -> Leaving {
        let [peer, name] = ["p", "f"].map(str::to_owned);
        let waiting = vec![0; waiting];
        Leaving { peer, stream: 1, name, before, at, left, chunks: true, carried: 0, waiting }
    }

    #[test]
    fn what_no_file_can_be_or_is_too_much_is_refused_before_a_byte_of_it_is_here() {
        check(&leaving(2, 2, MOST, MOST_WAITING)).unwrap();
        for (file, says) in [
            (leaving(3, 2, 1, 0), "no file can be"),
            (leaving(0, u64::MAX, 1, 0), "no file can be"),
            (leaving(0, 2, 1, MOST_WAITING + 1), "no file can be"),
            (leaving(0, 2, MOST + 1, 0), "64 GiB"),
        ] {
            let error = check(&file).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
