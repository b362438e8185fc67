//! What two links bring together: `aggregate`, a file of 16 MB; `start-up`, the first seconds.
//!
//! The links are those of the kernel's own tests of simultaneous flows, and two more that are less equal. In
//! each round the subject, kernel MPTCP, and TCP on each link alone run one after the other, each on a fresh
//! network. The time counts from the request on a connection that is just there, to the last byte at the
//! receiving application; further paths are opened while it runs. What both links give TCP is the sum of two
//! files, each as large as its link's share, fetched over one link each.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use whimbrel_lab::Rate;

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, time_to};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const FILE: u64 = 16_000_000;
const CONTENDERS: [Contender; 4] = [Contender::FULL, Contender::MPTCP, Contender::Tcp(0), Contender::Tcp(1)];
/// After which the first bytes are counted.
const SECONDS: [(&str, &str, u64); 3] =
    [("first_1s", "best_1s", 1), ("first_2s", "best_2s", 2), ("first_4s", "best_4s", 4)];

const AGGREGATE: Spec = Spec {
    name: "aggregate",
    title: "a 16 MB file over two links; share: of what each gives TCP alone, together",
    metrics: &[
        Metric { key: "rate", unit: "Mbit/s" },
        Metric { key: "share", unit: "of sum" },
        Metric { key: "carried", unit: "× file" },
    ],
    targets: &[
        Target {
            case: "",
            of: "whimbrel full",
            metric: "share",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtLeast(0.93),
            aim: 0.97,
        },
        Target {
            case: "",
            of: "whimbrel full",
            metric: "rate",
            against: Some("mptcp full"),
            judged: Judged::Median,
            bound: Bound::AtLeast(1.0),
            aim: 1.0,
        },
    ],
    plot: Plot::Cases { metric: "share", unit: "of what both links give TCP" },
};

const START_UP: Spec = Spec {
    name: "start-up",
    title: "bytes in the first seconds over two links, beside the best single link with TCP",
    metrics: &[
        Metric { key: "first_1s", unit: "Mbit/s" },
        Metric { key: "first_2s", unit: "Mbit/s" },
        Metric { key: "first_4s", unit: "Mbit/s" },
        Metric { key: "best_1s", unit: "of best" },
        Metric { key: "best_2s", unit: "of best" },
        Metric { key: "best_4s", unit: "of best" },
    ],
    targets: &[never_below("best_1s"), never_below("best_2s"), never_below("best_4s")],
    plot: Plot::Cases { metric: "best_1s", unit: "of the best single link" },
};

const fn never_below(metric: &'static str) -> Target {
    Target {
        case: "",
        of: "whimbrel full",
        metric,
        against: None,
        judged: Judged::Least,
        bound: Bound::AtLeast(0.95),
        aim: 1.0,
    }
}

/// Two links: Mbit/s, and round-trip times in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Links {
    name: &'static str,
    rates: [u64; 2],
    rtts: [u64; 2],
}

const LINKS: [Links; 7] = [
    Links { name: "10+10", rates: [10, 10], rtts: [0, 0] },
    Links { name: "10+10 (1/50 ms)", rates: [10, 10], rtts: [1, 50] },
    Links { name: "30+10", rates: [30, 10], rtts: [0, 0] },
    Links { name: "30+10 (1/50 ms)", rates: [30, 10], rtts: [1, 50] },
    Links { name: "30+10 (50/1 ms)", rates: [30, 10], rtts: [50, 1] },
    Links { name: "20+2 (20/100 ms)", rates: [20, 2], rtts: [20, 100] },
    Links { name: "100+5 (10/50 ms)", rates: [100, 5], rtts: [10, 50] },
];

impl Links {
    fn network(&self) -> Result<TwoLinks> {
        let access = |name, link: usize| {
            Access::new(name, Rate::mbit(self.rates[link]), Duration::from_millis(self.rtts[link]))
        };
        TwoLinks::new(&[access("one", 0), access("two", 1)])
    }

    /// Of a file, what a contender is to carry: TCP on one link only that link's share.
    fn part(&self, contender: Contender, file: u64) -> u64 {
        match contender {
            Contender::Tcp(link) => file * self.rates[link] / self.rates.iter().sum::<u64>(),
            _ => file,
        }
    }

    fn limit(&self, file: u64) -> Duration {
        let slowest = self.rates[0].min(self.rates[1]);
        Duration::from_secs(10) + Rate::mbit(slowest).time_for(file as usize)
    }
}

/// One round on one pair of links, one way.
struct Job {
    links: Links,
    way: Way,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        format!("{} {}", self.links.name, self.way.name())
    }

    fn trial(&self, contender: Contender) -> Trial {
        Trial::new(contender, self.round).in_case(self.case())
    }
}

