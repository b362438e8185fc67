//! The units that decisions are made in.

use serde::{Deserialize, Serialize};
use std::{fmt, ops};

/// A length of time, or a moment on the caller's clock, in seconds. May be infinite ("never"); never NaN.
///
/// Not a [`std::time::Duration`], because forecasts are compared to the last bit of their binary64 value.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl Seconds {
    /// Later than every moment.
    pub const NEVER: Self = Self(f64::INFINITY);
    /// No time at all, or the clock's origin.
    pub const ZERO: Self = Self(0.0);

    /// So many milliseconds.
    pub fn from_millis(millis: f64) -> Self {
        Self(millis * 0.001)
    }

    /// The earlier of the two.
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The later of the two.
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl ops::Add for Seconds {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl ops::Sub for Seconds {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl ops::Mul<f64> for Seconds {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.abs() < 1.0 { write!(f, "{:.1} ms", self.0 * 1000.0) } else { write!(f, "{:.3} s", self.0) }
    }
}

/// A rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

impl BytesPerSecond {
    /// The time that so many bytes take at this rate; [`Seconds::NEVER`] if the rate is 0.
    pub fn time_for(self, bytes: f64) -> Seconds {
        if bytes <= 0.0 {
            Seconds::ZERO
        } else if self.0 > 0.0 {
            Seconds(bytes / self.0)
        } else {
            Seconds::NEVER
        }
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} Mbit/s", self.0 * 8.0 / 1e6)
    }
}
