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
    /// A metric of each system in each case.
    Cases { metric: &'static str, unit: &'static str },
    /// A [chart](crate::plot::Chart) that the bench makes itself.
    Chart,
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
    /// How the names of the cases begin for which it is meant.
    pub(crate) case: &'static str,
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
    Least,
}

impl Judged {
    fn of(self, spread: Spread) -> f64 {
        match self {
            Self::Median => spread.median,
            Self::P95 => spread.p95,
            Self::Least => spread.min,
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
    /// Under which conditions, if there are several.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) case: String,
    pub(crate) system: String,
    pub(crate) round: u32,
    pub(crate) values: BTreeMap<&'static str, f64>,
    /// Single measurements, where their distribution matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) samples: Vec<f64>,
}

impl Trial {
    pub(crate) fn new(system: impl ToString, round: u32) -> Self {
        let (case, system) = (String::new(), system.to_string());
        Self { case, system, round, values: BTreeMap::new(), samples: Vec::new() }
    }

    pub(crate) fn in_case(self, case: impl ToString) -> Self {
        Self { case: case.to_string(), ..self }
    }

    pub(crate) fn with(mut self, metric: &'static str, value: f64) -> Self {
        self.values.insert(metric, value);
        self
    }

    pub(crate) fn with_samples(self, samples: Vec<f64>) -> Self {
        Self { samples, ..self }
    }
}

/// One system's numbers over all rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) case: String,
    pub(crate) system: String,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) spread: Spread,
}

/// The subject divided by a peer, round by round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratio {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) case: String,
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
    /// The case itself, where the target is meant for several.
    #[serde(rename = "in", skip_serializing_if = "String::is_empty")]
    pub(crate) case: String,
    pub(crate) value: f64,
    pub(crate) met: bool,
}

/// Every number of every trial, one a line, below a head.
pub(crate) fn csv(trials: &[Trial]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "'"));
    let mut text = "case,system,round,metric,value\n".to_owned();
    for trial in trials {
        let (case, system) = (quoted(&trial.case), quoted(&trial.system));
        for (metric, value) in &trial.values {
            text += &format!("{case},{system},{},{metric},{value}\n", trial.round);
        }
    }
    text
}

/// Each of some things once, in the order of their first appearance.
pub(crate) fn distinct<'a>(things: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for thing in things {
        if !seen.contains(&thing) {
            seen.push(thing);
        }
    }
    seen
}

/// The trials of each case.
fn by_case(trials: &[Trial]) -> Vec<(&str, Vec<&Trial>)> {
    let cases = distinct(trials.iter().map(|trial| trial.case.as_str()));
    let of = |case: &str| trials.iter().filter(|trial| trial.case == case).collect();
    cases.into_iter().map(|case| (case, of(case))).collect()
}

pub(crate) fn summaries(spec: &Spec, trials: &[Trial]) -> Vec<Summary> {
    let mut all = Vec::new();
    for metric in spec.metrics {
        for (case, trials) in by_case(trials) {
            for system in distinct(trials.iter().map(|trial| trial.system.as_str())) {
                let of_system = trials.iter().filter(|t| t.system == system);
                let values: Vec<f64> = of_system.filter_map(|t| t.values.get(metric.key)).copied().collect();
                let Some(spread) = Spread::of(&values) else { continue };
                let (case, system) = (case.to_owned(), system.to_owned());
                all.push(Summary { case, system, metric: metric.key, unit: metric.unit, spread });
            }
        }
    }
    all
}

pub(crate) fn ratios(spec: &Spec, trials: &[Trial]) -> Vec<Ratio> {
    let mut all = Vec::new();
    for metric in spec.metrics {
        for (case, trials) in by_case(trials) {
            let systems = distinct(trials.iter().map(|trial| trial.system.as_str()));
            let (subjects, peers): (Vec<&str>, Vec<&str>) =
                systems.into_iter().partition(|system| system.starts_with(SUBJECT));
            for (subject, peer) in subjects.iter().flat_map(|s| peers.iter().map(move |p| (*s, *p))) {
                let Some(spread) = Spread::of(&pairs(&trials, metric.key, subject, peer)) else { continue };
                all.push(Ratio {
                    case: case.to_owned(),
                    subject: subject.to_owned(),
                    peer: peer.to_owned(),
                    metric: metric.key,
                    spread,
                });
            }
        }
    }
    all
}

/// Subject divided by peer, of each round in which both ran.
fn pairs(trials: &[&Trial], metric: &str, subject: &str, peer: &str) -> Vec<f64> {
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
    let verdict = |target: &Target, case: &str, spread: Spread| {
        let value = target.judged.of(spread);
        Verdict { target: *target, case: case.to_owned(), value, met: target.bound.is_met_by(value) }
    };
    let of = |target: &Target| -> Vec<Verdict> {
        let is_meant = |case: &str, system: &str, metric: &str| {
            case.starts_with(target.case) && system == target.of && metric == target.metric
        };
        match target.against {
            Some(peer) => ratios
                .iter()
                .filter(|r| is_meant(&r.case, &r.subject, r.metric) && r.peer == peer)
                .map(|r| verdict(target, &r.case, r.spread))
                .collect(),
            None => summaries
                .iter()
                .filter(|s| is_meant(&s.case, &s.system, s.metric))
                .map(|s| verdict(target, &s.case, s.spread))
                .collect(),
        }
    };
    spec.targets.iter().flat_map(of).collect()
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

    #[test]
    fn cases_are_compared_and_judged_each_by_itself() {
        let trial = |case: &str, system, rate| Trial::new(system, 0).in_case(case).with("rate", rate);
        let trials = [
            trial("fast", "whimbrel", 95.0),
            trial("fast", "tls", 100.0),
            trial("slow", "whimbrel", 5.0),
            trial("slow", "tls", 10.0),
        ];
        let ratios = ratios(&SPEC, &trials);
        let verdicts = verdicts(&SPEC, &summaries(&SPEC, &trials), &ratios);
        let found: Vec<_> = verdicts.iter().map(|v| (v.case.as_str(), v.value, v.met)).collect();
        assert_eq!(found, [("fast", 0.95, true), ("slow", 0.5, false)]);
    }

    const SPEC: Spec = Spec {
        name: "test",
        title: "",
        metrics: &[Metric { key: "rate", unit: "MiB/s" }],
        targets: &[Target {
            case: "",
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
