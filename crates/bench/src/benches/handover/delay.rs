//! The application delay of a 500 kbit/s stream around the loss of Wi-Fi [mptcp-handover fig. 2].

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::links::{described, lose_wifi, wifi_and_3g};
use crate::benches::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, delays};
use crate::lab::TwoLinks;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};
use crate::stats::{quantile, sorted};

const CONTENDERS: [Contender; 5] =
    [Contender::FULL, Contender::BACKUP, Contender::SINGLE, Contender::MPTCP, Contender::MPTCP_BACKUP];
const BITS: u64 = 500_000;
const BLOCK_EVERY: Duration = Duration::from_millis(20);
const BEFORE: Duration = Duration::from_secs(5);
const SHOWN_BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(8);
/// Blocks of this time are drawn as one point.
const BIN: f64 = 0.1;
const LANES: usize = 4;

const ASLEEP: Spec = Spec {
    name: "handover-delay",
    title: "application delay of a 500 kbit/s stream around the loss of Wi-Fi, 3G radio asleep",
    metrics: &[
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p99", unit: "ms" },
        Metric { key: "peak", unit: "ms" },
    ],
    targets: &[],
    plot: Plot::Chart,
};

const AWAKE: Spec = Spec {
    name: "handover-delay-awake",
    title: "application delay of a 500 kbit/s stream around the loss of Wi-Fi, 3G radio kept awake",
    ..ASLEEP
};

struct Job {
    contender: Contender,
    awake: bool,
    round: u32,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    experiment(plan, false, &ASLEEP, output)?;
    experiment(plan, true, &AWAKE, output)
}

fn experiment(plan: &Plan, awake: bool, spec: &Spec, output: &mut Output) -> Result<()> {
    let job = |round| rotated(&CONTENDERS, round).map(move |contender| Job { contender, awake, round });
    let jobs: Vec<Job> = (0..plan.rounds(20)).flat_map(job).collect();
    let done = lanes::run(&jobs, LANES, spec, output, |job| job.contender.to_string(), one)?;
    let mut settings = described(awake);
    settings["stream_bits"] = json!(BITS);
    settings["block_every_ms"] = json!(BLOCK_EVERY.as_millis());
    settings["lanes"] = json!(LANES);
    settings["failures"] = json!(done.failures);
    output.finish_chart(spec, settings, &done.trials, Some(&chart(&done.more)))
}

/// When blocks were due, in seconds since the loss, and how late they came, in milliseconds.
type Run = (Contender, Vec<(f64, f64)>);

fn one(job: &Job) -> Result<(Vec<Trial>, Run)> {
    let net = TwoLinks::new(&wifi_and_3g(job.awake))?;
    let mut session = job.contender.start(&net)?;
    let began = Instant::now();
    let lost = std::thread::scope(|scope| -> Result<Instant> {
        let loss = scope.spawn(|| {
            std::thread::sleep((began + BEFORE).saturating_duration_since(Instant::now()));
            lose_wifi(&net, job.contender)
        });
        let flow = Flow::blocks(Way::Down, BITS, BLOCK_EVERY, BEFORE + AFTER);
        // The last blocks may be late.
        session.run_until(flow, began + BEFORE + AFTER * 2)?;
        loss.join().ok().context("the loss panicked")?
    })?;
    let shown = |(due, delay): (Instant, Duration)| {
        let due = due.checked_duration_since(lost - SHOWN_BEFORE)?.as_secs_f64() - SHOWN_BEFORE.as_secs_f64();
        Some((due, delay.as_secs_f64() * 1000.0))
    };
    let blocks: Vec<(f64, f64)> = delays(&session.notes.take()).into_iter().filter_map(shown).collect();
    let after = blocks.iter().filter(|(due, _)| *due >= 0.0).map(|(_, delay)| *delay);
    let after = sorted(&after.collect::<Vec<_>>());
    let at = |q| quantile(&after, q).context("no block came after the loss");
    let trial = Trial::new(job.contender, job.round)
        .with("p50", at(0.5)?)
        .with("p99", at(0.99)?)
        .with("peak", at(1.0)?);
    Ok((vec![trial], (job.contender, blocks)))
}

fn chart(runs: &[Run]) -> Chart {
    let series = CONTENDERS.map(|contender| {
        let own = || runs.iter().filter(|(other, _)| *other == contender).flat_map(|(_, blocks)| blocks);
        let bins = ((SHOWN_BEFORE + AFTER).as_secs_f64() / BIN).round() as usize;
        let point = |bin: usize| {
            let from = bin as f64 * BIN - SHOWN_BEFORE.as_secs_f64();
            let within = own().filter(|(due, _)| (from..from + BIN).contains(due)).map(|(_, delay)| *delay);
            quantile(&sorted(&within.collect::<Vec<_>>()), 0.5)
                .map(|delay| Point::new(from + BIN / 2.0, delay))
        };
        Series {
            label: contender.to_string(),
            style: Style::Line,
            points: (0..bins).filter_map(point).collect(),
        }
    });
    Chart {
        x: Axis::linear("seconds since Wi-Fi was lost, when the block was due"),
        y: Axis::linear("application delay [ms], median of the runs"),
        series: series.to_vec(),
        free: Corner::UpperRight,
        mark: Some((0.0, "Wi-Fi is lost")),
    }
}
