//! Small objects over two unequal links: no slower than over the better link alone.
//!
//! The connections are open and both paths are up; objects of several sizes are fetched one after the other,
//! with pauses. The better link is the one over which the subject with one path is faster, size by size.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::Rate;

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::Spread;

const SIZES: [(&str, u64); 5] =
    [("10 KB", 10_000), ("30 KB", 30_000), ("100 KB", 100_000), ("300 KB", 300_000), ("1 MB", 1_000_000)];
const CONTENDERS: [Contender; 6] = [
    Contender::FULL,
    Contender::OnePath(0),
    Contender::OnePath(1),
    Contender::MPTCP,
    Contender::Tcp(0),
    Contender::Tcp(1),
];
/// Of each size.
const FETCHES: usize = 5;
/// Until all paths are up.
const SETTLE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_secs(30);

const SPEC: Spec = Spec {
    name: "small-objects",
    title: "objects of 10 KB to 1 MB over two unequal links, beside the better link alone",
    metrics: &[Metric { key: "time", unit: "ms" }, Metric { key: "of_better", unit: "of better" }],
    targets: &[Target {
        case: "",
        of: "whimbrel full",
        metric: "of_better",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(1.05),
        aim: 1.0,
    }],
    plot: Plot::Cases { metric: "of_better", unit: "of the time over the better link alone" },
};

/// Mbit/s and round-trip times in milliseconds.
const LINKS: [(&str, [u64; 2], [u64; 2]); 2] =
    [("30+5 (20/100 ms)", [30, 5], [20, 100]), ("8+20 (30/100 ms)", [8, 20], [30, 100])];

struct Job {
    links: usize,
    round: u32,
}

impl Job {
    fn name(&self) -> String {
        LINKS[self.links].0.to_owned()
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rounds = plan.rounds(5);
    let links = if plan.quick { 1 } else { LINKS.len() };
    let jobs: Vec<Job> =
        (0..rounds).flat_map(|round| (0..links).map(move |links| Job { links, round })).collect();
    let done = lanes::run(&jobs, 2, &SPEC, output, Job::name, round)?;
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "links": LINKS.map(|(name, mbit, rtt)| json!({"name": name, "mbit": mbit, "rtt_ms": rtt})),
        "fetches": FETCHES,
        "pause_ms": PAUSE.as_millis(),
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn round(job: &Job) -> Result<(Vec<Trial>, ())> {
    let mut trials = Vec::new();
    for contender in rotated(&CONTENDERS, job.round) {
        let times = fetch_all(job, contender).with_context(|| format!("{contender}, {}", job.name()))?;
        for ((size, _), time) in SIZES.iter().zip(times) {
            let case = format!("{}, {size}", job.name());
            trials.push(Trial::new(contender, job.round).in_case(case).with("time", time));
        }
    }
    compare(&mut trials);
    Ok((trials, ()))
}

/// Sets every time beside that over the better link alone.
fn compare(trials: &mut [Trial]) {
    let of = |trials: &[Trial], case: &str, system: Contender| -> Option<f64> {
        let found = trials.iter().find(|t| t.case == case && t.system == system.to_string());
        found.and_then(|t| t.values.get("time")).copied()
    };
    for index in 0..trials.len() {
        let case = trials[index].case.clone();
        let alone = [0, 1].map(|link| of(trials, &case, Contender::OnePath(link)).unwrap_or(f64::INFINITY));
        let better = alone[0].min(alone[1]);
        if let Some(time) = trials[index].values.get("time").copied() {
            trials[index].values.insert("of_better", time / better);
        }
    }
}

/// The median time of each size, in milliseconds.
fn fetch_all(job: &Job, contender: Contender) -> Result<[f64; SIZES.len()]> {
    let (_, rates, rtts) = LINKS[job.links];
    let access =
        |name, link: usize| Access::new(name, Rate::mbit(rates[link]), Duration::from_millis(rtts[link]));
    let net = TwoLinks::new(&[access("one", 0), access("two", 1)])?;
    let mut session = contender.start(&net)?;
    std::thread::sleep(SETTLE);
    let mut times = [const { Vec::new() }; SIZES.len()];
    for _ in 0..FETCHES {
        for (times, (_, bytes)) in times.iter_mut().zip(SIZES) {
            let took = session.run(Flow::bulk(Way::Down, bytes), LIMIT)?;
            times.push(took.as_secs_f64() * 1000.0);
            std::thread::sleep(PAUSE);
        }
    }
    Ok(times.map(|times| Spread::of(&times).map_or(f64::NAN, |spread| spread.median)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_set_beside_the_better_link_of_its_size() {
        let trial =
            |case, contender: Contender, time| Trial::new(contender, 0).in_case(case).with("time", time);
        let mut trials = [
            trial("a", Contender::OnePath(0), 10.0),
            trial("a", Contender::OnePath(1), 20.0),
            trial("a", Contender::FULL, 11.0),
            trial("b", Contender::OnePath(0), 40.0),
            trial("b", Contender::OnePath(1), 20.0),
            trial("b", Contender::FULL, 15.0),
        ];
        compare(&mut trials);
        assert_eq!(trials[2].values["of_better"], 1.1);
        assert_eq!(trials[5].values["of_better"], 0.75);
    }
}
