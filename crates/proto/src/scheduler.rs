//! Which path carries the next chunk: pure functions over snapshots of the paths.
//!
//! Drivers pull: whenever a carrier has room, the engine asks the scheduler whether *this* path may carry the
//! next chunk now, or whether it is better left to another. A path that is left will be asked again when
//! anything has changed.

mod earliest_arrival;
mod min_rtt;
mod rate_proportional;
mod redundant;
mod round_robin;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use smallvec::SmallVec;

use crate::ids::PathId;

/// What a path may be given before anything was measured on it, per round trip: TCP's initial window (RFC
/// 6928), less what goes with each packet.
const INITIAL_WINDOW: u64 = 10 * 1400;
/// What does not fit a window waits for half a round trip, on average.
const WAIT: f64 = 0.5;
/// No window is thought to double more often.
const MOST_ROUNDS: f64 = 20.0;
/// Largest chunk.
pub(crate) const CHUNK: u64 = 16 * 1024;
/// Smallest chunk that is worth a segment of its own: with its record it fills two packets. A little
/// more, and each had a third one, which counts as much in a window of packets.
pub(crate) const SMALL_CHUNK: u64 = 2 * 1400;
/// A chunk should not keep a slow path busy for longer, so that its end is not waited for.
const CHUNK_TIME: Duration = Duration::from_millis(20);
/// In nanoseconds.
const SECOND: u128 = 1_000_000_000;

/// What is known of one path at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathSnapshot {
    /// The path.
    pub id: PathId,
    /// Our OPEN or JOIN on it is not answered yet.
    pub opening: bool,
    /// The peer opened it, and nothing of ours is known to have arrived there.
    pub unproven: bool,
    /// No progress for too long.
    pub suspect: bool,
    /// To be used only when no other path works.
    pub backup: bool,
    /// Smoothed round-trip time, with what queues on the way.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Shortest round trip of late: the way itself, without queues.
    pub base_rtt: Duration,
    /// Bytes a second that were delivered; `None` before anything was measured.
    pub rate: Option<u64>,
    /// The rate still grows from one round trip to the next (slow start).
    pub growing: bool,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// The carrier takes more.
    pub room: bool,
    /// How long nothing was acknowledged although something is in flight.
    pub silent: Duration,
    /// Grows with each chunk, over all paths: the path with the lowest has waited longest.
    pub last_used: u64,
    /// Bytes that were acknowledged.
    pub delivered: u64,
    /// How long a message takes to arrive in a datagram, with what losses cost on average; `None`: there are
    /// none on it.
    pub datagram: Option<Duration>,
}

impl PathSnapshot {
    /// Bytes a second: measured or, as long as that still grows, at least what a carrier may begin with.
    #[must_use]
    pub fn expected_rate(&self) -> u64 {
        expected_rate(self.rate, self.growing, self.base_rtt)
    }

    /// How long the next byte waits behind others, in this host and in the queues on the way.
    #[must_use]
    pub fn queueing(&self) -> Duration {
        let pipe = bytes_in(self.expected_rate(), self.base_rtt);
        time_for(self.in_flight.saturating_sub(pipe), self.expected_rate())
    }

    /// Until the last of `bytes` more has arrived at the peer.
    #[must_use]
    pub fn arrival(&self, bytes: u64) -> Duration {
        let way = self.base_rtt / 2 + self.lateness();
        if self.growing {
            // One window in the first round trip, two in the second, and so on; what is left over from a
            // window waits for acknowledgements.
            let windows = self.in_flight.saturating_add(bytes) as f64 / self.window();
            let wait = if windows > 1.0 { WAIT } else { 0.0 };
            return way + self.base_rtt.mul_f64((windows + 1.0).log2() + wait);
        }
        way + self.queueing() + time_for(bytes, self.expected_rate())
    }

    /// Until a message of `bytes` has arrived at the peer: in a datagram, which goes before what waits, if
    /// there are any.
    #[must_use]
    pub fn message_arrival(&self, bytes: u64) -> Duration {
        match self.datagram {
            Some(arrival) => arrival + self.lateness() + time_for(bytes, self.expected_rate()),
            None => self.arrival(bytes),
        }
    }

    /// What goes out in one round trip.
    fn window(&self) -> f64 {
        (bytes_in(self.expected_rate(), self.base_rtt).max(1)) as f64
    }

