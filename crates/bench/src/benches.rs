//! The benches.

pub(crate) mod accept;
pub(crate) mod access_decision;
pub(crate) mod access_pages;
pub(crate) mod aggregate;
pub(crate) mod beside_bulk;
pub(crate) mod both_move;
pub(crate) mod bulk;
pub(crate) mod child;
pub(crate) mod connect;
pub(crate) mod connect_lab;
pub(crate) mod cpu;
pub(crate) mod failover;
pub(crate) mod gateway;
pub(crate) mod hand_over_gap;
pub(crate) mod handover;
pub(crate) mod idle;
mod lanes;
pub(crate) mod lossy;
pub(crate) mod manager_rest;
pub(crate) mod message_delay;
pub(crate) mod message_outage;
pub(crate) mod messages;
pub(crate) mod mockets_tables;
pub(crate) mod ping_pong;
pub(crate) mod proxy_http;
pub(crate) mod rate_limit;
pub(crate) mod reach;
pub(crate) mod recovery;
pub(crate) mod relayed;
pub(crate) mod relays;
pub(crate) mod server_move;
pub(crate) mod session_move;
mod side;
pub(crate) mod small_objects;
pub(crate) mod smooth;
pub(crate) mod standby;
pub(crate) mod suspend;
pub(crate) mod take_over;
pub(crate) mod traces;
pub(crate) mod tunnel;

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};

use crate::system::Kind;

/// Two workers, the same for every system: one for either side.
const WORKERS: usize = 2;
/// What a trial left behind may take so long to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// What to run, and how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) systems: Vec<Kind>,
    pub(crate) rounds: Option<u32>,
    pub(crate) seconds: Option<f64>,
    pub(crate) quick: bool,
}

impl Plan {
    pub(crate) fn rounds(&self, usual: u32) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { usual })
    }

    /// How long a trial measures.
    pub(crate) fn length(&self, usual: f64) -> Duration {
        let seconds = self.seconds.unwrap_or(if self.quick { usual / 8.0 } else { usual });
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1))
    }
}

/// The runtime that every system runs on.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Runs one trial on a fresh runtime, so that nothing of the trial before is left.
pub(crate) fn isolated<T: Send + 'static>(
    trial: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let runtime = runtime()?;
    // Spawned, so that the trial runs on the workers, as it would in an application.
    let result = runtime.block_on(runtime.spawn(trial));
    runtime.shutdown_timeout(FAREWELL);
    result.context("the trial panicked")?
}

/// Each system once a round, beginning with another one each time, so that none is always first.
pub(crate) fn schedule<T: Copy>(systems: &[T], rounds: u32) -> Vec<(u32, T)> {
    (0..rounds).flat_map(|round| rotated(systems, round).map(move |system| (round, system))).collect()
}

/// The systems in the order of one round.
pub(crate) fn rotated<T: Copy>(systems: &[T], round: u32) -> impl Iterator<Item = T> {
    let first = round as usize % systems.len().max(1);
    systems[first..].iter().chain(&systems[..first]).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_runs_once_a_round_and_the_first_changes() {
        assert_eq!(schedule(&['a', 'b'], 2), [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]);
        assert!(schedule::<char>(&[], 3).is_empty());
    }
}