/// Of the pairs of links only those whose name begins as `only` says, if it does.
fn jobs(plan: &Plan, only: Option<&str>, rounds: u32) -> Result<Vec<Job>> {
    let links = if plan.quick && only.is_none() { &LINKS[3..4] } else { &LINKS[..] };
    let chosen = |links: &&Links| only.is_none_or(|name| links.name.starts_with(name));
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(rounds) {
        for links in links.iter().filter(chosen) {
            jobs.extend(Way::BOTH.map(|way| Job { links: *links, way, round }));
        }
    }
    if jobs.is_empty() {
        let names = LINKS.map(|links| links.name).join(", ");
        bail!("no pair of links begins with {:?}: there are {names}", only.unwrap_or_default());
    }
    Ok(jobs)
}

fn settings() -> serde_json::Value {
    json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "queue_ms": 100,
        "links": LINKS.map(|links| json!({"name": links.name, "mbit": links.rates, "rtt_ms": links.rtts})),
    })
}

/// A file over both links.
pub(crate) fn aggregate(plan: &Plan, only: Option<&str>, output: &mut Output) -> Result<()> {
    let file = if plan.quick { FILE / 8 } else { FILE };
    let one = |job: &Job| -> Result<(Vec<Trial>, ())> {
        let mut trials = Vec::new();
        for contender in rotated(&CONTENDERS, job.round) {
            let (rate, carried) =
                fetch(job, contender, file).with_context(|| format!("{contender}, {}", job.case()))?;
            trials.push(job.trial(contender).with("rate", rate).with("carried", carried));
        }
        let alone = |link| rate_of(&trials, Contender::Tcp(link), "rate");
        let sum = alone(0) + alone(1);
        for trial in trials.iter_mut().filter(|trial| !trial.system.starts_with("tcp")) {
            let share = trial.values.get("rate").map_or(0.0, |rate| rate / sum);
            trial.values.insert("share", share);
        }
        Ok((trials, ()))
    };
    let done = lanes::run(&jobs(plan, only, 5)?, 1, &AGGREGATE, output, Job::case, one)?;
    let mut settings = settings();
    settings["file_bytes"] = file.into();
    settings["failures"] = json!(done.failures);
    output.finish(&AGGREGATE, settings, &done.trials)
}

fn rate_of(trials: &[Trial], contender: Contender, metric: &str) -> f64 {
    let found = trials.iter().find(|trial| trial.system == contender.to_string());
    found.and_then(|trial| trial.values.get(metric)).copied().unwrap_or(f64::NAN)
}

/// Mbit/s, and how much the links carried for each byte.
fn fetch(job: &Job, contender: Contender, file: u64) -> Result<(f64, f64)> {
    let net = job.links.network()?;
    let mut session = contender.start(&net)?;
    let part = job.links.part(contender, file);
    let carried = || -> u64 {
        let way = usize::from(job.way == Way::Down);
        (0..2).map(|link| net.carried(link)[way]).sum()
    };
    let (before, began) = (carried(), Instant::now());
    session.run(Flow::bulk(job.way, part), job.links.limit(file))?;
    let took = time_to(&session.notes.take(), began, part).context("the file is not complete")?;
    let rate = part as f64 * 8.0 / 1e6 / took.as_secs_f64();
    Ok((rate, (carried() - before) as f64 / part as f64))
}

/// The first seconds.
pub(crate) fn start_up(plan: &Plan, only: Option<&str>, output: &mut Output) -> Result<()> {
    let one = |job: &Job| -> Result<(Vec<Trial>, ())> {
        let mut trials = Vec::new();
        for contender in rotated(&CONTENDERS, job.round) {
            let trial = begin(job, contender).with_context(|| format!("{contender}, {}", job.case()))?;
            trials.push(trial);
        }
        for (first, best, _) in SECONDS {
            let alone = [0, 1].map(|link| rate_of(&trials, Contender::Tcp(link), first));
            for trial in trials.iter_mut().filter(|trial| !trial.system.starts_with("tcp")) {
                let share = trial.values.get(first).map_or(0.0, |rate| rate / alone[0].max(alone[1]));
                trial.values.insert(best, share);
            }
        }
        Ok((trials, ()))
    };
    let done = lanes::run(&jobs(plan, only, 5)?, 1, &START_UP, output, Job::case, one)?;
    let mut settings = settings();
    settings["failures"] = json!(done.failures);
    output.finish(&START_UP, settings, &done.trials)
}

fn begin(job: &Job, contender: Contender) -> Result<Trial> {
    let net = job.links.network()?;
    let mut session = contender.start(&net)?;
    let began = Instant::now();
    let longest = SECONDS.map(|(.., seconds)| seconds)[SECONDS.len() - 1];
    session.run_until(Flow::endless(job.way), began + Duration::from_secs(longest))?;
    let arrivals = session.notes.take();
    let mut trial = job.trial(contender);
    for (metric, _, seconds) in SECONDS {
        let end = began + Duration::from_secs(seconds);
        let bytes: u64 =
            arrivals.iter().filter(|arrival| arrival.at < end).map(|arrival| arrival.bytes).sum();
        trial = trial.with(metric, bytes as f64 * 8.0 / 1e6 / seconds as f64);
    }
    Ok(trial)
}
