//! Attempts to open the paths that are wanted: each once at a time, after a failure again with growing
//! pauses.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinSet};

use super::joining::{Joiner, Openings};
use super::plan::{Pair, Wanted};
use crate::pauses::{Failures, QUICK};

/// A path that does not live for so long has failed too.
const LASTING: Duration = Duration::from_secs(10);
/// Failures that are remembered; pairs are few.
const MAX_TRIED: usize = 256;

struct Running {
    task: AbortHandle,
    since: Instant,
    opened: Arc<Openings>,
}

/// How attempts for a pair went lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tried {
    /// When the last one ended.
    at: Instant,
    failures: Failures,
    /// The last one brought a path.
    worked: bool,
}

impl Tried {
    fn new(at: Instant) -> Self {
        Self { at, failures: Failures::default(), worked: false }
    }

    fn note(&mut self, now: Instant, worked: bool, took: Duration) {
        self.at = now;
        self.worked = worked;
        if !worked {
            self.failures = self.failures.and(took);
        }
    }

    /// The pair is wanted again: if the path that was got did not last, that counts as a failure.
    fn want_again(&mut self, now: Instant) {
        if self.worked {
            let lasted = now.saturating_duration_since(self.at) >= LASTING;
            self.failures = if lasted { Failures::default() } else { self.failures.and(Duration::ZERO) };
            self.worked = false;
            self.at = now;
        }
    }

    /// When to try again.
    fn due(&self, alone: bool) -> Instant {
        self.at + self.failures.pause(alone)
    }
}

/// A connection's attempts. All are given up when this is dropped.
#[derive(Default)]
pub(crate) struct Joins {
    running: HashMap<Pair, Running>,
    tried: HashMap<Pair, Tried>,
    tasks: JoinSet<Ended>,
}

/// What an attempt was for, which one it was, and how it went.
type Ended = (Pair, Arc<Openings>, Result<(), ()>);

impl Joins {
    /// Has just these pairs tried, those that failed lately excepted. Tells when the next of them is due, or
    /// to be
    /// [doubted](Self::doubtful).
    pub(crate) fn want(&mut self, joiner: &Joiner, wanted: Vec<Wanted>, alone: bool) -> Option<Instant> {
        self.running.retain(|pair, running| {
            let wanted = wanted.iter().any(|wanted| wanted.pair == *pair);
            // One that has just brought a path ends by itself, and has more to do before.
            let keep = wanted || !joiner.gives_up(&running.opened);
            if !keep {
                running.task.abort();
            }
            keep
        });
        let now = Instant::now();
        let mut later = Vec::new();
        for wanted in wanted {
            if self.running.contains_key(&wanted.pair) {
                continue;
            }
            let due = self.tried.get_mut(&wanted.pair).map(|tried| {
                tried.want_again(now);
                tried.due(alone)
            });
            match due.filter(|due| *due > now) {
                Some(due) => later.push(due),
                None => self.start(joiner.clone(), wanted),
            }
        }
        let doubted = self.running.values().map(|running| running.since + QUICK);
        later.into_iter().chain(doubted.filter(|at| *at > now)).min()
    }

    fn start(&mut self, joiner: Joiner, wanted: Wanted) {
        let Wanted { pair, ways, stands_by } = wanted;
        let opened = Arc::<Openings>::default();
        let (of, seen) = (pair.clone(), opened.clone());
        let task = self.tasks.spawn(FutureExt::boxed(async move {
            let result = joiner.attempt(ways, stands_by, seen.clone()).await;
            (of, seen, result)
        }));
        self.running.insert(pair, Running { task, since: Instant::now(), opened });
    }

    /// Pairs that failed lately, or have been tried for long.
    pub(crate) fn doubtful(&self) -> Vec<Pair> {
        let failed = self.tried.iter().filter(|(_, tried)| tried.failures.any() && !tried.worked);
        let slow = self.running.iter().filter(|(_, running)| running.since.elapsed() >= QUICK);
        failed.map(|(pair, _)| pair.clone()).chain(slow.map(|(pair, _)| pair.clone())).collect()
    }

