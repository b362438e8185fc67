//! A timer that is set again and again, nearly always to a later time.

use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Until it is set.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// Goes off at a time, or before: then it is to be set anew. What waits for hours from each byte that comes
/// would otherwise have the runtime set a timer for each of them, under a lock that all tasks share.
pub(super) struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    /// Must be called inside of a runtime.
    pub(super) fn new() -> Self {
        Self(Box::pin(sleep(FAR)))
    }

    /// Waits until this time, and no longer. It may be early if it was set to an earlier time. Cancel-safe.
    pub(super) async fn until(&mut self, time: Instant) {
        if time < self.0.deadline() || self.0.is_elapsed() {
            self.0.as_mut().reset(time);
        }
        self.0.as_mut().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_that_was_early_is_in_time_when_it_is_set_anew() {
        let (begun, mut alarm) = (Instant::now(), Alarm::new());
        let [soon, later] = [20, 60].map(|millis| begun + Duration::from_millis(millis));
        tokio::select! {
            biased;
            () = alarm.until(soon) => {}
            () = std::future::ready(()) => {}
        }
        let mut times = 0;
        while Instant::now() < later {
            alarm.until(later).await;
            times += 1;
        }
        assert!(times <= 2, "it was early {times} times");
    }
}
