//! `systemctl reload`: SIGHUP from a service manager has the configuration read again.
//!
//! What can change while a command runs: who is let in, and pins. Elsewhere SIGHUP keeps its meaning, that
//! the terminal is gone.

use futures_util::FutureExt;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{ArgMatches, FromArgMatches as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

use crate::access::{Access, AllowFlags};
use crate::arguments::{self, Source};
use crate::network::{self, Network};
use crate::options::Globals;
use crate::{aside, failure, manager, output};

/// Follows the service manager's calls until it is dropped.
pub(crate) struct Reloading(Option<AbortHandle>);

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Reads the command line over the configuration file again whenever the service manager says so, and gives
/// it to `put_in_force`: all flags, in which those of every command are, and the [own](arguments::own) ones
/// of this command. `status` is what the command says that it does. A mistake is told, and must change
/// nothing. Needs a runtime.
///
/// # Errors
/// When signals cannot be caught.
pub(crate) fn follow(
    source: &Source,
    status: &str,
    put_in_force: impl Fn(&ArgMatches) -> Result<()> + Send + Sync + 'static,
) -> Result<Reloading> {
    follow_calls(source, status, Arc::new(put_in_force))
}

type PutInForce = Arc<dyn Fn(&ArgMatches) -> Result<()> + Send + Sync>;

fn follow_calls(source: &Source, status: &str, put_in_force: PutInForce) -> Result<Reloading> {
    if !manager::is_there() {
        return Ok(Reloading(None));
    }
    let mut hangup = signal(SignalKind::hangup()).context("cannot catch signals")?;
    let (source, status) = (source.clone(), status.to_owned());
    let following = async move {
        while hangup.recv().await.is_some() {
            manager::reloading();
            let (source, put_in_force) = (source.clone(), put_in_force.clone());
            // Files are read.
            let again = aside::run(move || {
                put_in_force(&source.read()?.context("the command line only asks for help")?)
            });
            if let Err(error) = again.await.context("cannot reload").flatten() {
                output::note(false, format!("{}; nothing was changed", failure::line(&error)));
            }
            manager::ready_again(&status);
        }
    };
    Ok(Reloading(Some(tokio::spawn(FutureExt::boxed(following)).abort_handle())))
}

/// As [`follow`], for a command that was started with `now` and lets peers in.
///
/// # Errors
/// As [`follow`].
pub(crate) fn follow_access(
    source: &Source,
    status: &str,
    now: &AllowFlags,
    access: &Access,
    network: &Network,
) -> Result<Reloading> {
    let (now, access, known) = (now.clone(), access.clone(), network.known.clone());
    follow(source, status, move |matches| {
        network::pin(&known, &Globals::from_arg_matches(matches)?)?;
        access.reload(&now, &AllowFlags::from_arg_matches(arguments::own(matches))?)
    })
}
