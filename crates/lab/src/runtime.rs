//! A tokio runtime inside a host.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::{Error, Host, Result};

/// How long dropped tasks may take to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(1);

/// A tokio runtime all of whose threads are inside a host's namespace.
///
/// `tokio::runtime::Runtime::block_on` would run its future on the calling thread, outside the namespace;
/// [`Runtime::block_on`] does not.
pub struct Runtime {
    host: Host,
    /// Present until dropped.
    inner: Option<tokio::runtime::Runtime>,
}

impl Host {
    /// Starts a tokio runtime whose threads are all inside the namespace.
    pub fn runtime(&self, worker_threads: usize) -> Result<Runtime> {
        Runtime::build(self, worker_threads)
    }
}

impl Runtime {
    fn build(host: &Host, worker_threads: usize) -> Result<Self> {
        let owner = host.clone();
        let inner = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(worker_threads)
            .thread_name(format!("lab-{}", host.name()))
            .enable_all()
            .on_thread_start(move || {
                // A thread in the wrong network would make a test lie; tokio offers no other way to refuse.
                if let Err(error) = owner.enter() {
                    panic!("{error}");
                }
            })
            .build()
            .map_err(|source| Error::Spawn { what: "a tokio runtime".into(), source })?;
        Ok(Self { host: host.clone(), inner: Some(inner) })
    }

    /// Runs a future inside the namespace and waits for its value, blocking the calling thread.
    ///
    /// # Panics
    /// If the future does.
    pub fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send,
        F::Output: Send,
    {
        self.host.run(|| self.handle().block_on(future))
    }

    /// Starts a task inside the namespace. Its handle may be awaited anywhere.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle().spawn(future)
    }

    /// Starts blocking work inside the namespace. Its handle may be awaited anywhere.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle().spawn_blocking(job)
    }

    /// tokio's own handle. Beware of its `block_on`: it runs the future outside the namespace.
    pub fn handle(&self) -> &tokio::runtime::Handle {
        match &self.inner {
            Some(inner) => inner.handle(),
            None => unreachable!("the runtime is taken only when dropped"),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        if tokio::runtime::Handle::try_current().is_ok() {
            // Asynchronous code must not wait here.
            inner.shutdown_background();
        } else {
            inner.shutdown_timeout(SHUTDOWN_LIMIT);
        }
    }
}
