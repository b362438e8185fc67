//! The process's background runtime.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

use super::wait::block;

/// Enough to move some gigabytes a second; the threads that read and write do their part themselves.
const WORKERS: usize = 2;
/// For the system's resolver of host names.
const BLOCKING_THREADS: usize = 4;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The runtime, started if need be.
fn handle() -> io::Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("whimbrel")
        .enable_all()
        .build()?;
    let handle = started.handle().clone();
    *runtime = Some(started);
    Ok(handle)
}

/// Runs a future on the runtime, and waits for it; in any thread, even one of another runtime's. The future
/// bounds itself.
pub(super) fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    handle()?.spawn(async move {
        // The receiver waits for it.
        let _ = sender.send(future.await);
    });
    receiver.recv().map_err(|_| io::Error::other("the background runtime has stopped"))
}

/// The runtime, which has started. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Background(Handle);

impl Background {
    pub(super) fn start() -> io::Result<Self> {
        handle().map(Self)
    }

    /// Waits for a future in this thread, which polls it itself; what it starts runs in the background. In
    /// any thread, even one of another runtime's.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let _inside = self.enter();
        let mut future = pin!(future);
        loop {
            if let Some(value) = block(None, |cx| future.as_mut().poll(cx)) {
                return value;
            }
        }
    }

    /// As [`wait`](Self::wait), for at most `limit`. `None` after that: the future is given up.
    pub(super) fn wait_for<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let _inside = self.enter();
        let mut future = pin!(future);
        block(Instant::now().checked_add(limit), |cx| future.as_mut().poll(cx))
    }

    /// What this thread starts until the guard is dropped runs in the background.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}

/// Starts a task.
pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    handle()?.spawn(FutureExt::boxed(future));
    Ok(())
}
