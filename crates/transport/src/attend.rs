//! The task of one connection: has its driver run, tells the registry what the connection holds, and takes it
//! out of the registry at its end, whatever that is.

use futures_util::FutureExt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use whimbrel_proto::{CloseCode, Side};

use crate::driver::{Driver, Ended};
use crate::endpoint_core::EndpointCore;
use crate::registry::{Figures, Registry};
use crate::shared::{Revive, Shared};

/// As long as notices are repeated.
const AFTERLIFE: Duration = Duration::from_secs(60);

/// Starts the task that moves a connection's bytes; the connection leaves the registry when it ends.
pub(crate) fn spawn_driver(endpoint: &Arc<EndpointCore>, shared: &Arc<Shared>) {
    tokio::spawn(FutureExt::boxed(driving(endpoint.clone(), shared.clone())));
}

/// What has a connection that rests be driven again.
fn reviving(endpoint: &Arc<EndpointCore>, shared: &Arc<Shared>) -> Revive {
    let (endpoint, shared) = (Arc::downgrade(endpoint), Arc::downgrade(shared));
    Box::new(move || {
        if let (Some(endpoint), Some(shared)) = (endpoint.upgrade(), shared.upgrade()) {
            endpoint.runtime.clone().spawn(FutureExt::boxed(driving(endpoint, shared)));
        }
    })
}

/// Moves a connection's bytes until it is over and has left the registry, or rests: whoever wants something
/// of it then has it driven again. May change over from one task to another.
pub(crate) fn driving(
    endpoint: Arc<EndpointCore>,
    shared: Arc<Shared>,
) -> impl Future<Output = ()> + Send + 'static {
    let mut driver = Driver::new(shared.clone());
    async move {
        while attend(&mut driver, &endpoint.registry, &shared).await == Ended::Idle {
            if shared.rest(reviving(&endpoint, &shared)) {
                return;
            }
        }
        if shared.has_cut_farewell() {
            // A client that waits for our last word is called to the new address, and told there.
            // Boxed, because the task should not keep room for it all the time.
            Box::pin(tokio::time::sleep(AFTERLIFE)).await;
        }
        endpoint.registry.remove(&shared);
        endpoint.stop_if_done();
    }
}

/// Completes when the driver does. If it panics, that is the end of its connection, and of nothing else.
async fn attend(
    driver: impl Future<Output = Ended> + Unpin,
    registry: &Registry,
    shared: &Arc<Shared>,
) -> Ended {
    let is_accepted = shared.lock().engine.side() == Side::Server;
    let noted = is_accepted.then(|| registry.figures(shared));
    if let Some(figures) = noted {
        // It may have rested before.
        registry.note(shared, figures);
    }
    let attended = Attended { driver, registry, shared, noted };
    attended.await.unwrap_or_else(|Panicked| {
        tracing::error!(connection = %shared.id, "the driver panicked; this is a bug, and ends the connection");
        let end = || {
            shared.give_up(CloseCode::INTERNAL, "internal error");
            shared.with(|state| {
                state.wakers.all_over();
                state.paths.clear();
            });
        };
        // The engine may be the one that panics.
        let _ = catch_unwind(AssertUnwindSafe(end));
        Ended::Over
    })
}

struct Panicked;

struct Attended<'a, D> {
    driver: D,
    registry: &'a Registry,
    shared: &'a Arc<Shared>,
    /// What the registry knows; `None` for connections that it does not bound.
    noted: Option<Figures>,
}

impl<D: Future<Output = Ended> + Unpin> Future for Attended<'_, D> {
    type Output = Result<Ended, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut this.driver).poll(cx)));
        let Ok(polled) = polled else { return Poll::Ready(Err(Panicked)) };
        if let Some(noted) = &mut this.noted {
            let now = this.registry.figures(this.shared);
            if now.is_news_after(noted) {
                *noted = now;
                this.registry.note(this.shared, now);
            }
        }
        polled.map(Ok)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use whimbrel_base::{ConnectionId, SecretKey};
    use whimbrel_proto::{Config, Connection as Engine};

    use super::*;
    use crate::Config as EndpointConfig;
    use crate::connection::Connection;

    /// Before, it stayed without anybody to drive it, for as long as a connection without a path is kept.
    #[tokio::test]
    async fn a_connection_whose_driver_panics_is_over() {
        let registry = Registry::new(EndpointConfig::default().limits());
        let (ours, theirs) = (SecretKey::generate().id(), SecretKey::generate().id());
        let engine =
            Engine::client(Config::default(), ConnectionId::random(), ours, theirs, [1; 32], Instant::now());
        let shared = Shared::new(engine, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default());
        let connection = Connection::new(shared.clone(), None);
        let reader = tokio::spawn({
            let connection = connection.clone();
            async move { connection.accept_stream().await.map(drop) }
        });
        tokio::task::yield_now().await;
        attend(std::future::poll_fn(|_| panic!("a bug")), &registry, &shared).await;
        assert_eq!(connection.close_reason().unwrap().code, CloseCode::INTERNAL);
        let waited = tokio::time::timeout(Duration::from_secs(5), reader).await;
        assert!(waited.unwrap().unwrap().is_err());
    }
}
