//! From a path through a relay to a direct one, while the relay carries.
//!
//! As soon as a relayed path is up, and after each move, this side tells the server where its UDP socket may
//! be reached, both send to each other at the same time, so that their gateways let in what comes, and a QUIC
//! connection is dialled over that from the same socket. Places that can be dialled without all this are
//! dialled beside it. Whichever is answered first carries; the relayed path stays as a backup path.

use futures_util::FutureExt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use whimbrel_proto::HandoverMode;
use whimbrel_proto::punching::{Allowance, Backoff};

use super::exit::Exit;
use super::joining::{Joiner, Openings, Purpose};
use super::pending::{News, Pending};
use super::relayed::{Relayed, relayed_path};
use crate::dial::{Candidate, Dialled, candidates, found, punched};
use crate::endpoint_core::lock;
use crate::locator::Locator;
use crate::punch::{self, Found};
use crate::shared::Shared;

/// The server has opened its gateway when what we dial with is there: our candidates leave just before, and
/// may come by a relay that is so far out of the way. Where it is further, the server's own packets tell when
/// to dial again.
const LEAD: Duration = Duration::from_millis(20);
/// Candidates that are dialled before anything came from there, at most.
const UNHEARD: usize = 3;
/// How long an attempt may take, or so many round trips.
const ATTEMPT: Duration = Duration::from_secs(3);
const ATTEMPT_RTTS: u32 = 6;
/// How long what was sent last is waited for, or so many round trips.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LAST_WORDS_RTTS: u32 = 3;
/// Where our sockets are seen may take this long to be told.
const TOLD: Duration = Duration::from_millis(500);

/// Why an attempt is over.
enum End {
    Up,
    Failed,
    /// Something is not as it was at the beginning.
    Anew,
    Over,
}

/// Sees to it that the connection has a direct path, for as long as it lasts.
pub(crate) async fn upgrade(joiner: Joiner) {
    let mut backoff = Backoff::default();
    let mut allowance = Allowance::default();
    let mut seen = joiner.endpoint.observed.watch();
    loop {
        let Some(relayed) = next(&joiner).await else { return };
        joiner.endpoint.observed.ask(relayed.relay);
        let _ = tokio::time::timeout(TOLD, seen.wait_for(|seen| !seen.is_empty())).await;
        // The attempt begins with what is known now.
        seen.mark_unchanged();
        forget(joiner.shared.mover.candidates()).await;
        let attempt = async {
            tokio::select! {
                end = attempt(&joiner, &relayed) => end,
                () = gone(&joiner, &relayed) => End::Anew,
            }
        };
        let end = tokio::select! {
            end = attempt => end,
            () = joiner.shared.mover.candidates() => End::Anew,
            () = seen_elsewhere(&joiner, &mut seen) => End::Anew,
        };
        match end {
            End::Over => return,
            End::Up => {
                tracing::info!(connection = %joiner.shared.id, "a direct path beside the relayed one");
                backoff.reset();
                continue;
            }
            // What the peer says may have this side send somewhere: not as often as it likes.
            End::Anew if allowance.take(Instant::now()) => {
                backoff.reset();
                continue;
            }
            End::Anew | End::Failed => {}
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = gone(&joiner, &relayed) => backoff.reset(),
            Ok(()) = seen.changed() => backoff.reset(),
            () = joiner.shared.mover.candidates() => {
                if allowance.take(Instant::now()) {
                    backoff.reset();
                }
            }
        }
    }
}

/// Waits until the connection depends on a relayed path. `None` once it is over.
async fn next(joiner: &Joiner) -> Option<Relayed> {
    loop {
        let changed = joiner.shared.news.of_paths();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if !joiner.shared.may_need_paths() {
            return None;
        }
        if let Some(relayed) = depends_on(joiner) {
            return Some(relayed);
        }
        changed.await;
    }
}

/// Waits until the connection does not depend on this path any more, nor on one between the same places:
/// where TCP takes over from QUIC, nothing has changed.
async fn gone(joiner: &Joiner, relayed: &Relayed) {
    loop {
        let changed = joiner.shared.news.of_paths();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if depends_on(joiner).is_none_or(|now| now.between != relayed.between) {
            return;
        }
        changed.await;
    }
}

fn depends_on(joiner: &Joiner) -> Option<Relayed> {
    relayed_path(&joiner.shared.lock())
}

async fn attempt(joiner: &Joiner, relayed: &Relayed) -> End {
    let (core, shared) = (&joiner.endpoint, &joiner.shared);
    let policy = shared.policy();
    let until = Instant::now() + ATTEMPT.max(relayed.rtt * ATTEMPT_RTTS);
    let exit = Exit::of(core, shared, &policy, relayed.relay);
    let may_punch = shared.lock().engine.can_punch() && exit != Exit::Nowhere;
    // Where paths are managed, the manager dials what can be dialled.
    let is_managed = policy.is_selective() || shared.lock().engine.handover() != HandoverMode::Single;
    let ways = if is_managed { Vec::new() } else { direct_ways(joiner) };
    let _looking = (may_punch || !ways.is_empty()).then(|| Looking::begin(shared));
    let (open, opened) = mpsc::channel(1);
    let punching = async {
        if may_punch {
            let own = core.candidates(shared);
            shared.with(|state| state.engine.state_candidates(own));
            // Not even what opens gateways goes out where the policy does not want it.
            let may = |at: SocketAddr| exit.leads_to(at);
            if let Some(found) = punch::attempt(core, shared, &may).await {
                // There is room for the only one.
                let _ = open.send(found).await;
            }
        }
        let last = Instant::now() + LAST_WORDS.max(relayed.rtt * LAST_WORDS_RTTS);
        tokio::time::sleep_until(until.max(last).into()).await;
        End::Failed
    };
    let dialling_punched = async {
        if !may_punch {
            return std::future::pending().await;
        }
        dial(joiner, relayed, exit, opened).await
    };
    let dialling = async {
        let joiner = Joiner { keeps: Some(relayed.path), ..joiner.clone() };
        if ways.is_empty() || joiner.attempt(ways, false, Arc::<Openings>::default()).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        end = dialling_punched => end,
        () = dialling => End::Up,
        end = punching => end,
    }
}

