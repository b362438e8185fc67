//! What sessions at rest cost `whimbrel gateway serve`.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::crowd::{Crowd, allow_files};
use super::scenario::PAPER;
use super::server::Work;
use super::world::{Kind, World};
use crate::benches::Plan;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;

const COUNT: usize = 1000;
/// Sessions before the first look: what the gateway needs once is there then.
const WARM_UP: usize = 100;
/// Buffers that are not needed any more are given back, and second streams are there.
const SETTLE: Duration = Duration::from_secs(3);

const SPEC: Spec = Spec {
    name: "session-move-rest",
    title: "memory that `whimbrel gateway serve` has resident for each of many sessions at rest",
    metrics: &[Metric { key: "memory", unit: "KiB each" }],
    targets: &[Target {
        case: "",
        of: "whimbrel",
        metric: "memory",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(16.0),
        aim: 8.0,
    }],
    plot: Plot::Cases { metric: "memory", unit: "KiB each" },
};

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let count = if plan.quick { 100 } else { COUNT };
    allow_files(count + WARM_UP)?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        let mut world = World::new(&PAPER[0], Kind::Program, 1)?;
        let pid = world.gateway_pid()?;
        let first = Crowd::open(&world, WARM_UP, Work::Rest)?;
        std::thread::sleep(SETTLE);
        let before = sys::resident_of(pid)?;
        let crowd = Crowd::open(&world, count, Work::Rest)?;
        std::thread::sleep(SETTLE);
        let grown = sys::resident_of(pid)?.saturating_sub(before);
        ensure!(first.is_whole() && crowd.is_whole(), "a session ended");
        let each = grown as f64 / 1024.0 / count as f64;
        let trial = Trial::new("whimbrel", round).with("memory", each);
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({ "carrier": "auto", "sessions": count, "sessions_before": WARM_UP });
    output.finish(&SPEC, settings, &trials)
}
