//! What keeps a dialled connection going: its driver and its mover.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;

use tokio::runtime::Handle;
use whimbrel_base::Name;

use crate::attend::driving;
use crate::endpoint_core::EndpointCore;
use crate::mover::Mover;
use crate::shared::Shared;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection's driver and mover. Whoever connects runs them itself until the peer has answered, so that no other
/// task need be woken for each step. When this is dropped they go on in tasks of their own.
pub(crate) struct Supply {
    /// `None` once it is done, as below.
    driver: Option<Work>,
    mover: Option<Work>,
}

impl Supply {
    pub(crate) fn new(endpoint: &Arc<EndpointCore>, shared: &Arc<Shared>, name: Option<Name>) -> Self {
        let driver = driving(endpoint.clone(), shared.clone());
        let mover = Mover::new(shared.clone(), endpoint.clone(), name).run();
        Self { driver: Some(Box::pin(driver)), mover: Some(Box::pin(mover)) }
    }

    /// Runs both until `done` is ready. Cancel-safe if `done` is.
    pub(crate) async fn until<T>(&mut self, done: impl Future<Output = T>) -> T {
        let mut done = pin!(done);
        poll_fn(|cx| {
            // The mover opens paths, the driver hears answers on them, and these are what is waited for.
            run(&mut self.mover, cx);
            run(&mut self.driver, cx);
            done.as_mut().poll(cx)
        })
        .await
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
        runtime.spawn(async move {
            // From within: two tasks at once would have another worker woken, to take one over.
            if let Some(mover) = mover {
                tokio::spawn(mover);
            }
            if let Some(driver) = driver {
                driver.await;
            }
        });
    }
}
