//! What the driver, the application's handles and the endpoint share of one connection.

mod dispatch;
mod effort;
mod feed;
mod flush;
mod inbox;
mod keep;
mod news;
mod outage;
mod outcomes;
mod pins;
mod punching;
mod state;
mod takeovers;
mod wakers;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Context;
use std::time::Instant;

use whimbrel_base::{ConnectionId, EndpointId, SecretKey, random_bytes};
use whimbrel_proto::{CloseCode, Connection as Engine, HandoverMode, PathId, PathState, Priority, Side};

use self::inbox::Inbox;
use self::keep::Keep;
use self::news::{MoverSignals, News};
pub(crate) use self::state::{Locked, Revive, State};
pub(crate) use self::wakers::{Wait, Wakers};
use crate::aliases::Aliases;
use crate::allow::Allow;
use crate::announce::Announcements;
use crate::bulletin::Bulletin;
use crate::carrier::PathError;
use crate::cause::DownCause;
use crate::distance::Distances;
use crate::events::Events;
use crate::locator::Locator;
use crate::path_io::PathIo;
use crate::policy::PathPolicy;
use crate::report::CloseReason;
use crate::whereabouts::Whereabouts;

/// One connection, seen from everywhere.
pub(crate) struct Shared {
    pub(crate) id: ConnectionId,
    peer: Mutex<EndpointId>,
    /// This end's own.
    pub(crate) key: Arc<SecretKey>,
    state: Mutex<State>,
    /// Messages that the application has not taken yet.
    pub(crate) inbox: Inbox,
    /// For whoever waits for a path, or for the connection's beginning or end.
    pub(crate) news: News,
    /// For the mover.
    pub(crate) mover: MoverSignals,
    /// A server's is never asked for.
    dialled: OnceLock<Box<Dialled>>,
    policy: Mutex<Arc<PathPolicy>>,
    /// Where this endpoint can be reached, for the peer.
    announcements: Arc<Announcements>,
    /// To whom the peer may hand its end over, if the application has said so.
    heirs: Mutex<Option<Box<Allow>>>,
}

