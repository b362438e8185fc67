//! How soon a relayed connection is direct, both sides behind port-restricted NAT gateways.
//!
//! The time counts from the moment at which the application had its connection, which is relayed, until a direct
//! path carries. Each round has a fresh client, whose gateway has forgotten nothing and knows nothing of it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::NatKind;

use super::{millis, systems};
use crate::benches::{Plan, rotated};
use crate::lab::Homes;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// From end to end through the relay, in milliseconds.
const RTTS: [u64; 2] = [100, 300];
/// What is not direct by then counts as this.
const LIMIT: Duration = Duration::from_secs(15);

const SPEC: Spec = Spec {
    name: "reach-time",
    title: "from a relayed connection to a direct path, both sides behind NAT; excess: over two round trips through \
            the relay",
    metrics: &[
        Metric { key: "direct", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "connected", unit: "ms" },
    ],
    targets: &[
        Target {
            case: "",
            of: "whimbrel",
            metric: "excess",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(100.0),
            aim: 0.0,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "direct",
            against: Some("iroh"),
            judged: Judged::P95,
            bound: Bound::AtMost(1.0),
            aim: 0.5,
        },
    ],
    plot: Plot::Cases { metric: "direct", unit: "ms" },
};

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rtts = if plan.quick { &RTTS[..1] } else { &RTTS[..] };
    let mut trials = Vec::new();
    for &rtt in rtts {
        // A relay's host for each system.
        let homes = Homes::apart(2, Duration::from_millis(rtt))?;
        homes.set_kind(NatKind::PortRestricted)?;
        let stages = systems::all(&homes)?;
        let order: Vec<usize> = (0..stages.len()).collect();
        for round in 0..plan.rounds(10) {
            for index in rotated(&order, round) {
                let (system, stage) = &stages[index];
                let connected = stage.connect(&homes).with_context(|| system.name())?;
                let direct = millis(connected.direct_after(LIMIT).unwrap_or(LIMIT));
                let trial = Trial::new(system.name(), round)
                    .in_case(format!("{rtt} ms"))
                    .with("direct", direct)
                    .with("excess", direct - 2.0 * rtt as f64)
                    .with("connected", millis(connected.connected_after()));
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
    }
    let settings = json!({
        "carrier": "auto", "gateways": "port-restricted", "rtt_ms": rtts,
        "never_counts_as_ms": LIMIT.as_millis() as u64,
    });
    output.finish(&SPEC, settings, &trials)
}
