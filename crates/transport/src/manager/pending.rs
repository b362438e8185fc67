//! Paths that wait for their answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_proto::{PathId, PathState};

use crate::carrier::CarrierKind;
use crate::dial::{Candidate, SegmentSize};
use crate::locator::Locator;
use crate::shared::Shared;

/// An answer may take this long, or three round trips, before another carrier is tried in its place.
const PATIENCE: Duration = Duration::from_millis(250);
/// Beyond three round trips, the peer's kernel may take this long to acknowledge the first flight over TCP.
/// It does so without the peer: a busy one is not dialled twice.
const ACKNOWLEDGED: Duration = Duration::from_millis(100);
/// A first flight that was acknowledged may be answered this late, or after as many round trips, before the
/// answer counts as lost for its size.
const ANSWERED: Duration = Duration::from_secs(1);

/// A path that was opened just now.
pub(super) struct Opening {
    pub(super) id: PathId,
    pub(super) kind: CarrierKind,
    pub(super) early: bool,
    pub(super) local: IpAddr,
    pub(super) way: Candidate,
    pub(super) segments: SegmentSize,
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
    pub(super) segments: SegmentSize,
    /// When to ask whether its packets are too large for the way.
    ask_at: Option<Instant>,
    shared: Arc<Shared>,
    settled: bool,
}

impl PendingPath {
    pub(super) fn new(shared: Arc<Shared>, opening: Opening) -> Self {
        let Opening { id, kind, early, local, way, segments, rtt, limit } = opening;
        let (since, settled) = (Instant::now(), false);
        let until = since + limit;
        let ask_at = (segments == SegmentSize::Usual).then(|| since + ACKNOWLEDGED + rtt * 3);
        Self { id, kind, early, local, way, since, rtt, until, segments, ask_at, shared, settled }
    }

    pub(super) fn remote(&self) -> Locator {
        self.way.remote
    }

    /// This side's address and the place that it leads to. There may be several ways between them: bound to
    /// an interface, and as routes choose.
    pub(super) fn between(&self) -> (IpAddr, Locator) {
        (self.local.to_canonical(), self.way.remote)
    }

    /// It is of the same carrier between the same places.
    pub(super) fn is_twin_of(&self, other: &Self) -> bool {
        (self.between(), self.kind) == (other.between(), other.kind)
    }

    /// When another carrier should have its turn, or should have had it.
    pub(super) fn late_at(&self) -> Instant {
        self.since + PATIENCE.max(self.rtt * 3)
    }

    /// Whether its packets are likely too large for the way: they were not acknowledged in time, or not
    /// answered for long. True once.
    fn vanishes(&mut self, now: Instant) -> bool {
        if self.ask_at.is_none_or(|at| at > now) {
            return false;
        }
        let answered_by = self.since + ANSWERED + self.rtt * 3;
        let path = self.shared.lock().paths.iter().find(|path| path.id == self.id).cloned();
        let vanishes = answered_by <= now || path.is_some_and(|path| path.is_unheard());
        self.ask_at = (!vanishes).then_some(answered_by);
        vanishes
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
    pub(super) fn extend_with(&mut self, path: Option<PendingPath>) {
        self.0.extend(path);
    }

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
        Self(self.0.extract_if(.., |other| other.is_twin_of(path)).collect())
    }

    /// When [`next_too_large`](Self::next_too_large) may have something to tell.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.0.iter().filter_map(|path| path.ask_at).min()
    }

    /// A path whose packets are likely too large for the way. Each is told once.
    pub(super) fn next_too_large(&mut self, now: Instant) -> Option<(Candidate, CarrierKind)> {
        let path = self.0.iter_mut().find_map(|path| path.vanishes(now).then_some(path))?;
        Some((path.way.clone(), path.kind))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::Future;
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake};

    use whimbrel_base::{ConnectionId, SecretKey};
    use whimbrel_proto::{Config, Connection as Engine};

    use super::*;

    /// Notes that it was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Before, it was found out by looking each 200 ms.
    #[tokio::test]
    async fn that_a_path_has_failed_is_told_when_it_fails() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate().id());
        let (connection, now) = (ConnectionId::random(), Instant::now());
        let engine = Engine::client(Config::default(), connection, ours.id(), theirs, [1; 32], now);
        let shared = Shared::new(engine, ours, Vec::new(), Arc::default(), Arc::default());
        let id = shared.with(|state| state.engine.open_path(now, None, u64::MAX)).unwrap();
        let remote = SocketAddr::from(([192, 0, 2, 1], 443)).into();
        let opening = Opening {
            id,
            kind: CarrierKind::Tcp,
            early: false,
            local: [192, 0, 2, 2].into(),
            way: Candidate { local: None, remote },
            segments: SegmentSize::Usual,
            rtt: Duration::from_millis(10),
            // No timer fires in this test.
            limit: Duration::from_secs(24 * 3600),
        };
        let mut pending = Pending::default();
        pending.push(PendingPath::new(shared.clone(), opening));

        let woken = Arc::new(Woken::default());
        let (waker, mut news) = (woken.clone().into(), pin!(pending.news(&shared)));
        let mut cx = Context::from_waker(&waker);
        assert!(news.as_mut().poll(&mut cx).is_pending());
        assert!(!woken.0.load(Ordering::Relaxed));
        shared.with(|state| state.engine.path_lost(Instant::now(), id));
        assert!(woken.0.load(Ordering::Relaxed), "nothing says that there is news");
        let Poll::Ready(News::Failed(path)) = news.as_mut().poll(&mut cx) else { panic!("no news") };
        assert_eq!(path.id, id);
    }
}