/// What only a client has.
#[derive(Default)]
struct Dialled {
    /// Where the server may be.
    whereabouts: Mutex<Whereabouts>,
    /// Where the tokens go that the server tells.
    aliases: OnceLock<Arc<Aliases>>,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        key: impl Into<Arc<SecretKey>>,
        remote: Vec<Locator>,
        policy: Arc<PathPolicy>,
        announcements: Arc<Announcements>,
    ) -> Arc<Self> {
        let side = engine.side();
        let shared = Arc::new(Self {
            id: engine.id(),
            peer: Mutex::new(engine.peer()),
            key: key.into(),
            mover: MoverSignals::of(side),
            state: Mutex::new(State::new(engine)),
            inbox: Inbox::default(),
            news: News::default(),
            dialled: OnceLock::new(),
            policy: Mutex::new(policy),
            announcements,
            heirs: Mutex::default(),
        });
        if side == Side::Client {
            // It was made just now: there is none yet.
            let whereabouts = Mutex::new(Whereabouts::given(remote));
            let _ = shared.dialled.set(Box::new(Dialled { whereabouts, aliases: OnceLock::new() }));
        }
        shared.announcements.tell(&mut shared.lock().engine);
        shared
    }

    /// The peer's present key.
    pub(crate) fn peer(&self) -> EndpointId {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer's end went over to another key.
    fn set_peer(&self, peer: EndpointId) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = peer;
    }

    /// To whom the peer may hand its end over, if the application has said so.
    pub(crate) fn heirs(&self) -> Option<Allow> {
        self.heirs.lock().unwrap_or_else(PoisonError::into_inner).as_deref().cloned()
    }

    pub(crate) fn set_heirs(&self, heirs: Allow) {
        *self.heirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(heirs));
    }

    /// Client: the key that the next attempt looks for. A server that may have another one by now is looked for
    /// under both in turn, since nothing tells which of the two will come.
    pub(crate) fn wanted_peer(&self) -> EndpointId {
        let state = self.lock();
        let expected = state.engine.expected_peer().filter(|_| !state.wants_former);
        expected.unwrap_or_else(|| state.engine.peer())
    }

    /// Client: an attempt has failed.
    pub(crate) fn want_other_peer(&self) {
        let mut state = self.lock();
        state.wants_former = !state.wants_former;
    }

    /// Client: the server may have this key by now, and be there.
    pub(crate) fn expect_peer(&self, id: EndpointId, addresses: &[SocketAddr]) {
        let mut state = self.lock();
        let before = state.engine.expected_peer();
        state.engine.expect_peer(id, random_bytes());
        let is_news = state.engine.expected_peer() != before;
        if is_news {
            state.wants_former = false;
        }
        drop(state);
        if self.set_remote(addresses) || is_news {
            self.mover.start_anew();
        }
    }

    /// Locks the engine, which is awake then, and what goes with it. Whoever is [due](State::wakers) is woken when
    /// the lock is given back.
    pub(crate) fn lock(&self) -> Locked<'_> {
        locked(self.peek())
    }

    /// As [`lock`](Self::lock), but where that would have the thread wait, the task gives way to others
    /// first, as often as `yields` says: `None` then, and the task is woken.
    #[inline]
    pub(crate) fn lock_or_yield(&self, cx: &Context<'_>, yields: &mut u8) -> Option<Locked<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(locked(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(locked(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) if *yields > 0 => {
                *yields -= 1;
                cx.waker().wake_by_ref();
                None
            }
            Err(TryLockError::WouldBlock) => Some(self.lock()),
        }
    }

    /// As [`lock`](Self::lock), but an engine that rests goes on resting.
    pub(crate) fn peek(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packs the engine if it may rest. Then nobody drives the connection until somebody takes the [lock](Self::lock),
    /// which calls `revive` when it is given back. False if the engine may not rest.
    pub(crate) fn rest(&self, revive: Revive) -> bool {
        let mut inbox = self.inbox.open();
        let mut state = self.peek();
        if let Keep::Awake(engine) = &mut state.engine {
            inbox.empty_into(engine);
        }
        state.rest(Instant::now(), revive)
    }

    /// Has a connection that rests go on if its time has come.
    pub(crate) fn revive_if_due(&self, now: Instant) {
        let is_due = self.peek().engine.rests_until().is_some_and(|at| at <= now);
        if is_due {
            drop(self.lock());
        }
    }

    /// Does something with the engine, then passes on what it has to say, and has the driver run.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        self.dispatch(&mut state);
        state.wakers.drive();
        result
    }

    /// A carrier ended.
    pub(crate) fn path_closed(&self, path: &PathIo, why: &PathError) {
        tracing::debug!(connection = %self.id, path = %path.id, remote = %path.remote, %why, "path closed");
        path.note_cause(DownCause::from(why));
        self.with(|state| state.engine.path_lost(Instant::now(), path.id));
        // The engine may have known before. A closed path must not be polled again.
        self.lock().paths.retain(|other| !std::ptr::eq(Arc::as_ptr(other), path));
    }

    /// Gives up the paths whose local address is gone: those for which `why` says why.
    pub(crate) fn lose_paths_without(&self, why: impl Fn(IpAddr) -> Option<DownCause>) {
        self.with(|state| {
            let gone = state.paths.iter().filter_map(|path| Some((path.id, why(path.local.ip())?)));
            for (path, cause) in gone.collect::<Vec<(PathId, DownCause)>>() {
                state.farewell_cut |= state.engine.is_closed();
                state.lose_path(Instant::now(), path, cause);
            }
        });
    }

    /// Gives up the paths to which no route leads any more, as `has_way` says, which may ask the kernel.
    pub(crate) fn lose_paths_without_way(&self, has_way: impl Fn(&PathIo, Side) -> bool) {
        let (paths, side) = {
            let state = self.peek();
            // One that rests has none, and goes on resting.
            if state.paths.is_empty() {
                return;
            }
            (state.paths(), state.engine.side())
        };
        let gone: Vec<PathId> =
            paths.iter().filter(|path| !has_way(path, side)).map(|path| path.id).collect();
        if gone.is_empty() {
            return;
        }
        self.with(|state| {
            for path in gone {
                state.lose_path(Instant::now(), path, DownCause::RouteGone);
            }
        });
    }

    /// Asks for a sign of life on all paths.
    pub(crate) fn probe(&self) {
        self.with(|state| {
            let now = Instant::now();
            for path in state.engine.paths() {
                state.engine.ping(now, path.id);
            }
        });
    }

    /// The policy for the paths of this connection.
    pub(crate) fn policy(&self) -> Arc<PathPolicy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets another policy, which holds at once.
    pub(crate) fn set_policy(&self, policy: PathPolicy) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        self.lock().pins.clear();
        self.mover.start_anew();
    }

    /// Sets another handover mode for both sides.
    pub(crate) fn set_handover(&self, mode: HandoverMode) {
        self.with(|state| {
            state.engine.set_handover(Instant::now(), mode);
            state.pins.clear();
            self.announcements.tell(&mut state.engine);
        });
        self.mover.start_anew();
    }

    /// Gives paths up and sets priorities, as the path manager decided.
    pub(crate) fn apply(&self, retire: &[PathId], priorities: &[(PathId, Priority)]) {
        if retire.is_empty() && priorities.is_empty() {
            return;
        }
        self.with(|state| {
            for path in retire {
                state.engine.path_lost(Instant::now(), *path);
            }
            for (path, priority) in priorities {
                state.engine.set_priority(*path, *priority);
            }
        });
    }

    /// Tells the peer where this endpoint is now, unless paths are used one at a time.
    pub(crate) fn tell_addresses(&self) {
        self.with(|state| self.announcements.tell(&mut state.engine));
    }

    /// The endpoint's listeners hear of this connection from now on.
    pub(crate) fn tell_endpoint(&self, bulletin: Arc<Bulletin>) {
        self.lock().feed.tell_endpoint(bulletin);
    }

    /// This side accepted the connection: what happens from now on happens to one that is established.
    pub(crate) fn accepted(&self) {
        let mut state = self.lock();
        let whose = self.whose(&state.engine);
        state.feed.established(whose);
    }

    pub(crate) fn subscribe(&self) -> Events {
        self.with(|state| {
            state.engine.follow_outages(true);
            Events::new(state.feed.subscribe())
        })
    }

    /// A client without a path that carries data should dial.
    pub(crate) fn needs_path(&self) -> bool {
        let state = self.lock();
        state.engine.may_open_path() && !state.engine.has_active_path()
    }

    /// A client is not over. While another owner tries to go on with it, it needs none, but may later.
    pub(crate) fn may_need_paths(&self) -> bool {
        let state = self.lock();
        state.engine.may_open_path() || (state.engine.is_held() && !state.engine.is_closed())
    }

    /// A server's word on the end did not get through before it moved. A client would dial to say it.
    pub(crate) fn has_cut_farewell(&self) -> bool {
        let state = self.lock();
        state.farewell_cut && state.engine.side() == Side::Server
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.lock().engine.close_reason().map(CloseReason::from)
    }

    /// As [`close_reason`](Self::close_reason), and after an abort at once.
    pub(crate) fn end_reason(&self) -> Option<CloseReason> {
        self.lock().engine.end_reason().map(CloseReason::from)
    }

    pub(crate) fn give_up(&self, code: CloseCode, reason: &str) {
        self.with(|state| state.engine.give_up(code, reason));
    }

    /// Client: the server may be there.
    pub(crate) fn is_remote(&self, place: Locator) -> bool {
        let announced =
            || self.lock().engine.peer_addresses().iter().any(|(_, at, _)| Locator::Direct(*at) == place);
        self.remote().contains(&place) || announced()
    }

    /// Client: the server may be there, as its record or it itself says.
    fn is_known(&self, place: Locator) -> bool {
        self.whereabouts().list().contains(&place)
    }

    /// Client: the server says where it is itself. True if that is news.
    pub(crate) fn set_remote(&self, addresses: &[SocketAddr]) -> bool {
        self.whereabouts().state(&Locator::list(addresses))
    }

    /// Client: where the server may be, the best guess first.
    pub(crate) fn remote(&self) -> Vec<Locator> {
        self.whereabouts().list()
    }

    /// As [`remote`](Self::remote), of several relays the nearest first.
    pub(crate) fn remote_by(&self, distances: &Distances) -> Vec<Locator> {
        self.whereabouts().list_by(|places| distances.order(places, Instant::now()))
    }

    /// Client: what is known of where the server is.
    pub(crate) fn whereabouts(&self) -> MutexGuard<'_, Whereabouts> {
        let dialled = self.dialled.get_or_init(Box::default);
        dialled.whereabouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Local addresses of paths that are suspect: to be avoided when dialling.
    pub(crate) fn suspect_locals(&self) -> Vec<IpAddr> {
        let state = self.lock();
        let suspects: Vec<PathId> =
            state.engine.paths().iter().filter(|p| p.state == PathState::Suspect).map(|p| p.id).collect();
        state.paths.iter().filter(|p| suspects.contains(&p.id)).map(|p| p.local.ip()).collect()
    }
}

