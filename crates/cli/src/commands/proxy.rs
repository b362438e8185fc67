//! `whimbrel proxy`: proxies for programs that know nothing of Whimbrel.

pub(crate) mod http;
mod intercepting;
mod listening;
mod pac;
pub(crate) mod reaching;
mod socks;
mod transfers;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::options::{Globals, after};

/// Serve programs as a proxy: by the best network, a gateway or a name
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy http
  whimbrel proxy socks --through gate.home.ada@example.org
  whimbrel proxy pac"))]
pub(crate) struct Proxy {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Http(http::Http),
    Socks(socks::Socks),
    Pac(pac::Pac),
    InterceptCa(intercepting::InterceptCa),
}

pub(crate) async fn run(globals: &Globals, args: Proxy) -> Result<()> {
    match args.action {
        Action::Http(args) => http::run(globals, args).await,
        Action::Socks(args) => socks::run(globals, args).await,
        Action::Pac(args) => pac::run(&args),
        Action::InterceptCa(args) => intercepting::make(&args),
    }
}
