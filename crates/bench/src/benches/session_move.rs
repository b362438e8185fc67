//! Running sessions that move from one of a user's devices to another through the gateway, after *A TCP
//! Service Migration Protocol for Single User Multiple Devices*, §VI, with real connections in place of NS2.
//!
//! A server, a gateway one millisecond away, and two devices behind shaped links in the lab. The session was
//! handed over before, the new device's program is there, and the time begins when that device asks for the
//! session. Every trial sees to it that what both programs got is what the server has (SHA-256), over one
//! connection.

mod bandwidth;
mod crowd;
mod device;
mod download;
mod plain;
mod program;
mod rest;
mod scenario;
mod server;
mod talk;
mod world;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::Plan;
use crate::output::Output;

/// When a session is to move (§VI-A).
const MOVE_AT: Duration = Duration::from_secs(5);
/// What a move may take above its round trips, in milliseconds.
const ALLOWANCE: f64 = 100.0;
/// Labs at a time, which leave the machine idle most of the time.
const LANES: usize = 3;

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// A download over the paper's networks (Table I) and today's.
    Download,
    /// A voice: how long nothing new is heard.
    Talk,
    /// The delay by the networks' rate (Fig. 4).
    Bandwidth,
    /// The delay beside 10 to 1000 sessions under load (Fig. 5).
    Crowd,
    /// What 1000 sessions at rest cost the gateway.
    Rest,
}

/// Runs these experiments, or all.
pub(crate) fn run(plan: &Plan, experiments: &[Experiment], output: &mut Output) -> Result<()> {
    let all = Experiment::value_variants();
    let chosen = if experiments.is_empty() { all } else { experiments };
    chosen.iter().try_for_each(|experiment| match experiment {
        Experiment::Download => download::run(plan, output),
        Experiment::Talk => talk::run(plan, output),
        Experiment::Bandwidth => bandwidth::run(plan, output),
        Experiment::Crowd => crowd::run(plan, output),
        Experiment::Rest => rest::run(plan, output),
    })
}
