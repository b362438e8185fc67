//! The delay of a move by the rate of both networks (Fig. 4).

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use whimbrel_lab::Rate;

use super::scenario::{PAPER, Scenario};
use super::server::Work;
use super::world::{Kind, World};
use super::{LANES, MOVE_AT};
use crate::benches::{Plan, lanes};
use crate::lab::CONGESTION_CONTROL;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// In kbit/s.
const RATES: [u64; 5] = [100, 200, 500, 1000, 2000];
/// What the paper finds from 200 kbit/s on (§VI-B), in milliseconds.
const PAPER_MOST: f64 = 5000.0;
const PAPER_FROM: u64 = 200;
const FASTER: &str = "from 200 kbit/s, ";
/// More than the fastest network brings until the move.
const SIZE: usize = 4_000_000;

const SPEC: Spec = Spec {
    name: "session-move-bandwidth",
    title: "delay of a move, from its asking to the first byte at the new device, while a download fills both networks",
    metrics: &[Metric { key: "delay", unit: "ms" }],
    targets: &[Target {
        case: FASTER,
        of: "whimbrel",
        metric: "delay",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(PAPER_MOST),
        aim: 2500.0,
    }],
    plot: Plot::Chart,
};

struct Job {
    scenario: Scenario,
    kbit: u64,
    round: u32,
    after: Duration,
}

impl Job {
    fn case(&self) -> String {
        let faster = if self.kbit >= PAPER_FROM { FASTER } else { "" };
        format!("{faster}{}, {} kbit/s", self.scenario.name(), self.kbit)
    }
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rates = if plan.quick { &RATES[3..] } else { &RATES[..] };
    let scenarios = if plan.quick { &PAPER[..1] } else { &PAPER[..] };
    let after = plan.length(MOVE_AT.as_secs_f64());
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(3) {
        for scenario in scenarios {
            jobs.extend(rates.iter().map(|kbit| Job { scenario: *scenario, kbit: *kbit, round, after }));
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::case, one)?;
    let series = scenarios.iter().map(|scenario| {
        let point = |kbit: &u64| {
            let case = Job { scenario: *scenario, kbit: *kbit, round: 0, after }.case();
            let own = done.trials.iter().filter(|trial| trial.case == case);
            let delays: Vec<f64> = own.filter_map(|trial| trial.values.get("delay")).copied().collect();
            Point::of(*kbit as f64, &delays)
        };
        let points = rates.iter().filter_map(point).collect();
        Series { label: scenario.name(), style: Style::Both, points }
    });
    let chart = Chart {
        x: Axis::log("rate of both networks [kbit/s]"),
        y: Axis::linear("delay of a move [ms], median and ends of the runs"),
        series: series.chain([paper(rates)]).collect(),
        free: Corner::UpperRight,
        mark: None,
    };
    let settings = json!({
        "carrier": "auto",
        "congestion_control": CONGESTION_CONTROL,
        "kbit": rates,
        "queue_ms": "100, and ten packets at least",
        "move_at_s": after.as_secs_f64(),
        "paper": "up to 5 s from 200 kbit/s on, beside 100 other sessions; here there are none",
        "failures": done.failures,
    });
    output.finish_chart(&SPEC, settings, &done.trials, Some(&chart))
}

/// What the paper says of its networks in words: a bound, over the rates for which it says so.
fn paper(rates: &[u64]) -> Series {
    let rates = rates.iter().filter(|kbit| **kbit >= PAPER_FROM);
    let points = rates.map(|kbit| Point::new(*kbit as f64, PAPER_MOST)).collect();
    Series { label: "the paper: at most".to_owned(), style: Style::Line, points }
}

/// One move. The download is left then.
fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let world = World::new(&job.scenario.at(Rate::kbit(job.kbit)), Kind::Own, SIZE)?;
    let (_, moved) = world.run(Work::Bulk(0), job.after)?;
    let trial = Trial::new("whimbrel", job.round).in_case(job.case());
    Ok((vec![trial.with("delay", moved.first.as_secs_f64() * 1000.0)], ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faster_networks_have_a_target() {
        let case = |kbit| Job { scenario: PAPER[0], kbit, round: 0, after: MOVE_AT }.case();
        assert_eq!(case(100), "WLAN to WLAN, 100 kbit/s");
        assert_eq!(case(200), "from 200 kbit/s, WLAN to WLAN, 200 kbit/s");
        assert!(RATES.iter().all(|kbit| (kbit * 125 * 5) < SIZE as u64));
        let points = paper(&RATES).points;
        assert_eq!(points.iter().map(|point| point.x).collect::<Vec<_>>(), [200.0, 500.0, 1000.0, 2000.0]);
        assert!(points.iter().all(|point| point.y == PAPER_MOST));
    }
}
