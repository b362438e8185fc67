//! What is told of a network that is Wi-Fi.

use serde::{Deserialize, Serialize};
use whimbrel_access::{BytesPerSecond, Radio};

/// What the driver says of the link to the access point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wifi {
    /// How strong the access point is heard, in dBm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_dbm: Option<i8>,
    /// The rate at which packets come through the air, in bytes per second: above what programs get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<f64>,
    /// The rate at which they are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<f64>,
    /// The share of the time in which the channel is busy, by whomever, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
}

impl Wifi {
    /// What policies are told of it.
    pub fn radio(&self) -> Radio {
        let rate = self.down.into_iter().chain(self.up).reduce(f64::max);
        Radio { signal_dbm: self.signal_dbm, rate: rate.map(BytesPerSecond), busy: self.busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_told_of_the_higher_rate_of_both_directions() {
        let wifi = Wifi { signal_dbm: Some(-61), down: Some(1e6), up: Some(2e7), busy: Some(0.25) };
        let rate = Some(BytesPerSecond(2e7));
        assert_eq!(wifi.radio(), Radio { signal_dbm: Some(-61), rate, busy: Some(0.25) });
        let one = Wifi { up: None, ..wifi }.radio();
        assert_eq!((one.rate, Wifi::default().radio()), (Some(BytesPerSecond(1e6)), Radio::default()));
    }
}
