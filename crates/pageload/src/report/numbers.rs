//! Quantiles, speed-ups and shares.

use crate::experiment::Results;

/// How much a policy helped: the categories of Fig. 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// More than 1 % slower.
    Slower,
    /// Within 1 %.
    Equal,
    /// Up to 1.5 times as fast.
    Up15,
    /// From 1.5 up to twice as fast.
    Up2,
    /// From twice up to five times as fast.
    Up5,
    /// More than five times as fast.
    Above5,
}

impl Category {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Slower, Self::Equal, Self::Up15, Self::Up2, Self::Up5, Self::Above5];

    /// The category of a speed-up.
    pub fn of(speedup: f64) -> Self {
        match speedup {
            s if s < 0.99 => Self::Slower,
            s if s <= 1.01 => Self::Equal,
            s if s <= 1.5 => Self::Up15,
            s if s <= 2.0 => Self::Up2,
            s if s <= 5.0 => Self::Up5,
            _ => Self::Above5,
        }
    }

    /// For legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Equal => "equal (±1 %)",
            Self::Up15 => "up to 1.5×",
            Self::Up2 => "1.5× to 2×",
            Self::Up5 => "2× to 5×",
            Self::Above5 => "above 5×",
        }
    }
}

/// A policy in a few numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Its label.
    pub policy: String,
    /// The median page load time in seconds.
    pub median: f64,
    /// The 95th percentile of the page load time in seconds.
    pub p95: f64,
    /// The mean page load time in seconds.
    pub mean: f64,
    /// The share of rows that are faster than the baseline at all.
    pub faster: f64,
    /// The share that is slower at all.
    pub slower: f64,
    /// The share that is slower by more than 1 %.
    pub slower_by_1: f64,
    /// The share that is more than twice as fast.
    pub above_2: f64,
    /// The share that is more than five times as fast.
    pub above_5: f64,
}

impl Summary {
    /// What stands above [`Summary::cells`].
    pub const HEADINGS: [&str; 9] =
        ["policy", "median s", "95 % s", "mean s", "faster", "slower", "by > 1 %", "> 2×", "> 5×"];

    /// A row of a table.
    pub fn cells(&self) -> [String; 9] {
        let percent = |share: f64, digits: usize| format!("{:.digits$} %", share * 100.0);
        [
            self.policy.clone(),
            format!("{:.3}", self.median),
            format!("{:.3}", self.p95),
            format!("{:.3}", self.mean),
            percent(self.faster, 1),
            percent(self.slower, 2),
            percent(self.slower_by_1, 2),
            percent(self.above_2, 1),
            percent(self.above_5, 1),
        ]
    }
}

/// Differences below this are rounding, not speed.
const ROUNDING: f64 = 1e-9;

/// How many times as fast a policy is as the baseline, row by row.
pub fn speedups(results: &Results, policy: usize, baseline: usize) -> Vec<f64> {
    results.rows.iter().map(|row| row.plts[baseline] / row.plts[policy]).collect()
}

/// The value below which the share `q` of sorted values lies (nearest rank).
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Every policy in a few numbers, against a baseline.
pub fn summarise(results: &Results, baseline: usize) -> Vec<Summary> {
    (0..results.policies.len()).map(|policy| summary(results, policy, baseline)).collect()
}

fn summary(results: &Results, policy: usize, baseline: usize) -> Summary {
    let mut plts: Vec<f64> = results.rows.iter().map(|row| row.plts[policy]).collect();
    plts.sort_by(f64::total_cmp);
    let speedups = speedups(results, policy, baseline);
    let share = |test: &dyn Fn(f64) -> bool| {
        speedups.iter().filter(|speedup| test(**speedup)).count() as f64 / speedups.len().max(1) as f64
    };
    Summary {
        policy: results.policies[policy].clone(),
        median: quantile(&plts, 0.5),
        p95: quantile(&plts, 0.95),
        mean: plts.iter().sum::<f64>() / plts.len().max(1) as f64,
        faster: share(&|s| s > 1.0 + ROUNDING),
        slower: share(&|s| s < 1.0 - ROUNDING),
        slower_by_1: share(&|s| s < 0.99),
        above_2: share(&|s| s > 2.0),
        above_5: share(&|s| s > 5.0),
    }
}

/// The empirical distribution function of some values, thinned to at most `points` steps.
pub fn ecdf(values: &[f64], points: usize) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let step = (sorted.len() / points.max(1)).max(1);
    let mut steps: Vec<(f64, f64)> = sorted
        .iter()
        .enumerate()
        .filter(|(n, _)| n % step == 0)
        .map(|(n, value)| (*value, (n + 1) as f64 / sorted.len() as f64))
        .collect();
    if let Some(last) = sorted.last() {
        steps.push((*last, 1.0));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.95), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_distribution_ends_at_one() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let steps = ecdf(&values, 50);
        assert!(steps.len() <= 52);
        assert_eq!(steps.last(), Some(&(999.0, 1.0)));
        assert_eq!(steps[0], (0.0, 0.001));
    }
}
