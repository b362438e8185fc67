//! `whimbrel access`: which of this host's networks a program's traffic takes.

mod ask;
mod listen;
mod serve;
mod steer;
mod watch;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::options::{Globals, after};

/// Choose among this host's networks for programs that ask
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access serve --metered usb0
  whimbrel access ask --intent size-received=300KB --to example.org:443
  whimbrel access watch"))]
pub(crate) struct Access {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(serve::Serve),
    Ask(ask::Ask),
    Watch(watch::Watch),
    Steer(steer::Steer),
}

pub(crate) async fn run(globals: &Globals, args: Access) -> Result<()> {
    match args.action {
        Action::Serve(args) => serve::run(globals, args).await,
        Action::Ask(args) => ask::run(args).await,
        Action::Watch(args) => watch::run(globals, args).await,
        Action::Steer(args) => steer::run(globals, args).await,
    }
}
