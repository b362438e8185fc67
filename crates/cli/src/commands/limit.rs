//! `whimbrel limit`: how much a running command may send.

use anyhow::Result;
use clap::Args;
use whimbrel_base::EndpointId;

use crate::limits::{Rule, Setting, Who};
use crate::options::{Globals, after};
use crate::output;
use crate::status::{self, ask_all};

/// Limit what a running command sends, or show its limits
///
/// A limit holds from the next byte on, for the connections that there are and those that come. Those that
/// one limit covers share it; without --name, --peer or --connection it covers all of the command's. What
/// goes beyond it waits; nothing is dropped. Of several limits each holds. What a command receives is limited
/// where it is sent. The same in a file that is watched: `--limits FILE` of any command (`whimbrel help
/// options`).
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel limit
  whimbrel limit forward --rate 2Mbit
  whimbrel limit 4711 --urgency 7 --rate 500kbit
  whimbrel limit forward --rate off"))]
pub(crate) struct Limit {
    /// The command: its process number, its name or what it is called; needed if several are running
    #[arg(value_name = "PROCESS|NAME|COMMAND")]
    command: Option<String>,
    /// A second: a number and kbit, Mbit or Gbit; `off` lifts the limit
    #[arg(long, value_name = "RATE")]
    rate: Option<Setting>,
    /// Only connections for this name
    #[arg(long, value_name = "NAME", requires = "rate")]
    name: Option<String>,
    /// Only connections to this peer
    #[arg(long, value_name = "ID", requires = "rate")]
    peer: Option<EndpointId>,
    /// Only this connection: the beginning of its id
    #[arg(long, value_name = "ID", requires = "rate")]
    connection: Option<String>,
    /// Only what is this urgent, 0 (first) to 7 (last), in each connection
    #[arg(long, value_name = "LEVEL", requires = "rate", value_parser = clap::value_parser!(u8).range(0..=7))]
    urgency: Option<u8>,
    /// Print the command's state as a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(_: &Globals, args: Limit) -> Result<()> {
    let chosen = super::paths::choose(ask_all().await?, args.command.as_deref())?;
    let who = Who { name: args.name, peer: args.peer, connection: args.connection, urgency: args.urgency };
    let report = match args.rate {
        None => chosen,
        Some(Setting::Off) => status::lift_limit(&chosen, who).await?,
        Some(Setting::To(rate)) => status::set_limit(&chosen, Rule::new(rate, who)).await?,
    };
    if args.json {
        return output::json(&report);
    }
    let name = report.name.as_deref().unwrap_or_default();
    let command = format!("{} {name} (process {})", report.command, report.pid).replace("  ", " ");
    if report.limits.is_empty() {
        return output::line(format!("{command} has no limits"));
    }
    report.limits.iter().try_for_each(|rule| output::line(format!("{command}: limited to {rule}")))
}
