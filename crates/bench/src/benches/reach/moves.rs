//! How long a client's move interrupts a connection between two homes behind port-restricted NAT gateways.
//!
//! The connection is direct, or was given the time to be. The client loses its only address and gets another
//! one at once; the time counts from the moment from which that could be used, until the first word was heard
//! that the server spoke after the old address was gone.

use std::time::Duration;

use anyhow::{Context, Result};

use super::stage::Stage;
use super::{millis, rounds, talk};
use crate::benches::Plan;
use crate::lab::Homes;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target};

/// By then a connection is direct, if it ever is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before the move: nothing of what came before is under way, and there are tickets.
const CALM: Duration = Duration::from_secs(2);
/// What is not heard by then counts as this.
const LIMIT: Duration = Duration::from_secs(40);

const SPEC: Spec = Spec {
    name: "reach-moves",
    title: "a client behind NAT moves: from a usable new address to the first new word; excess: over two round \
            trips through the relay",
    metrics: &[
        Metric { key: "recovery", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "direct", unit: "" },
    ],
    targets: &[
        Target {
            case: "",
            of: "whimbrel",
            metric: "excess",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(15.0),
            aim: 0.0,
        },
        Target {
            case: "",
            of: "whimbrel",
            metric: "recovery",
            against: Some("iroh"),
            judged: Judged::Median,
            bound: Bound::AtMost(1.0),
            aim: 0.5,
        },
    ],
    plot: Plot::Cases { metric: "recovery", unit: "ms" },
};

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    rounds::run(plan, output, &SPEC, LIMIT, |round, trial| {
        let (recovery, was_direct) = one(round.homes, round.stage)?;
        let trial = trial.with("recovery", recovery).with("excess", recovery - 2.0 * round.rtt);
        Ok(trial.with("direct", f64::from(u8::from(was_direct))))
    })
}

/// How long the move interrupted the connection, in milliseconds, and whether that was direct before.
fn one(homes: &Homes, stage: &dyn Stage) -> Result<(f64, bool)> {
    let mut connected = stage.connect(homes)?;
    let was_direct = connected.direct_after(PATIENCE).is_some();
    // What the server said meanwhile is read.
    let calm = talk::nanos() + CALM.as_nanos() as u64;
    connected.first_since(homes, calm, PATIENCE)?.context("the server fell silent before the move")?;
    homes.client.leave()?;
    let since = talk::nanos();
    let usable = homes.client.arrive()?;
    let heard = connected.first_since(homes, since, LIMIT)?;
    let recovery = heard.map_or(LIMIT, |heard| heard.saturating_duration_since(usable));
    Ok((millis(recovery), was_direct))
}
