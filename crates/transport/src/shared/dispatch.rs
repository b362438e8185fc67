//! What the engine has to say, and who has to hear of it.

mod signals;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use whimbrel_base::relayed::aliases;
use whimbrel_proto::{Event, PathId, PathState, Side};

use super::feed::Whose;
use super::{Engine, Shared, State, Wait};
use crate::aliases::Aliases;
use crate::report::ConnectionEvent;

impl Shared {
    /// Takes the events in; whoever has to hear of them is [due](State::due).
    #[inline]
    pub(crate) fn dispatch(&self, state: &mut State) {
        while let Some(event) = state.engine.poll_event() {
            self.dispatch_one(state, event);
        }
        self.dispatch_arriving(state);
    }

    /// A path that joins is up for the engine before it has its carrier, without which nobody could be told
    /// between which places it is.
    #[inline]
    fn dispatch_arriving(&self, state: &mut State) {
        let Some(arriving) = state.arriving.take() else { return };
        for id in *arriving {
            if state.has_carrier(id) {
                self.path_up(state, id);
            } else if state.engine.path_state(id).is_some_and(|at| at != PathState::Lost) {
                state.arriving.get_or_insert_default().push(id);
            }
        }
    }

    pub(super) fn dispatch_one(&self, state: &mut State, event: Event) {
        match event {
            Event::Readable(id) => state.wakers.came(id, Wait::Read),
            Event::Writable(id) => state.wakers.came(id, Wait::Write),
            Event::Drained(id) => state.wakers.came(id, Wait::Drained),
            Event::StreamOpened(_) => state.wakers.can_accept(),
            Event::StreamsAvailable => state.wakers.can_open(),
            Event::MessageReadable => state.wakers.can_receive(),
            Event::JournalReadable => state.wakers.can_receive_journal(),
            Event::FlowWritable(flow) => state.wakers.can_send(flow),
            Event::MessageDone(id, outcome) => state.outcomes.told(id, outcome),
            Event::Established => {
                state.feed.established(self.whose(&state.engine));
                self.news.established();
            }
            Event::PathUp(id) if state.has_carrier(id) => self.path_up(state, id),
            Event::PathUp(id) => state.arriving.get_or_insert_default().push(id),
            Event::PathRevived(id) => self.path_works(state, id),
            Event::PathSuspect(id) => {
                if !state.engine.has_active_path() {
                    state.outage.begin(Instant::now());
                }
                let found = state.paths.iter().find(|path| path.id == id);
                if let Some(path) = found.filter(|_| state.engine.side() == Side::Client) {
                    self.whereabouts().fell_silent(path.remote, path.since.elapsed());
                }
                self.tell(state, ConnectionEvent::PathSuspect { path: id.0 });
                self.mover.look();
            }
            Event::PathDown(id, end) => {
                state.takeovers.path_gone(id);
                if !state.engine.has_active_path() {
                    state.outage.begin(Instant::now());
                }
                if let Some(index) = state.paths.iter().position(|p| p.id == id) {
                    let path = state.paths.remove(index);
                    let (local, remote, cause) = (path.local, path.remote, path.cause(end));
                    self.tell(state, ConnectionEvent::PathDown { path: id.0, local, remote, cause });
                }
                self.mover.look();
                self.news.path_came_or_went();
                state.wakers.drive();
            }
            Event::Unreachable { lasts } => {
                let followed = self.tell(state, ConnectionEvent::Unreachable { lasts });
                state.engine.follow_outages(followed);
            }
            Event::Reachable { after } => {
                self.tell(state, ConnectionEvent::Reachable { after });
            }
            Event::PeerAddresses(addresses) => self.peer_addresses(state, addresses),
            // Paths to what is withdrawn are told lost by the peer itself.
            Event::PeerAddress { .. } => self.mover.peer_called(),
            Event::PeerCandidates => self.mover.candidates_came(),
            Event::PeerSuspended => drop(self.tell(state, ConnectionEvent::PeerSuspended)),
            Event::PeerResumed => drop(self.tell(state, ConnectionEvent::PeerResumed)),
            Event::SuspendHeard | Event::AssignHeard => self.news.path_came_or_went(),
            Event::PeerAssigned { to, addresses } => {
                state.assigned = Some(Box::new((to, addresses)));
                self.mover.look();
            }
            Event::PeerHandedOver { from, to } => {
                self.set_peer(to);
                self.tell(state, ConnectionEvent::PeerHandedOver { from, to });
            }
            Event::HandoverChanged(mode) => {
                state.pins.clear();
                self.announcements.tell(&mut state.engine);
                self.tell(state, ConnectionEvent::HandoverChanged(mode));
                self.mover.peer_called();
            }
            Event::PriorityChanged(id, priority) => {
                state.pin(id);
                self.tell(state, ConnectionEvent::PriorityChanged { path: id.0, priority });
                // The peer may say so as often as it likes, and each time there is a survey.
                self.mover.peer_called();
            }
            Event::Closed { code, reason, .. } => {
                self.tell(state, ConnectionEvent::Closed { code, reason });
                state.wakers.all_over();
                state.outcomes.all_over();
                self.news.over();
                self.mover.look();
                state.wakers.drive();
            }
        }
    }

