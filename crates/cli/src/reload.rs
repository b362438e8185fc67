//! `systemctl reload`: SIGHUP from a service manager has the configuration read again.
//!
//! What can change while a command runs: who is let in, and pins. Elsewhere SIGHUP keeps its meaning, that the
//! terminal is gone.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use crate::access::{Access, AllowFlags};
use crate::commandline::{self, Cli, Command};
use crate::network::Network;
use crate::{failure, manager, output};

/// Follows the service manager's calls until it is dropped.
pub(crate) struct Reloading(Option<AbortHandle>);

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Reads the configuration again whenever the service manager says so, and puts in force who is let in.
/// `now` is what the command was started with, `status` what it says that it does. A configuration with a
/// mistake is told, and changes nothing. Needs a runtime.
///
/// # Errors
/// When signals cannot be caught.
pub(crate) fn follow(
    status: &str,
    now: &AllowFlags,
    access: &Access,
    network: &Network,
) -> Result<Reloading> {
    if !manager::is_there() {
        return Ok(Reloading(None));
    }
    let mut hangup = signal(SignalKind::hangup()).context("cannot catch signals")?;
    let (status, now, access) = (status.to_owned(), now.clone(), access.clone());
    let known = network.known.clone();
    let following = async move {
        while hangup.recv().await.is_some() {
            manager::reloading();
            let (now, access, known) = (now.clone(), access.clone(), known.clone());
            let again = move || {
                let cli = read_again()?;
                crate::network::pin(&known, &cli.globals)?;
                access.reload(&now, flags(&cli.command)?)
            };
            // Files are read.
            let result = tokio::task::spawn_blocking(again).await.context("cannot reload").flatten();
            if let Err(error) = result {
                output::note(false, format!("{}; nothing was changed", failure::line(&error)));
            }
            manager::ready_again(&status);
        }
    };
    Ok(Reloading(Some(tokio::spawn(following).abort_handle())))
}

/// The command line over the configuration file, as it is now.
fn read_again() -> Result<Cli> {
    let argv: Arc<[OsString]> = std::env::args_os().collect();
    commandline::parse(&argv)?.context("the command line is that of another command")
}

fn flags(command: &Command) -> Result<&AllowFlags> {
    match command {
        Command::Expose(args) => Ok(args.allow()),
        Command::Receive(args) => Ok(args.allow()),
        _ => anyhow::bail!("this command lets nobody in"),
    }
}