/// Says that a direct path is being looked for, until this is dropped.
struct Looking<'a>(&'a Shared);

impl<'a> Looking<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.lock().punching.is_looking = true;
        Self(shared)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.lock().punching.is_looking = false;
    }
}

/// Waits until this side is seen elsewhere than before. The peer is told of places that are there beside
/// those that it knows: the gateway shows us to each at another port.
async fn seen_elsewhere(joiner: &Joiner, seen: &mut watch::Receiver<Vec<SocketAddr>>) {
    loop {
        let before = seen.borrow().clone();
        if seen.changed().await.is_err() {
            return std::future::pending().await;
        }
        if before.is_empty() || !seen.borrow_and_update().starts_with(&before) {
            return;
        }
        let own = joiner.endpoint.candidates(&joiner.shared);
        joiner.shared.with(|state| state.engine.state_candidates(own));
    }
}

/// Takes back a notification that was not waited for.
async fn forget(told: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = told => {}
        () = std::future::ready(()) => {}
    }
}

/// Ways that need no gateway to be opened, as far as is known.
fn direct_ways(joiner: &Joiner) -> Vec<Candidate> {
    let (set, exclusive) = joiner.endpoint.sources();
    let direct: Vec<Locator> =
        joiner.shared.remote().into_iter().filter(|place| place.direct().is_some()).collect();
    candidates(&set, &direct, &joiner.shared.suspect_locals(), exclusive)
}

/// What was dialled, and whether the peer had been heard from there.
#[derive(Debug, Default)]
struct Tried(Vec<(SocketAddr, bool)>);

impl Tried {
    /// Each is dialled once unheard and once heard at most: what was sent before the peer's gateway was open
    /// got lost there, and QUIC sends it again late. A packet of the peer says that it is open.
    fn is_due(&mut self, at: SocketAddr, is_heard: bool) -> bool {
        match self.0.iter_mut().find(|(tried, _)| *tried == at) {
            Some((_, was_heard)) => is_heard && !std::mem::replace(was_heard, true),
            None => {
                self.0.push((at, is_heard));
                true
            }
        }
    }
}

/// Dials what may be open, and what the peer was heard from, until a path is answered.
async fn dial(joiner: &Joiner, relayed: &Relayed, exit: Exit, mut opened: mpsc::Receiver<Found>) -> End {
    let keeping = Joiner { keeps: Some(relayed.path), ..joiner.clone() };
    let (core, shared) = (&joiner.endpoint, &joiner.shared);
    let mut tried = Tried::default();
    let mut running: JoinSet<io::Result<Dialled>> = JoinSet::new();
    let mut pending = Pending::default();
    tokio::time::sleep(LEAD).await;
    let first: Vec<SocketAddr> = core.worth_punching(shared).into_iter().take(UNHEARD).collect();
    loop {
        let heard = shared.lock().punching.came_from().to_vec();
        let unheard = first.iter().map(|at| (*at, false));
        for (at, is_heard) in unheard.chain(heard.into_iter().map(|at| (at, true))) {
            if !tried.is_due(at, is_heard) || !exit.leads_to(at) {
                continue;
            }
            let socket = lock(&core.sockets).quic_for(at);
            if let Some(socket) = socket {
                let (who, port) = (joiner.dialler(), core.port());
                running.spawn(FutureExt::boxed(async move { punched(socket, port, at, &who).await }));
            }
        }
        tokio::select! {
            () = shared.mover.heard_punch() => {}
            Some(open) = opened.recv() => {
                let (who, (socket, at)) = (joiner.dialler(), open.answered());
                if exit.leads_to(at) {
                    running.spawn(FutureExt::boxed(async move { found(socket, at, &who).await }));
                }
            }
            Some(result) = running.join_next() => match result {
                Ok(Ok(dialled)) => {
                    pending.extend_with(keeping.open_path(dialled, Purpose::default()));
                }
                Ok(Err(error)) => tracing::debug!(connection = %shared.id, %error, "not open"),
                // Nothing aborts it but the end of this function.
                Err(_) => {}
            },
            news = pending.news(shared) => match news {
                News::Up(_) => return End::Up,
                News::Failed(_) => {}
                News::Over => return End::Over,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_is_heard_from_is_dialled_once_more_and_nothing_else_is() {
        let [one, other] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let mut tried = Tried::default();
        let due = [
            (one, false),
            (one, false),
            (one, true),
            (one, true),
            (one, false),
            (other, true),
            (other, true),
        ];
        let due = due.map(|(at, is_heard)| tried.is_due(at, is_heard));
        assert_eq!(due, [true, false, true, false, false, true, false]);
    }
}
