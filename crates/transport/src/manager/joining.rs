//! Opening the paths of one connection, each over a carrier that stands.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::Notify;
use whimbrel_proto::{PathId, PathState, Priority};

use super::ahead::Kept;
use super::dialling::{begin_race, dialler};
use super::pending::{Opening, PendingPath};
use super::relayed::relayed_path;
use crate::carrier::CarrierKind;
use crate::cause::DownCause;
use crate::dial::{Candidate, Dialled, Dialler, Race};
use crate::endpoint_core::EndpointCore;
use crate::locator::Locator;
use crate::path_io::PathIo;
use crate::shared::Shared;

/// A path that was dialled must be answered within this, or a few round trips.
const ANSWER: Duration = Duration::from_secs(5);
/// What an answer may take beyond two round trips.
const SLACK: Duration = Duration::from_millis(50);
/// While no path works TCP begins again so soon. The end of an outage that nobody tells of, as in a tunnel,
/// is noticed then: half a second and two round trips later data arrive.
const AGAIN: Duration = Duration::from_millis(400);
/// In outages that are longer than that, which hardly end within the next second, it is seldom.
const LONG: Duration = Duration::from_secs(600);
const SELDOM: Duration = Duration::from_secs(5);
/// As long as nothing was measured (RFC 9002 §6.2.2).
const USUAL_RTT: Duration = Duration::from_millis(333);

/// The first path that an attempt has opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) local: IpAddr,
    pub(crate) remote: Locator,
    /// How long its answer should take at most.
    pub(crate) patience: Duration,
}

/// The paths that an attempt has opened so far, for those who wait for it.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    first: OnceLock<Opened>,
    paths: Mutex<Vec<(PathId, CarrierKind)>>,
    again: Notify,
}

impl Openings {
    pub(crate) fn first(&self) -> Option<&Opened> {
        self.first.get()
    }

    /// Has the attempt dial once more, beside what it has opened, if it has heard nothing yet: a host may
    /// have an address before it has the route, and what it sent meanwhile went nowhere.
    pub(crate) fn dial_again(&self) {
        self.again.notify_one();
    }

    /// Waits for [`dial_again`](Self::dial_again). Cancel-safe.
    pub(super) async fn asked_again(&self) {
        self.again.notified().await;
    }

    fn paths(&self) -> Vec<(PathId, CarrierKind)> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, path: &PendingPath) {
        let patience = path.rtt * 2 + SLACK;
        // The first is what news are weighed against.
        let _ = self.first.set(Opened { local: path.local, remote: path.remote(), patience });
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).push((path.id, path.kind));
    }
}

/// What a path that is opened is for.
#[derive(Debug, Clone, Default)]
pub(super) struct Purpose {
    /// It carries nothing while others work, and says so before it carries anything.
    pub(super) stands_by: bool,
    /// The paths that it takes over from once it is answered: one, or several where that was dialled again.
    pub(super) predecessors: SmallVec<[PathId; 4]>,
    /// The path, opened before, that takes over from it once that is answered.
    pub(super) successor: Option<PathId>,
    /// Paths of the same carrier between the same places, opened before: the first that is answered stays.
    pub(super) twins: SmallVec<[PathId; 4]>,
    /// It leads elsewhere than another one that is opening.
    pub(super) is_apart: bool,
    /// It carries what opening paths before it carry: their answers are overdue, or cannot come as soon.
    pub(super) repeats: bool,
}

/// Opens paths of one connection.
#[derive(Clone)]
pub(crate) struct Joiner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: Arc<EndpointCore>,
    /// A relayed path that becomes a backup path when one of those opened here is answered.
    pub(crate) keeps: Option<PathId>,
    /// What was dialled before the connection was here.
    pub(crate) ahead: Kept,
}

impl Joiner {
    /// What a round trip took last, in this connection or another one with the same peer.
    fn rtt(&self) -> Option<Duration> {
        let (established, last) = {
            let state = self.shared.lock();
            (state.engine.is_established(), state.engine.last_rtt())
        };
        last.filter(|_| established).or_else(|| self.endpoint.reach.rtt(&self.shared.peer()))
    }

