//! The process's background runtime.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError, mpsc};

use tokio::runtime::{Builder, Handle, Runtime};

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

/// Starts a task.
pub(super) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    handle()?.spawn(future);
    Ok(())
}