    /// How many more bytes would have arrived at the peer after `time`; the window of a path that grows
    /// doubles with each round trip.
    #[must_use]
    pub fn deliverable(&self, time: Duration) -> u64 {
        if !self.growing {
            return bytes_in(self.expected_rate(), time.saturating_sub(self.arrival(0)));
        }
        let Some(time) = time.checked_sub(self.base_rtt / 2 + self.lateness()) else {
            return 0;
        };
        let rounds = time.as_secs_f64() / self.base_rtt.max(Duration::from_micros(1)).as_secs_f64();
        let rounds = if rounds > 1.0 { (rounds - WAIT).clamp(1.0, MOST_ROUNDS) } else { rounds };
        let bytes = self.window() * (rounds.exp2() - 1.0);
        (bytes as u64).saturating_sub(self.in_flight)
    }

    /// For how long an acknowledgement has been overdue: what is in flight may be stuck for as long again.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.silent.saturating_sub(self.srtt + self.rttvar * 4)
    }

    /// How large a chunk for this path should be.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        chunk(self.expected_rate())
    }

    /// What is sent on it arrives, as far as can be known.
    pub(crate) fn is_sure(&self) -> bool {
        !(self.suspect || self.opening || self.unproven) && self.lateness() == Duration::ZERO
    }

    /// Paths of a higher tier are used only when there is none of a lower. Where one is `sure`, the others
    /// need not be tried out with data: a link that carries one way only brings the peer's JOIN too.
    fn tier(&self, sure: bool) -> impl Ord + use<> {
        (self.suspect, self.opening, self.unproven && sure, self.backup)
    }
}

/// What a scheduler decides on.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The path that is asked about.
    pub here: &'a PathSnapshot,
    /// The paths that may carry data, this one among them: all equally eligible.
    pub paths: &'a [PathSnapshot],
    /// Bytes that wait to be sent; `u64::MAX` if more will follow at once.
    pub waiting: u64,
}

impl Input<'_> {
    /// The paths other than the one that is asked about.
    fn others(&self) -> impl Iterator<Item = &PathSnapshot> {
        self.paths.iter().filter(|path| path.id != self.here.id)
    }
}

/// Whether a path carries the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// It does; the chunk should have at most so many bytes.
    Send(u64),
    /// Another path should, now or soon.
    Leave,
}

/// Decides for one path at a time. A decision depends on nothing but the input.
pub trait Scheduler: fmt::Debug + Sync {
    /// Whether `input.here`, whose carrier has room, carries the next chunk.
    fn choose(&self, input: &Input<'_>) -> Choice;

    /// Everything goes on every path.
    fn is_redundant(&self) -> bool {
        false
    }
}

/// The schedulers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulerKind {
    /// A chunk goes where it arrives first; a path stays idle if others bring everything sooner.
    #[default]
    EarliestArrival,
    /// The path with the shortest round trip that has room.
    MinRtt,
    /// The paths take turns.
    RoundRobin,
    /// Everything goes on every path.
    Redundant,
    /// All paths drain at the same moment [msocket §III-C].
    RateProportional,
}

impl SchedulerKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::EarliestArrival, Self::MinRtt, Self::RoundRobin, Self::Redundant, Self::RateProportional];

    /// Its name, as in settings and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EarliestArrival => "earliest-arrival",
            Self::MinRtt => "min-rtt",
            Self::RoundRobin => "round-robin",
            Self::Redundant => "redundant",
            Self::RateProportional => "rate-proportional",
        }
    }

    /// The scheduler itself.
    #[must_use]
    pub fn scheduler(self) -> &'static dyn Scheduler {
        match self {
            Self::EarliestArrival => &earliest_arrival::EarliestArrival,
            Self::MinRtt => &min_rtt::MinRtt,
            Self::RoundRobin => &round_robin::RoundRobin,
            Self::Redundant => &redundant::Redundant,
            Self::RateProportional => &rate_proportional::RateProportional,
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no scheduler has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no scheduler {0:?}: try earliest-arrival, min-rtt, round-robin, redundant or rate-proportional"
)]
pub struct UnknownScheduler(String);

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

/// Paths of one connection, seldom more.
pub type Snapshots = SmallVec<[PathSnapshot; 4]>;

