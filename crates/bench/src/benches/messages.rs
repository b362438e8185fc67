//! Messages of 100 bytes: how many a second, and what one there and one back takes.

use anyhow::{Context, Result};
use serde_json::json;

use super::{Plan, isolated, schedule};
use crate::messenger::{Messenger, SIZE};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};
use crate::sys::cpu_time;

/// A target of the subject's rate in comparison with a peer's.
const fn rate(of: &'static str, against: &'static str, least: f64) -> Target {
    Target {
        case: "",
        of,
        metric: "rate",
        against: Some(against),
        judged: Judged::Median,
        bound: Bound::AtLeast(least),
        aim: least,
    }
}

const RATE: Spec = Spec {
    name: "messages",
    title: "messages of 100 bytes a second, loopback, both ends in one process",
    metrics: &[Metric { key: "rate", unit: "messages/s" }, Metric { key: "cpu", unit: "µs/message" }],
    targets: &[
        rate("whimbrel", "quinn-streams", 2.0),
        rate("whimbrel", "enet", 2.0),
        rate("whimbrel", "framed-tls", 1.0),
        rate("whimbrel-unreliable", "quinn-datagrams", 2.0),
        rate("whimbrel-unreliable", "enet-unreliable", 2.0),
        // Datagrams against datagrams.
        rate("whimbrel-unreliable-quic", "quinn-datagrams", 2.0),
        rate("whimbrel-unreliable-quic", "enet-unreliable", 2.0),
    ],
    plot: Plot::Ratios,
};

const ROUND_TRIP: Spec = Spec {
    name: "message-ping",
    title: "one message of 100 bytes there and one back, loopback, both ends in one process",
    metrics: &[Metric { key: "p50", unit: "µs" }, Metric { key: "p99", unit: "µs" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "p50",
        against: Some("framed-tls"),
        judged: Judged::Median,
        bound: Bound::AtMost(1.1),
        aim: 1.0,
    }],
    plot: Plot::Ratios,
};

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let systems = Messenger::on_loopback();
    let length = plan.length(2.0);
    let settings =
        json!({ "carrier": "auto; quic as named", "seconds": length.as_secs_f64(), "bytes": SIZE });
    let mut trials = Vec::new();
    for (round, system) in schedule(&systems, plan.rounds(5)) {
        let cpu = cpu_time();
        let rate = isolated(system.rate(length)).with_context(|| format!("messages of {system}"))?;
        let cpu = cpu_time().saturating_sub(cpu).as_nanos() as f64 / 1000.0;
        let messages = rate * length.as_secs_f64();
        let trial = Trial::new(system, round).with("rate", rate).with("cpu", cpu / messages);
        output.trial(&RATE, &trial);
        trials.push(trial);
    }
    output.finish(&RATE, settings.clone(), &trials)?;
    // A datagram that is lost would be waited for without end.
    let systems: Vec<Messenger> =
        systems.into_iter().filter(|system| !matches!(system, Messenger::WhimbrelQuic(_))).collect();
    let mut trials = Vec::new();
    for (round, system) in schedule(&systems, plan.rounds(5)) {
        let times = isolated(system.round_trips(length)).with_context(|| format!("messages of {system}"))?;
        let times = sorted(&times);
        let at = |part| quantile(&times, part).context("no round trip");
        let trial = Trial::new(system, round).with("p50", at(0.5)?).with("p99", at(0.99)?);
        output.trial(&ROUND_TRIP, &trial);
        trials.push(trial);
    }
    output.finish(&ROUND_TRIP, settings, &trials)
}
