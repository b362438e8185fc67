//! A command that takes over from a running one: with its sockets, its connections, and the bytes under way
//! between them. Neither the programs on this host nor the peers see more than a pause.
//!
//! The newer instance asks on the [control socket](crate::status) of the running one, which may only be used
//! by the same user. Then, on that socket:
//!
//! ```text
//! newer                                  running
//!   {"take_over":{"versions":[1]}}  →
//!                                   ←      {"hand_over":{"version":1,"program":"0.1.0"}}
//!                                          halts: lets nobody in, puts its connections to sleep
//!                                   ←      Begin, sockets, connections, …, End     (sockets as descriptors)
//!   reads all of it, binds, wakes
//!   Ready                           →
//!                                   ←      Go                                      and ends
//! ```
//!
//! Until it says `Go` the running instance can go on by itself: it does what the newer one would have done,
//! with what it has kept. It does so when the newer one ends, refuses, or is not ready in time. Once it has
//! said `Go` the newer one has everything; up to then that one must not touch a socket's bytes nor call a
//! peer.

mod ask;
mod successor;

use anyhow::Result;
use clap::Args;
use whimbrel_base::EndpointId;

pub(crate) use self::ask::{Inherited, Waking};
pub(crate) use crate::estate::{Estate, Woken};

use crate::estate::Asker;
use crate::options::Globals;
use crate::shutdown::Shutdown;
use crate::{failure, output};

/// Whether to take over, and from whom.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TakeOver {
    /// Go on in place of the running one, which ends
    #[arg(long, value_name = "PID", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    take_over: Option<u32>,
}

/// What runs: how it is told apart from other commands of this user.
#[derive(Clone, Debug)]
pub(crate) struct Running<'a> {
    pub(crate) command: &'static str,
    pub(crate) id: EndpointId,
    pub(crate) name: Option<&'a str>,
}

/// How serving ended.
pub(crate) enum Served {
    /// There is nothing more to serve, or the command is to end.
    Ended,
    /// Another instance takes over, if it can.
    Left(Asker, Box<Estate>),
}

/// Serves until stopped, or until another instance has taken over; goes on if that could not. With
/// `--take-over` begins with what a running instance hands over.
///
/// # Errors
/// Those of `serve`, and when there is nothing to take over.
pub(crate) async fn serve(
    globals: &Globals,
    flag: &TakeOver,
    running: Running<'_>,
    shutdown: &mut Shutdown,
    mut serve: impl AsyncFnMut(Option<Inherited>, &mut Shutdown) -> Result<Served>,
) -> Result<()> {
    let _successors = successor::follow_signal()?;
    let mut inherited = match flag.take_over {
        Some(pid) => Some(Inherited::from_running(&running, pid).await?),
        None => None,
    };
    loop {
        let (asker, estate) = match serve(inherited.take(), shutdown).await? {
            Served::Ended => return Ok(()),
            Served::Left(asker, estate) => (asker, estate),
        };
        let given = tokio::select! {
            given = asker.give(&estate) => given,
            _ = shutdown.requested() => return Ok(()),
        };
        match given {
            Ok(pid) => {
                output::note(globals.quiet, format!("process {pid} has taken over"));
                estate.leave();
                return Ok(());
            }
            Err(error) => {
                let why = failure::line(&error);
                output::note(false, format!("the newer instance did not take over: {why}; this one goes on"));
                inherited = Some(Inherited::own(*estate));
            }
        }
    }
}
