//! What the driver, the application's handles and the endpoint share of one connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::{Notify, broadcast};
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_proto::{
    CloseCode, Connection as Engine, Event, HandoverMode, PathId, PathState, Priority, Side, StreamId,
};

use crate::announce::Announcements;
use crate::carrier::{Flow, PathError};
use crate::manager::{PathPolicy, Takeovers};
use crate::path_io::PathIo;
use crate::report::{CloseReason, ConnectionEvent};
use crate::whereabouts::Whereabouts;

/// Events kept for a slow listener.
const EVENT_BACKLOG: usize = 64;
/// A write that leaves this much waiting is worth a system call at once.
const INLINE_BATCH: u64 = 64 * 1024;

/// Tasks that wait for a stream, one for each thing to wait for.
#[derive(Default)]
pub(crate) struct StreamWakers {
    pub(crate) read: Option<Waker>,
    pub(crate) write: Option<Waker>,
    pub(crate) drained: Option<Waker>,
}

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) paths: SmallVec<[Arc<PathIo>; 2]>,
    pub(crate) wakers: BTreeMap<StreamId, StreamWakers>,
    pub(crate) accepters: Vec<Waker>,
    pub(crate) openers: Vec<Waker>,
    pub(crate) driver: Option<Waker>,
    /// When the driver's timer fires.
    pub(crate) armed: Option<Instant>,
    /// Since when nothing came from the peer although it should.
    pub(crate) outage: Option<Instant>,
    /// How long the last outage lasted.
    pub(crate) last_recovery: Option<Duration>,
    pub(crate) moves: u64,
    /// A path has been answered before.
    was_up: bool,
    pub(crate) takeovers: Takeovers,
    /// Paths whose priority was set by hand, here or by the peer.
    pub(crate) pinned: Vec<PathId>,
    pub(crate) peer_notice_addresses: Vec<SocketAddr>,
    /// The connection is over here, but we lost our address while saying so: the peer may not know.
    pub(crate) farewell_cut: bool,
    events: Option<broadcast::Sender<ConnectionEvent>>,
    /// The end was told to those who listen.
    told_end: bool,
    written_since_flush: u64,
    /// To be woken when the lock is given back.
    due: SmallVec<[Waker; 2]>,
}

/// One connection, seen from everywhere.
pub(crate) struct Shared {
    pub(crate) id: ConnectionId,
    pub(crate) peer: EndpointId,
    state: Mutex<State>,
    /// A path went up, down or is suspect; the connection was established or closed.
    pub(crate) changed: Notify,
    /// Where we are, or what is wanted here, has changed: dial anew at once.
    pub(crate) restart: Notify,
    /// The peer says that it is elsewhere, or wants other paths: dial anew, if it does not say so all the time.
    pub(crate) called: Notify,
    /// Client: where the server may be.
    remote: Mutex<Whereabouts>,
    policy: Mutex<Arc<PathPolicy>>,
    /// Where this endpoint can be reached, for the peer.
    announcements: Arc<Announcements>,
    /// Woken when the connection is established or over.
    pub(crate) settled: Notify,
    /// Newest notice that was heard or answered.
    pub(crate) notice_sequence: Mutex<u64>,
    pub(crate) notice_heard: Notify,
    /// A path was answered or is gone, or the connection is over.
    pub(crate) path_news: Notify,
}