    /// Which connection this is, for those who hear of many.
    pub(super) fn whose(&self, engine: &Engine) -> Whose {
        Whose { id: self.id, peer: self.peer(), side: engine.side() }
    }

    /// As [`Feed::tell`](super::feed::Feed::tell).
    fn tell(&self, state: &mut State, event: ConnectionEvent) -> bool {
        let whose = self.whose(&state.engine);
        state.feed.tell(whose, event)
    }

    fn path_up(&self, state: &mut State, id: PathId) {
        let paths = state.engine.paths();
        let engine = &state.engine;
        let was_answered = |id: &PathId| engine.path_state(*id) != Some(PathState::Opening);
        let takes_over = state.takeovers.predecessors_of(id).find(was_answered);
        if let Some(predecessor) = takes_over {
            state.engine.retire_path(Instant::now(), predecessor);
        }
        // A path beside others is no move, nor is another carrier between the same places.
        let alone = paths.iter().all(|p| (p.state == PathState::Active) == (p.id == id));
        state.moves += u64::from(state.was_up && alone && takes_over.is_none());
        state.was_up = true;
        // The key that the server may have by now has not answered, or is its present one.
        state.wants_former = state.engine.expected_peer().is_some();
        self.path_works(state, id);
        self.news.path_came_or_went();
    }

    /// A path answered, or a suspect one came back: whoever was told of an outage learns of its end.
    fn path_works(&self, state: &mut State, id: PathId) {
        let took = state.outage.end(Instant::now());
        let found = state.paths.iter().find(|p| p.id == id).map(|p| (p.local, p.remote));
        if let Some((local, remote)) = found {
            if state.engine.side() == Side::Client {
                // Where a gateway was opened for a moment is no place to come back to.
                let candidates = state.engine.peer_candidates();
                let was_open = remote.direct().is_some_and(|at| candidates.iter().any(|c| c.ip() == at.ip()));
                if !was_open || self.is_known(remote) {
                    self.whereabouts().worked(local.ip(), remote);
                }
            }
            self.tell(state, ConnectionEvent::PathUp { path: id.0, local, remote, recovery: took });
        }
        self.hear_signals_in(state);
        self.mover.look();
    }

    /// Client: the tokens go there that the server tells from now on.
    pub(crate) fn learn_into(&self, aliases: Arc<Aliases>) {
        if let Some(dialled) = self.dialled.get() {
            // It is said once, when the connection is made.
            let _ = dialled.aliases.set(aliases);
        }
    }

    /// A server's addresses are where it can be dialled, a client's where it hears notices.
    fn peer_addresses(&self, state: &mut State, addresses: Vec<SocketAddr>) {
        if state.engine.side() == Side::Client {
            self.set_remote(&addresses);
            if let Some(known) = self.dialled.get().and_then(|dialled| dialled.aliases.get()) {
                known.learn(self.peer(), &aliases(&addresses));
            }
        } else {
            state.set_notice_addresses(addresses);
        }
    }
}
