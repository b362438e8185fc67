//! `whimbrel gateway`: ordinary hosts, reached through a server in the middle.

mod publishing;
mod serve;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::options::{Globals, after};

/// Connect peers to ordinary hosts that know nothing of Whimbrel
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel gateway serve gate.home.ada@example.org --allow ID
  whimbrel gateway serve --ticket --allow ID --publish 8443=ID
  whimbrel proxy socks --through gate.home.ada@example.org"))]
pub(crate) struct Gateway {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(serve::Serve),
}

pub(crate) async fn run(globals: &Globals, args: Gateway) -> Result<()> {
    match args.action {
        Action::Serve(args) => serve::run(globals, args).await,
    }
}
