//! A download from the first moment of a connection on, while the carrier changes: QUIC opens, TCP takes
//! over.
//!
//! The subject chooses its carriers by itself; the control is the subject over TCP alone. The time counts
//! from before the connection is made, so that what QUIC wins at the beginning is in it; a pause is one
//! between two reads of the receiving application.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Queue, Rate};

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, longest_gap};
use crate::lab::{Access, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const SUBJECT: Contender = Contender::AnyCarrier(0);
const CONTROL: Contender = Contender::OnePath(0);
const RTTS_MS: [u64; 4] = [20, 50, 100, 200];
const RATE: Rate = Rate::mbit(20);
/// Deep enough that no slow start overflows it: what is lost then would be a pause of any carrier.
const QUEUE: Duration = Duration::from_millis(500);
const LENGTH: Duration = Duration::from_secs(5);
const LANES: usize = 2;

const SPEC: Spec = Spec {
    name: "take-over",
    title: "a download's first 5 s at 20 Mbit/s, while TCP takes over from QUIC, beside TCP alone",
    metrics: &[
        Metric { key: "bytes", unit: "MB" },
        Metric { key: "pause", unit: "ms" },
        Metric { key: "pause_rtts", unit: "RTT" },
        Metric { key: "first", unit: "RTT" },
    ],
    targets: &[
        Target {
            case: "",
            of: "whimbrel auto, first link",
            metric: "bytes",
            against: Some("one path, first link"),
            judged: Judged::Median,
            bound: Bound::AtLeast(0.95),
            aim: 1.0,
        },
        Target {
            case: "",
            of: "whimbrel auto, first link",
            metric: "pause_rtts",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(1.0),
            aim: 1.0,
        },
    ],
    plot: Plot::Cases { metric: "bytes", unit: "MB" },
};

struct Job {
    rtt_ms: u64,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        format!("RTT {} ms", self.rtt_ms)
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS_MS[..1] } else { &RTTS_MS[..] };
    let job = |round| rtts.iter().map(move |&rtt_ms| Job { rtt_ms, round });
    let jobs: Vec<Job> = (0..plan.rounds(7)).flat_map(job).collect();
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::case, one)?;
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": "auto; the control: tcp",
        "rtt_ms": rtts,
        "mbit": RATE.bits_per_second() / 1_000_000,
        "queue_ms": QUEUE.as_millis(),
        "seconds": LENGTH.as_secs_f64(),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let of = |contender| trial(job, contender).with_context(|| format!("{contender}, {}", job.case()));
    let trials = rotated(&[SUBJECT, CONTROL], job.round).map(of).collect::<Result<_>>()?;
    Ok((trials, ()))
}

fn trial(job: &Job, contender: Contender) -> Result<Trial> {
    let rtt = Duration::from_millis(job.rtt_ms);
    let net =
        TwoLinks::new(&["one", "two"].map(|name| Access::new(name, RATE, rtt).queue(Queue::Time(QUEUE))))?;
    let began = Instant::now();
    let mut session = contender.start(&net)?;
    session.run_until(Flow::endless(Way::Down), began + LENGTH)?;
    let arrivals = session.notes.take();
    let first = arrivals.first().context("nothing arrived")?.at;
    let bytes: u64 = arrivals.iter().map(|arrival| arrival.bytes).sum();
    let pause = longest_gap(&arrivals, first, began + LENGTH);
    Ok(Trial::new(contender, job.round)
        .in_case(job.case())
        .with("bytes", bytes as f64 / 1e6)
        .with("pause", pause.as_secs_f64() * 1000.0)
        .with("pause_rtts", pause.as_secs_f64() / rtt.as_secs_f64())
        .with("first", (first - began).as_secs_f64() / rtt.as_secs_f64()))
}
