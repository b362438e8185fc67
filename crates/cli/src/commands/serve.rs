//! `whimbrel serve`: a name service and a relay in one process, on one port.

use anyhow::Result;
use clap::Args;
use whimbrel_names::Rule;

use crate::commands::names;
use crate::options::{Globals, after};
use crate::relaying::RelayFlags;

/// Run a name service and a relay: all that a group of people needs
///
/// Prints a ticket, which goes into the others' --names, and into --relay of those who are to be
/// reached from other networks. Its key is in the configuration directory (`names-identity`).
#[derive(Args)]
#[command(after_help = after("\
Example:
  whimbrel serve --listen 0.0.0.0:443 --allow @example.org"))]
pub(crate) struct ServeAll {
    #[command(flatten)]
    names: names::serve::Serve,
    /// Whom the relay serves: an endpoint id, @DOMAIN or `any`; repeatable [default: who has a name here]
    #[arg(long, value_name = "WHO")]
    relay_allow: Vec<Rule>,
    #[command(flatten)]
    relay: RelayFlags,
}

pub(crate) async fn run(globals: &Globals, args: ServeAll) -> Result<()> {
    let relaying = names::serve::Relaying { allow: args.relay_allow, flags: args.relay };
    names::serve::run(globals, args.names, Some(relaying)).await
}
