//! Times without any path that works.

use std::time::{Duration, Instant};

/// Whether the peer is out of reach, since when, and how long that took the last time.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    last: Option<Duration>,
}

impl Outage {
    /// No path works any more.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// A path works. Returns how long none did, if so.
    pub(super) fn end(&mut self, now: Instant) -> Option<Duration> {
        let took = now.saturating_duration_since(self.since.take()?);
        self.last = Some(took);
        Some(took)
    }

    /// Returns how long the present outage has lasted.
    pub(crate) fn lasts(&self, now: Instant) -> Option<Duration> {
        self.since.map(|since| now.saturating_duration_since(since))
    }

    /// Returns how long the last outage lasted that is over.
    pub(crate) fn last(&self) -> Option<Duration> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_the_first_failure_to_the_first_success() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(outage.end(at(0)), None);
        outage.begin(at(0));
        outage.begin(at(5));
        assert_eq!(outage.lasts(at(7)), Some(Duration::from_millis(7)));
        assert_eq!(outage.end(at(9)), Some(Duration::from_millis(9)));
        assert_eq!((outage.end(at(10)), outage.lasts(at(10))), (None, None));
        assert_eq!(outage.last(), Some(Duration::from_millis(9)));
    }
}