    /// How soon TCP begins again, where an answer would have come by then.
    fn again(&self, rtt: Option<Duration>) -> Option<Duration> {
        let lasts = self.shared.lock().outage.lasts(Instant::now())?;
        let soon = if lasts < LONG { AGAIN } else { SELDOM };
        Some(soon.max(rtt? * 2))
    }

    /// Begins to dial.
    pub(super) fn race(&self, ways: Vec<Candidate>) -> Race {
        self.note_silence();
        for place in ways.iter().filter_map(|way| way.remote.relayed()) {
            // By the time that the path is up, it is known where this side's sockets are seen.
            self.endpoint.observed.ask(place.relay);
        }
        begin_race(self.dialler(), ways)
    }

    /// Whom to dial, and as whom.
    pub(super) fn dialler(&self) -> Dialler {
        let rtt = self.rtt();
        dialler(&self.endpoint, self.shared.wanted_peer(), rtt, self.again(rtt))
    }

    /// A path has failed. If it led through a relay, that may not know what was named there.
    pub(super) fn doubt_aliases(&self, local: IpAddr, remote: Locator) {
        // If this side is elsewhere now, that says nothing of the relay.
        if let Some(place) = remote.behind().filter(|_| !self.endpoint.has_lost(local)) {
            self.endpoint.aliases.doubt(self.shared.wanted_peer(), place);
        }
    }

    /// Remembers between which addresses paths over TCP have fallen silent: what they carried may have been
    /// too large.
    fn note_silence(&self) {
        let state = self.shared.lock();
        let is_silent = |path: &&Arc<PathIo>| state.engine.path_state(path.id) == Some(PathState::Suspect);
        for path in state.paths.iter().filter(is_silent) {
            if path.kind() != CarrierKind::Quic {
                self.endpoint.sizes.silent(path.local.ip(), path.remote.ip(), Instant::now());
            }
        }
    }

    /// Whether what an attempt opened can still become a path.
    pub(crate) fn is_worth_waiting_for(&self, opened: &Opened) -> bool {
        self.is_present(opened.local, opened.remote)
    }

    /// Gives up the paths of an attempt that are not answered. False, and nothing happens, if one works: it
    /// may have been answered since the attempt was looked at, and the attempt has more to do then than to be
    /// dropped.
    pub(crate) fn gives_up(&self, openings: &Openings) -> bool {
        let paths: Vec<PathId> = openings.paths().into_iter().map(|(path, _)| path).collect();
        self.shared.with(|state| {
            let is = |path: PathId, wanted| state.engine.path_state(path) == Some(wanted);
            if paths.iter().any(|path| is(*path, PathState::Active)) {
                return false;
            }
            let opening: Vec<_> = paths.into_iter().filter(|path| is(*path, PathState::Opening)).collect();
            opening.into_iter().for_each(|path| state.engine.path_lost(Instant::now(), path));
            true
        })
    }

    /// The paths of an attempt over QUIC that work, or may soon.
    pub(super) fn over_quic(&self, openings: &Openings) -> SmallVec<[PathId; 4]> {
        let mut paths = openings.paths();
        let state = self.shared.lock();
        paths.retain(|(path, kind)| {
            let state = state.engine.path_state(*path);
            let is_live = matches!(state, Some(PathState::Opening | PathState::Active | PathState::Suspect));
            is_live && *kind == CarrierKind::Quic
        });
        paths.into_iter().map(|(path, _)| path).collect()
    }

    /// Both ends still have their addresses, as far as is known.
    pub(super) fn is_present(&self, local: IpAddr, remote: Locator) -> bool {
        self.shared.is_remote(remote) && !self.endpoint.has_lost(local)
    }

