//! What is known of a path.

use crate::{BytesPerSecond, Radio, Seconds};
use serde::{Deserialize, Serialize};

/// The rates of a path in one direction, from the counters of its interface: they count every program's
/// traffic. `None`: not measured yet.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    /// At present.
    pub now: Option<BytesPerSecond>,
    /// The highest that was seen lately: what the path can carry.
    pub best: Option<BytesPerSecond>,
}

impl Rates {
    /// A path that can carry so much, and carries nothing.
    pub const fn idle(best: BytesPerSecond) -> Self {
        Self { now: Some(BytesPerSecond(0.0)), best: Some(best) }
    }

    /// What is left of the best rate beside the present one.
    pub fn spare(&self) -> Option<BytesPerSecond> {
        let now = self.now.unwrap_or_default();
        self.best.map(|best| BytesPerSecond((best.0 - now.0).max(0.0)))
    }

    /// The share of the best rate that is used at present, from 0 on; 0 if it is not known.
    pub fn used(&self) -> f64 {
        match (self.now, self.best) {
            (Some(now), Some(best)) if best.0 > 0.0 => now.0 / best.0,
            _ => 0.0,
        }
    }
}

/// What the multi-access manager measured on a path (Socket Intents §V-E1). `None` is "not measured yet".
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathEstimate {
    /// The smallest smoothed round-trip time over all its connections.
    pub srtt_min: Option<Seconds>,
    /// The median of the smoothed round-trip times over all its connections.
    pub srtt_median: Option<Seconds>,
    /// The rates of what is received.
    pub down: Rates,
    /// The rates of what is sent.
    pub up: Rates,
    /// Open connections.
    pub connections: u32,
    /// Units of communication that are scheduled on the path and not complete.
    pub objects: u32,
    /// Bytes to be received that are scheduled on the path and still outstanding.
    pub scheduled: u64,
    /// The share of segments that is lost, 0 to 1.
    pub loss: Option<f64>,
    /// Whether traffic on it costs money.
    pub metered: bool,
    /// How long ago it was measured.
    pub age: Option<Seconds>,
    /// How much later than foreseen what is larger than [`FIRST_WINDOW`] comes there, beyond what it is late
    /// by over the path that is least late. Zero where that is not known.
    pub late: Seconds,
    /// Its link, where it is Wi-Fi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub radio: Option<Radio>,
}

/// The first window of a connection: ten segments of 1460 bytes (RFC 6928). What fits into it takes the round
/// trips of its set-up and hardly more, whatever the rate.
pub const FIRST_WINDOW: u64 = 14_600;

/// What a router keeps at least of what comes too fast.
const QUEUE: Seconds = Seconds(0.1);

/// A measurement older than this says little about a mobile network, and is refreshed by using the path.
pub const STALE: Seconds = Seconds(60.0);

impl PathEstimate {
    /// A path of which round-trip time and rate (the same in both directions) are known exactly and freshly,
    /// as in a simulator.
    pub fn known(rtt: Seconds, rate: BytesPerSecond) -> Self {
        Self {
            srtt_min: Some(rtt),
            srtt_median: Some(rtt),
            down: Rates::idle(rate),
            up: Rates::idle(rate),
            loss: Some(0.0),
            age: Some(Seconds::ZERO),
            ..Self::default()
        }
    }

    /// Whether its round-trip time and the rate of what is received were measured at some time.
    pub fn is_measured(&self) -> bool {
        self.srtt_min.is_some() && self.down.best.is_some()
    }

    /// How many bytes come over it in a round trip, where both its time and the rate were measured. Who asks
    /// for less, and for the rest once that has come, leaves an idle path unused in between.
    pub fn in_a_round_trip(&self) -> Option<u64> {
        let (rtt, rate) = (self.srtt_min?, self.down.best?);
        Some((rtt.0 * rate.0) as u64)
    }

    /// How many bytes may be on their way over it at once, where both were measured: what comes in a round
    /// trip, or in a tenth of a second if that is more. The queues of most routers hold as much at least; of
    /// more some may be lost, and of a few packets nothing but a timer tells that the last is missing.
    pub fn holds(&self) -> Option<u64> {
        let (rtt, rate) = (self.srtt_min?, self.down.best?);
        Some((rtt.0.max(QUEUE.0) * rate.0) as u64)
    }

