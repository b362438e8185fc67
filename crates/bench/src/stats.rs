//! The few statistics that are reported.

use serde::Serialize;

/// Middle, ends, and what 95 of 100 do not exceed, of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) p95: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: quantile(&sorted, 0.5)?, min, max, p95: quantile(&sorted, 0.95)? })
    }
}

/// The values in ascending order.
pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The `q`-quantile of ascending values, between its neighbours where it falls between.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_fall_between_values() {
        let values = sorted(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.5), Some(2.5));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_spread_names_middle_and_ends() {
        let values: Vec<f64> = (1..=21).rev().map(f64::from).collect();
        let spread = Spread { median: 11.0, min: 1.0, max: 21.0, p95: 20.0 };
        assert_eq!(Spread::of(&values), Some(spread));
        assert_eq!(Spread::of(&[]), None);
    }
}
