//! A connection that is steered: when it is to be looked at, and what was tried without success. Pure.

use std::sync::Weak;
use std::time::Duration;
use tokio::time::Instant;
use whimbrel_access::{Intents, MAX_PATHS, PathId};

/// What follows from an order is looked at after this time, if the kernel told nothing before.
const LOOK: Duration = Duration::from_secs(1);
/// How often in a row.
const LOOKS: u32 = 5;
/// The least time between two looks: a peer may open and close subflows as often as it likes.
const PAUSE: Duration = Duration::from_millis(200);
/// After an attempt to open a subflow over a path, the next one waits so long, then twice as long, and so on
/// for so many times.
const AGAIN: Duration = Duration::from_secs(2);
const DOUBLED: u32 = 5;

/// What is known of a connection.
pub(super) struct Steered {
    pub(super) user: u32,
    pub(super) client: u64,
    presence: Weak<()>,
    pub(super) intents: Intents,
    due: Option<Instant>,
    /// It is not looked at before this time.
    not_before: Option<Instant>,
    looks: u32,
    attempts: [Attempts; MAX_PATHS],
}

/// Attempts in a row to open a subflow over a path.
#[derive(Debug, Clone, Copy, Default)]
struct Attempts {
    count: u32,
    last: Option<Instant>,
}

impl Attempts {
    /// When the next one may be made.
    fn next(&self) -> Option<Instant> {
        let doubled = self.count.saturating_sub(1).min(DOUBLED);
        self.last.map(|last| last + AGAIN * (1 << doubled))
    }
}

impl Steered {
    pub(super) fn new(user: u32, client: u64, presence: Weak<()>, intents: Intents) -> Self {
        let attempts = [Attempts::default(); MAX_PATHS];
        Self { user, client, presence, intents, due: None, not_before: None, looks: 0, attempts }
    }

    /// Whether the client that spoke of it is still there.
    pub(super) fn is_present(&self) -> bool {
        self.presence.strong_count() > 0
    }

    /// Something happened: it is to be looked at.
    pub(super) fn want(&mut self, now: Instant) {
        self.at(self.not_before.map_or(now, |at| at.max(now)));
        self.looks = 0;
    }

    /// Whether it is to be looked at now; then it is not any more.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = None;
            self.not_before = Some(now + PAUSE);
        }
        is_due
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Something was ordered, or is still under way: the kernel tells what becomes of it. It is looked at all
    /// the same, a few times.
    pub(super) fn look_again(&mut self, now: Instant) {
        if self.looks < LOOKS {
            self.looks += 1;
            self.at(now + LOOK);
        }
    }

    /// Whether a subflow may be opened over this path now. If not, it is looked at when it may be.
    pub(super) fn may_try(&mut self, path: PathId, now: Instant) -> bool {
        let next = self.attempts.get(path.index()).and_then(Attempts::next);
        match next.filter(|next| *next > now) {
            Some(next) => {
                self.at(next);
                false
            }
            None => true,
        }
    }

    /// A subflow was ordered over this path.
    pub(super) fn tried(&mut self, path: PathId, now: Instant) {
        if let Some(attempts) = self.attempts.get_mut(path.index()) {
            *attempts = Attempts { count: attempts.count.saturating_add(1), last: Some(now) };
        }
    }

    /// A subflow works over this path.
    pub(super) fn worked(&mut self, path: PathId) {
        if let Some(attempts) = self.attempts.get_mut(path.index()) {
            attempts.count = 0;
        }
    }

    /// The networks changed: nothing that was tried says anything.
    pub(super) fn forget_attempts(&mut self) {
        self.attempts = [Attempts::default(); MAX_PATHS];
    }

    /// It is to be looked at then, unless that is to be before.
    pub(super) fn at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_path_over_which_no_subflow_works_is_tried_less_and_less_often() {
        let start = Instant::now();
        let mut steered = Steered::new(0, 1, Weak::new(), Intents::default());
        let path = PathId(1);
        assert!(steered.may_try(path, start));
        for pause in [2, 4, 8, 16, 32, 64, 64] {
            steered.tried(path, start);
            assert!(!steered.may_try(path, start + Duration::from_millis(pause * 1000 - 1)));
            assert!(steered.may_try(path, start + Duration::from_secs(pause)));
            assert!(steered.may_try(PathId(0), start), "another path");
        }
        // One that worked, and broke, waits for the shortest pause.
        steered.worked(path);
        assert!(!steered.may_try(path, start));
        assert!(steered.may_try(path, start + AGAIN));
        steered.forget_attempts();
        assert!(steered.may_try(path, start));
        assert!(steered.may_try(PathId(200), start), "there is no such path");
    }

    #[test]
    fn it_is_due_once_for_each_reason_and_looked_at_again_a_few_times() {
        let start = Instant::now();
        let client = Arc::new(());
        let mut steered = Steered::new(0, 1, Arc::downgrade(&client), Intents::default());
        assert!(!steered.take_due(start));
        steered.want(start);
        assert!(steered.take_due(start) && !steered.take_due(start));
        // However often something happens.
        steered.want(start);
        assert!(!steered.take_due(start) && steered.take_due(start + PAUSE));
        for _ in 0..LOOKS {
            steered.look_again(start);
            assert!(!steered.take_due(start) && steered.take_due(start + LOOK));
        }
        steered.look_again(start);
        assert_eq!(steered.due(), None);
        assert!(steered.is_present());
        drop(client);
        assert!(!steered.is_present());
    }
}
