//! What happens when nothing happens.

use std::time::{Duration, Instant};

use super::Connection;
use crate::error::CloseCode;
use crate::event::{Event, PathEnd};
use crate::ids::{PathId, Side};
use crate::path::Path;
use crate::session::ending::Wait;

/// After so much silence, at most, a client asks whether a path that may fail soon still works.
const AT_RISK: Duration = Duration::from_secs(1);

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mut next =
            sooner(self.linger_deadline(), sooner(self.close_deadline(), self.farewell_deadline()));
        if self.is_closed() && !self.session.ending.owes_farewell() {
            return next;
        }
        let (silence, only) = (self.silence(), self.has_one_path());
        next = sooner(next, self.pacing.deadline());
        next = sooner(next, self.reach_deadline());
        next = sooner(next, self.session.messages.sender.deadline().and_then(|at| self.clock.at(at)));
        for path in self.paths.values().filter(|p| p.is_live()) {
            next = sooner(next, path.incoming.deadline());
            next = sooner(next, path.datagrams.arriving.deadline());
            next = sooner(next, path.datagrams.leaving.deadline(path.patience(silence)));
            next = sooner(next, path.suspect_deadline(silence, only));
            next = sooner(next, path.retire_deadline());
            next = sooner(next, self.keepalive_deadline(path));
        }
        next
    }

    /// Does what is due at `now`; afterwards transmit on all paths.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.clock.tell(now);
        for path in self.paths.values_mut() {
            path.incoming.expire(now);
        }
        let due = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if due(self.farewell_deadline()) {
            self.session.ending.settle_farewell();
        }
        if self.is_closed() && !self.session.ending.owes_farewell() {
            return;
        }
        self.pacing.run(now);
        self.run_reach(now);
        self.run_datagrams(now);
        self.run_messages(now);
        self.update_close(now);
        for (id, action) in self.due_actions(now) {
            match action {
                Action::Suspect => {
                    self.note_direction(id);
                    self.suspect_path(now, id);
                }
                Action::Ping => {
                    self.doubt(now, id);
                    self.ping(now, id);
                }
                Action::Lose => self.lose_path(now, id, PathEnd::Silent),
            }
        }
        let told = self.session.ending.is_said();
        if due(self.close_deadline()) || (told && due(self.linger_deadline())) {
            self.close_unanswered();
        } else if due(self.linger_deadline()) {
            self.give_up(CloseCode::LINGER_EXPIRED, "no contact within the linger time");
        }
    }

    /// Whether a path that makes no progress still brings what the peer sends.
    fn note_direction(&mut self, id: PathId) {
        let patience = self.silence();
        if let Some(path) = self.paths.get_mut(id) {
            let patience = path.patience(patience);
            path.liveness.note_direction(patience);
        }
    }

    fn doubt(&mut self, now: Instant, id: PathId) {
        let silence = self.silence();
        if let Some(path) = self.paths.get_mut(id) {
            let patience = path.patience(silence);
            path.liveness.doubt(now, patience, silence.least);
        }
    }

    fn due_actions(&self, now: Instant) -> Vec<(PathId, Action)> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (silence, only) = (self.silence(), self.has_one_path());
        self.paths
            .iter()
            .filter(|(_, path)| path.is_live())
            .filter_map(|(id, path)| {
                if due(path.suspect_deadline(silence, only)) {
                    return Some((id, Action::Suspect));
                }
                if due(path.retire_deadline()) {
                    return Some((id, Action::Lose));
                }
                due(self.keepalive_deadline(path)).then_some((id, Action::Ping))
            })
            .collect()
    }

    /// Asks for a sign of life on a path, now.
    pub fn ping(&mut self, now: Instant, id: PathId) {
        if let Some(path) = self.paths.get_mut(id).filter(|p| p.stays()) {
            path.ping = true;
            path.liveness.ask(now);
        }
    }

    /// Says whether a path may fail soon, as something below it tells, or not any more. As long as it may, a
    /// client asks for a sign of life after a second of silence there, a server after two, unless
    /// [`Timeouts::heartbeat`](crate::Timeouts) is shorter.
    pub fn set_at_risk(&mut self, id: PathId, at_risk: bool) {
        if let Some(path) = self.paths.get_mut(id) {
            path.at_risk = at_risk;
        }
    }

    /// When the path's silence, if it lasts, makes it suspect or, if it is retiring, lost.
    #[must_use]
    pub fn suspect_deadline(&self, id: PathId) -> Option<Instant> {
        let path = self.paths.get(id)?;
        path.suspect_deadline(self.silence(), self.has_one_path()).or_else(|| path.retire_deadline())
    }

    /// Whether no more than one path works.
    fn has_one_path(&self) -> bool {
        self.paths.values().filter(|path| path.is_active()).nth(1).is_none()
    }

    fn keepalive_deadline(&self, path: &Path) -> Option<Instant> {
        // The answer, or the suspect timer, decides; no second question meanwhile.
        if !path.is_active() || path.outgoing.in_flight() > 0 || path.ping {
            return None;
        }
        let idle_since = path.liveness.idle_since();
        let usual = self.timeouts.heartbeat;
        let heartbeat = if path.at_risk { usual.min(AT_RISK) } else { usual };
        match self.side() {
            // Who only receives has nothing in flight that could go unanswered; when the flow stops, the side
            // that can dial asks once whether the path still works: so soon that the answer, were there one,
            // would come before the silence has lasted for too long.
            Side::Client if path.liveness.expects_more() => {
                let interval = (path.patience(self.silence()) / 4).max(self.silence().least / 2);
                let silent = idle_since.checked_add(interval.min(heartbeat));
                // Nor is much known of the round trip yet, by which a silence is judged.
                let rtt = path.figures.rtt();
                let asked = path.liveness.asked();
                let unsure = (!rtt.is_settled()).then(|| asked.checked_add(rtt.smoothed()));
                sooner(silent, unsure.flatten())
            }
            Side::Client => idle_since.checked_add(heartbeat),
            Side::Server => idle_since.checked_add(heartbeat.saturating_mul(2)),
        }
    }

    fn linger_deadline(&self) -> Option<Instant> {
        if self.is_closed() {
            return None;
        }
        let linger = self.session.identity.params().linger;
        let alone_since = if self.is_established() {
            self.contact.lost_since()?
        } else {
            // How long a first answer may take is the driver's to say.
            self.contact.detached_since()?
        };
        match self.session.ending.waits_since() {
            Wait::None => alone_since.checked_add(linger),
            // Until the engine was told the time, the wait has not begun; ask for it.
            Wait::Unknown => Some(alone_since),
            Wait::Since(since) => {
                self.clock.at(since)?.max(alone_since).checked_add(linger.min(self.timeouts.closing))
            }
        }
    }

    /// When to stop waiting for the answer to CLOSE.
    fn close_deadline(&self) -> Option<Instant> {
        self.clock.at(self.session.ending.close_deadline(self.timeouts.closing)?)
    }

    /// When to stop trying to tell the server that we have heard its CLOSE.
    fn farewell_deadline(&self) -> Option<Instant> {
        self.clock.at(self.session.ending.farewell_deadline()?)
    }

    pub(super) fn note_progress(&mut self, id: PathId, now: Instant) {
        if self.paths.get_mut(id).is_some_and(|path| path.progress(now)) {
            self.events.push(Event::PathRevived(id));
            self.note_reached(now);
        }
    }

    /// The path made progress, but `late` ago. A suspect one works again only if that is recent enough.
    pub(super) fn note_past_progress(&mut self, id: PathId, now: Instant, late: Duration) {
        let at = now.checked_sub(late).unwrap_or(now);
        let silence = self.silence();
        let Some(path) = self.paths.get(id) else { return };
        if path.is_suspect() && at + path.patience(silence) <= now {
            return;
        }
        self.note_progress(id, at);
    }
}

fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

enum Action {
    Suspect,
    Ping,
    Lose,
}
