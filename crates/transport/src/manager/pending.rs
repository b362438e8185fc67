//! Paths that wait for their answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_proto::{PathId, PathState};

use crate::carrier::CarrierKind;
use crate::dial::Candidate;
use crate::locator::Locator;
use crate::shared::Shared;

/// An answer may take this long, or three round trips, before another carrier is tried in its place.
const PATIENCE: Duration = Duration::from_millis(250);

/// A path that was opened just now.
pub(super) struct Opening {
    pub(super) id: PathId,
    pub(super) kind: CarrierKind,
    pub(super) early: bool,
    pub(super) local: IpAddr,
    pub(super) way: Candidate,
    pub(super) rtt: Duration,
    pub(super) limit: Duration,
}

/// A path whose answer has not come. Given up when dropped.
pub(super) struct PendingPath {
    pub(super) id: PathId,
    pub(super) kind: CarrierKind,
    /// Something may have been sent on it before anything was heard from the peer.
    pub(super) early: bool,
    pub(super) local: IpAddr,
    pub(super) way: Candidate,
    pub(super) since: Instant,
    /// What a round trip is expected to take.
    pub(super) rtt: Duration,
    /// Not waited for any longer then.
    pub(super) until: Instant,
    shared: Arc<Shared>,
    settled: bool,
}

impl PendingPath {
    pub(super) fn new(shared: Arc<Shared>, opening: Opening) -> Self {
        let Opening { id, kind, early, local, way, rtt, limit } = opening;
        let since = Instant::now();
        Self { id, kind, early, local, way, since, rtt, until: since + limit, shared, settled: false }
    }

    pub(super) fn remote(&self) -> Locator {
        self.way.remote
    }

    /// When another carrier should have its turn, or should have had it.
    pub(super) fn late_at(&self) -> Instant {
        self.since + PATIENCE.max(self.rtt * 3)
    }

    pub(super) fn is_late(&self) -> bool {
        self.late_at() <= Instant::now()
    }
}

impl Drop for PendingPath {
    fn drop(&mut self) {
        if !self.settled {
            self.shared.with(|state| {
                if state.engine.path_state(self.id) == Some(PathState::Opening) {
                    state.engine.path_lost(Instant::now(), self.id);
                }
            });
        }
    }
}

/// What became of a path, or of all of them.
pub(super) enum News {
    /// It was answered.
    Up(PendingPath),
    /// Its carrier failed, or it took too long.
    Failed(PendingPath),
    /// The connection is over: no path is needed any more.
    Over,
}

/// All paths of one attempt that wait for their answers, oldest first.
#[derive(Default)]
pub(super) struct Pending(Vec<PendingPath>);

impl Pending {
    pub(super) fn push(&mut self, path: PendingPath) {
        self.0.push(path);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives up all others.
    pub(super) fn retain(&mut self, keep: impl Fn(&PendingPath) -> bool) {
        self.0.retain(keep);
    }

    /// Takes out those of the same carrier between the same places.
    pub(super) fn take_twins_of(&mut self, path: &PendingPath) -> Self {
        Self(self.0.extract_if(.., |other| other.way == path.way && other.kind == path.kind).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingPath> {
        self.0.iter()
    }

    pub(super) fn oldest(&self) -> Option<&PendingPath> {
        self.0.first()
    }

    pub(super) fn pop_oldest(&mut self) -> Option<PendingPath> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Waits until one of the paths is answered or has failed; for ever if there is none. Cancel-safe.
    pub(super) async fn news(&mut self, shared: &Shared) -> News {
        loop {
            let changed = shared.news.of_paths();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(news) = self.look(shared) {
                return news;
            }
            match self.0.iter().map(|path| path.until).min() {
                Some(until) => drop(tokio::time::timeout_at(until.into(), changed).await),
                None => std::future::pending().await,
            }
        }
    }

    fn look(&mut self, shared: &Shared) -> Option<News> {
        let now = Instant::now();
        let (mut up, mut failed) = (None, None);
        {
            let state = shared.lock();
            for (index, path) in self.0.iter_mut().enumerate() {
                match state.engine.path_state(path.id) {
                    Some(PathState::Opening) if path.until > now => continue,
                    Some(PathState::Opening) => {}
                    Some(PathState::Lost) | None => path.settled = true,
                    Some(_) => {
                        path.settled = true;
                        up = up.or(Some(index));
                        continue;
                    }
                }
                failed = failed.or(Some(index));
            }
            if up.is_none() && !state.engine.may_open_path() {
                self.0.iter_mut().for_each(|path| path.settled = true);
                return Some(News::Over);
            }
        }
        match (up, failed) {
            (Some(index), _) => Some(News::Up(self.0.remove(index))),
            (None, Some(index)) => Some(News::Failed(self.0.remove(index))),
            (None, None) => None,
        }
    }
}