/// Wakes the engine.
fn locked(mut state: MutexGuard<'_, State>) -> Locked<'_> {
    let revive = state.wake();
    Locked::new(state, revive)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use whimbrel_base::SecretKey;
    use whimbrel_proto::{Config, Event, StreamId};

    use super::*;
    use crate::report::ConnectionEvent;

    fn shared() -> Arc<Shared> {
        let (client, server) = (SecretKey::generate().id(), SecretKey::generate().id());
        let (id, now) = (ConnectionId::random(), Instant::now());
        let engine = Engine::client(Config::default(), id, client, server, [1; 32], now);
        Shared::new(engine, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default())
    }

    /// Notes whether the lock was free when it was woken.
    struct Hasty {
        shared: Weak<Shared>,
        found_free: AtomicBool,
    }

    impl Wake for Hasty {
        fn wake(self: Arc<Self>) {
            let shared = self.shared.upgrade().unwrap();
            self.found_free.store(shared.state.try_lock().is_ok(), Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_is_woken_finds_the_lock_free() {
        let shared = shared();
        let hasty = || {
            let (shared, found_free) = (Arc::downgrade(&shared), AtomicBool::new(false));
            Arc::new(Hasty { shared, found_free })
        };
        let (driver, accepter, reader) = (hasty(), hasty(), hasty());
        shared.with(|state| {
            state.wakers.wait_to_drive(&Context::from_waker(&driver.clone().into()));
            state.wakers.wait_to_accept(&Context::from_waker(&accepter.clone().into()));
            state.wakers.wait(StreamId(1), Wait::Read, &Context::from_waker(&reader.clone().into()));
            shared.dispatch_one(state, Event::StreamOpened(StreamId(1)));
            shared.dispatch_one(state, Event::Readable(StreamId(1)));
        });
        for woken in [driver, accepter, reader] {
            assert!(woken.found_free.load(Ordering::Relaxed));
        }
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_gives_way_as_often_as_was_said_before_its_thread_waits_for_the_lock() {
        let (shared, task) = (shared(), Arc::new(Counting::default()));
        let waker: Waker = task.clone().into();
        let (cx, mut yields) = (Context::from_waker(&waker), 2);
        let held = shared.lock();
        assert!(shared.lock_or_yield(&cx, &mut yields).is_none());
        assert!(shared.lock_or_yield(&cx, &mut yields).is_none());
        assert_eq!((yields, task.0.load(Ordering::Relaxed)), (0, 2), "it looks again");
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                begun.store(true, Ordering::Relaxed);
                shared.lock_or_yield(&Context::from_waker(&waker), &mut 0).is_some()
            });
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            drop(held);
            assert!(waiting.join().unwrap());
        });
        yields = 1;
        assert!(shared.lock_or_yield(&cx, &mut yields).is_some());
        assert_eq!((yields, task.0.load(Ordering::Relaxed)), (1, 2), "nobody had it");
    }

    #[test]
    fn nothing_is_told_after_the_end() {
        let shared = shared();
        let mut events = shared.subscribe();
        shared.give_up(CloseCode::NONE, "enough");
        // An answer that was on its way.
        shared.dispatch_one(&mut shared.lock(), Event::PathSuspect(PathId(0)));
        assert!(matches!(events.try_next(), Some(ConnectionEvent::Closed { .. })));
        assert!(events.try_next().is_none());
    }
}
