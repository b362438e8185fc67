//! HTTP on a client's connection. The same for all that serve clients: hyper's code comes once for each kind
//! of service, 20 KB of the program.

use super::body::Body;
use super::sending::Sending;
use super::watched::Traffic;
use crate::Duplex;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// What a client is waited for, and what is held of it.
pub(super) struct Limits {
    /// For the head of a request, and for the next one to come.
    pub(super) head: Duration,
    /// The largest head of a request; what is read and written at once.
    pub(super) buffer: usize,
}

/// Answers requests. What it returns is on the heap, so that a connection that only waits has no need of the
/// memory.
pub(super) type Answering<'a> =
    &'a (dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync);

/// Speaks HTTP on a watched connection until it ends, or something else has been agreed on.
pub(super) async fn speak<S: Duplex + 'static>(
    watched: S,
    traffic: &Arc<Traffic>,
    limits: Limits,
    answer: Answering<'_>,
) {
    let service = service_fn(|request| {
        let (answered, traffic) = (answer(request), Arc::clone(traffic));
        async { Ok::<_, Infallible>(answered.await.map(|body| Sending::new(body, traffic))) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.buffer)
        .max_header_size(limits.buffer);
    if let Err(error) = builder.serve_connection(TokioIo::new(watched), service).with_upgrades().await {
        tracing::debug!(%error, "a client's connection ended");
    }
}
