//! How long the device that has a session is asked how far it is, when another one is to have it.

use super::SessionSettings;
use std::time::Duration;
use tokio::time::Instant;

/// A device that says nothing is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// For a device that is asked how far it is.
pub(super) struct Wait {
    begun: Instant,
    /// When it said something last, if it did since.
    heard: Option<Instant>,
    /// When to judge next.
    next: Instant,
    /// It kept the device that lent the session from taking it back once, and does not do so twice.
    is_last: bool,
}

/// What follows for a device that did not say in time how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is waited for.
    Wait,
    /// It is there, and says nothing: the session stays.
    Silent,
    /// It says something, and what its program sent is under way: the session stays.
    Late,
    /// It is out of reach: its last count holds.
    Gone,
    /// It was waited for once already: its last count holds.
    Overruled,
}

impl Wait {
    pub(super) fn new(is_last: bool, settings: &SessionSettings, now: Instant) -> Self {
        Self { begun: now, heard: None, next: now + settings.pause.min(settings.most_pause), is_last }
    }

    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// It said something.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// When to judge if nothing else happens.
    pub(super) fn until(&self) -> Instant {
        self.next
    }

    /// What follows now if no path to the device has worked for so long. `None`: one does.
    pub(super) fn judge(
        &mut self,
        unreachable: Option<Duration>,
        settings: &SessionSettings,
        now: Instant,
    ) -> Verdict {
        if now < self.next {
            return Verdict::Wait;
        }
        let is_gone = unreachable.is_some_and(|lasts| lasts >= settings.pause);
        if self.heard.is_none() && is_gone {
            return Verdict::Gone;
        }
        let end = self.end(settings);
        if now >= end {
            return match self.heard {
                _ if self.is_last => Verdict::Overruled,
                Some(_) => Verdict::Late,
                None => Verdict::Silent,
            };
        }
        let soon = unreachable.map_or(LOOK, |lasts| settings.pause.saturating_sub(lasts).min(LOOK));
        self.next = end.min(now + soon.max(Duration::from_millis(10)));
        Verdict::Wait
    }

    /// When it is not waited for any more. A device that has said something must go on saying things.
    fn end(&self, settings: &SessionSettings) -> Instant {
        let most =
            if self.is_last { settings.most_pause.min(2 * settings.pause) } else { settings.most_pause };
        let end = self.begun + most;
        self.heard.map_or(end, |heard| end.min(heard + settings.pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// When, in seconds, and how it ends for a device that speaks at these seconds, and cannot be reached
    /// from one on.
    fn ends(is_last: bool, speaks: &[u32], lost: Option<u32>) -> (u32, Verdict) {
        let (settings, start) = (SessionSettings::default(), Instant::now());
        let mut wait = Wait::new(is_last, &settings, start);
        for second in 0..60 {
            let now = start + SECOND * second;
            if speaks.contains(&second) {
                wait.hears(now);
            }
            let unreachable = lost.and_then(|from| second.checked_sub(from)).map(|lasts| SECOND * lasts);
            let verdict = wait.judge(unreachable, &settings, now);
            if verdict != Verdict::Wait {
                return (second, verdict);
            }
            assert!(wait.until() > now, "it would be judged again and again");
        }
        panic!("it is waited for without end")
    }

    #[test]
    fn a_device_that_can_be_reached_is_waited_for_and_never_taken_for_gone() {
        assert_eq!(ends(false, &[], None), (20, Verdict::Silent));
        assert_eq!(ends(false, &[1], None), (6, Verdict::Late));
        assert_eq!(ends(false, &[1, 5, 9, 13, 17], None), (20, Verdict::Late));
        // It was away for less than it takes to be given up, and is away again.
        assert_eq!(ends(false, &[], Some(16)), (20, Verdict::Silent));
    }

    #[test]
    fn a_device_that_is_out_of_reach_is_given_up_after_a_while() {
        assert_eq!(ends(false, &[], Some(0)), (5, Verdict::Gone));
        assert_eq!(ends(false, &[], Some(1)), (6, Verdict::Gone));
        assert_eq!(ends(false, &[], Some(12)), (17, Verdict::Gone));
        assert_eq!(ends(false, &[1], Some(2)), (6, Verdict::Late), "it may come back with what it sent");
    }

    #[test]
    fn a_device_keeps_the_one_that_lent_it_a_session_from_it_once() {
        assert_eq!(ends(true, &[], None), (10, Verdict::Overruled));
        assert_eq!(ends(true, &[1, 5, 9], None), (10, Verdict::Overruled));
        assert_eq!(ends(true, &[1], None), (6, Verdict::Overruled));
        assert_eq!(ends(true, &[], Some(1)), (6, Verdict::Gone));
    }
}
