//! Packets that open the NAT gateways of both sides for each other, over the endpoint's own UDP sockets. What
//! may be sent to, when, and how often is [decided](whimbrel_proto::punching) by pure rules.

mod search;

use futures_util::FutureExt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use whimbrel_proto::notice::Notice;
use whimbrel_proto::punching::{Allowance, PUNCHES, Surroundings, worth_punching};
use whimbrel_proto::{MAX_CANDIDATES, PathState, Side};

use crate::endpoint_core::EndpointCore;
use crate::locator::{Locator, canonical};
use crate::path_io::PathIo;
use crate::shared::Shared;

pub(crate) use search::Found;

/// Says of a place whether anything may be sent there.
pub(crate) type May<'a> = &'a (dyn Fn(SocketAddr) -> bool + Sync);

impl EndpointCore {
    /// Where this endpoint's UDP sockets may be reached, as the peer is told: where they are seen first.
    pub(crate) fn candidates(&self, shared: &Shared) -> Vec<SocketAddr> {
        let mut all = self.observed.list();
        // Of a family of which STUN tells nothing: a host behind a gateway that keeps ports, as clouds have
        // it.
        for ip in self.seen_at(shared) {
            if !all.iter().any(|at| at.is_ipv4() == ip.is_ipv4()) {
                all.push(SocketAddr::new(ip, self.port()));
            }
        }
        for at in self.places.direct().into_iter().chain(self.reachable_in(&self.bound.borrow())) {
            if !all.contains(&at) {
                all.push(at);
            }
        }
        all.truncate(MAX_CANDIDATES);
        all
    }

    /// Where this host is seen by the peer, who may say to itself what it likes, and by this endpoint's
    /// relays.
    fn seen_at(&self, shared: &Shared) -> Vec<IpAddr> {
        let relays: Vec<Locator> =
            self.places.relayed().iter().map(|place| Locator::Direct(place.relay)).collect();
        let by_relays = |other: &Arc<Shared>| {
            let state = other.lock();
            let is_relay = state.paths.iter().any(|path| relays.contains(&path.remote));
            state.engine.observed().filter(|_| is_relay)
        };
        let mut seen: Vec<IpAddr> = shared.lock().engine.observed().iter().map(SocketAddr::ip).collect();
        if !relays.is_empty() {
            seen.extend(self.registry.dialled().iter().filter_map(by_relays).map(|at| at.ip()));
        }
        seen
    }

    /// The peer's candidates that may be sent to.
    pub(crate) fn worth_punching(&self, shared: &Shared) -> Vec<SocketAddr> {
        let (theirs, relays) = {
            let state = shared.lock();
            (state.engine.peer_candidates().to_vec(), relays(&state.paths))
        };
        let own: Vec<IpAddr> = self.addresses().addresses.iter().map(|address| address.ip).collect();
        worth_punching(&theirs, &Surroundings { own: &own, relays: &relays })
    }
}

/// The addresses of the relays that paths go through.
fn relays<'p>(paths: impl IntoIterator<Item = &'p Arc<PathIo>>) -> Vec<IpAddr> {
    paths.into_iter().filter_map(|path| path.remote.relayed()).map(|place| place.relay.ip()).collect()
}

/// Sends to the peer's candidates, then searches for a port where that may help. Answers of the peer are
/// heard meanwhile. Returns a socket of a search that the peer was heard on.
pub(crate) async fn attempt(core: &EndpointCore, shared: &Shared, may: May<'_>) -> Option<Found> {
    let _attempt = PunchingFor::begin(shared);
    punch(core, shared, may).await;
    search::search(core, shared, may).await
}

/// Sends to the peer's candidates, a few times each.
async fn punch(core: &EndpointCore, shared: &Shared, may: May<'_>) {
    let (key, side) = {
        let state = shared.lock();
        (state.engine.notice_key(), state.engine.side())
    };
    let Some(key) = key else { return };
    let mut targets = core.worth_punching(shared);
    targets.retain(|target| may(*target));
    tracing::debug!(connection = %shared.id, ?targets, "punching");
    let datagram = key.seal(&Notice::Punch { from: side, is_answer: false });
    let begun = tokio::time::Instant::now();
    for at in PUNCHES {
        tokio::time::sleep_until(begun + at).await;
        for target in &targets {
            core.send_notice(&datagram, *target).await;
        }
    }
    // What comes late is still answered.
    tokio::time::sleep(PUNCHES[PUNCHES.len() - 1]).await;
}

