//! Somebody talks, and goes on at another device: how long nothing new is heard.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::scenario::{PAPER, Scenario, TODAY};
use super::server::{Work, talk_of};
use super::world::{Kind, World};
use super::{ALLOWANCE, LANES, MOVE_AT};
use crate::benches::{Plan, lanes};
use crate::lab::CONGESTION_CONTROL;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// How long somebody talks at the new device, at least.
const REST: Duration = Duration::from_secs(4);

pub(super) const SPEC: Spec = Spec {
    name: "session-move-talk",
    title: "64 kbit/s of voice move to another device; delay: from its asking to its first byte there; live: to the \
            first one that was said after the gateway had granted it, without what was kept before it; excess: of \
            live over 1 RTT of the old and 3 of the new device",
    metrics: &[
        Metric { key: "delay", unit: "ms" },
        Metric { key: "live", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "kept", unit: "bytes" },
    ],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "excess",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(ALLOWANCE),
        aim: 0.0,
    }],
    plot: Plot::Cases { metric: "live", unit: "ms" },
};

pub(super) struct Job {
    scenario: Scenario,
    round: u32,
    after: Duration,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let after = plan.length(MOVE_AT.as_secs_f64());
    let scenarios: Vec<Scenario> = PAPER.iter().chain(&TODAY).copied().collect();
    let scenarios = if plan.quick { &scenarios[..1] } else { &scenarios[..] };
    let jobs: Vec<Job> = (0..plan.rounds(5))
        .flat_map(|round| scenarios.iter().map(move |scenario| (round, *scenario)))
        .map(|(round, scenario)| Job { scenario, round, after })
        .collect();
    let done = lanes::run(&jobs, LANES, &SPEC, output, |job| job.scenario.name(), one)?;
    let settings = json!({
        "carrier": "auto",
        "congestion_control": CONGESTION_CONTROL,
        "move_at_s": after.as_secs_f64(),
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// One talk. It fails unless every byte came once, over one connection of the server.
pub(super) fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let size = talk_of(job.after + job.scenario.from.rtt * 3 + job.scenario.to.rtt * 3 + REST);
    let world = World::new(&job.scenario, Kind::Own, size)?;
    let (_, moved) = world.run(Work::Talk, job.after)?;
    let (delay, [asked, granted]) = (moved.first, moved.moments);
    let rest = world.finish(moved)?;
    let said = world.server.said_from(granted).context("nothing was said after the move")?;
    // What the phone had already was said before.
    let index = said.offset.checked_sub(rest.offset).context("it was said before the move")?;
    let heard = rest.record.arrival(index).context("it was not heard")?;
    let kept_takes = index as f64 / job.scenario.to.goodput();
    let live = ((heard - asked).as_secs_f64() - kept_takes) * 1000.0;
    let excess = live - job.scenario.round_trips().as_secs_f64() * 1000.0;
    let trial = Trial::new("whimbrel", job.round)
        .in_case(job.scenario.name())
        .with("delay", delay.as_secs_f64() * 1000.0)
        .with("live", live)
        .with("excess", excess)
        .with("kept", index as f64);
    Ok((vec![trial], ()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn what_is_said_after_the_move_is_heard_behind_what_was_said_before() {
        if !require!() {
            return;
        }
        let job = Job { scenario: PAPER[0], round: 0, after: Duration::from_millis(600) };
        let trial = one(&job).unwrap().0.remove(0);
        let value = |name: &str| trial.values[name];
        // The answer has come, the program is known to be there, and what is new comes then.
        assert!(value("live") >= 2.5 * 38.0, "{trial:?}");
        assert!(value("delay") >= 2.0 * 38.0, "{trial:?}");
    }
}