/// What the engine has for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// A segment, which took all stream data that waited.
    Last,
    /// A segment; stream data still waits, for this path or another.
    AndMore,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        remote: Vec<SocketAddr>,
        policy: Arc<PathPolicy>,
        announcements: Arc<Announcements>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            id: engine.id(),
            peer: engine.peer(),
            state: Mutex::new(State {
                engine,
                paths: SmallVec::new(),
                wakers: BTreeMap::new(),
                accepters: Vec::new(),
                openers: Vec::new(),
                driver: None,
                armed: None,
                outage: None,
                last_recovery: None,
                moves: 0,
                was_up: false,
                takeovers: Takeovers::default(),
                pinned: Vec::new(),
                peer_notice_addresses: Vec::new(),
                farewell_cut: false,
                events: None,
                told_end: false,
                written_since_flush: 0,
                due: SmallVec::new(),
            }),
            changed: Notify::new(),
            restart: Notify::new(),
            called: Notify::new(),
            remote: Mutex::new(Whereabouts::given(remote)),
            policy: Mutex::new(policy),
            announcements,
            settled: Notify::new(),
            notice_sequence: Mutex::new(0),
            notice_heard: Notify::new(),
            path_news: Notify::new(),
        });
        shared.announcements.tell(&mut shared.lock().engine);
        shared
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the engine, then passes on what it has to say, and has the driver run.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        self.dispatch(&mut state);
        let driver = state.driver.take();
        state.due.extend(driver);
        unlock_and_wake(state);
        result
    }

    /// Takes one segment in. Call [`announce`](Self::announce) when all that came together is in.
    pub(crate) fn take_segment(&self, now: Instant, path: PathId, segment: &[u8]) -> Result<(), PathError> {
        let result = self.lock().engine.handle_segment(now, path, segment);
        result.map_err(|error| {
            tracing::warn!(connection = %self.id, %error, "the peer broke the protocol");
            PathError::Protocol
        })
    }

    /// Passes on what the engine has to say. Once for each read: a reader that is woken for every
    /// segment does little but wake up.
    pub(crate) fn announce(&self) {
        let mut state = self.lock();
        self.dispatch(&mut state);
        unlock_and_wake(state);
    }

    /// Whether there is something to send on a path.
    pub(crate) fn has_segment(&self, path: PathId) -> bool {
        self.lock().engine.has_transmit(Instant::now(), path)
    }

    /// Appends the next segment for a path. Writers for whom that made room are woken.
    pub(crate) fn next_segment(&self, now: Instant, path: PathId, out: &mut Vec<u8>) -> Next {
        let mut state = self.lock();
        state.written_since_flush = 0;
        let next = match state.engine.poll_transmit(now, path, out) {
            false => Next::Nothing,
            true if state.engine.has_stream_data() => Next::AndMore,
            true => Next::Last,
        };
        self.dispatch(&mut state);
        unlock_and_wake(state);
        next
    }

    /// A carrier ended.
    pub(crate) fn path_closed(&self, path: &PathIo, why: &PathError) {
        tracing::debug!(connection = %self.id, path = %path.id, remote = %path.remote, %why, "path closed");
        self.with(|state| state.engine.path_lost(Instant::now(), path.id));
        // The engine may have known before: who is asked in vain must not be asked again.
        self.lock().paths.retain(|other| !std::ptr::eq(Arc::as_ptr(other), path));
    }

    /// Gives paths up whose local address is gone.
    pub(crate) fn lose_paths_without(&self, has: impl Fn(IpAddr) -> bool) {
        self.with(|state| {
            let gone: Vec<PathId> = state.paths.iter().filter(|p| !has(p.local.ip())).map(|p| p.id).collect();
            for path in gone {
                state.farewell_cut |= state.engine.is_closed();
                state.engine.path_lost(Instant::now(), path);
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

    /// After a write by the application: sends at once if the line is quiet or much has gathered,
    /// else lets the driver gather more. Small writes become few segments, lone ones lose no time.
    pub(crate) fn after_write(&self, written: usize) {
        let path = {
            let mut state = self.lock();
            state.written_since_flush += written as u64;
            if state.is_stuck() {
                return;
            }
            let quiet = state.engine.in_flight() == 0;
            if !quiet && (state.written_since_flush < INLINE_BATCH || state.paths.len() > 1) {
                state.wake_driver();
                return;
            }
            match &state.paths[..] {
                [] => return,
                [path] => path.clone(),
                _ => {
                    let paths = state.paths();
                    drop(state);
                    return self.flush_some(&paths);
                }
            }
        };
        match path.try_flush(self) {
            Some(Ok(Flow::Idle | Flow::More)) => {
                self.lock().wake_driver_if_late();
            }
            // The driver waits for the socket, or reports the error.
            _ => self.lock().wake_driver(),
        }
    }

    /// Offers what waits to each of several paths once; the engine decides which takes it.
    fn flush_some(&self, paths: &[Arc<PathIo>]) {
        for path in paths.iter().filter(|path| !path.is_blocked()) {
            match path.try_flush(self) {
                Some(Ok(Flow::Idle | Flow::More)) => {}
                // The driver has the others take over, waits for the socket, or reports the error.
                stopped => {
                    let mut state = self.lock();
                    if matches!(stopped, Some(Ok(Flow::Blocked))) {
                        state.engine.path_blocked(path.id);
                    }
                    return state.wake_driver();
                }
            }
        }
        self.lock().wake_driver_if_late();
    }

    /// The policy for the paths of this connection.
    pub(crate) fn policy(&self) -> Arc<PathPolicy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets another policy, which holds at once.
    pub(crate) fn set_policy(&self, policy: PathPolicy) {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        self.lock().pinned.clear();
        self.restart.notify_one();
    }

    /// Sets another handover mode for both sides.
    pub(crate) fn set_handover(&self, mode: HandoverMode) {
        self.with(|state| {
            state.engine.set_handover(Instant::now(), mode);
            state.pinned.clear();
            self.announcements.tell(&mut state.engine);
        });
        self.restart.notify_one();
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

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ConnectionEvent> {
        let mut state = self.lock();
        state.events.get_or_insert_with(|| broadcast::channel(EVENT_BACKLOG).0).subscribe()
    }

    /// A client without a path that carries data should dial.
    pub(crate) fn needs_path(&self) -> bool {
        let state = self.lock();
        state.engine.may_open_path() && !state.engine.has_active_path()
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

    /// Takes the events in; whoever has to hear of them is [due](State::due).
    fn dispatch(&self, state: &mut State) {
        while let Some(event) = state.engine.poll_event() {
            self.dispatch_one(state, event);
        }
    }

    fn dispatch_one(&self, state: &mut State, event: Event) {
        match event {
            Event::Readable(id) => state.due.extend(state.wakers.get_mut(&id).and_then(|w| w.read.take())),
            Event::Writable(id) => state.due.extend(state.wakers.get_mut(&id).and_then(|w| w.write.take())),
            Event::Drained(id) => state.due.extend(state.wakers.get_mut(&id).and_then(|w| w.drained.take())),
            Event::StreamOpened(_) => state.due.extend(state.accepters.drain(..)),
            Event::StreamsAvailable => state.due.extend(state.openers.drain(..)),
            Event::Established => self.settled.notify_waiters(),
            Event::PathUp(id) => self.path_up(state, id),
            Event::PathRevived(id) => self.path_works(state, id),
            Event::PathSuspect(id) => {
                if !state.engine.has_active_path() {
                    state.begin_outage();
                }
                state.emit(ConnectionEvent::PathSuspect { path: id.0 });
                self.changed.notify_one();
            }
            Event::PathDown(id) => {
                state.takeovers.path_gone(id);
                if !state.engine.has_active_path() {
                    state.begin_outage();
                }
                if let Some(index) = state.paths.iter().position(|p| p.id == id) {
                    let path = state.paths.remove(index);
                    let (local, remote) = (path.local, path.remote);
                    state.emit(ConnectionEvent::PathDown { path: id.0, local, remote });
                }
                self.changed.notify_one();
                self.path_news.notify_waiters();
                state.wake_driver();
            }
            Event::PeerAddresses(addresses) => self.peer_addresses(state, addresses),
            // Paths to what is withdrawn are told lost by the peer itself.
            Event::PeerAddress { .. } => self.called.notify_one(),
            Event::HandoverChanged(mode) => {
                state.pinned.clear();
                self.announcements.tell(&mut state.engine);
                state.emit(ConnectionEvent::HandoverChanged(mode));
                self.called.notify_one();
            }
            Event::PriorityChanged(id, priority) => {
                state.pin(id);
                state.emit(ConnectionEvent::PriorityChanged { path: id.0, priority });
                // The peer may say so as often as it likes, and each time there is a survey.
                self.called.notify_one();
            }
            Event::Closed { code, reason, .. } => {
                state.emit(ConnectionEvent::Closed { code, reason });
                state.wake_streams();
                self.settled.notify_waiters();
                self.changed.notify_one();
                self.path_news.notify_waiters();
                state.wake_driver();
            }
        }
    }

    fn path_up(&self, state: &mut State, id: PathId) {
        let paths = state.engine.paths();
        let engine = &state.engine;
        let was_answered = |id: &PathId| engine.path_state(*id) != Some(PathState::Opening);
        let takes_over = state.takeovers.predecessor_of(id).filter(was_answered);
        if let Some(predecessor) = takes_over {
            state.engine.retire_path(Instant::now(), predecessor);
        }
        // A path beside others is no move, nor is another carrier between the same places.
        let alone = paths.iter().filter(|p| p.state == PathState::Active).count() == 1;
        state.moves += u64::from(state.was_up && alone && takes_over.is_none());
        state.was_up = true;
        self.path_works(state, id);
        self.path_news.notify_waiters();
    }

    /// A path answered, or a suspect one came back: whoever was told of an outage learns of its end.
    fn path_works(&self, state: &mut State, id: PathId) {
        let took = state.end_outage();
        let found = state.paths.iter().find(|p| p.id == id).map(|p| (p.local, p.remote));
        if let Some((local, remote)) = found {
            if state.engine.side() == Side::Client {
                self.whereabouts().worked(local.ip(), remote);
            }
            state.emit(ConnectionEvent::PathUp { path: id.0, local, remote, recovery: took });
        }
        self.changed.notify_one();
    }

    /// A server's addresses are where it can be dialled, a client's where it hears notices.
    fn peer_addresses(&self, state: &mut State, addresses: Vec<SocketAddr>) {
        if state.engine.side() == Side::Client {
            self.set_remote(&addresses);
        } else {
            state.peer_notice_addresses = addresses;
        }
    }

    /// Client: the server may be there.
    pub(crate) fn is_remote(&self, address: SocketAddr) -> bool {
        let announced = || self.lock().engine.peer_addresses().iter().any(|(_, at, _)| *at == address);
        self.remote().contains(&address) || announced()
    }

    /// Client: the server says where it is. True if that is news.
    pub(crate) fn set_remote(&self, addresses: &[SocketAddr]) -> bool {
        self.whereabouts().state(addresses)
    }

    /// Client: the paths to where the server said that it was, and is not any more if these are its addresses.
    pub(crate) fn paths_left_by(&self, addresses: &[SocketAddr]) -> Vec<PathId> {
        let paths: Vec<_> = self.lock().paths.iter().map(|path| (path.id, path.remote.ip())).collect();
        let whereabouts = self.whereabouts();
        let is_left = |ip: IpAddr| whereabouts.states(ip) && !addresses.iter().any(|at| at.ip() == ip);
        paths.into_iter().filter(|(_, ip)| is_left(*ip)).map(|(path, _)| path).collect()
    }

    /// Client: where the server may be, the best guess first.
    pub(crate) fn remote(&self) -> Vec<SocketAddr> {
        self.whereabouts().list()
    }

    /// Client: what is known of where the server is.
    pub(crate) fn whereabouts(&self) -> MutexGuard<'_, Whereabouts> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Local addresses of paths that are suspect: to be avoided when dialling.
    pub(crate) fn suspect_locals(&self) -> Vec<IpAddr> {
        let state = self.lock();
        let suspects: Vec<PathId> =
            state.engine.paths().iter().filter(|p| p.state == PathState::Suspect).map(|p| p.id).collect();
        state.paths.iter().filter(|p| suspects.contains(&p.id)).map(|p| p.local.ip()).collect()
    }
}

impl State {
    /// All paths. (Pushed one by one: cloning the vector costs ten times as much, and this is done for each wake-up.)
    pub(crate) fn paths(&self) -> SmallVec<[Arc<PathIo>; 2]> {
        let mut paths = SmallVec::new();
        self.paths.iter().for_each(|path| paths.push(path.clone()));
        paths
    }

    pub(crate) fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }

    /// Wakes whoever waits for a stream: there is nothing more to wait for.
    pub(crate) fn wake_streams(&mut self) {
        for wakers in self.wakers.values_mut() {
            wake(wakers.read.take());
            wake(wakers.write.take());
            wake(wakers.drained.take());
        }
        self.accepters.drain(..).for_each(Waker::wake);
        self.openers.drain(..).for_each(Waker::wake);
    }

    /// All sockets are full, which the driver knows or is being told: no use in waking it to write.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|path| path.is_blocked())
    }

    /// A path's priority was set by hand: the manager leaves it alone from now on.
    pub(crate) fn pin(&mut self, id: PathId) {
        let paths = &self.paths;
        self.pinned.retain(|pinned| *pinned != id && paths.iter().any(|path| path.id == *pinned));
        self.pinned.push(id);
    }

    /// Wakes the driver if its timer would fire after the engine's next deadline.
    fn wake_driver_if_late(&mut self) {
        if let Some(deadline) = self.engine.poll_timeout()
            && self.armed.is_none_or(|armed| deadline < armed)
        {
            self.wake_driver();
        }
    }

    /// The connection is over, and the peer knows or will find out by itself.
    pub(crate) fn is_settled(&self) -> bool {
        self.engine.is_closed() && !self.farewell_cut
    }

    /// Tells who listens, unless they were told already that the connection is over: nothing follows that.
    fn emit(&mut self, event: ConnectionEvent) {
        if self.told_end {
            return;
        }
        self.told_end = matches!(event, ConnectionEvent::Closed { .. });
        if let Some(events) = &self.events {
            let _ = events.send(event);
        }
    }

    fn begin_outage(&mut self) {
        if self.outage.is_none() {
            self.outage = Some(Instant::now());
            self.emit(ConnectionEvent::Unreachable);
        }
    }

    fn end_outage(&mut self) -> Option<Duration> {
        let took = self.outage.take()?.elapsed();
        self.last_recovery = Some(took);
        Some(took)
    }
}

/// Whoever is woken may run at once, elsewhere, and wants the lock first of all.
fn unlock_and_wake(mut state: MutexGuard<'_, State>) {
    let due = std::mem::take(&mut state.due);
    drop(state);
    due.into_iter().for_each(Waker::wake);
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use whimbrel_base::SecretKey;
    use whimbrel_proto::Config;

    use super::*;

    fn shared() -> Arc<Shared> {
        let (client, server) = (SecretKey::generate().id(), SecretKey::generate().id());
        let (id, now) = (ConnectionId::random(), Instant::now());
        let engine = Engine::client(Config::default(), id, client, server, [1; 32], now);
        Shared::new(engine, Vec::new(), Arc::default(), Arc::default())
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
            state.driver = Some(driver.clone().into());
            state.accepters.push(accepter.clone().into());
            state.wakers.entry(StreamId(1)).or_default().read = Some(reader.clone().into());
            shared.dispatch_one(state, Event::StreamOpened(StreamId(1)));
            shared.dispatch_one(state, Event::Readable(StreamId(1)));
        });
        for woken in [driver, accepter, reader] {
            assert!(woken.found_free.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn nothing_is_told_after_the_end() {
        let shared = shared();
        let mut events = shared.subscribe();
        shared.give_up(CloseCode::NONE, "enough");
        // An answer that was on its way.
        shared.dispatch_one(&mut shared.lock(), Event::PathSuspect(PathId(0)));
        assert!(matches!(events.try_recv(), Ok(ConnectionEvent::Closed { .. })));
        assert!(events.try_recv().is_err());
    }
}
