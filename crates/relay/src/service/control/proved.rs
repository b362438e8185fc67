//! For how long a server has proved that it may have its reservation.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two questions for a proof.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// A server whose reservation another relay gave proves anew what it may within this.
const ANEW: Duration = Duration::from_secs(60);
/// No proof counts longer, whatever it says.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Ask for another proof.
    Ask,
    /// End the reservation.
    Over,
}

/// A proof that counts. There is another question for one at half of the time that is left, again and again.
#[derive(Debug)]
pub(super) struct Proved {
    ask: Instant,
    end: Instant,
    /// It was asked for another one.
    is_awaited: bool,
}

impl Proved {
    /// One that counts for so long from now.
    pub(super) fn lasting(counts: Duration) -> Self {
        let (now, counts) = (Instant::now(), counts.min(LONGEST));
        Self { ask: now + counts / 2, end: now + counts, is_awaited: false }
    }

    /// One that another relay has seen: it is asked for now.
    pub(super) fn before() -> Self {
        Self { ask: Instant::now(), ..Self::lasting(ANEW) }
    }

    /// Whether one that comes is looked at: once for each question, because that takes time.
    pub(super) fn takes_another(&mut self) -> bool {
        std::mem::take(&mut self.is_awaited)
    }
}

/// Waits until something is due. Nothing ever is where nothing has to be proved. Cancel-safe.
pub(super) async fn due(proved: &mut Option<Proved>) -> Due {
    let Some(Proved { ask, end, is_awaited }) = proved else { return std::future::pending().await };
    tokio::time::sleep_until((*ask).min(*end)).await;
    let now = Instant::now();
    if now >= *end {
        return Due::Over;
    }
    *ask = now + ((*end - now) / 2).max(LEAST_PAUSE);
    *is_awaited = true;
    Due::Ask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_proof_is_asked_for_again_and_again_and_ends_on_time() {
        let begun = Instant::now();
        let mut proved = Some(Proved::lasting(Duration::from_secs(16)));
        let mut asked = Vec::new();
        while due(&mut proved).await == Due::Ask {
            asked.push(begun.elapsed().as_secs());
        }
        assert_eq!(asked, [8, 12, 14, 15]);
        assert_eq!(begun.elapsed().as_secs(), 16);
        // One that comes late counts all the same.
        proved = Some(Proved::lasting(Duration::from_secs(16)));
        assert_eq!(due(&mut proved).await, Due::Ask);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proof_is_looked_at_once_for_each_question() {
        let mut proved = Some(Proved::lasting(Duration::from_secs(16)));
        assert!(!proved.as_mut().is_some_and(Proved::takes_another), "nobody asked");
        for _ in 0..2 {
            assert_eq!(due(&mut proved).await, Due::Ask);
            assert!(proved.as_mut().is_some_and(Proved::takes_another));
            assert!(!proved.as_mut().is_some_and(Proved::takes_another));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_relay_has_seen_is_asked_for_at_once() {
        let begun = Instant::now();
        let mut proved = Some(Proved::before());
        assert_eq!(due(&mut proved).await, Due::Ask);
        assert_eq!(begun.elapsed().as_secs(), 0);
        while due(&mut proved).await == Due::Ask {}
        assert_eq!(begun.elapsed().as_secs(), ANEW.as_secs());
    }
}
