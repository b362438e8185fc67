//! What is heard of the Wi-Fi beneath a connection's paths, and who has to hear of it.

use std::net::IpAddr;

use whimbrel_proto::PathId;

use crate::report::ConnectionEvent;
use crate::shared::Shared;

impl Shared {
    /// The Wi-Fi of local addresses is received as `dbm_of` says. That a path's has become weak by that, or
    /// is well again, is told, and a path whose signal is weak is asked more often whether it works.
    pub(crate) fn hear_signals(&self, dbm_of: impl Fn(IpAddr) -> Option<i8>) {
        // One that rests has no path, and goes on resting.
        if self.peek().paths.is_empty() {
            return;
        }
        let mut state = self.lock();
        let heard = state.paths.iter().filter_map(|path| {
            let dbm = dbm_of(path.local.ip());
            Some((path.id, dbm, path.reception.hear(dbm)?))
        });
        let news: Vec<(PathId, Option<i8>, bool)> = heard.collect();
        for (id, dbm, is_weak) in &news {
            state.engine.set_at_risk(*id, *is_weak);
            self.tell(&mut state, ConnectionEvent::PathSignal { path: id.0, dbm: *dbm, is_weak: *is_weak });
        }
        if !news.is_empty() {
            state.wakers.drive();
        }
    }
}
