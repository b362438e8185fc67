//! SIGUSR2 starts the program anew, which then takes over: an upgrade in place, as `systemctl reload` does
//! it.

use futures_util::FutureExt;
use std::ffi::OsString;

use anyhow::{Context as _, Result};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use crate::output;

const FLAG: &str = "--take-over";

/// Follows the signal until it is dropped.
pub(super) struct Successors(AbortHandle);

impl Drop for Successors {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a newer instance at each SIGUSR2, one at a time. It must be dropped before this process ends in
/// order.
///
/// # Errors
/// When signals cannot be caught.
pub(super) fn follow_signal() -> Result<Successors> {
    let mut signals = signal(SignalKind::user_defined2()).context("cannot catch signals")?;
    let following = async move {
        while signals.recv().await.is_some() {
            let Some(mut command) = newer() else { continue };
            let ended = async { command.spawn()?.wait().await };
            // It outlives this process if it takes over.
            match ended.await {
                Ok(status) if status.success() => {}
                Ok(status) => output::note(false, format!("the newer instance ended with {status}")),
                Err(error) => output::note(false, format!("cannot start the newer instance: {error}")),
            }
        }
    };
    Ok(Successors(tokio::spawn(FutureExt::boxed(following)).abort_handle()))
}

/// This program, to be started with the words that this process was started with.
fn newer() -> Option<Command> {
    let mut argv = std::env::args_os();
    Some(command(argv.next()?, argv))
}

/// The program as it was started, and as it is on disk now.
fn command(program: OsString, args: impl Iterator<Item = OsString>) -> Command {
    let mut command = Command::new(program);
    command
        .args(args.filter(|arg| !arg.to_string_lossy().starts_with(FLAG)))
        .arg(format!("{FLAG}={}", std::process::id()))
        // These are for this process alone.
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        .env_remove("WATCHDOG_PID");
    command
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_newer_instance_is_started_with_the_same_words_and_takes_over_from_this_one() {
        let args = ["expose", "n", "--take-over=77", "--to", "x:1"].map(OsString::from);
        let command = command("whimbrel".into(), args.into_iter());
        let args: Vec<_> = command.as_std().get_args().map(|arg| arg.to_str().unwrap()).collect();
        let flag = format!("--take-over={}", std::process::id());
        assert_eq!(args, ["expose", "n", "--to", "x:1", &flag]);
        assert!(command.as_std().get_envs().all(|(_, value)| value.is_none()));
    }
}
