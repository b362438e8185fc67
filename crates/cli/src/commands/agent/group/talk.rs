//! One connection between two agents. Both may begin a heartbeat: who called in each period, and each of them
//! when its group has changed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_devices::{Met, SyncError};
use whimbrel_transport::{Allow, CloseCode, ClosedBy, Connection, Stream};

use super::away::State;
use super::listing::LIST;
use super::policy::Told;
use super::pulse::{BEAT, MEET, Pulse, WORD_LIMIT};
use super::watching::Known;
use super::{Shared, asking, chance, listing, policy};
use crate::failure;

/// How long a meeting may take in all: what came until then is kept, and the next one goes on.
const MEETING_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Between two answers on one connection.
const GAP: Duration = Duration::from_millis(100);
/// The same after a meeting that came to nothing: less than the peer waits for the answer to a heartbeat.
const IN_VAIN: Duration = Duration::from_secs(1);
/// How long a connection that does not work any more may take to say why.
const WHY: Duration = Duration::from_secs(1);
/// The peer hears that it is told nothing.
const STRANGER: CloseCode = CloseCode::application(5);

/// What happened on a connection so far.
#[derive(Default)]
struct Course {
    /// The peer has answered a heartbeat.
    answered: AtomicBool,
    /// It said something, and may be asked.
    heard: Notify,
    /// It was asked for a friend's devices, and has not answered.
    is_asked: AtomicBool,
}

/// Talks until the connection is over, or the peer is no member and no friend any more. Returns whether it
/// answered.
pub(super) async fn run(shared: &Shared, connection: &Connection, calls: bool) -> bool {
    // What is told is for this key alone.
    connection.allow_hand_over(Allow::Nobody);
    let talk = Talk::begin(shared, connection.peer_id());
    let course = Course::default();
    let ended = tokio::select! {
        ended = beat(shared, connection, calls, &course) => ended,
        ended = answer(shared, connection, &course) => ended,
        ended = asking::follow(shared, connection, &course.heard, &course.is_asked) => ended,
        reason = connection.closed() => Err(anyhow!("{reason}")),
    };
    let Err(error) = ended;
    let peer = connection.peer_id();
    tracing::debug!(%peer, error = failure::line(&error), "a connection with a device is over");
    // Streams of a connection that the peer has ended may fail a moment before it is known why.
    if shared.told(&shared.known(), peer).is_some() {
        let _ = tokio::time::timeout(WHY, connection.closed()).await;
    }
    // An agent that is stopped ends its connections, and streams fail at that moment too. One that loses its
    // network or just does not answer is known until what it said goes stale.
    let (is_last, is_over) = (talk.end(), connection.close_reason().is_some());
    if (is_last && is_over) || shared.told(&shared.known(), peer).is_none() {
        shared.hear(peer, None);
    }
    if !is_over {
        connection.abort(STRANGER, "there is nothing to say");
    } else if is_told_nothing(connection) {
        let now = Instant::now();
        shared.shown().forget_from(peer);
        if course.is_asked.load(Ordering::Relaxed) {
            shared.older().ended(peer, now);
        }
    }
    course.answered.load(Ordering::Relaxed)
}

/// Whether the peer has ended the connection because it tells this device nothing, or did not understand it.
fn is_told_nothing(connection: &Connection) -> bool {
    connection.close_reason().is_some_and(|reason| reason.by == ClosedBy::Peer && reason.code == STRANGER)
}

/// One of the connections with a device: each calls the other, and there may be agents beside this one.
struct Talk<'a> {
    shared: &'a Shared,
    peer: EndpointId,
}

impl<'a> Talk<'a> {
    fn begin(shared: &'a Shared, peer: EndpointId) -> Self {
        *shared.talks().entry(peer).or_default() += 1;
        Self { shared, peer }
    }

    /// Ends it. Whether it was the last one.
    fn end(self) -> bool {
        let (shared, peer) = (self.shared, self.peer);
        drop(self);
        !shared.talks().contains_key(&peer)
    }
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        let mut talks = self.shared.talks();
        let left = talks.get(&self.peer).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            talks.remove(&self.peer);
        } else {
            talks.insert(self.peer, left);
        }
    }
}

