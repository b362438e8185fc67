//! Time of a download against the file's size, over one link and two [msocket fig. 10].
//!
//! As there, files are fetched one after the other over a connection that is open already. The ideal sends
//! over both links by TCP and only counts bytes, in whatever order they come.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::Rate;

use crate::benches::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, time_to};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};

const SIZES: [u64; 5] = [64_000, 256_000, 1_000_000, 4_000_000, 16_000_000];
const CONTENDERS: [Contender; 5] =
    [Contender::FULL, Contender::OnePath(0), Contender::OnePath(1), Contender::MPTCP, Contender::Ideal];
const SETTLE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(90);

const SPEC: Spec = Spec {
    name: "handover-download",
    title: "download time against file size, Wi-Fi 10 Mbit/s 80 ms and LTE 8 Mbit/s 145 ms",
    metrics: &[Metric { key: "time", unit: "ms" }],
    targets: &[],
    plot: Plot::Chart,
};

struct Job {
    contender: Contender,
    round: u32,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let sizes = if plan.quick { &SIZES[..3] } else { &SIZES[..] };
    let job = |round| rotated(&CONTENDERS, round).map(move |contender| Job { contender, round });
    let jobs: Vec<Job> = (0..plan.rounds(5)).flat_map(job).collect();
    let name = |job: &Job| job.contender.to_string();
    let done = lanes::run(&jobs, 2, &SPEC, output, name, |job| Ok((one(job, sizes)?, ())))?;
    let series = CONTENDERS.map(|contender| {
        let point = |size: &u64| {
            let own =
                done.trials.iter().filter(|t| t.system == contender.to_string() && t.case == case(*size));
            let times: Vec<f64> = own.filter_map(|t| t.values.get("time")).copied().collect();
            Point::of(*size as f64 / 1e6, &times)
        };
        Series {
            label: contender.to_string(),
            style: Style::Both,
            points: sizes.iter().filter_map(point).collect(),
        }
    });
    let chart = Chart {
        x: Axis::log("size of the file [MB]"),
        y: Axis::log("time of the download [ms], median and ends of the runs"),
        series: series.to_vec(),
        free: Corner::UpperLeft,
        mark: None,
    };
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "wifi": {"mbit": 10, "rtt_ms": 80}, "lte": {"mbit": 8, "rtt_ms": 145}, "queue_ms": 100,
        "failures": done.failures,
    });
    output.finish_chart(&SPEC, settings, &done.trials, Some(&chart))
}

fn case(size: u64) -> String {
    format!("{} KB", size / 1000)
}

fn one(job: &Job, sizes: &[u64]) -> Result<Vec<Trial>> {
    let accesses = [
        Access::new("wlan0", Rate::mbit(10), Duration::from_millis(80)),
        Access::new("wwan0", Rate::mbit(8), Duration::from_millis(145)),
    ];
    let net = TwoLinks::new(&accesses)?;
    let mut session = job.contender.start(&net)?;
    std::thread::sleep(SETTLE);
    let mut trials = Vec::new();
    for &size in sizes {
        session.notes.take();
        let began = Instant::now();
        session.run(Flow::bulk(Way::Down, size), LIMIT)?;
        let took = time_to(&session.notes.take(), began, size).context("the file is not complete")?;
        let trial = Trial::new(job.contender, job.round).in_case(case(size));
        trials.push(trial.with("time", took.as_secs_f64() * 1000.0));
        std::thread::sleep(PAUSE);
    }
    Ok(trials)
}
