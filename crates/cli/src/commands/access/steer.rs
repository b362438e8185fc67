//! `whimbrel access steer`: the helper that may order the kernel's Multipath TCP about.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_multiaccess::{Helper, HelperError, helper_path};

use super::listen::{Reach, listen};
use crate::failure::Failure;
use crate::manager::Ready;
use crate::options::{Globals, after};
use crate::output;
use crate::shutdown::Shutdown;

/// Open and close subflows of Multipath TCP for a manager, until stopped
///
/// The manager says which networks a connection of the kernel's Multipath TCP uses, and this does it: it
/// needs CAP_NET_ADMIN, and can do nothing else. Meanwhile the kernel itself opens none (net.mptcp.pm_type).
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access steer
  whimbrel access steer --user 1000"))]
pub(super) struct Steer {
    /// User whose manager is let in, and whose connections it steers; 0: those of all
    #[arg(long, value_name = "UID", default_value_t = 0)]
    user: u32,
    /// Socket to take orders on [default: /run/whimbrel-steer/UID]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Print a JSON object once it takes orders
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Steer) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let file = args.socket.unwrap_or_else(|| helper_path(args.user));
    let (listener, socket) = listen(&file, Reach::All, "helper").await?;
    let started = Helper::start(listener, args.user).await;
    let mut helper = started.map_err(|error| match error {
        HelperError::Forbidden(_) => Failure::new(Failure::REFUSED, error.to_string()).into(),
        error => anyhow::Error::from(error),
    })?;
    let status = format!("steering Multipath TCP for user {}", args.user);
    let ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({ "socket": socket.file, "user": args.user }))?;
    } else {
        output::note(globals.quiet, status);
        output::line(socket.file.display().to_string())?;
    }
    let ended = tokio::select! {
        _ = shutdown.requested() => Ok(()),
        () = helper.failed() => Err(anyhow::anyhow!("a part of the helper has ended; its log says why")),
    };
    drop(ready);
    ended
}
