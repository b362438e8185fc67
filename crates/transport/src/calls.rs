//! How often the peer may have us dial anew.

use std::future::Future;
use std::time::{Duration, Instant};

/// So many calls are followed at once,
const BURST: u32 = 64;
/// and one more each time that this has passed.
const REFILL: Duration = Duration::from_millis(250);

/// Calls of the peer: it says that it is elsewhere, has another address, or wants more paths. It may say so
/// as often as it likes, but each time we dial, wherever it says (RFC 9000 §21.5 on forged requests): a small
/// frame must not buy handshakes without end with somebody who never asked for them.
#[derive(Debug)]
pub(crate) struct Calls {
    /// One was heard and not followed yet.
    pending: bool,
    /// When nothing will be left of the calls that were followed.
    paid: Instant,
}

impl Default for Calls {
    fn default() -> Self {
        Self { pending: false, paid: Instant::now() }
    }
}

impl Calls {
    /// Waits for a call, and until it may be followed. Cancel-safe, if waiting for calls is: a call that was
    /// heard is followed the next time.
    pub(crate) async fn next(&mut self, called: impl Future<Output = ()>) {
        if !self.pending {
            called.await;
            self.pending = true;
        }
        let wait = self.wait(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        self.follow(Instant::now());
    }

    /// What was heard so far is known, and need not be followed. Cancel-safe, and does not wait.
    pub(crate) async fn forget(&mut self, called: impl Future<Output = ()>) {
        self.pending = false;
        tokio::select! {
            biased;
            () = called => {}
            () = std::future::ready(()) => {}
        }
    }

    fn wait(&self, now: Instant) -> Duration {
        self.paid.saturating_duration_since(now).saturating_sub(REFILL * (BURST - 1))
    }

    fn follow(&mut self, now: Instant) {
        self.pending = false;
        self.paid = self.paid.max(now) + REFILL;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn a_burst_is_followed_at_once_and_a_flood_now_and_then() {
        let mut calls = Calls::default();
        let mut now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(calls.wait(now), Duration::ZERO);
            calls.follow(now);
        }
        for _ in 0..100 {
            assert_eq!(calls.wait(now), REFILL);
            now += calls.wait(now);
            calls.follow(now);
        }
        now += REFILL * BURST;
        assert_eq!(calls.wait(now), Duration::ZERO);
        assert_eq!(calls.wait(now + REFILL), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_call_that_was_heard_is_not_forgotten() {
        let (mut calls, called) = (Calls::default(), Notify::new());
        (0..=BURST).for_each(|_| calls.follow(Instant::now()));
        called.notify_one();
        // It must wait; something else happens meanwhile.
        tokio::select! {
            biased;
            () = calls.next(called.notified()) => panic!("too many"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        tokio::time::timeout(Duration::from_secs(20), calls.next(called.notified())).await.unwrap();
        called.notify_one();
        calls.forget(called.notified()).await;
        let next = tokio::time::timeout(Duration::from_millis(50), calls.next(called.notified())).await;
        assert!(next.is_err(), "nobody has called since");
    }
}
