//! Throughput against energy of the modes [mptcp-handover figs. 4 and 5, msocket figs. 11 and 12].
//!
//! What passes each link is measured in steps of 100 ms; what a phone's radios would have used for it is
//! estimated by
//! [a published model](crate::energy).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::Rate;

use crate::benches::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::energy::{Activity, LTE, Radio, UMTS, WIFI, energy};
use crate::flow::{Flow, Way};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};

const STEP: Duration = Duration::from_millis(100);
const CONTENDERS: [Contender; 6] = [
    Contender::FULL,
    Contender::BACKUP,
    Contender::SINGLE,
    Contender::OnePath(0),
    Contender::OnePath(1),
    Contender::MPTCP,
];
const LIMIT: Duration = Duration::from_secs(60);
const LANES: usize = 3;

const SPEC: Spec = Spec {
    name: "handover-energy",
    title: "throughput against energy, a model (Huang et al., MobiSys 2012), not a measurement",
    metrics: &[
        Metric { key: "goodput", unit: "Mbit/s" },
        Metric { key: "energy", unit: "J" },
        Metric { key: "per_bit", unit: "µJ/bit" },
    ],
    targets: &[],
    plot: Plot::Chart,
};

/// What is downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// One file of 8 MB.
    File,
    /// Files of 100 KB, 5 s after one another, as in browsing.
    Pages,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::File => "8 MB file",
            Self::Pages => "100 KB pages",
        }
    }

    /// Of each file, and how many.
    fn files(self, quick: bool) -> (u64, u32) {
        match (self, quick) {
            (Self::File, false) => (8_000_000, 1),
            (Self::File, true) => (1_000_000, 1),
            (Self::Pages, false) => (100_000, 5),
            (Self::Pages, true) => (100_000, 2),
        }
    }

    fn pause(self) -> Duration {
        if self == Self::Pages { Duration::from_secs(5) } else { Duration::ZERO }
    }
}

/// The second network: its radio, Mbit/s and round trip in milliseconds.
const CELLULAR: [(&Radio, u64, u64); 2] = [(&UMTS, 2, 100), (&LTE, 10, 60)];

struct Job {
    cellular: usize,
    load: Load,
    contender: Contender,
    quick: bool,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        case(self.cellular, self.load)
    }
}

fn case(cellular: usize, load: Load) -> String {
    format!("Wi-Fi + {}, {}", CELLULAR[cellular].0.name, load.name())
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let quick = plan.quick;
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(3) {
        for (cellular, load) in [(0, Load::File), (1, Load::File), (0, Load::Pages), (1, Load::Pages)] {
            jobs.extend(rotated(&CONTENDERS, round).map(|contender| Job {
                cellular,
                load,
                contender,
                quick,
                round,
            }));
        }
    }
    let name = |job: &Job| format!("{}, {}", job.case(), job.contender);
    let done = lanes::run(&jobs, LANES, &SPEC, output, name, |job| Ok((vec![one(job)?], ())))?;
    let mut series = Vec::new();
    for contender in CONTENDERS {
        let own = done.trials.iter().filter(|t| t.system == contender.to_string());
        let point = |t: &Trial| Some(Point::new(*t.values.get("goodput")?, *t.values.get("per_bit")?));
        let points = own.filter_map(point).collect();
        series.push(Series { label: contender.to_string(), style: Style::Points, points });
    }
    let chart = Chart {
        x: Axis::log("goodput [Mbit/s]; browsing, with its pauses, is on the left"),
        y: Axis::log("energy by the model [µJ/bit]"),
        series,
        free: Corner::UpperRight,
        mark: None,
    };
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "model": "as in Huang et al., A Close Examination of Performance and Power Characteristics of 4G LTE Networks, \
            MobiSys 2012: promotion, base and rate while active, tail in full; radios only",
        "assumed": "3G: slope down, promotion, tail; LTE: the promotion's length, the tail's power; Wi-Fi: promotion, tail",
        "step_ms": STEP.as_millis(),
        "wifi": {"mbit": 8, "rtt_ms": 30},
        "cellular": CELLULAR.map(|(radio, mbit, rtt)| json!({"radio": radio.name, "mbit": mbit, "rtt_ms": rtt})),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish_chart(&SPEC, settings, &done.trials, Some(&chart))
}

fn one(job: &Job) -> Result<Trial> {
    let (radio, mbit, rtt) = CELLULAR[job.cellular];
    let net = TwoLinks::new(&[
        Access::new("wlan0", Rate::mbit(8), Duration::from_millis(30)),
        Access::new("wwan0", Rate::mbit(mbit), Duration::from_millis(rtt)),
    ])?;
    let (bytes, count) = job.load.files(job.quick);
    let is_over = AtomicBool::new(false);
    let (took, activity) = std::thread::scope(|scope| -> Result<(Duration, [Vec<Activity>; 2])> {
        let watch = scope.spawn(|| watch(&net, &is_over));
        let took = download(job, &net, bytes, count);
        is_over.store(true, Ordering::Release);
        Ok((took?, watch.join().ok().context("the watcher panicked")?))
    })?;
    let [wifi, cellular] = activity;
    let joules = energy(&WIFI, &wifi, STEP).total() + energy(radio, &cellular, STEP).total();
    let bits = (bytes * u64::from(count)) as f64 * 8.0;
    Ok(Trial::new(job.contender, job.round)
        .in_case(job.case())
        .with("goodput", bits / 1e6 / took.as_secs_f64())
        .with("energy", joules)
        .with("per_bit", joules * 1e6 / bits))
}

fn download(job: &Job, net: &TwoLinks, bytes: u64, count: u32) -> Result<Duration> {
    let began = Instant::now();
    let mut session = job.contender.start(net)?;
    for file in 0..count {
        if file > 0 {
            std::thread::sleep(job.load.pause());
        }
        session.run(Flow::bulk(Way::Down, bytes), LIMIT)?;
    }
    Ok(began.elapsed())
}

/// What passes each link, step by step, until it is over.
fn watch(net: &TwoLinks, is_over: &AtomicBool) -> [Vec<Activity>; 2] {
    let mut steps = [Vec::new(), Vec::new()];
    let (mut before, began) = ([0, 1].map(|link| net.carried(link)), Instant::now());
    for step in 1.. {
        let over = is_over.load(Ordering::Acquire);
        std::thread::sleep((began + STEP * step).saturating_duration_since(Instant::now()));
        for (link, steps) in steps.iter_mut().enumerate() {
            let now = net.carried(link);
            steps.push(Activity { up: now[0] - before[link][0], down: now[1] - before[link][1] });
            before[link] = now;
        }
        if over {
            break;
        }
    }
    steps
}
