//! How long the receiving application hears nothing when the link in use is lost.
//!
//! Two links of 20 Mbit/s and 50 ms. The server sends a block every 4 ms (2 Mbit/s), or as much as it can;
//! after a while the link that has carried more of late is lost, in one of three ways. The gap is the longest
//! time between two reads of the receiving application from just before the loss on. Where the host can see
//! the loss, kernel MPTCP is told of it at once, as a network manager does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::Rate;

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, longest_gap};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, Loss, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const RTT: Duration = Duration::from_millis(50);
const RATE: Rate = Rate::mbit(20);
const BLOCK_RATE: u64 = 2_000_000;
const BLOCK_EVERY: Duration = Duration::from_millis(4);
/// Until all paths are up.
const SETTLE: Duration = Duration::from_millis(800);
/// Of traffic before the loss.
const BEFORE: Duration = Duration::from_millis(1500);
/// Of traffic after it; a longer gap counts as this.
const AFTER: Duration = Duration::from_secs(5);
/// In which the link that carries more is found out.
const LOOK: Duration = Duration::from_millis(300);
/// Moments of the loss are spread over this.
const SPREAD: Duration = Duration::from_millis(100);
const LANES: usize = 4;

const SPEC: Spec = Spec {
    name: "failover",
    title: "the longest silence at the receiving application when the link in use is lost, RTT 50 ms",
    metrics: &[Metric { key: "gap", unit: "ms" }],
    targets: &[
        // 1 RTT + 50 ms; 3 RTT + 200 ms. Of bulk, what was under way on the lost link must first squeeze in.
        within("stream, link down", 100.0),
        within("stream, blackhole", 350.0),
        within("stream, address removed", 100.0),
        Target { against: Some("mptcp"), bound: Bound::AtMost(1.0), aim: 1.0, ..within("", 1.0) },
    ],
    plot: Plot::Cases { metric: "gap", unit: "ms" },
};

const fn within(case: &'static str, limit: f64) -> Target {
    Target {
        case,
        of: "whimbrel",
        metric: "gap",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim: 10.0,
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    loss: Loss,
    contenders: [Contender; 2],
    mode: &'static str,
    is_bulk: bool,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        let traffic = if self.is_bulk { "bulk" } else { "stream" };
        format!("{traffic}, {}, {}", self.loss.name(), self.mode)
    }
}

fn jobs(rounds: u32) -> Vec<Job> {
    let modes = [
        ("full", [Contender::FULL, Contender::MPTCP]),
        ("backup", [Contender::BACKUP, Contender::MPTCP_BACKUP]),
    ];
    let mut jobs = Vec::new();
    for round in 0..rounds {
        for loss in [Loss::Down, Loss::Blackhole, Loss::AddressRemoved] {
            for (mode, contenders) in modes {
                jobs.extend([false, true].map(|is_bulk| Job { loss, contenders, mode, is_bulk, round }));
            }
        }
    }
    jobs
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let done = lanes::run(&jobs(plan.rounds(20)), LANES, &SPEC, output, Job::case, |job| {
        let mut trials = Vec::new();
        for contender in rotated(&job.contenders, job.round) {
            let gap = gap(job, contender).with_context(|| format!("{contender}"))?;
            let system = if contender == job.contenders[0] { "whimbrel" } else { "mptcp" };
            trials.push(Trial::new(system, job.round).in_case(job.case()).with("gap", gap));
        }
        Ok((trials, ()))
    })?;
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "rtt_ms": RTT.as_millis(),
        "mbit": RATE.bits_per_second() / 1_000_000,
        "stream_bits": BLOCK_RATE,
        "block_every_ms": BLOCK_EVERY.as_millis(),
        "longest_gap_seen_ms": AFTER.as_millis(),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// In milliseconds.
fn gap(job: &Job, contender: Contender) -> Result<f64> {
    let net = TwoLinks::new(&["one", "two"].map(|name| Access::new(name, RATE, RTT)))?;
    let mut session = contender.start(&net)?;
    std::thread::sleep(SETTLE);
    let began = Instant::now();
    let flow = if job.is_bulk {
        Flow::endless(Way::Down)
    } else {
        Flow::blocks(Way::Down, BLOCK_RATE, BLOCK_EVERY, BEFORE + SPREAD + AFTER * 2)
    };
    let lost = std::thread::scope(|scope| -> Result<Instant> {
        let loss = scope.spawn(|| lose_the_busier(&net, job, contender));
        let end = began + BEFORE + SPREAD + AFTER;
        session.run_until(flow, end)?;
        loss.join().ok().context("the loss panicked")?
    })?;
    let arrivals = session.notes.take();
    Ok(longest_gap(&arrivals, lost, lost + AFTER).as_secs_f64() * 1000.0)
}

/// Returns the moment of the loss.
fn lose_the_busier(net: &TwoLinks, job: &Job, contender: Contender) -> Result<Instant> {
    std::thread::sleep(BEFORE - LOOK + SPREAD / 20 * (job.round % 20));
    let down = || [0, 1].map(|link| net.carried(link)[1]);
    let before = down();
    std::thread::sleep(LOOK);
    let after = down();
    let busier = usize::from(after[1] - before[1] > after[0] - before[0]);
    let lost = net.lose(busier, job.loss)?;
    if job.loss != Loss::Blackhole {
        contender.tell_loss(net, busier)?;
    }
    Ok(lost)
}
