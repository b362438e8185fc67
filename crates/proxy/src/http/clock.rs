//! The time that a client has for the head of a request. hyper makes a timer for each head and lets go of it
//! when that has come; here the next one is the same, set anew.

use hyper::rt::{Sleep, Timer};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The timer of one connection. To make one takes memory, and a lock of the runtime twice; to set it later
/// takes neither.
#[derive(Clone, Default)]
pub(super) struct Clock {
    /// While nothing waits for it. What it may still do then is to wake its connection once.
    kept: Arc<Mutex<Option<Ticking>>>,
}

type Ticking = Pin<Box<tokio::time::Sleep>>;

/// Waits for a time, and leaves its timer to the next one.
struct Until {
    /// `None` only while this is dropped.
    timer: Option<Ticking>,
    clock: Clock,
}

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Option<Ticking>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let kept = self.lock().take();
        let timer = match kept {
            Some(mut timer) => {
                timer.as_mut().reset(deadline.into());
                timer
            }
            None => Box::pin(tokio::time::sleep_until(deadline.into())),
        };
        Box::pin(Until { timer: Some(timer), clock: self.clone() })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl Sleep for Until {}

impl Drop for Until {
    fn drop(&mut self) {
        let timer = self.timer.take();
        let other = std::mem::replace(&mut *self.clock.lock(), timer);
        // Without the lock.
        drop(other);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::time::timeout;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_timer_that_is_let_go_of_is_the_next_ones_and_ends_when_that_is_due() {
        let clock = Clock::default();
        let mut first = clock.sleep(HOUR);
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(clock.lock().is_none());
        drop(first);
        assert!(clock.lock().is_some());
        // It was set for later, and wakes whoever waits now.
        let second = clock.sleep(Duration::from_millis(10));
        assert!(clock.lock().is_none());
        timeout(Duration::from_secs(20), second).await.unwrap();
        // What has ended is set anew as well.
        let mut third = clock.sleep(HOUR);
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let other = clock.sleep(Duration::from_millis(10));
        timeout(Duration::from_secs(20), other).await.unwrap();
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}