    /// How much later than foreseen a unit of so many bytes comes there.
    pub fn late_for(&self, bytes: u64) -> Seconds {
        if bytes > FIRST_WINDOW { self.late } else { Seconds::ZERO }
    }

    /// Whether it was measured longer than [`STALE`] ago.
    pub fn is_stale(&self) -> bool {
        self.age.is_some_and(|age| age > STALE)
    }

    /// Whether one more unit on it would tell something: it was never measured, or too long ago, and nothing
    /// is on it that is about to tell.
    pub fn needs_exploring(&self) -> bool {
        (!self.is_measured() || self.is_stale()) && self.connections == 0 && self.objects == 0
    }

    /// Whether it is Wi-Fi whose signal is so weak that it is about to go.
    pub fn is_fading(&self) -> bool {
        self.radio.is_some_and(|radio| radio.is_fading())
    }

    /// What is left of a rate that is hoped for where none was measured: no more than Wi-Fi can carry.
    pub(crate) fn hoped(&self, rate: BytesPerSecond) -> BytesPerSecond {
        match self.radio.and_then(|radio| radio.most(self.objects == 0)) {
            Some(most) if most < rate => most,
            _ => rate,
        }
    }

    /// What queues add to the smallest round-trip time: the median over its connections beyond the smallest.
    /// Zero if it is not known.
    pub fn jitter(&self) -> Seconds {
        match (self.srtt_min, self.srtt_median) {
            (Some(min), Some(median)) => (median - min).max(Seconds::ZERO),
            _ => Seconds::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spare_and_what_is_used_follow_from_both_rates() {
        let rates = Rates { now: Some(BytesPerSecond(30.0)), best: Some(BytesPerSecond(120.0)) };
        assert_eq!((rates.spare(), rates.used()), (Some(BytesPerSecond(90.0)), 0.25));
        // What arrives at this moment may exceed what was the best.
        let rates = Rates { now: Some(BytesPerSecond(150.0)), ..rates };
        assert_eq!(rates.spare(), Some(BytesPerSecond(0.0)));
        assert_eq!((Rates::default().spare(), Rates::default().used()), (None, 0.0));
    }

    #[test]
    fn a_path_is_explored_if_it_is_unknown_or_stale_and_nothing_is_on_it() {
        let fresh = PathEstimate::known(Seconds(0.1), BytesPerSecond(1e6));
        assert!(!fresh.needs_exploring());
        assert!(PathEstimate::default().needs_exploring());
        let stale = PathEstimate { age: Some(Seconds(STALE.0 + 1.0)), ..fresh };
        assert!(stale.needs_exploring());
        assert!(!PathEstimate { connections: 1, ..stale }.needs_exploring());
        assert!(!PathEstimate { objects: 1, ..stale }.needs_exploring());
    }

    #[test]
    fn what_comes_in_a_round_trip_is_known_where_its_time_and_the_rate_are() {
        // 100 ms at 20 Mbit/s, and 10 ms at 2 Mbit/s.
        let far = PathEstimate::known(Seconds(0.1), BytesPerSecond(2.5e6));
        let near = PathEstimate::known(Seconds(0.01), BytesPerSecond(250_000.0));
        assert_eq!((far.in_a_round_trip(), near.in_a_round_trip()), (Some(250_000), Some(2_500)));
        assert_eq!(PathEstimate { srtt_min: None, ..far }.in_a_round_trip(), None);
        assert_eq!(PathEstimate { down: Rates::default(), ..far }.in_a_round_trip(), None);
    }

    #[test]
    fn jitter_is_what_the_median_exceeds_the_minimum_by() {
        let path = PathEstimate::known(Seconds(0.5), BytesPerSecond(1e6));
        assert_eq!(path.jitter(), Seconds::ZERO);
        assert_eq!(PathEstimate { srtt_median: Some(Seconds(0.75)), ..path }.jitter(), Seconds(0.25));
        assert_eq!(PathEstimate::default().jitter(), Seconds::ZERO);
    }
}
