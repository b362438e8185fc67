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
    pub(crate) plot: Plot,
}

/// How results are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plot {
    /// The subject beside its peers.
    Ratios,
    /// A metric of each trial, and the limit: another metric, and what is allowed on top.
    Against { value: &'static str, budget: &'static str, allowance: f64, unit: &'static str },
    /// The distribution of the trials' samples.
    Distribution { unit: &'static str, limit: f64 },
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
    pub(crate) judged: Judged,
    pub(crate) bound: Bound,
    pub(crate) aim: f64,
}

/// Which of several trials counts.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judged {
    Median,
    P95,
}

impl Judged {
    fn of(self, spread: Spread) -> f64 {
        match self {
            Self::Median => spread.median,
            Self::P95 => spread.p95,
        }
    }
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
    /// Single measurements, where their distribution matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) samples: Vec<f64>,
}

impl Trial {
    pub(crate) fn new(system: impl ToString, round: u32) -> Self {
        Self { system: system.to_string(), round, values: BTreeMap::new(), samples: Vec::new() }
    }

    pub(crate) fn with(mut self, metric: &'static str, value: f64) -> Self {
        self.values.insert(metric, value);
        self
    }

    pub(crate) fn with_samples(self, samples: Vec<f64>) -> Self {
        Self { samples, ..self }
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
            .map(|r| target.judged.of(r.spread)),
        None => summaries
            .iter()
            .find(|s| s.system == target.of && s.metric == target.metric)
            .map(|s| target.judged.of(s.spread)),
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

    #[test]
    fn a_target_counts_the_middle_or_nearly_the_worst() {
        let slow_last = |round| if round < 17 { 1.0 } else { 9.0 };
        let trials: Vec<Trial> =
            (0..20).map(|round| Trial::new("whimbrel", round).with("rate", slow_last(round))).collect();
        let summaries = summaries(&SPEC, &trials);
        let target = Target { against: None, bound: Bound::AtMost(2.0), ..SPEC.targets[0] };
        let met = |judged| {
            let targets: &'static [Target] = Box::leak(Box::new([Target { judged, ..target }]));
            verdicts(&Spec { targets, ..SPEC }, &summaries, &[])[0].met
        };
        assert!(met(Judged::Median) && !met(Judged::P95));
    }

    const SPEC: Spec = Spec {
        name: "test",
        title: "",
        metrics: &[Metric { key: "rate", unit: "MiB/s" }],
        targets: &[Target {
            of: "whimbrel",
            metric: "rate",
            against: Some("tls"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.9),
            aim: 0.97,
        }],
        plot: Plot::Ratios,
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
        let Spread { median, min, max, .. } = ratios[0].spread;
        assert_eq!((median, min, max), (0.925, 0.9, 0.95));
        let verdicts = verdicts(&SPEC, &summaries(&SPEC, &trials), &ratios);
        assert!(verdicts[0].met);
    }
}
