//! What is heard of the Wi-Fi beneath a connection's paths, and who has to hear of it.

use std::sync::Arc;

use whimbrel_proto::{PathId, PathState};

use crate::report::ConnectionEvent;
use crate::shared::{Shared, State};
use crate::signal::Received;

impl Shared {
    /// What the endpoint is told of Wi-Fi is found there.
    pub(crate) fn follow_signals(&self, received: Arc<Received>) {
        self.lock().received = Some(received);
    }

    /// The endpoint was told something else.
    pub(crate) fn hear_signals(&self) {
        // One that rests has no path, and goes on resting.
        if self.peek().paths.is_empty() {
            return;
        }
        self.hear_signals_in(&mut self.lock());
    }

    /// Looks at what the endpoint was told last. That a path's Wi-Fi has become weak by that, or is well
    /// again, is told, and a path whose signal is weak is asked more often whether it works.
    pub(crate) fn hear_signals_in(&self, state: &mut State) {
        let Some(received) = &state.received else { return };
        let engine = &state.engine;
        // A path that is not up yet has not been told of: this is done again once it is up.
        let is_up = |id: PathId| engine.path_state(id) != Some(PathState::Opening);
        let heard = state.paths.iter().filter(|path| is_up(path.id)).filter_map(|path| {
            let dbm = received.at(path.local.ip());
            Some((path.id, dbm, path.reception.hear(dbm)?))
        });
        let news: Vec<(PathId, Option<i8>, bool)> = heard.collect();
        for (id, dbm, is_weak) in news {
            state.engine.set_at_risk(id, is_weak);
            self.tell(state, ConnectionEvent::PathSignal { path: id.0, dbm, is_weak });
            state.wakers.drive();
        }
    }
}
