//! Wall-clock time as a value. Nothing in this crate reads a clock.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01 00:00 UTC, without leap seconds.
///
/// Made from a [`SystemTime`] that the caller read. Arithmetic saturates: a lifetime added to the far future
/// stays in the far future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixTime(u64);

impl UnixTime {
    /// The time `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The time `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1000
    }

    /// This time and a while.
    #[must_use]
    pub fn saturating_add(self, while_: Duration) -> Self {
        let millis = u64::try_from(while_.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long after `earlier` this is; zero when it is before.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Times before 1970 become 1970.
impl From<SystemTime> for UnixTime {
    fn from(time: SystemTime) -> Self {
        Self::default().saturating_add(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

/// Seconds and milliseconds since the epoch, as `1700000000.250`.
impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let end = UnixTime::from_millis(u64::MAX);
        assert_eq!(end.saturating_add(Duration::MAX), end);
        assert_eq!(UnixTime::from_secs(u64::MAX), end);
        assert_eq!(UnixTime::from_secs(1).since(end), Duration::ZERO);
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(UnixTime::from(before), UnixTime::default());
        assert_eq!(UnixTime::from_millis(1_700_000_000_250).to_string(), "1700000000.250");
    }
}
