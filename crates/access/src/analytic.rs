//! Forecasts from estimates alone, for live traffic.

use crate::{
    BytesPerSecond, Choice, Forecast, Part, PathEstimate, PathId, Rates, Seconds, Situation, UnderWay,
};

/// How what is scheduled on a path slows down what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// The path's rate is divided by the number of objects, this one included, as in Socket Intents §V-F3.
    /// Right while all of them last as long as this one.
    #[default]
    Objects,
    /// The same, unless all bytes that are scheduled and those of this object pass earlier than that. Both
    /// are too late rather than too early, so the earlier one is nearer: small objects hold nothing up for
    /// long, and few large ones leave a share to a small one.
    ObjectsOrBytes,
}

/// Foretells completion as the prototype does (Socket Intents §V-F3): two round trips for a new connection,
/// one for an open one, and the bytes at the highest rate seen, shared with what is on the path already.
///
/// What was not measured counts as the best that is known of any path, and a rate over Wi-Fi as no more than
/// that can carry: hope makes policies try it, and then it is measured. Both directions count, each with its
/// own rate.
#[derive(Debug, Clone, Copy)]
pub struct Analytic<'a> {
    situation: Situation<'a>,
    sharing: Sharing,
    sent: u64,
    received: u64,
}

/// Round trips until the first byte of an answer comes over a new connection: the handshake and the request.
const TRIPS_NEW: f64 = 2.0;
/// The same over an open one: the request.
const TRIPS_OPEN: f64 = 1.0;
/// The rate where none is known of any path: modest, and the same for all. Round-trip times decide then.
const GUESS: BytesPerSecond = BytesPerSecond(125_000.0);

impl<'a> Analytic<'a> {
    /// A forecast for the unit of this situation. `unknown_size` is what counts as received where the intents
    /// say nothing of its size, in bytes.
    pub fn new(situation: Situation<'a>, sharing: Sharing, unknown_size: u64) -> Self {
        let stated = situation.stated();
        let (sent, received) = match (stated.sent(), stated.received()) {
            (None, None) => (0, unknown_size),
            (sent, received) => (sent.unwrap_or(0), received.unwrap_or(0)),
        };
        Self { situation, sharing, sent, received }
    }

    /// When so many bytes are received by this choice, and what is to be sent is sent. `None` if there is no
    /// such connection or path.
    fn arrival(&self, choice: Choice, received: u64) -> Option<Seconds> {
        let (paths, trips, queued) = match choice {
            Choice::Open { paths, .. } => (paths, TRIPS_NEW, 0),
            Choice::Reuse(id) => {
                let connection = self.situation.connections.iter().find(|other| other.id == id)?;
                (connection.paths, TRIPS_OPEN, connection.scheduled)
            }
        };
        let estimate = |path: &PathId| self.situation.paths.get(path.index());
        let first = estimate(&paths.first())?;
        let rtt = self.rtt(first);
        let estimates = || paths.as_slice().iter().filter_map(estimate);
        // One of the objects is on this connection: it goes first, and does not compete.
        let ahead = u32::from(queued > 0);
        let share = |rates: fn(&PathEstimate) -> Rates| {
            let shares = estimates()
                .map(|path| self.rate(path, rates).0 / (f64::from(path.objects.saturating_sub(ahead)) + 1.0));
            BytesPerSecond(shares.sum())
        };
        let fair = share(down).time_for((queued as f64) + received as f64);
        let receiving = match self.sharing {
            Sharing::Objects => fair,
            Sharing::ObjectsOrBytes => {
                let whole = BytesPerSecond(estimates().map(|path| self.rate(path, down).0).sum());
                let before: f64 = estimates().map(|path| path.scheduled as f64).sum();
                fair.min(whole.time_for(before + received as f64))
            }
        };
        let sending = share(up).time_for(self.sent as f64);
        // The prototype knows nothing of it.
        let late = if self.sharing == Sharing::Objects { Seconds::ZERO } else { first.late_for(received) };
        Some(self.situation.now + rtt * trips + sending + receiving + late)
    }

    fn rtt(&self, path: &PathEstimate) -> Seconds {
        let known = self.situation.paths.iter().filter_map(|path| path.srtt_min);
        path.srtt_min.unwrap_or_else(|| known.reduce(Seconds::min).unwrap_or(Seconds::ZERO))
    }

    /// The rate of a path in one direction. If it was not measured: the best that is known of any, as far as
    /// its own link can carry that.
    fn rate(&self, path: &PathEstimate, direction: fn(&PathEstimate) -> Rates) -> BytesPerSecond {
        let known = self.situation.paths.iter().filter_map(|path| direction(path).best);
        direction(path).best.unwrap_or_else(|| {
            let best = known.reduce(|best, rate| if rate > best { rate } else { best });
            path.hoped(best.unwrap_or(GUESS))
        })
    }
}

fn down(path: &PathEstimate) -> Rates {
    path.down
}

fn up(path: &PathEstimate) -> Rates {
    path.up
}

impl Forecast for Analytic<'_> {
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        self.arrival(choice, self.received).filter(|at| *at < bound)
    }

    fn completes_split(&mut self, parts: &[Part], bound: Seconds) -> Option<Seconds> {
        let last = parts
            .iter()
            .try_fold(Seconds::ZERO, |last, part| Some(last.max(self.arrival(part.choice, part.bytes)?)));
        last.filter(|at| *at < bound)
    }

    /// What stays is complete as much earlier as it is less, as if it came evenly from now on.
    fn completes_moved(&mut self, under_way: &UnderWay, part: Part, bound: Seconds) -> Option<Seconds> {
        let stays = under_way.left.checked_sub(part.bytes)?;
        let now = self.situation.now;
        let share = stays as f64 / (under_way.left as f64).max(1.0);
        let rest = now + (under_way.completes - now) * share;
        self.arrival(part.choice, part.bytes).map(|moved| moved.max(rest)).filter(|at| *at < bound)
    }

    fn no_earlier_than(&mut self, choice: Choice) -> Seconds {
        self.arrival(choice, self.received).unwrap_or(Seconds::NEVER)
    }
}
