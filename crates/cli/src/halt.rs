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

/// Ties a task to two: the one of everything, and the one of a part to which the task belongs.
pub(crate) struct Ties<T> {
    all: Tie<T>,
    part: Tie<T>,
}

impl<T> Clone for Tie<T> {
    fn clone(&self) -> Self {
        Self { halt: self.halt.clone(), halted: self.halted.clone() }
    }
}

impl<T> Clone for Ties<T> {
    fn clone(&self) -> Self {
        Self { all: self.all.clone(), part: self.part.clone() }
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

    /// Halts what is tied for a moment, and returns what was halted: once `nothing_runs`, or after `limit`.
    /// Whether that is everything is told beside it. What halts too late comes by [`late`](Self::late).
    pub(crate) async fn pause(
        &mut self,
        nothing_runs: impl Future<Output = ()>,
        limit: Duration,
    ) -> (Vec<T>, bool) {
        let Self { halt, halted, .. } = self;
        halt.send_replace(true);
        let mut all = Vec::new();
        let gathering = async {
            tokio::pin!(nothing_runs);
            loop {
                tokio::select! {
                    Some(one) = halted.recv() => all.push(one),
                    () = &mut nothing_runs => return,
                }
            }
        };
        let is_everything = tokio::time::timeout(limit, gathering).await.is_ok();
        while let Ok(one) = halted.try_recv() {
            all.push(one);
        }
        halt.send_replace(false);
        (all, is_everything)
    }

    /// What has halted after [`pause`](Self::pause) had returned. Cancel-safe.
    pub(crate) async fn late(&mut self) -> T {
        match self.halted.recv().await {
            Some(one) => one,
            // This has a tie itself.
            None => std::future::pending().await,
        }
    }
}

impl<T> Ties<T> {
    pub(crate) fn new(all: Tie<T>, part: Tie<T>) -> Self {
        Self { all, part }
    }

    /// Returns once either is to halt. Cancel-safe.
    pub(crate) async fn is_to_halt(&self) {
        tokio::select! {
            () = self.all.is_to_halt() => {}
            () = self.part.is_to_halt() => {}
        }
    }

    /// Returns once the part is to halt. Cancel-safe.
    pub(crate) async fn part_is_to_halt(&self) {
        self.part.is_to_halt().await;
    }

    /// Gives what was halted to the one that halts the part.
    pub(crate) async fn give_to_part(&self, halted: T) {
        self.part.give(halted).await;
    }

    /// Gives what was halted to the one that halts everything, if it does, and else to the other one.
    pub(crate) async fn give(&self, halted: T) {
        let to = if *self.all.halt.borrow() { &self.all } else { &self.part };
        to.give(halted).await;
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

    /// Something that halts when it is to.
    fn tied(number: u32, ties: Ties<u32>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            ties.is_to_halt().await;
            ties.give(number).await;
        })
    }

    #[tokio::test]
    async fn a_part_is_paused_again_and_again_and_what_halts_too_late_is_not_lost() {
        let (all, mut part) = (Halter::new(), Halter::new());
        let ties = Ties::new(all.tie(), part.tie());
        for round in 0..3 {
            let running = tied(round, ties.clone());
            let ended = async { assert!(running.await.is_ok()) };
            assert_eq!(part.pause(ended, Duration::from_secs(60)).await, (vec![round], true));
        }
        let stays = part.pause(std::future::pending(), Duration::from_millis(20)).await;
        assert_eq!(stays, (Vec::new(), false));
        // It is not halted by what is over, and gives what it has nevertheless.
        let running = tied(7, ties.clone());
        assert!(tokio::time::timeout(Duration::from_millis(20), running).await.is_err());
        ties.give(8).await;
        assert_eq!(part.late().await, 8);
    }

    #[tokio::test]
    async fn what_halts_everything_goes_before_what_halts_a_part() {
        let (all, part) = (Halter::new(), Halter::<u32>::new());
        let ties = Ties::new(all.tie(), part.tie());
        let running = tied(7, ties.clone());
        drop(ties);
        assert_eq!(all.halt(Duration::from_secs(60)).await, [7]);
        assert!(running.await.is_ok());
    }

    #[tokio::test]
    async fn what_is_only_of_a_part_is_not_halted_with_everything() {
        let (all, mut part) = (Halter::<u32>::new(), Halter::new());
        let ties = Ties::new(all.tie(), part.tie());
        let running = tokio::spawn(async move {
            ties.part_is_to_halt().await;
            ties.give_to_part(7).await;
        });
        let stays = all.halt(Duration::from_millis(20)).await;
        assert!(stays.is_empty() && !running.is_finished());
        let ended = async { assert!(running.await.is_ok()) };
        assert_eq!(part.pause(ended, Duration::from_secs(60)).await, (vec![7], true));
    }

    #[tokio::test]
    async fn nothing_halts_because_its_halter_is_gone() {
        let halter = Halter::<()>::new();
        let tie = halter.tie();
        drop(halter);
        assert!(tokio::time::timeout(Duration::from_millis(20), tie.is_to_halt()).await.is_err());
    }
}