    /// Waits until an attempt has ended; for ever if there is none. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(ended)) if self.is_running(&ended) => return self.note(ended),
                // It was given up, perhaps when it had just ended.
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Another attempt may be under way for the same pair by now.
    fn is_running(&self, (pair, opened, _): &Ended) -> bool {
        self.running.get(pair).is_some_and(|running| Arc::ptr_eq(&running.opened, opened))
    }

    fn note(&mut self, (pair, _, result): Ended) {
        let took = self.running.remove(&pair).map_or(Duration::ZERO, |running| running.since.elapsed());
        if self.tried.len() >= MAX_TRIED {
            self.tried.clear();
        }
        let now = Instant::now();
        let tried = self.tried.entry(pair).or_insert(Tried::new(now));
        tried.note(now, result.is_ok(), took);
    }

    /// Either side is somewhere else now: what failed may work, and what is under way may fail.
    pub(crate) fn start_anew(&mut self, joiner: &Joiner) {
        self.tried.clear();
        self.running.retain(|_, running| {
            let keep = running.opened.first().is_some_and(|opened| joiner.is_worth_waiting_for(opened));
            if keep {
                running.opened.dial_again();
            } else {
                running.task.abort();
            }
            keep
        });
    }

    /// Gives all attempts up.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pair(name: &str) -> Pair {
        Pair { interface: name.into(), slot: 0 }
    }

    /// As an attempt that was given up just after it had ended, while another was begun.
    #[tokio::test]
    async fn an_attempt_that_was_given_up_says_nothing_about_the_next_one() {
        let mut joins = Joins::default();
        let begin = |joins: &mut Joins, result: Option<Result<(), ()>>| {
            let opened: Arc<Openings> = Arc::default();
            let seen = opened.clone();
            let task = joins.tasks.spawn(async move {
                match result {
                    Some(result) => (pair("a"), seen, result),
                    None => std::future::pending().await,
                }
            });
            joins.running.insert(pair("a"), Running { task, since: Instant::now(), opened });
        };
        begin(&mut joins, Some(Err(())));
        tokio::task::yield_now().await;
        begin(&mut joins, None);
        let ended = tokio::time::timeout(Duration::from_millis(50), joins.ended()).await;
        assert!(ended.is_err(), "the second one still runs");
        assert!(joins.running.contains_key(&pair("a")), "and is not begun again");
        assert!(joins.tried.is_empty());
    }

    #[tokio::test]
    async fn what_failed_or_takes_long_is_doubtful() {
        let mut joins = Joins::default();
        joins.note((pair("failed"), Arc::default(), Err(())));
        joins.note((pair("works"), Arc::default(), Ok(())));
        let task = joins.tasks.spawn(std::future::pending());
        let run = |since| Running { task: task.clone(), since, opened: Arc::default() };
        let now = Instant::now();
        joins.running.insert(pair("fresh"), run(now));
        joins.running.insert(pair("slow"), run(now.checked_sub(QUICK).unwrap()));
        let mut doubtful = joins.doubtful();
        doubtful.sort_by(|a, b| a.interface.cmp(&b.interface));
        assert_eq!(doubtful, [pair("failed"), pair("slow")]);
    }

    #[test]
    fn a_path_that_did_not_last_is_not_opened_again_at_once() {
        let now = Instant::now();
        let mut tried = Tried::new(now);
        for failures in 1..4 {
            tried.note(now, true, QUICK);
            tried.want_again(now + LASTING / 2);
            assert_eq!(
                tried.failures,
                (0..failures).fold(Failures::default(), |all, _| all.and(Duration::ZERO))
            );
        }
        assert!(tried.due(false) > now + LASTING / 2);
        tried.note(now, true, QUICK);
        tried.want_again(now + LASTING);
        assert_eq!(tried.due(false), now + LASTING);
    }
}
