//! `whimbrel paths`: changes how a running command uses its networks.

use anyhow::Result;
use clap::Args;
use whimbrel::{HandoverMode, Policy, SchedulerKind};

use crate::failure::Failure;
use crate::multipath::{Change, path_priority};
use crate::options::{Globals, after};
use crate::output;
use crate::status::{self, Report, ask_all};

/// Show the paths of a running command, or change how they are used
///
/// A change holds for the connections that there are, on both sides of them. Paths are numbered in each
/// connection; the numbers are in the first column.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel paths
  whimbrel paths --mode backup
  whimbrel paths 4711 --path 1=backup --scheduler min-rtt"))]
pub(crate) struct Paths {
    /// The command: its process number, its name or what it is called; needed if several are running
    #[arg(value_name = "PROCESS|NAME|COMMAND")]
    command: Option<String>,
    /// One of its connections: the beginning of its id
    #[arg(long, value_name = "ID")]
    connection: Option<String>,
    /// Use the paths so: full, backup or single
    #[arg(long, value_name = "MODE")]
    mode: Option<HandoverMode>,
    /// Which paths, and how: aggregate, prefer-wifi, prefer-cellular, cheapest or lowest-latency
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
    /// How data is shared out: earliest-arrival, min-rtt, round-robin, redundant or rate-proportional
    #[arg(long, value_name = "SCHEDULER")]
    scheduler: Option<SchedulerKind>,
    /// Have a path carry data, or stand by: PATH=normal or PATH=backup; repeatable
    #[arg(long, value_name = "PATH=PRIORITY", value_parser = path_priority)]
    path: Vec<(u64, String)>,
    /// Print the command's state as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(_: &Globals, args: Paths) -> Result<()> {
    let chosen = choose(ask_all().await?, args.command.as_deref())?;
    let change = Change {
        connection: args.connection,
        mode: args.mode.map(|mode| mode.to_string()),
        policy: args.policy.map(|policy| policy.to_string()),
        scheduler: args.scheduler.map(|scheduler| scheduler.to_string()),
        priorities: args.path,
    };
    let nothing = Change { connection: change.connection.clone(), ..Change::default() };
    let report = if change == nothing { chosen } else { status::change_paths(&chosen, change).await? };
    if args.json { output::json(&report) } else { output::line(super::status::describe(&report)) }
}

/// The only command that this can be about.
pub(super) fn choose(reports: Vec<Report>, wanted: Option<&str>) -> Result<Report> {
    let is_wanted = |report: &Report| {
        wanted.is_none_or(|wanted| report.pid.to_string() == wanted || report.name.as_deref() == Some(wanted))
            || wanted == Some(report.command.as_str())
    };
    let mut fitting: Vec<Report> = reports.into_iter().filter(is_wanted).collect();
    match (fitting.len(), wanted) {
        (1, _) => Ok(fitting.remove(0)),
        (0, Some(wanted)) => Err(Failure::usage(format!(
            "no whimbrel command {wanted} of yours is running; see `whimbrel status`"
        ))),
        (0, None) => Err(Failure::usage("no whimbrel command of yours is running")),
        _ => {
            let list: Vec<String> = fitting
                .iter()
                .map(|r| format!("{} ({} {})", r.pid, r.command, r.name.as_deref().unwrap_or_default()))
                .collect();
            Err(Failure::usage(format!(
                "which command? Give one of the process numbers: {}",
                list.join(", ")
            )))
        }
    }
}
