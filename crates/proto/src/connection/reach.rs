//! Whether the peer can be reached, as the application is told.

use std::time::{Duration, Instant};

use super::Connection;
use crate::event::Event;
use crate::timeouts::{BadTimeout, Silence, Timeouts};

/// A time without any path that works.
#[derive(Debug, Clone, Copy)]
struct Outage {
    since: Instant,
    /// When it was told last.
    told: Option<Instant>,
}

/// Since when the peer is out of reach, and what of it was told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// When the peer was last heard, on whichever path.
    heard: Instant,
    outage: Option<Outage>,
    /// Somebody follows an outage while it lasts.
    followed: bool,
}

impl Reach {
    /// There is no path yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, outage: Some(Outage { since: now, told: None }), followed: false }
    }

    /// What it knows: when the peer was heard, since when no path works, and when that was told.
    pub(super) fn moments(&self) -> [Option<Instant>; 3] {
        let since = self.outage.as_ref().map(|outage| outage.since);
        [Some(self.heard), since, self.outage.as_ref().and_then(|outage| outage.told)]
    }

    /// Somebody follows an outage while it lasts.
    pub(super) fn is_followed(&self) -> bool {
        self.followed
    }

    /// The one that knew this, of a connection that began at `origin`.
    pub(super) fn knowing(origin: Instant, moments: [Option<Instant>; 3], followed: bool) -> Self {
        let [heard, since, told] = moments;
        let outage = since.map(|since| Outage { since, told });
        Self { heard: heard.unwrap_or(origin), outage, followed }
    }

    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// No path works.
    fn begin(&mut self, now: Instant) {
        self.outage.get_or_insert(Outage { since: now, told: None });
    }

    /// A path works. Returns how long none did, if that was told.
    fn end(&mut self, now: Instant) -> Option<Duration> {
        let outage = self.outage.take()?;
        outage.told.map(|_| now.saturating_duration_since(outage.since))
    }

    /// When the outage has to be told.
    fn deadline(&self, timeouts: &Timeouts) -> Option<Instant> {
        let outage = self.outage.as_ref()?;
        match outage.told {
            None => Some((self.heard + timeouts.unreachable_after).max(outage.since)),
            Some(told) => self.followed.then(|| told + timeouts.unreachable_every),
        }
    }

    /// Returns how long the outage has lasted, if that has to be told now.
    fn run(&mut self, now: Instant, timeouts: &Timeouts) -> Option<Duration> {
        self.deadline(timeouts).filter(|at| *at <= now)?;
        let outage = self.outage.as_mut()?;
        outage.told = Some(now);
        Some(now.saturating_duration_since(outage.since))
    }
}

impl Connection {
    /// Sets how long this side waits for what, from now on.
    ///
    /// # Errors
    /// [`BadTimeout`] if one lies outside of its range; nothing is changed then.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), BadTimeout> {
        timeouts.check()?;
        self.timeouts = timeouts;
        Ok(())
    }

    /// How long this side waits for what.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Says whether somebody follows outages: only then [`Event::Unreachable`] is said again while one lasts,
    /// because a connection that nobody watches should not wake up for it.
    pub fn follow_outages(&mut self, followed: bool) {
        self.reach.followed = followed;
    }

    /// What makes a path suspect.
    pub(super) fn silence(&self) -> Silence {
        self.timeouts.silence(self.session.identity.peer_ack_delay())
    }

    /// A path works.
    pub(super) fn note_reached(&mut self, now: Instant) {
        self.contact.made();
        if let Some(after) = self.reach.end(now) {
            self.events.push(Event::Reachable { after });
        }
    }

    /// No path works.
    pub(super) fn note_out_of_reach(&mut self, now: Instant) {
        self.contact.lost(now);
        self.reach.begin(now);
        self.run_reach(now);
    }

    /// Tells of an outage, if it is time.
    pub(super) fn run_reach(&mut self, now: Instant) {
        if self.is_established()
            && !self.is_closed()
            && let Some(lasts) = self.reach.run(now, &self.timeouts)
        {
            self.events.push(Event::Unreachable { lasts });
        }
    }

    /// When there is more to tell of an outage.
    pub(super) fn reach_deadline(&self) -> Option<Instant> {
        let told = self.is_established() && !self.is_closed();
        self.reach.deadline(&self.timeouts).filter(|_| told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_after_the_silence_and_then_regularly_to_those_who_follow_it() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let timeouts = Timeouts { unreachable_after: Duration::from_secs(2), ..Timeouts::default() };
        let mut reach = Reach::new(begin);
        assert_eq!(reach.end(at(0)), None, "nobody was told");
        reach.hear(at(100));
        reach.begin(at(1000));
        assert_eq!((reach.deadline(&timeouts), reach.run(at(2099), &timeouts)), (Some(at(2100)), None));
        assert_eq!(reach.run(at(2100), &timeouts), Some(Duration::from_millis(1100)));
        assert_eq!(reach.deadline(&timeouts), None);
        reach.followed = true;
        assert_eq!(reach.run(at(3100), &timeouts), Some(Duration::from_millis(2100)));
        assert_eq!(reach.deadline(&timeouts), Some(at(4100)));
        assert_eq!(reach.end(at(4000)), Some(Duration::from_secs(3)));
        assert_eq!((reach.end(at(4001)), reach.deadline(&timeouts)), (None, None));
    }
}