/// An attempt, which ends when this is dropped.
pub(crate) struct PunchingFor<'a>(&'a Shared);

impl<'a> PunchingFor<'a> {
    pub(crate) fn begin(shared: &'a Shared) -> Self {
        shared.lock().punching.begin();
        Self(shared)
    }
}

impl Drop for PunchingFor<'_> {
    fn drop(&mut self) {
        self.0.lock().punching.end();
    }
}

/// An authentic packet of the peer. Returns the answer to it.
pub(crate) fn heard(shared: &Shared, from: SocketAddr, sender: Side, is_answer: bool) -> Option<Notice> {
    let mut state = shared.lock();
    let side = state.engine.side();
    // Our own, played back to us.
    if sender == side {
        return None;
    }
    let answers = state.punching.came(canonical(from), is_answer);
    drop(state);
    shared.mover.punched();
    answers.then_some(Notice::Punch { from: side, is_answer: true })
}

/// Server: a client has come through a relay. Tells it where this side may be reached, and sends to its
/// candidates whenever it states some.
pub(crate) fn meet(core: &Arc<EndpointCore>, shared: &Arc<Shared>) {
    let candidates = core.candidates(shared);
    let begins = shared.with(|state| {
        // A path beside another one, as TCP's beside QUIC's, is no reason to begin anew.
        let is_beside =
            state.engine.paths().iter().filter(|path| path.state == PathState::Active).count() > 1;
        if !is_beside || state.engine.own_candidates() != candidates {
            state.engine.state_candidates(candidates.clone());
        }
        state.engine.can_punch() && state.punching.begins_to_be_attended()
    });
    tell_changes(Some(candidates), || core.candidates(shared), |now| state_if_new(shared, now));
    if begins {
        tokio::spawn(FutureExt::boxed(attend(core.clone(), shared.clone())));
    }
}

async fn attend(core: Arc<EndpointCore>, shared: Arc<Shared>) {
    let mut allowance = Allowance::default();
    let mut asked = false;
    loop {
        let over = async {
            loop {
                let ended = shared.news.of_connection();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if shared.lock().engine.is_closed() {
                    return;
                }
                ended.await;
            }
        };
        let punching = async {
            if std::mem::take(&mut asked)
                && allowance.take(Instant::now())
                && let Some(found) = attempt(&core, &shared, &|_| true).await
            {
                found.listen(&core);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = over => return,
            () = shared.mover.candidates() => {}
            () = punching => {}
        }
        asked = true;
    }
}

/// Tells the clients that came through relays where this side may be reached now.
pub(crate) fn tell_clients(core: &EndpointCore) {
    for shared in core.registry.accepted() {
        let relayed = shared.lock().paths.iter().any(|path| path.remote.relayed().is_some());
        if relayed {
            tell_changes(None, || core.candidates(&shared), |now| state_if_new(&shared, now));
        }
    }
}

fn state_if_new(shared: &Shared, candidates: &[SocketAddr]) {
    shared.with(|state| {
        if state.engine.own_candidates() != candidates {
            state.engine.state_candidates(candidates.to_vec());
        }
    });
}

/// Tells what is read, unless it was told, until nothing else is read behind that. Two may tell at a time,
/// and the one who began before a change be the last: it would stay for ever what was so before.
fn tell_changes<T: PartialEq>(told: Option<T>, read: impl Fn() -> T, mut tell: impl FnMut(&T)) {
    let mut told = told;
    loop {
        let now = read();
        if told.as_ref() == Some(&now) {
            return;
        }
        tell(&now);
        told = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_has_changed_while_it_was_told_is_told_behind_it() {
        let place = Cell::new(1);
        let mut said = Vec::new();
        tell_changes(
            Some(0),
            || place.get(),
            |now| {
                said.push(*now);
                // Somebody else sees a change, and has told it before this one comes to.
                place.set(2);
            },
        );
        assert_eq!(said, [1, 2]);
        let mut said = Vec::new();
        tell_changes(Some(2), || place.get(), |now| said.push(*now));
        tell_changes(None, || place.get(), |now| said.push(*now));
        assert_eq!(said, [2]);
    }
}
