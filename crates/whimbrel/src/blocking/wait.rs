//! Waiting in a thread for what wakes tasks.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls until it is ready, or `None` when the deadline has passed. The thread sleeps in between.
pub(super) fn block<T>(
    deadline: Option<Instant>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    // A task's budget, should this be called in one, must not make us wait for a task that we block.
    let mut polled = pin!(tokio::task::coop::unconstrained(poll_fn(poll)));
    loop {
        if let Poll::Ready(value) = polled.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => return None,
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

/// Lets one thread at a time wait for one direction of a stream, which wakes one waiter only.
#[derive(Default)]
pub(super) struct Turns {
    taken: Mutex<bool>,
    freed: Condvar,
}

pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn; `None` when the deadline has passed.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Option<Turn<'_>> {
        let mut taken = self.lock();
        while *taken {
            taken = match deadline {
                None => self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.freed.notify_one();
    }
}