/// Leaves the paths that may carry data: those that work and are no backup or, failing that, backup paths,
/// then those that are not known to work while another is, those that are opening, and suspect ones.
pub fn retain_eligible(paths: &mut Snapshots) {
    let sure = paths.iter().any(PathSnapshot::is_sure);
    let best = paths.iter().map(|path| path.tier(sure)).min();
    paths.retain(|path| Some(path.tier(sure)) == best);
}

/// Whether `path` carries the next chunk of `waiting` bytes, given all `paths` of the connection.
#[must_use]
pub fn decide(scheduler: &dyn Scheduler, mut paths: Snapshots, path: PathId, waiting: u64) -> Choice {
    retain_eligible(&mut paths);
    match paths.iter().find(|p| p.id == path) {
        // Nothing to choose; but a segment should arrive in one round trip, so not beyond a window that is
        // still small.
        Some(here) if paths.len() == 1 && waiting > 0 => {
            Choice::Send(if here.growing { here.chunk() } else { CHUNK })
        }
        Some(here) if waiting > 0 => scheduler.choose(&Input { here, paths: &paths, waiting }),
        _ => Choice::Leave,
    }
}

/// Whether a message of `bytes` arrives first on `path`, given all `paths` of the connection. A path whose
/// carrier takes no more may still take a datagram.
#[must_use]
pub fn is_quickest(mut paths: Snapshots, path: PathId, bytes: u64) -> bool {
    retain_eligible(&mut paths);
    let open = paths.iter().filter(|p| p.datagram.is_some() || p.room);
    open.min_by_key(|p| (p.message_arrival(bytes), p.id)).is_some_and(|best| best.id == path)
}

/// See [`PathSnapshot::expected_rate`].
pub(crate) fn expected_rate(measured: Option<u64>, growing: bool, rtt: Duration) -> u64 {
    let first = if growing { first_rate(rtt) } else { 1 };
    measured.unwrap_or(0).max(first)
}

/// What a carrier may begin with, in bytes a second.
pub(crate) fn first_rate(rtt: Duration) -> u64 {
    per_second(INITIAL_WINDOW, rtt.max(Duration::from_millis(1)))
}

/// See [`PathSnapshot::chunk`].
fn chunk(rate: u64) -> u64 {
    bytes_in(rate, CHUNK_TIME).clamp(SMALL_CHUNK, CHUNK)
}

/// Bytes that `rate` (a second) brings in `time`.
pub(crate) fn bytes_in(rate: u64, time: Duration) -> u64 {
    scaled(rate, time.as_nanos(), SECOND)
}

/// How long `bytes` take at `rate` (a second). A century is long enough for everything.
pub(crate) fn time_for(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(scaled(bytes, SECOND, u128::from(rate.max(1))).min(3_000_000_000_000_000_000))
}

/// Bytes a second, from bytes in a time.
pub(crate) fn per_second(bytes: u64, time: Duration) -> u64 {
    scaled(bytes, SECOND, time.as_nanos().max(1))
}

/// `number` · `by` / `per`, rounded down, and no more than fits. `per` is not 0.
#[inline]
fn scaled(number: u64, by: u128, per: u128) -> u64 {
    // Mostly all of it fits in 64 bits, and a division of 128 takes several times as long: there are some for
    // each segment.
    if let (Ok(by), Ok(per)) = (u64::try_from(by), u64::try_from(per))
        && let Some(product) = number.checked_mul(by)
    {
        return product / per;
    }
    u64::try_from(u128::from(number).saturating_mul(by) / per).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all lengths.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift)
    }

    proptest! {
        #[test]
        fn bytes_rates_and_times_are_exact_whether_they_fit_in_64_bits_or_not(
            (a, b) in (number(), number()),
        ) {
            let (wide_a, wide_b) = (u128::from(a), u128::from(b));
            let fitting = |wide: u128| u64::try_from(wide).unwrap_or(u64::MAX);
            let time = Duration::from_nanos(b);
            prop_assert_eq!(bytes_in(a, time), fitting(wide_a * wide_b / SECOND));
            prop_assert_eq!(per_second(a, time), fitting(wide_a * SECOND / wide_b.max(1)));
            let nanos = fitting(wide_a * SECOND / wide_b.max(1)).min(3_000_000_000_000_000_000);
            prop_assert_eq!(time_for(a, b), Duration::from_nanos(nanos));
        }
    }
}
