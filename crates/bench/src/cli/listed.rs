//! The benches that the command line knows.

use clap::CommandFactory as _;

use super::Cli;
use crate::page::Bench;

/// Commands that measure nothing of their own.
const OTHERS: [&str; 2] = ["all", "report"];

/// All of them, in the order of `--help`.
pub(crate) fn benches() -> Vec<Bench> {
    let command = Cli::command();
    let measures = |one: &&clap::Command| !one.is_hide_set() && !OTHERS.contains(&one.get_name());
    let bench = |one: &clap::Command| Bench {
        name: one.get_name().to_owned(),
        about: one.get_about().map(ToString::to_string).unwrap_or_default(),
    };
    command.get_subcommands().filter(measures).map(bench).collect()
}
