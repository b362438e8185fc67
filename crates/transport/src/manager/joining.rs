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
    paths: Mutex<Vec<PathId>>,
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

    pub(super) fn note(&self, path: &PendingPath) {
        let patience = path.rtt * 2 + SLACK;
        // The first is what news are weighed against.
        let _ = self.first.set(Opened { local: path.local, remote: path.remote(), patience });
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).push(path.id);
    }
}

/// What a path that is opened is for.
#[derive(Debug, Clone, Default)]
pub(super) struct Purpose {
    /// It carries nothing while others work, and says so before it carries anything.
    pub(super) stands_by: bool,
    /// The path that it takes over from once it is answered.
    pub(super) predecessor: Option<PathId>,
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

    /// Whether one of an attempt's paths works.
    pub(crate) fn is_up(&self, openings: &Openings) -> bool {
        let paths = openings.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.shared.lock();
        paths.iter().any(|path| state.engine.path_state(*path) == Some(PathState::Active))
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
            let takes_over =
                purpose.predecessor.and_then(|id| engine.paths().into_iter().find(|p| p.id == id));
            if let Some(predecessor) = takes_over {
                engine.set_priority(id, predecessor.priority);
                state.takeovers.begin(id, predecessor.id);
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