    /// Adds a path over a fresh carrier; its first flight leaves at once.
    pub(super) fn open_path(&self, mut dialled: Dialled, purpose: Purpose) -> Option<PendingPath> {
        let (hint, way, kind) = (dialled.peer_rtt(), dialled.way.clone(), dialled.kind());
        let segments = dialled.segments;
        let (early, rtt) = (dialled.is_early(), hint.or_else(|| self.rtt()).unwrap_or(USUAL_RTT));
        let early_limit = dialled.early_limit();
        let path = self.shared.with(|state| {
            // TCP may have taken over from it meanwhile.
            let kept = self.keeps.map(|kept| relayed_path(state).map_or(kept, |relayed| relayed.path));
            let engine = &mut state.engine;
            let id = engine.open_path_to(Instant::now(), dialled.peer, hint, early_limit)?;
            let predecessors = engine.paths().into_iter().filter(|p| purpose.predecessors.contains(&p.id));
            let predecessors: SmallVec<[_; 4]> = predecessors.map(|p| (p.id, p.priority)).collect();
            predecessors.iter().for_each(|(predecessor, _)| state.takeovers.begin(id, *predecessor));
            if let Some((_, priority)) = predecessors.first() {
                engine.set_priority(id, *priority);
            } else if purpose.stands_by {
                engine.set_priority(id, Priority::Backup);
            }
            if let Some(successor) = purpose.successor {
                state.takeovers.begin(successor, id);
                engine.give_way(id, successor);
            }
            if let Some(kept) = kept {
                engine.keep_as_backup(id, kept);
            }
            purpose.twins.iter().for_each(|twin| engine.give_way(id, *twin));
            if purpose.is_apart {
                engine.leads_elsewhere(id);
            }
            if purpose.repeats {
                engine.repeat_opening();
            }
            let path = Arc::new(dialled.into_path(id));
            state.paths.push(path.clone());
            Some(path)
        })?;
        let (id, local) = (path.id, path.local.ip());
        if self.endpoint.has_lost(local) {
            let cause = DownCause::of_address(&self.endpoint.addresses(), local);
            self.shared.with(|state| state.lose_path(Instant::now(), id, cause));
            return None;
        }
        // The first flight leaves now; the driver sees an error if there is one.
        let _ = path.flush(&*self.shared);
        tracing::debug!(connection = %self.shared.id, path = %id, remote = %way.remote, %kind, ?hint, "path dialled");
        let opening = Opening { id, kind, early, local, way, segments, rtt, limit: ANSWER.max(rtt * 6) };
        Some(PendingPath::new(self.shared.clone(), opening))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::monitor::ManualMonitor;
    use crate::{Allow, Carriers, Endpoint, ListenOptions};

    /// On a busy machine the answer and the end of the patience with it come at the same moment.
    #[tokio::test]
    async fn an_attempt_is_not_given_up_once_one_of_its_paths_was_answered() {
        let bind = |last: u8| {
            let monitor = ManualMonitor::new([IpAddr::from([127, 0, 175, last])]);
            Endpoint::builder().monitor(monitor).carriers(Carriers::Only(CarrierKind::Tcp)).bind()
        };
        let (client, server) = (bind(1).await.unwrap(), bind(2).await.unwrap());
        let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let (connection, _accepted) = tokio::join!(client.connect(server.addr()), listener.accept());
        let connection = connection.unwrap();
        let shared = connection.shared().clone();
        let ahead = Kept::default();
        let joiner = Joiner { shared: shared.clone(), endpoint: client.inner().clone(), keeps: None, ahead };

        let answered = shared.lock().paths[0].id;
        let open = || shared.with(|state| state.engine.open_path(Instant::now(), None, u64::MAX).unwrap());
        let attempt = |paths: Vec<PathId>| {
            let paths = paths.into_iter().map(|path| (path, CarrierKind::Tcp)).collect();
            Openings { paths: Mutex::new(paths), ..Openings::default() }
        };
        let state = |path| shared.lock().engine.path_state(path);
        let (beside, alone) = (open(), open());
        assert!(!joiner.gives_up(&attempt(vec![beside, answered])));
        assert_eq!(state(answered), Some(PathState::Active));
        assert_eq!(state(beside), Some(PathState::Opening), "the attempt says what becomes of it");
        assert!(joiner.gives_up(&attempt(vec![alone])));
        assert!(matches!(state(alone), None | Some(PathState::Lost)));
        assert_eq!(state(beside), Some(PathState::Opening), "it is of another attempt");
    }
}
