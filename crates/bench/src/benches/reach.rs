//! Endpoints that nobody can dial, in the lab: how soon a relayed connection is direct, how long moves and a
//! relay's death interrupt it, and which gateways can be opened for each other; beside iroh with its own
//! relay.

mod death;
#[cfg(feature = "peers")]
mod iroh_stage;
mod moves;
mod pairs;
mod proximate;
mod roaming;
mod rounds;
mod stage;
mod systems;
mod talk;
mod time;
mod whimbrel_stage;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::Plan;
use crate::output::Output;

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// How soon a relayed connection is direct.
    Time,
    /// How long a client's move interrupts a connection between two homes behind NAT.
    Moves,
    /// How long a relay's death interrupts one connection, and 200, where there is another relay.
    Death,
    /// Which gateways can be opened for each other.
    Pairs,
    /// A server on a phone that roams through a town [msocket, figure 17].
    Roaming,
    /// 12 MB between two phones behind one NAT gateway [msocket, figure 18].
    Proximate,
}

/// Runs these experiments, or all.
pub(crate) fn run(plan: &Plan, experiments: &[Experiment], output: &mut Output) -> Result<()> {
    let all = Experiment::value_variants();
    let chosen = if experiments.is_empty() { all } else { experiments };
    chosen.iter().try_for_each(|experiment| match experiment {
        Experiment::Time => time::run(plan, output),
        Experiment::Moves => moves::run(plan, output),
        Experiment::Death => death::run(plan, output),
        Experiment::Pairs => pairs::run(plan, output),
        Experiment::Roaming => roaming::run(plan, output),
        Experiment::Proximate => proximate::run(plan, output),
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
