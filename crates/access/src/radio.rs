//! What the driver of a Wi-Fi interface says of its link, and what follows from it for a path.

use crate::BytesPerSecond;
use serde::{Deserialize, Serialize};

/// The share of the rate through the air that programs get at most. Headers, gaps and acknowledgements take
/// the rest: where frames are sent together (IEEE 802.11n and later) TCP gets two thirds to three quarters,
/// before that about half.
const AIR_SHARE: f64 = 0.75;
/// The share of the time that a busy channel leaves at least: who has something to send gets a turn, however
/// many others do.
const LEAST_TURN: f64 = 0.1;
/// Heard with less than that, in dBm, an access point is about to be lost: a receiver need not understand the
/// slowest rate of IEEE 802.11n below -82 dBm, and signals vary by more than 2 dB.
const FADING: i8 = -80;

/// The link of a path that is Wi-Fi. `None`: the driver does not say.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Radio {
    /// How strong the access point is heard, in dBm.
    pub signal_dbm: Option<i8>,
    /// The rate through the air, in whichever direction it is higher: what comes seldom comes slowly.
    pub rate: Option<BytesPerSecond>,
    /// The share of the time in which the channel is busy, by whomever, 0 to 1.
    pub busy: Option<f64>,
}

impl Radio {
    /// Whether the link is about to go.
    pub fn is_fading(&self) -> bool {
        self.signal_dbm.is_some_and(|signal| signal < FADING)
    }

    /// The most that programs get. How busy the channel is counts only if nothing of ours is on it
    /// (`is_idle`): our own packets keep it busy as well.
    pub(crate) fn most(&self, is_idle: bool) -> Option<BytesPerSecond> {
        let rate = self.rate.filter(|rate| rate.0 > 0.0)?;
        let busy = self.busy.filter(|_| is_idle).unwrap_or(0.0);
        Some(BytesPerSecond(rate.0 * AIR_SHARE * (1.0 - busy).max(LEAST_TURN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_three_quarters_of_the_rate_in_the_time_that_others_leave() {
        let radio = Radio { rate: Some(BytesPerSecond(4e6)), busy: Some(0.5), ..Radio::default() };
        assert_eq!(radio.most(true), Some(BytesPerSecond(1.5e6)));
        assert_eq!(radio.most(false), Some(BytesPerSecond(3e6)));
        let full = Radio { busy: Some(1.0), ..radio };
        assert_eq!(full.most(true).map(|rate| rate.0.round()), Some(3e5));
        assert_eq!(Radio { busy: None, ..radio }.most(true), Some(BytesPerSecond(3e6)));
        for unknown in [None, Some(BytesPerSecond(0.0))] {
            assert_eq!(Radio { rate: unknown, ..radio }.most(true), None);
        }
    }

    #[test]
    fn a_link_is_about_to_go_below_a_level_and_never_where_that_is_not_known() {
        let heard = |signal_dbm| Radio { signal_dbm, ..Radio::default() }.is_fading();
        assert_eq!([Some(-81), Some(-80), Some(-40), None].map(heard), [true, false, false, false]);
    }
}
