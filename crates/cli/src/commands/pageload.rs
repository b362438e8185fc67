//! `whimbrel pageload`: what it is worth to choose the network for each request, simulated.

use anyhow::{Context as _, Result};
use clap::Args;
use whimbrel_pageload::cli;

use crate::options::after;

/// Simulate loading a recorded page over several networks
#[derive(Args, Debug)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = after("Example:\n  whimbrel pageload waterfall page.har --path 20ms,6mbit --path 50ms,20mbit -o page.svg"),
)]
pub(crate) struct Pageload {
    #[command(subcommand)]
    what: cli::What,
}

pub(crate) async fn run(args: Pageload) -> Result<()> {
    tokio::task::spawn_blocking(|| cli::Command::from(args.what).run())
        .await
        .context("the simulation ended early")?
}
