//! What is known of a path.

use crate::{BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// What the multi-access manager measured on a path (Socket Intents §V-E1). `None` is "not measured yet".
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathEstimate {
    /// The smallest smoothed round-trip time over all its connections.
    pub srtt_min: Option<Seconds>,
    /// The median of the smoothed round-trip times over all its connections.
    pub srtt_median: Option<Seconds>,
    /// The rate at which bytes arrive at present.
    pub rate_now: Option<BytesPerSecond>,
    /// The highest rate seen.
    pub rate_max: Option<BytesPerSecond>,
    /// Open connections.
    pub connections: u32,
    /// Bytes scheduled on the path and still outstanding.
    pub scheduled: u64,
    /// The share of segments that is lost, 0 to 1.
    pub loss: Option<f64>,
    /// Whether traffic on it costs money.
    pub metered: bool,
    /// How long ago it was measured.
    pub age: Option<Seconds>,
}

/// A measurement older than this says little about a mobile network, and is refreshed by using the path.
pub const STALE: Seconds = Seconds(60.0);

impl PathEstimate {
    /// Whether the path has to be tried to learn something about it: never measured, or too long ago.
    pub fn needs_exploring(&self) -> bool {
        self.srtt_min.is_none() || self.rate_max.is_none() || self.age.is_some_and(|age| age > STALE)
    }

    /// A path of which round-trip time and rate are known exactly and freshly, as in a simulator.
    pub fn known(rtt: Seconds, rate: BytesPerSecond) -> Self {
        Self {
            srtt_min: Some(rtt),
            srtt_median: Some(rtt),
            rate_now: Some(BytesPerSecond(0.0)),
            rate_max: Some(rate),
            loss: Some(0.0),
            age: Some(Seconds::ZERO),
            ..Self::default()
        }
    }
}
