//! What a bench found, and how it compares.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::stats::Spread;

/// Labels that begin with this are the subject; all others are peers.
const SUBJECT: &str = "whimbrel";

/// What a bench measures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [Metric],
    pub(crate) targets: &'static [Target],
}

/// One number of a trial.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Metric {
    pub(crate) key: &'static str,
    pub(crate) unit: &'static str,
}

/// What is expected of the subject: of a number itself, or of its ratio to a peer's.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Target {
    /// The subject's label.
    pub(crate) of: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) against: Option<&'static str>,
    pub(crate) bound: Bound,
    pub(crate) aim: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

/// One run of one system.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Trial {
    pub(crate) system: String,
    pub(crate) round: u32,
    pub(crate) values: BTreeMap<&'static str, f64>,
}

impl Trial {
    pub(crate) fn new(system: impl ToString, round: u32) -> Self {
        Self { system: system.to_string(), round, values: BTreeMap::new() }
    }

    pub(crate) fn with(mut self, metric: &'static str, value: f64) -> Self {
        self.values.insert(metric, value);
        self
    }

    fn is_subject(&self) -> bool {
        self.system.starts_with(SUBJECT)
    }
}

/// One system's numbers over all rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) system: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) spread: Spread,
}

/// The subject divided by a peer, round by round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratio {
    pub(crate) subject: String,
    pub(crate) peer: String,
    pub(crate) metric: &'static str,
    #[serde(flatten)]
    pub(crate) spread: Spread,
}

/// A target and what came of it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    #[serde(flatten)]
    pub(crate) target: Target,
    pub(crate) value: f64,
    pub(crate) met: bool,
}

fn labels(trials: &[Trial]) -> Vec<&Trial> {
    let mut seen: Vec<&Trial> = Vec::new();
    for trial in trials {
        if !seen.iter().any(|t| t.system == trial.system) {
            seen.push(trial);
        }
    }
    seen
}

pub(crate) fn summaries(spec: &Spec, trials: &[Trial]) -> Vec<Summary> {
    let mut all = Vec::new();
    for metric in spec.metrics {
        for label in labels(trials) {
            let of_system = trials.iter().filter(|t| t.system == label.system);
            let values: Vec<f64> = of_system.filter_map(|t| t.values.get(metric.key)).copied().collect();
            let Some(spread) = Spread::of(&values) else { continue };
            let system = label.system.clone();
            all.push(Summary { system, metric: metric.key, unit: metric.unit, spread });
        }
    }
    all
}

pub(crate) fn ratios(spec: &Spec, trials: &[Trial]) -> Vec<Ratio> {
    let labels = labels(trials);
    let (subjects, peers): (Vec<&Trial>, Vec<&Trial>) = labels.into_iter().partition(|t| t.is_subject());
    let mut all = Vec::new();
    for metric in spec.metrics {
        for subject in &subjects {
            for peer in &peers {
                let pairs = pairs(trials, metric.key, &subject.system, &peer.system);
                let Some(spread) = Spread::of(&pairs) else { continue };
                all.push(Ratio {
                    subject: subject.system.clone(),
                    peer: peer.system.clone(),
                    metric: metric.key,
                    spread,
                });
            }
        }
    }
    all
}

/// Subject divided by peer, of each round in which both ran.
fn pairs(trials: &[Trial], metric: &str, subject: &str, peer: &str) -> Vec<f64> {
    let value = |system: &str, round| {
        let mut found = trials.iter().filter(|t| t.system == system && t.round == round);
        found.next().and_then(|t| t.values.get(metric)).copied()
    };
    let rounds = trials.iter().filter(|t| t.system == subject).map(|t| t.round);
    rounds
        .filter_map(|round| Some(value(subject, round)? / value(peer, round)?))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

pub(crate) fn verdicts(spec: &Spec, summaries: &[Summary], ratios: &[Ratio]) -> Vec<Verdict> {
    let value_of = |target: &Target| match target.against {
        Some(peer) => ratios
            .iter()
            .find(|r| r.subject == target.of && r.peer == peer && r.metric == target.metric)
            .map(|r| r.spread.median),
        None => summaries
            .iter()
            .find(|s| s.system == target.of && s.metric == target.metric)
            .map(|s| s.spread.median),
    };
    let judged = spec.targets.iter().filter_map(|target| {
        let value = value_of(target)?;
        Some(Verdict { target: *target, value, met: target.bound.is_met_by(value) })
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec {
        name: "test",
        title: "",
        metrics: &[Metric { key: "rate", unit: "MiB/s" }],
        targets: &[Target {
            of: "whimbrel",
            metric: "rate",
            against: Some("tls"),
            bound: Bound::AtLeast(0.9),
            aim: 0.97,
        }],
    };

    #[test]
    fn ratios_are_taken_within_rounds() {
        let trials = [
            Trial::new("whimbrel", 0).with("rate", 90.0),
            Trial::new("tls", 0).with("rate", 100.0),
            Trial::new("tls", 1).with("rate", 10.0),
            Trial::new("whimbrel", 1).with("rate", 9.5),
            Trial::new("whimbrel", 2).with("rate", 1.0),
        ];
        let ratios = ratios(&SPEC, &trials);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].spread, Spread { median: 0.925, min: 0.9, max: 0.95 });
        let verdicts = verdicts(&SPEC, &summaries(&SPEC, &trials), &ratios);
        assert!(verdicts[0].met);
    }
}
