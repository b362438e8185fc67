//! Rates of delivery.

use std::time::Duration;

/// Bytes a second of so many in that time; none if it took no time.
pub(super) fn rate(bytes: u64, time: Duration) -> u64 {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(time.as_nanos()).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}
