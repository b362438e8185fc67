//! How soon a relayed connection is direct, both sides behind port-restricted NAT gateways.
//!
//! The time counts from the moment at which the application had its connection, which is relayed, until a
//! direct path carries. Each round has a fresh client, whose gateway has forgotten nothing and knows nothing
//! of it.

use std::time::Duration;

use anyhow::Result;

use super::{millis, rounds};
use crate::benches::Plan;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target};

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
    rounds::run(plan, output, &SPEC, LIMIT, |round, trial| {
        let connected = round.stage.connect(round.homes)?;
        let direct = millis(connected.direct_after(LIMIT).unwrap_or(LIMIT));
        let trial = trial.with("direct", direct).with("excess", direct - 2.0 * round.rtt);
        Ok(trial.with("connected", millis(connected.connected_after())))
    })
}
