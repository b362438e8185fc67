//! Goodput around the loss of Wi-Fi, in bins of 200 ms, averaged over the runs [mptcp-handover fig. 1].

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::links::{described, lose_wifi, wifi_and_3g};
use crate::benches::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, goodput_bins, longest_gap};
use crate::lab::TwoLinks;
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};

const CONTENDERS: [Contender; 6] = [
    Contender::FULL,
    Contender::BACKUP,
    Contender::SINGLE,
    Contender::Http,
    Contender::MPTCP,
    Contender::MPTCP_BACKUP,
];
const BIN: Duration = Duration::from_millis(200);
/// Of traffic before the loss, and of these, how much is shown.
const BEFORE: Duration = Duration::from_secs(5);
const SHOWN_BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(8);
/// "After three seconds, all modes reach the average download speed on our 3G network."
const RECOVERED: Duration = Duration::from_secs(3);
const LANES: usize = 4;

const ASLEEP: Spec = Spec {
    name: "handover-goodput",
    title: "goodput around the loss of Wi-Fi, 3G radio asleep",
    metrics: &[
        Metric { key: "gap", unit: "ms" },
        Metric { key: "before", unit: "Mbit/s" },
        Metric { key: "from_3s", unit: "Mbit/s" },
    ],
    targets: &[],
    plot: Plot::Chart,
};

const AWAKE: Spec = Spec {
    name: "handover-goodput-awake",
    title: "goodput around the loss of Wi-Fi, 3G radio kept awake",
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
    let rounds = plan.rounds(20);
    let job = |round| rotated(&CONTENDERS, round).map(move |contender| Job { contender, awake, round });
    let jobs: Vec<Job> = (0..rounds).flat_map(job).collect();
    let done = lanes::run(&jobs, LANES, spec, output, |job| job.contender.to_string(), one)?;
    let mut settings = described(awake);
    settings["bin_ms"] = json!(BIN.as_millis());
    settings["lanes"] = json!(LANES);
    settings["failures"] = json!(done.failures);
    output.finish_chart(spec, settings, &done.trials, Some(&chart(&done.more)))
}

/// The bins of one run.
type Run = (Contender, Vec<f64>);

fn one(job: &Job) -> Result<(Vec<Trial>, Run)> {
    let net = TwoLinks::new(&wifi_and_3g(job.awake))?;
    let mut session = job.contender.start(&net)?;
    let began = Instant::now();
    let lost = std::thread::scope(|scope| -> Result<Instant> {
        let loss = scope.spawn(|| {
            std::thread::sleep((began + BEFORE).saturating_duration_since(Instant::now()));
            lose_wifi(&net, job.contender)
        });
        session.run_until(Flow::endless(Way::Down), began + BEFORE + AFTER + BIN)?;
        loss.join().ok().context("the loss panicked")?
    })?;
    let arrivals = session.notes.take();
    let bins = goodput_bins(&arrivals, lost - SHOWN_BEFORE, BIN, count(SHOWN_BEFORE + AFTER));
    let mean = |bins: &[f64]| bins.iter().sum::<f64>() / bins.len().max(1) as f64;
    let trial = Trial::new(job.contender, job.round)
        .with("gap", longest_gap(&arrivals, lost, lost + AFTER).as_secs_f64() * 1000.0)
        .with("before", mean(&bins[..count(SHOWN_BEFORE)]))
        .with("from_3s", mean(&bins[count(SHOWN_BEFORE + RECOVERED)..]));
    Ok((vec![trial], (job.contender, bins)))
}

fn count(time: Duration) -> usize {
    (time.as_nanos() / BIN.as_nanos()) as usize
}

fn chart(runs: &[Run]) -> Chart {
    let series = CONTENDERS.map(|contender| {
        let own: Vec<&Vec<f64>> =
            runs.iter().filter(|(other, _)| *other == contender).map(|(_, bins)| bins).collect();
        let mean =
            |bin: usize| own.iter().filter_map(|bins| bins.get(bin)).sum::<f64>() / own.len().max(1) as f64;
        let at = |bin: usize| (bin as f64 + 0.5) * BIN.as_secs_f64() - SHOWN_BEFORE.as_secs_f64();
        let bins = if own.is_empty() { 0 } else { count(SHOWN_BEFORE + AFTER) };
        let points = (0..bins).map(|bin| Point::new(at(bin), mean(bin))).collect();
        Series { label: contender.to_string(), style: Style::Line, points }
    });
    Chart {
        x: Axis::linear("seconds since Wi-Fi was lost"),
        y: Axis::linear("goodput [Mbit/s], mean of the runs"),
        series: series.to_vec(),
        free: Corner::UpperRight,
        mark: Some((0.0, "Wi-Fi is lost")),
    }
}
