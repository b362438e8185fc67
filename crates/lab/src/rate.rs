//! How fast a link is.

use std::time::Duration;

/// Bits a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// That many bits a second, at least one: a link that carries nothing is a blackhole.
    pub const fn bit(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// That many thousand bits a second.
    pub const fn kbit(kilobits: u64) -> Self {
        Self::bit(kilobits * 1_000)
    }

    /// That many million bits a second.
    pub const fn mbit(megabits: u64) -> Self {
        Self::bit(megabits * 1_000_000)
    }

    /// That many thousand million bits a second.
    pub const fn gbit(gigabits: u64) -> Self {
        Self::bit(gigabits * 1_000_000_000)
    }

    /// Bits a second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// How long `bytes` take at this rate.
    pub fn time_for(self, bytes: usize) -> Duration {
        let nanos = bytes as u128 * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many bytes pass in `time` at this rate.
    pub fn bytes_in(self, time: Duration) -> usize {
        (time.as_nanos() * u128::from(self.0) / 8 / 1_000_000_000) as usize
    }
}
