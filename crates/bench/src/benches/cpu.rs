//! What a second path costs: CPU time for each GiB, both links as fast as the machine.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Plan, schedule};
use crate::contender::Contender;
use crate::flow::{Flow, Way};
use crate::lab::{CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys::cpu_time;

const GIB: f64 = (1_u64 << 30) as f64;
/// Until all paths are up.
const SETTLE: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(120);
/// Windows have opened after this.
const WARM_UP: u64 = 32 << 20;
const CONTENDERS: [Contender; 5] =
    [Contender::EqualShares, Contender::FULL, Contender::OnePath(0), Contender::MPTCP, Contender::Tcp(0)];

const SPEC: Spec = Spec {
    name: "cpu",
    title: "CPU seconds for each GiB with two paths and with one, both ends in one process",
    metrics: &[
        Metric { key: "cpu", unit: "s/GiB" },
        Metric { key: "rate", unit: "MiB/s" },
        Metric { key: "second", unit: "of bytes" },
    ],
    targets: &[Target {
        case: "",
        // Else most bytes may go over one path, and the second one would not be paid for.
        of: "whimbrel full, equal shares",
        metric: "cpu",
        against: Some("one path, first link"),
        judged: Judged::Median,
        bound: Bound::AtMost(1.15),
        aim: 1.0,
    }],
    plot: Plot::Cases { metric: "cpu", unit: "s/GiB" },
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let bytes: u64 = if plan.quick { 128 << 20 } else { 1 << 30 };
    let mut trials = Vec::new();
    for (round, contender) in schedule(&CONTENDERS, plan.rounds(5)) {
        let trial = trial(contender, round, bytes).with_context(|| contender.to_string())?;
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({ "congestion_control": CONGESTION_CONTROL, "carrier": CARRIER, "bytes": bytes });
    output.finish(&SPEC, settings, &trials)
}

fn trial(contender: Contender, round: u32, bytes: u64) -> Result<Trial> {
    let net = TwoLinks::unlimited()?;
    let mut session = contender.start(&net)?;
    std::thread::sleep(SETTLE);
    session.run(Flow::bulk(Way::Down, WARM_UP), LIMIT)?;
    let cpu = cpu_time();
    let took = session.run(Flow::bulk(Way::Down, bytes), LIMIT)?;
    let cpu = cpu_time().saturating_sub(cpu);
    let mut trial = Trial::new(contender, round)
        .with("cpu", cpu.as_secs_f64() * GIB / bytes as f64)
        .with("rate", bytes as f64 / f64::from(1 << 20) / took.as_secs_f64());
    if let Some(connection) = session.connection() {
        let received: Vec<u64> = connection.stats().paths.iter().map(|path| path.bytes_received).collect();
        let (sum, most) = (received.iter().sum::<u64>(), received.iter().max().copied().unwrap_or(0));
        trial = trial.with("second", (sum - most) as f64 / sum.max(1) as f64);
    }
    Ok(trial)
}
