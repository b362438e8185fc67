//! What keeps a dialled connection going: its driver and its mover.

use futures_util::FutureExt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;
use whimbrel_base::Name;

use crate::attend::driving;
use crate::endpoint_core::EndpointCore;
use crate::manager::Kept;
use crate::mover::Mover;
use crate::shared::Shared;

/// As often as driver and mover may have each other run before other tasks have their turn.
const TURNS: usize = 16;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection's driver and mover. Whoever connects runs them itself until the peer has answered, so that no
/// other task need be woken for each step. When this is dropped they go on in tasks of their own.
pub(crate) struct Supply {
    /// `None` once it is done, as below.
    driver: Option<Work>,
    mover: Option<Work>,
}

impl Supply {
    pub(crate) fn new(endpoint: &Arc<EndpointCore>, shared: &Arc<Shared>, name: Option<Name>) -> Self {
        Self::with(endpoint, shared, name, Kept::default())
    }

    /// As [`new`](Self::new), with what was dialled before the connection was here.
    pub(crate) fn with(
        endpoint: &Arc<EndpointCore>,
        shared: &Arc<Shared>,
        name: Option<Name>,
        ahead: Kept,
    ) -> Self {
        let driver = driving(endpoint.clone(), shared.clone());
        let mover = Mover::new(shared.clone(), endpoint.clone(), name, ahead).run();
        Self { driver: Some(Box::pin(driver)), mover: Some(Box::pin(mover)) }
    }

    /// Runs both until `done` is ready. Cancel-safe if `done` is.
    pub(crate) async fn until<T>(&mut self, done: impl Future<Output = T>) -> T {
        let relay = Arc::<Relay>::default();
        let waker = Waker::from(relay.clone());
        let mut done = pin!(done);
        poll_fn(|cx| {
            let mut own = Context::from_waker(&waker);
            for _ in 0..TURNS {
                relay.begin();
                // The mover opens paths, the driver hears answers on them, and these are what is waited for.
                run(&mut self.mover, &mut own);
                run(&mut self.driver, &mut own);
                if let Poll::Ready(result) = done.as_mut().poll(&mut own) {
                    return Poll::Ready(result);
                }
                if !relay.pause(cx.waker()) {
                    return Poll::Pending;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// Wakes the task that connects, except while it runs: what its parts have to tell each other then is noted,
/// and it takes another turn. A task that woke itself would be put in a queue when it waits next, and another
/// worker would be woken to take it over.
#[derive(Default)]
struct Relay(Mutex<Relayed>);

#[derive(Default)]
struct Relayed {
    /// `None` while it runs, and once nothing is waited for any more.
    task: Option<Waker>,
    woken: bool,
}

impl Relay {
    /// The task runs.
    fn begin(&self) {
        *self.lock() = Relayed::default();
    }

    /// The task waits from now on. False if it may; true if it was woken since it began, and has to run
    /// again.
    fn pause(&self, task: &Waker) -> bool {
        let mut relayed = self.lock();
        if !relayed.woken {
            relayed.task = Some(task.clone());
        }
        relayed.woken
    }

    fn lock(&self) -> MutexGuard<'_, Relayed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = {
            let mut relayed = self.lock();
            relayed.woken = true;
            relayed.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

fn run(work: &mut Option<Work>, cx: &mut Context<'_>) {
    if let Some(running) = work
        && running.as_mut().poll(cx).is_ready()
    {
        *work = None;
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        // Without a runtime nothing can go on.
        let Ok(runtime) = Handle::try_current() else { return };
        let (driver, mover) = (self.driver.take(), self.mover.take());
        runtime.spawn(FutureExt::boxed(async move {
            // From within: two tasks at once would have another worker woken, to take one over.
            if let Some(mover) = mover {
                tokio::spawn(mover);
            }
            if let Some(driver) = driver {
                driver.await;
            }
        }));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn supply(driver: impl Future<Output = ()> + Send + 'static) -> Supply {
        Supply { driver: Some(Box::pin(driver)), mover: None }
    }

    #[test]
    fn what_its_parts_tell_each_other_does_not_wake_the_task() {
        let task = Arc::new(Task::default());
        let waker = task.clone().into();
        let mut turns = 0;
        let driver = poll_fn(move |cx| {
            turns += 1;
            if turns < 3 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        });
        let mut supply = supply(driver);
        {
            let mut until = pin!(supply.until(std::future::pending::<()>()));
            assert!(until.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(supply.driver.is_none(), "it ran until it had nothing more to do");
        assert_eq!(task.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn whoever_wakes_a_part_that_waits_wakes_the_task() {
        let task = Arc::new(Task::default());
        let waker = task.clone().into();
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let mut supply = supply(async move { drop(told.await) });
        let mut until = pin!(supply.until(std::future::pending::<()>()));
        assert!(until.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        tell.send(()).unwrap();
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn parts_that_never_rest_let_others_run() {
        let task = Arc::new(Task::default());
        let waker = task.clone().into();
        let mut supply = supply(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let mut until = pin!(supply.until(std::future::pending::<()>()));
        assert!(until.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
    }
}
