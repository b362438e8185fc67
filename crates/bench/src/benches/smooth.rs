//! The first two seconds of a bulk transfer over two unequal links: the longest silence at the receiving
//! application.
//!
//! Both links are token buckets, so that the first burst over the slow link looks as fast as the machine:
//! early bytes that are entrusted to it arrive late, and all behind them wait. The control is the subject on
//! the better link alone.
//!
//! Slow start overflows a queue of 100 ms, and what it loses there is a silence of any sender: a round trip
//! and the queue. So one round-trip time is measured with a queue too that no slow start overflows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Queue, Rate};

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, longest_gap};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const CONTENDERS: [Contender; 3] = [Contender::FULL, Contender::OnePath(0), Contender::MPTCP];
/// Mbit/s of each pair of links.
const RATES: [[u64; 2]; 2] = [[40, 4], [50, 2]];
const RTTS_MS: [u64; 3] = [2, 20, 50];
const BURST: usize = 32 << 10;
const QUEUE: Duration = Duration::from_millis(100);
/// Holds more than is sent in the time that is looked at.
const DEEP: Duration = Duration::from_secs(2);
const RTT_OF_DEEP_MS: u64 = 20;
const LOOKED_AT: Duration = Duration::from_secs(2);
const LANES: usize = 2;

const SPEC: Spec = Spec {
    name: "smooth",
    title: "the longest silence within the first 2 s of a download over two token buckets; excess: over the better link alone",
    metrics: &[Metric { key: "gap", unit: "ms" }, Metric { key: "excess", unit: "ms" }],
    targets: &[
        excess("40+4, RTT 2 ms", 22.0),
        excess("40+4, RTT 20 ms", 40.0),
        excess("40+4, RTT 50 ms", 70.0),
        excess("50+2, RTT 2 ms", 22.0),
        excess("50+2, RTT 20 ms", 40.0),
        excess("50+2, RTT 50 ms", 70.0),
    ],
    plot: Plot::Cases { metric: "gap", unit: "ms" },
};

/// One round trip and 20 ms.
const fn excess(case: &'static str, limit: f64) -> Target {
    Target {
        case,
        of: "whimbrel full",
        metric: "excess",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim: 10.0,
    }
}

struct Job {
    rates: [u64; 2],
    rtt_ms: u64,
    queue: Duration,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        let Self { rates: [first, second], rtt_ms, .. } = self;
        let queue = if self.queue == DEEP { ", deep queue" } else { "" };
        format!("{first}+{second}, RTT {rtt_ms} ms{queue}")
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS_MS[1..2] } else { &RTTS_MS[..] };
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(7) {
        for rates in RATES {
            jobs.extend(rtts.iter().map(|&rtt_ms| Job { rates, rtt_ms, queue: QUEUE, round }));
            jobs.push(Job { rates, rtt_ms: RTT_OF_DEEP_MS, queue: DEEP, round });
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::case, one)?;
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "mbit": RATES,
        "rtt_ms": rtts,
        "burst_bytes": BURST,
        "queue_ms": QUEUE.as_millis(),
        "deep_queue_ms": DEEP.as_millis(),
        "looked_at_ms": LOOKED_AT.as_millis(),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let mut trials = Vec::new();
    for contender in rotated(&CONTENDERS, job.round) {
        let gap = gap(job, contender).with_context(|| format!("{contender}, {}", job.case()))?;
        trials.push(Trial::new(contender, job.round).in_case(job.case()).with("gap", gap));
    }
    let control = Contender::OnePath(0).to_string();
    let alone = trials.iter().find(|trial| trial.system == control).and_then(|trial| trial.values.get("gap"));
    let alone = *alone.context("the control did not run")?;
    for trial in trials.iter_mut().filter(|trial| trial.system != control) {
        let gap = trial.values.get("gap").copied().unwrap_or(f64::NAN);
        trial.values.insert("excess", gap - alone);
    }
    Ok((trials, ()))
}

/// In milliseconds.
fn gap(job: &Job, contender: Contender) -> Result<f64> {
    let rtt = Duration::from_millis(job.rtt_ms);
    let access = |name, link: usize| {
        Access::new(name, Rate::mbit(job.rates[link]), rtt).queue(Queue::Time(job.queue)).burst(BURST)
    };
    let net = TwoLinks::new(&[access("one", 0), access("two", 1)])?;
    let mut session = contender.start(&net)?;
    let began = Instant::now();
    session.run_until(Flow::endless(Way::Down), began + LOOKED_AT)?;
    Ok(longest_gap(&session.notes.take(), began, began + LOOKED_AT).as_secs_f64() * 1000.0)
}
