//! Rounds of all systems, through relays at several distances, both sides behind port-restricted NAT
//! gateways.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::NatKind;

use super::stage::Stage;
use super::systems;
use crate::benches::{Plan, rotated};
use crate::lab::Homes;
use crate::output::Output;
use crate::report::{Spec, Trial};

/// From end to end through the relay, in milliseconds.
const RTTS: [u64; 2] = [100, 300];

/// A system's relay and server at a distance.
pub(super) struct Round<'a> {
    pub(super) homes: &'a Homes,
    pub(super) stage: &'a dyn Stage,
    /// From end to end through the relay, in milliseconds.
    pub(super) rtt: f64,
}

/// Has `measure` add its figures to a trial of each system, round and distance. What never happened counts as
/// `limit`.
pub(super) fn run(
    plan: &Plan,
    output: &mut Output,
    spec: &Spec,
    limit: Duration,
    measure: impl Fn(&Round<'_>, Trial) -> Result<Trial>,
) -> Result<()> {
    let rtts = if plan.quick { &RTTS[..1] } else { &RTTS[..] };
    let mut trials = Vec::new();
    for &rtt in rtts {
        // A relay's host for each system.
        let homes = Homes::apart(2, Duration::from_millis(rtt), Duration::ZERO)?;
        homes.set_kind(NatKind::PortRestricted)?;
        let stages = systems::all(&homes)?;
        let order: Vec<usize> = (0..stages.len()).collect();
        for number in 0..plan.rounds(10) {
            for index in rotated(&order, number) {
                let (system, stage) = &stages[index];
                let round = Round { homes: &homes, stage: stage.as_ref(), rtt: rtt as f64 };
                let trial = Trial::new(system.name(), number).in_case(format!("{rtt} ms"));
                let trial = measure(&round, trial).with_context(|| system.name())?;
                output.trial(spec, &trial);
                trials.push(trial);
            }
        }
    }
    let settings = json!({
        "carrier": "auto", "gateways": "port-restricted", "rtt_ms": rtts,
        "never_counts_as_ms": limit.as_millis() as u64,
    });
    output.finish(spec, settings, &trials)
}
