//! What happens when nothing happens.

use std::time::{Duration, Instant};

use super::Connection;
use crate::error::CloseCode;
use crate::event::Event;
use crate::ids::{PathId, Side};
use crate::path::{Path, PathState};

/// A connection that is closing, but has no path left to say so, is kept no longer than this.
const CLOSING_LINGER: Duration = Duration::from_secs(600);

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let over = self.closed.is_some();
        let paths = self.paths.values().filter(|p| p.is_live() && !over);
        let deadlines = paths.flat_map(|path| {
            [
                path.ack_deadline,
                path.suspect_deadline(self.config.params.max_ack_delay),
                self.keepalive_deadline(path),
            ]
        });
        deadlines.chain([self.linger_deadline()]).flatten().min()
    }

    /// Does what is due at `now`; afterwards transmit on all paths.
    pub fn handle_timeout(&mut self, now: Instant) {
        for path in self.paths.values_mut() {
            // From now on a matter of room on the carrier, not of time.
            if path.ack_deadline.is_some_and(|at| at <= now) {
                path.ack_deadline = None;
                path.ack_due = true;
            }
        }
        if self.closed.is_some() {
            return;
        }
        for (id, action) in self.due_actions(now) {
            match action {
                Action::Suspect => self.suspect_path(id),
                Action::Ping => self.ping(now, id),
            }
        }
        if self.linger_deadline().is_some_and(|at| at <= now) {
            self.give_up(
                CloseCode::LINGER_EXPIRED,
                "no contact within the linger time",
            );
        }
    }

    fn due_actions(&self, now: Instant) -> Vec<(PathId, Action)> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.paths
            .iter()
            .filter(|(_, path)| path.is_live())
            .filter_map(|(&id, path)| {
                if due(path.suspect_deadline(self.config.params.max_ack_delay)) {
                    return Some((id, Action::Suspect));
                }
                due(self.keepalive_deadline(path)).then_some((id, Action::Ping))
            })
            .collect()
    }

    /// Asks for a sign of life on a path, now.
    pub fn ping(&mut self, now: Instant, id: PathId) {
        if let Some(path) = self.paths.get_mut(&id).filter(|p| p.is_live()) {
            path.ping = true;
            // The answer, or the suspect timer, decides; don't ask again meanwhile.
            path.heard = now;
        }
    }

    /// When the path's silence, if it lasts, makes it suspect.
    #[must_use]
    pub fn suspect_deadline(&self, id: PathId) -> Option<Instant> {
        self.paths
            .get(&id)?
            .suspect_deadline(self.config.params.max_ack_delay)
    }

    fn keepalive_deadline(&self, path: &Path) -> Option<Instant> {
        let interval = match self.side {
            Side::Client => self.config.keepalive,
            Side::Server => self.config.keepalive * 2,
        };
        (path.state == PathState::Active && path.in_flight == 0 && !path.ping)
            .then(|| path.heard + interval)
    }

    fn linger_deadline(&self) -> Option<Instant> {
        if self.closed.is_some() {
            return None;
        }
        let linger = self.config.params.linger;
        let linger = if self.closing.is_some() {
            linger.min(CLOSING_LINGER)
        } else {
            linger
        };
        self.detached_since.map(|at| at + linger)
    }

    pub(super) fn note_progress(&mut self, id: PathId, now: Instant) {
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        path.progress = now;
        if path.state == PathState::Suspect {
            path.state = PathState::Active;
            self.push(Event::PathRevived(id));
        }
    }
}

enum Action {
    Suspect,
    Ping,
}
