//! The delay of a move beside many sessions under load (Fig. 5), at `whimbrel gateway serve`.
//!
//! The others are programs on a host beside the gateway, a hundred of a device, to which the server sends
//! 12 500 bytes every second.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::MOVE_AT;
use super::device::Device;
use super::program::Program;
use super::scenario::{self, Scenario};
use super::server::Work;
use super::world::{Kind, World};
use crate::benches::{Plan, rotated};
use crate::lab::CONGESTION_CONTROL;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;

const COUNTS: [usize; 3] = [10, 100, 1000];
/// Sessions of one device.
const PER_DEVICE: usize = 100;
/// All of them have begun, and are heard.
const SETTLE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(120);
/// More than comes until the move.
const SIZE: usize = 2_000_000;
/// What the paper says of its delay in words is a bound, in milliseconds, beside so many other sessions
/// (§VI-B, of Fig. 4). Of Fig. 5 it has no figures in words.
const PAPER: Point = Point { x: 100.0, y: 5000.0, ends: None };
/// Of this process, for each session: both ends of a program's connection, and the server's.
const FILES_PER_SESSION: u64 = 3;
const OTHER_FILES: u64 = 512;

const SPEC: Spec = Spec {
    name: "session-move-crowd",
    title: "delay of a move at `whimbrel gateway serve` while others' sessions get 100 kbit/s each; slower: than with 10",
    metrics: &[Metric { key: "delay", unit: "ms" }, Metric { key: "slower", unit: "times" }],
    targets: &[Target {
        case: "",
        of: "whimbrel 1000",
        metric: "slower",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(1.5),
        aim: 1.1,
    }],
    plot: Plot::Chart,
};

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let counts = if plan.quick { &COUNTS[..2] } else { &COUNTS[..] };
    let scenarios = if plan.quick { &scenario::PAPER[..1] } else { &scenario::PAPER[..] };
    let after = plan.length(MOVE_AT.as_secs_f64());
    allow_files(counts[counts.len() - 1])?;
    let mut trials: Vec<Trial> = Vec::new();
    for round in 0..plan.rounds(3) {
        for scenario in scenarios {
            let mut delays = Vec::new();
            for count in rotated(counts, round) {
                let delay = one(scenario, count, after)
                    .with_context(|| format!("{}, {count} others", scenario.name()))?;
                delays.push((count, delay.as_secs_f64() * 1000.0));
            }
            let few = delays.iter().find(|(count, _)| *count == counts[0]).map(|(_, delay)| *delay);
            for (count, delay) in delays {
                let trial = Trial::new(label(count), round).in_case(scenario.name()).with("delay", delay);
                let trial = few.iter().fold(trial, |trial, few| trial.with("slower", delay / few));
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
    }
    let chart = chart(scenarios, counts, &trials);
    let settings = json!({
        "carrier": "auto",
        "congestion_control": CONGESTION_CONTROL,
        "sessions": counts,
        "sessions_per_device": PER_DEVICE,
        "kbit_each": 100,
        "paper": "at most 5 s from 200 kbit/s on beside 100 sessions (its Fig. 4); Fig. 5 has no figures in words",
        "move_at_s": after.as_secs_f64(),
    });
    output.finish_chart(&SPEC, settings, &trials, Some(&chart))
}

fn label(count: usize) -> String {
    format!("whimbrel {count}")
}

fn chart(scenarios: &[Scenario], counts: &[usize], trials: &[Trial]) -> Chart {
    let series = scenarios.iter().map(|scenario| {
        let point = |count: &usize| {
            let is_own = |t: &&Trial| t.case == scenario.name() && t.system == label(*count);
            let delays = trials.iter().filter(is_own).filter_map(|t| t.values.get("delay")).copied();
            Point::of(*count as f64, &delays.collect::<Vec<_>>())
        };
        let points = counts.iter().filter_map(point).collect();
        Series { label: scenario.name(), style: Style::Both, points }
    });
    let paper = Series {
        label: "the paper: at most".to_owned(),
        style: Style::Points,
        points: counts.iter().filter(|count| **count as f64 == PAPER.x).map(|_| PAPER).collect(),
    };
    Chart {
        x: Axis::log("other sessions at the gateway"),
        y: Axis::linear("delay of a move [ms], median and ends of the runs"),
        series: series.chain([paper]).collect(),
        free: Corner::UpperLeft,
        mark: None,
    }
}

/// Allows as many open files as the sessions of one trial need.
pub(super) fn allow_files(sessions: usize) -> Result<()> {
    let (needed, limit) = (sessions as u64 * FILES_PER_SESSION + OTHER_FILES, sys::raise_file_limit()?);
    ensure!(
        needed <= limit,
        "{sessions} sessions need {needed} open files, but the limit is {limit}; raise it (ulimit -n)"
    );
    Ok(())
}

/// How long a move takes beside so many others.
fn one(scenario: &Scenario, count: usize, after: Duration) -> Result<Duration> {
    let world = World::new(scenario, Kind::Program, SIZE)?;
    let crowd = Crowd::open(&world, count, Work::Load)?;
    std::thread::sleep(SETTLE);
    let (_, moved) = world.run(Work::Bulk(0), after)?;
    // They were there all the time.
    ensure!(crowd.is_whole(), "a session of the others ended");
    Ok(moved.first)
}

/// Sessions of others. They end when this is dropped.
pub(super) struct Crowd {
    programs: Vec<Program>,
    _devices: Vec<Device>,
}

impl Crowd {
    /// So many, whose programs ask for this.
    pub(super) fn open(world: &World, count: usize, work: Work) -> Result<Self> {
        let (mut programs, mut devices) = (Vec::with_capacity(count), Vec::new());
        let site = &world.crowd_host().site;
        while programs.len() < count {
            let device = world.one_of_crowd()?;
            let some = PER_DEVICE.min(count - programs.len());
            let opened = site.within(LIMIT, "open sessions", async {
                let mut opened = Vec::with_capacity(some);
                for _ in 0..some {
                    opened.push(device.open(world.server.address, work).await?);
                }
                anyhow::Ok(opened)
            })??;
            programs.extend(opened);
            devices.push(device);
        }
        Ok(Self { programs, _devices: devices })
    }

    /// Whether all go on.
    pub(super) fn is_whole(&self) -> bool {
        self.programs.iter().all(Program::goes_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_a_line_for_each_scenario() {
        let trial = |case: &str, count, delay| Trial::new(label(count), 0).in_case(case).with("delay", delay);
        let trials = [trial("WLAN to WLAN", 10, 5.0), trial("WLAN to WLAN", 100, 6.0)];
        let chart = chart(&scenario::PAPER[..2], &COUNTS, &trials);
        let points: Vec<usize> = chart.series.iter().map(|series| series.points.len()).collect();
        assert_eq!(points, [2, 0, 1], "and the paper's");
    }
}
