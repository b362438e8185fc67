//! Between the engine and its carriers: segments in, segments out.

use std::sync::Arc;
use std::time::Instant;

use whimbrel_proto::{PathId, ProtocolError};

use super::{Locked, Shared, State};
use crate::carrier::{Flow, Next, PathError, Segments};
use crate::path_io::PathIo;

impl Segments for Shared {
    fn take_segment(&self, now: Instant, path: PathId, segment: &[u8]) -> Result<(), PathError> {
        let result = self.lock().engine.handle_segment(now, path, segment);
        result.map_err(|error| self.broken(&error))
    }

    fn take_datagram(&self, now: Instant, path: PathId, datagram: &[u8]) -> Result<(), PathError> {
        let result = self.lock().engine.handle_datagram(now, path, datagram);
        result.map_err(|error| self.broken(&error))
    }

    fn may_have_datagrams(&self) -> bool {
        self.lock().engine.may_have_datagrams()
    }

    fn wants_short_queues(&self) -> bool {
        self.lock().engine.wants_short_queues()
    }

    fn next_datagram(&self, now: Instant, path: PathId, room: u64, blocked: bool, out: &mut Vec<u8>) -> bool {
        let mut state = self.lock();
        if blocked {
            state.engine.path_blocked(path);
        }
        state.engine.set_datagram_room(path, room);
        let any = state.engine.poll_datagram(now, path, out);
        self.dispatch(&mut state);
        any
    }

    fn announce(&self) {
        self.dispatch(&mut self.lock());
    }

    fn announce_and_look(&self, now: Instant, path: PathId) -> bool {
        let mut state = self.lock();
        // What is announced may be a reason to say something.
        self.dispatch(&mut state);
        self.look(&mut state, now, path)
    }

    fn has_segment(&self, path: PathId) -> bool {
        let now = Instant::now();
        self.look(&mut self.lock(), now, path)
    }

    fn next_segment(&self, now: Instant, path: PathId, out: &mut Vec<u8>) -> Next {
        let mut state = self.lock();
        let next = match state.engine.poll_transmit(now, path, out) {
            false => Next::Nothing,
            true if state.engine.has_stream_data() => Next::AndMore,
            true => Next::Last,
        };
        self.dispatch(&mut state);
        next
    }
}

impl Shared {
    /// Whether there is something to send on a path. Messages whose time is over expire when it is looked, and
    /// no timer is left then that would have whoever waits for their outcome hear of it.
    fn look(&self, state: &mut State, now: Instant, path: PathId) -> bool {
        let any = state.engine.has_transmit(now, path);
        self.dispatch(state);
        any
    }

    fn broken(&self, error: &ProtocolError) -> PathError {
        tracing::warn!(connection = %self.id, %error, "the peer broke the protocol");
        PathError::Protocol
    }

    /// After a write by the application, which held the lock for it: sends at once if nothing is under way, so
    /// that a lone write loses no time. Else the driver sends: it gathers small writes into few segments, and
    /// seals large ones while the application makes the next. `now` is the time of the write, if the clock
    /// was looked at.
    pub(crate) fn after_write(&self, mut state: Locked<'_>, now: Option<Instant>) {
        let path = {
            if state.wakers.is_driver_awake() && state.engine.has_in_flight() {
                // It finds what was written, whichever of the following is the case.
                return;
            }
            if state.is_stuck() {
                if state.engine.may_have_datagrams() {
                    // A carrier takes them although its stream is full.
                    state.wakers.drive();
                }
                return;
            }
            if state.engine.has_in_flight() {
                state.wakers.drive();
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
        drop(state);
        match path.try_flush(self, now) {
            Some(Ok(Flow::Idle | Flow::More)) => {
                self.lock().wake_driver_if_late();
            }
            // The driver waits for the socket, or reports the error.
            _ => self.lock().wakers.drive(),
        }
    }

    /// Offers what waits to each of several paths once; the engine decides which takes it.
    fn flush_some(&self, paths: &[Arc<PathIo>]) {
        for path in paths.iter().filter(|path| !path.is_blocked()) {
            match path.try_flush(self, None) {
                Some(Ok(Flow::Idle | Flow::More)) => {}
                // The driver has the others take over, waits for the socket, or reports the error.
                stopped => {
                    let mut state = self.lock();
                    if matches!(stopped, Some(Ok(Flow::Blocked))) {
                        state.engine.path_blocked(path.id);
                    }
                    return state.wakers.drive();
                }
            }
        }
        let mut state = self.lock();
        if state.engine.may_have_datagrams() || state.engine.has_opening_copies() {
            // A carrier that was passed over takes datagrams although its stream is full, and copies of what went on
            // another after it was asked.
            return state.wakers.drive();
        }
        state.wake_driver_if_late();
    }
}
