//! Forecasts from estimates alone, for live traffic.

use crate::{BytesPerSecond, Choice, Forecast, Part, PathEstimate, PathId, Seconds, Situation};

/// Foretells completion as the prototype does (Socket Intents §V-F3): two round trips for a new connection,
/// one for an open one, and the bytes at the highest rate seen, behind those that are scheduled on the path.
///
/// What was not measured counts as the best that is known of any path: hope makes policies try it, and then
/// it is measured.
#[derive(Debug, Clone, Copy)]
pub struct Analytic<'a> {
    situation: Situation<'a>,
    bytes: u64,
}

impl<'a> Analytic<'a> {
    /// A forecast for the unit of this situation; `unknown_size` stands in where the intents don't say its
    /// size.
    pub fn new(situation: Situation<'a>, unknown_size: u64) -> Self {
        Self { situation, bytes: situation.intents.size().unwrap_or(unknown_size) }
    }

    fn arrival(&self, choice: Choice, bytes: u64) -> Option<Seconds> {
        let (paths, trips) = match choice {
            Choice::Open(paths) => (paths, 2.0),
            Choice::Reuse(id) => (self.situation.connections.iter().find(|other| other.id == id)?.paths, 1.0),
        };
        let estimate = |path: &PathId| self.situation.paths.get(path.index());
        let rtt = self.rtt(estimate(&paths.first())?);
        let rate = paths.as_slice().iter().filter_map(estimate).map(|path| self.rate(path)).sum();
        let scheduled: u64 = paths.as_slice().iter().filter_map(estimate).map(|path| path.scheduled).sum();
        let moving = BytesPerSecond(rate).time_for(scheduled.saturating_add(bytes) as f64);
        Some(self.situation.now + rtt * trips + moving)
    }

    fn rtt(&self, path: &PathEstimate) -> Seconds {
        let known = self.situation.paths.iter().filter_map(|path| path.srtt_min);
        path.srtt_min.unwrap_or_else(|| known.reduce(Seconds::min).unwrap_or(Seconds::ZERO))
    }

    fn rate(&self, path: &PathEstimate) -> f64 {
        // Nothing known at all: a modest guess that is the same for every path.
        const GUESS: f64 = 125_000.0;
        let known = self.situation.paths.iter().filter_map(|path| path.rate_max.map(|rate| rate.0));
        path.rate_max.map_or_else(|| known.reduce(f64::max).unwrap_or(GUESS), |rate| rate.0)
    }
}

impl Forecast for Analytic<'_> {
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        self.arrival(choice, self.bytes).filter(|at| *at < bound)
    }

    fn completes_split(&mut self, parts: &[Part], bound: Seconds) -> Option<Seconds> {
        let last = parts
            .iter()
            .try_fold(Seconds::ZERO, |last, part| Some(last.max(self.arrival(part.choice, part.bytes)?)));
        last.filter(|at| *at < bound)
    }

    fn no_earlier_than(&mut self, choice: Choice) -> Seconds {
        self.arrival(choice, self.bytes).unwrap_or(Seconds::NEVER)
    }
}