/// Says which version this device has, and fetches what it lacks.
async fn beat(shared: &Shared, connection: &Connection, calls: bool, course: &Course) -> Result<Infallible> {
    let (mut changes, mut states) = (shared.known.clone(), shared.state.clone());
    let (peer, mut in_vain) = (connection.peer_id(), None);
    if !calls {
        // How it is now the caller hears when it asks.
        states.mark_unchanged();
        let tells = shared.told(&shared.known(), peer).is_some_and(|told| told.presence);
        news(&mut changes, &mut states, tells).await?;
    }
    loop {
        states.mark_unchanged();
        let known = changes.borrow_and_update().clone();
        // One that knows nothing yet has nothing to keep for itself.
        let told = match shared.told(&known, peer) {
            None if calls && known.is_new => Told::GROUP,
            told => told.context("it is no device and no friend")?,
        };
        let theirs = shared.pulse(&known, told).ask(connection).await?;
        course.answered.store(true, Ordering::Relaxed);
        shared.hear(peer, theirs.presence);
        course.heard.notify_one();
        if let Some(theirs) = theirs.version.filter(|_| told.group)
            && policy::should_meet(known.digest, theirs, in_vain)
        {
            match meet(shared, connection).await {
                Ok(Some(met)) => in_vain = (!met.agree).then_some((known.digest, theirs)),
                // Many are being met: at the next heartbeat.
                Ok(None) => {}
                // So is one that is busy or cannot: what else is said on the connection goes on.
                Err(error) => {
                    tracing::debug!(%peer, error = failure::line(&error), "could not meet a device")
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(policy::pause(chance())), if calls => {}
            changed = news(&mut changes, &mut states, told.presence) => {
                changed?;
                tokio::time::sleep(policy::soon(chance())).await;
            }
        }
    }
}

/// Waits until there is something else to say than before; whether the user is here only to who is told that.
async fn news(
    changes: &mut watch::Receiver<Arc<Known>>,
    states: &mut watch::Receiver<State>,
    tells: bool,
) -> Result<()> {
    tokio::select! {
        changed = changes.changed() => changed?,
        changed = states.changed(), if tells => changed?,
    }
    Ok(())
}

/// Brings both up to date. `None` if the device is being met already, or many are.
async fn meet(shared: &Shared, connection: &Connection) -> Result<Option<Met>> {
    let peer = connection.peer_id();
    let Some(_place) = shared.met.begin(peer) else { return Ok(None) };
    let meeting = async {
        let mut stream = connection.open_stream().await?;
        stream.write_all(MEET).await?;
        anyhow::Ok(whimbrel_devices::call(shared.replica.clone(), peer, stream).await?)
    };
    let met = tokio::time::timeout(MEETING_LIMIT, meeting).await??;
    tracing::info!(%peer, entries = met.entries, agree = met.agree, "met a device");
    Ok(Some(met))
}

/// Answers what the peer begins, one after the other.
async fn answer(shared: &Shared, connection: &Connection, course: &Course) -> Result<Infallible> {
    loop {
        let stream = connection.accept_stream().await?;
        answer_one(shared, connection, course, stream).await?;
        tokio::time::sleep(GAP).await;
    }
}

async fn answer_one(
    shared: &Shared,
    connection: &Connection,
    course: &Course,
    mut stream: Stream,
) -> Result<()> {
    let peer = connection.peer_id();
    let mut begins = [0; BEAT.len()];
    let reading = stream.read_exact(&mut begins);
    tokio::time::timeout(WORD_LIMIT, reading).await.map_err(io::Error::from)??;
    let known = shared.known();
    let told = match shared.told(&known, peer) {
        // One that is called while nothing is known asks back at once if its own list has changed. It hears
        // nothing, and is not left: what is known of it comes on this very connection.
        None if known.is_new => Told::NOTHING,
        told => told.context("it is no device and no friend")?,
    };
    if begins == *BEAT {
        let talking = async {
            let theirs = Pulse::hear(&mut stream).await?;
            shared.hear(peer, theirs.presence);
            shared.pulse(&known, told).say(&mut stream).await
        };
        tokio::time::timeout(WORD_LIMIT, talking).await.map_err(io::Error::from)??;
        course.heard.notify_one();
        return Ok(());
    }
    if begins == *LIST {
        let list = shared.list(&known, told);
        let saying = listing::say(&list, &mut stream);
        tokio::time::timeout(WORD_LIMIT, saying).await.map_err(io::Error::from)??;
        return Ok(());
    }
    if begins != *MEET || !told.group {
        bail!("it says something else");
    }
    // Where many come at once the others come again with their next heartbeats.
    let Some(_place) = shared.met_by.begin(peer) else { return Ok(()) };
    let meeting = whimbrel_devices::answer(shared.replica.clone(), peer, stream);
    match tokio::time::timeout(MEETING_LIMIT, meeting).await? {
        Ok(met) => tracing::info!(%peer, entries = met.entries, agree = met.agree, "met a device"),
        // It may be this device's own file, or one that gave up: heartbeats go on.
        Err(error @ (SyncError::Io(_) | SyncError::Store(_))) => {
            tracing::debug!(%peer, %error, "could not meet a device");
            tokio::time::sleep(IN_VAIN).await;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
