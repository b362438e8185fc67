//! The handover laboratory: the experiments of [mptcp-handover §4] and [msocket §IV-A..C].

mod delay;
mod download;
mod energy;
mod goodput;
mod links;
mod signal;
mod switch;

use anyhow::Result;
use clap::ValueEnum;

use super::Plan;
use crate::output::Output;

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experiment {
    /// Goodput around the loss of Wi-Fi, in bins of 200 ms.
    Goodput,
    /// How late the blocks of a 500 kbit/s stream are around the loss of Wi-Fi.
    Delay,
    /// Time of a download against the file's size, over one link and two.
    Download,
    /// Downloads in the midst of which one network takes the place of the other.
    Switch,
    /// When the server learns of a lost address while nothing reaches it.
    Signal,
    /// Throughput against energy (by a model) in each mode.
    Energy,
}

/// Runs these experiments, or all.
pub(crate) fn run(plan: &Plan, experiments: &[Experiment], output: &mut Output) -> Result<()> {
    let all = Experiment::value_variants();
    let chosen = if experiments.is_empty() { all } else { experiments };
    chosen.iter().try_for_each(|experiment| match experiment {
        Experiment::Goodput => goodput::run(plan, output),
        Experiment::Delay => delay::run(plan, output),
        Experiment::Download => download::run(plan, output),
        Experiment::Switch => switch::run(plan, output),
        Experiment::Signal => signal::run(plan, output),
        Experiment::Energy => energy::run(plan, output),
    })
}
