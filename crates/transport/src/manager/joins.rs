//! Attempts to open the paths that are wanted: each once at a time, after a failure again with growing pauses.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::task::{AbortHandle, JoinSet};

use super::joining::{Joiner, Opened};
use super::plan::Pair;
use crate::dial::Candidate;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// While no path works, every second counts; a further path can wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE_BESIDES: Duration = Duration::from_secs(60);
/// Failures that are remembered; pairs are few.
const MAX_FAILED: usize = 256;

struct Running {
    task: AbortHandle,
    opened: Arc<OnceLock<Opened>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failed {
    at: Instant,
    times: u32,
}

impl Failed {
    /// When to try again.
    fn due(&self, alone: bool) -> Instant {
        let longest = if alone { LONGEST_PAUSE } else { LONGEST_PAUSE_BESIDES };
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.times.saturating_sub(1)));
        self.at + pause.min(longest)
    }
}

/// A connection's attempts. All are given up when this is dropped.
#[derive(Default)]
pub(crate) struct Joins {
    running: HashMap<Pair, Running>,
    failed: HashMap<Pair, Failed>,
    tasks: JoinSet<(Pair, Result<(), ()>)>,
}

impl Joins {
    /// Has just these pairs tried, those that failed lately excepted. Tells when the next of them is due.
    pub(crate) fn want(
        &mut self,
        joiner: &Joiner,
        wanted: Vec<(Pair, Vec<Candidate>)>,
        alone: bool,
    ) -> Option<Instant> {
        self.running.retain(|pair, running| {
            let wanted = wanted.iter().any(|(of, _)| of == pair);
            if !wanted {
                running.task.abort();
            }
            wanted
        });
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (pair, ways) in wanted {
            if self.running.contains_key(&pair) {
                continue;
            }
            match self.failed.get(&pair).map(|failed| failed.due(alone)).filter(|due| *due > now) {
                Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
                None => self.start(joiner.clone(), pair, ways),
            }
        }
        next
    }

    fn start(&mut self, joiner: Joiner, pair: Pair, ways: Vec<Candidate>) {
        let opened = Arc::new(OnceLock::new());
        let (of, seen) = (pair.clone(), opened.clone());
        let task = self.tasks.spawn(async move { (of, joiner.attempt(ways, &seen).await) });
        self.running.insert(pair, Running { task, opened });
    }

    /// Waits until an attempt has ended; for ever if there is none. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((pair, result))) => return self.note(pair, result),
                // It was given up.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn note(&mut self, pair: Pair, result: Result<(), ()>) {
        self.running.remove(&pair);
        match result {
            Ok(()) => drop(self.failed.remove(&pair)),
            Err(()) => {
                if self.failed.len() >= MAX_FAILED {
                    self.failed.clear();
                }
                let failed = self.failed.entry(pair).or_insert(Failed { at: Instant::now(), times: 0 });
                *failed = Failed { at: Instant::now(), times: failed.times + 1 };
            }
        }
    }

    /// Either side is somewhere else now: what failed may work, and what is under way may be in vain.
    pub(crate) fn start_anew(&mut self, joiner: &Joiner) {
        self.failed.clear();
        self.running.retain(|_, running| {
            let keep = running.opened.get().is_some_and(|opened| joiner.is_worth_waiting_for(opened));
            if !keep {
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
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let at = Instant::now();
        let pause = |times, alone| Failed { at, times }.due(alone) - at;
        assert_eq!(pause(1, true), FIRST_PAUSE);
        assert_eq!(pause(3, false), 4 * FIRST_PAUSE);
        assert_eq!(pause(1000, true), LONGEST_PAUSE);
        assert_eq!(pause(1000, false), LONGEST_PAUSE_BESIDES);
    }
}
