//! Halting tasks in the middle of their work, so that it goes on later or in another process.

use std::time::Duration;

use tokio::sync::{mpsc, watch};

/// Those that have halted and were not taken yet.
const HALTED: usize = 64;

/// Halts all that have a [`Tie`] to it; what was halted is a `T`.
pub(crate) struct Halter<T> {
    halt: watch::Sender<bool>,
    halted: mpsc::Receiver<T>,
    tie: Tie<T>,
}

/// Ties a task to the [`Halter`] that can halt it.
pub(crate) struct Tie<T> {
    halt: watch::Receiver<bool>,
    halted: mpsc::Sender<T>,
}

impl<T> Clone for Tie<T> {
    fn clone(&self) -> Self {
        Self { halt: self.halt.clone(), halted: self.halted.clone() }
    }
}

impl<T> Halter<T> {
    pub(crate) fn new() -> Self {
        let (halt, is_to_halt) = watch::channel(false);
        let (sender, halted) = mpsc::channel(HALTED);
        Self { halt, halted, tie: Tie { halt: is_to_halt, halted: sender } }
    }

    pub(crate) fn tie(&self) -> Tie<T> {
        self.tie.clone()
    }

    /// Halts everything, and returns what was halted: once nothing has a tie any more, or after `limit`.
    pub(crate) async fn halt(self, limit: Duration) -> Vec<T> {
        let Self { halt, mut halted, tie } = self;
        drop(tie);
        halt.send_replace(true);
        let mut all = Vec::new();
        let gathering = async {
            while let Some(one) = halted.recv().await {
                all.push(one);
            }
        };
        if tokio::time::timeout(limit, gathering).await.is_err() {
            tracing::warn!("not everything was halted in time; what was not breaks");
        }
        all
    }
}

impl<T> Tie<T> {
    /// Returns once this is to halt; never if nobody can say so any more. Cancel-safe.
    pub(crate) async fn is_to_halt(&self) {
        if self.halt.clone().wait_for(|halt| *halt).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives what was halted to the [`Halter`].
    pub(crate) async fn give(&self, halted: T) {
        // If nobody takes it the command has ended meanwhile, and this with it.
        let _ = self.halted.send(halted).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_that_is_tied_is_gathered_and_what_does_not_halt_is_not_waited_for() {
        let halter = Halter::new();
        for number in 0..200 {
            let tie = halter.tie();
            tokio::spawn(async move {
                tie.is_to_halt().await;
                tie.give(number).await;
            });
        }
        let stubborn = halter.tie();
        let mut halted = halter.halt(Duration::from_millis(500)).await;
        drop(stubborn);
        halted.sort_unstable();
        assert_eq!(halted, (0..200).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn nothing_halts_because_its_halter_is_gone() {
        let halter = Halter::<()>::new();
        let tie = halter.tie();
        drop(halter);
        assert!(tokio::time::timeout(Duration::from_millis(20), tie.is_to_halt()).await.is_err());
    }
}
