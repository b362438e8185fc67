//! HTTP on a client's connection. The same for all that serve clients: hyper's code comes once for each kind
//! of service, 20 KB of the program.

use super::body::Body;
use super::sending::Sending;
use super::tasks::Tasks;
use super::watched::Traffic;
use crate::Duplex;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
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

/// Requests of one connection of HTTP/2 that are answered at the same time. Browsers ask for no more.
const STREAMS: u32 = 100;
/// So much of a request's body comes ahead of its server, and of all of one connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Requests that a client took back before they were looked at: with more the connection ends, since nobody but an
/// attacker has so many (CVE-2023-44487).
const RESETS: usize = 32;

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
    let service = service_fn(|request| sending(answer(request), Arc::clone(traffic)));
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

/// The same over HTTP/2: several requests at once.
pub(super) async fn speak_http2<S: Duplex + 'static>(watched: S, limits: Limits, answer: Answering<'_>) {
    // An answer that breaks off ends its own stream with an error, and not the connection.
    let traffic = Arc::new(Traffic::default());
    let service = service_fn(|request| sending(answer(request), Arc::clone(&traffic)));
    let tasks = Tasks::default();
    let _ends = tasks.end_with();
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(limits.buffer).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(limits.buffer)
        .max_pending_accept_reset_streams(RESETS);
    if let Err(error) = builder.serve_connection(TokioIo::new(watched), service).await {
        tracing::debug!(%error, "a client's connection ended");
    }
}

/// An answer on its way.
async fn sending(
    answer: BoxFuture<'static, Response<Body>>,
    traffic: Arc<Traffic>,
) -> Result<Response<Sending>, Infallible> {
    Ok(answer.await.map(|body| Sending::new(body, traffic)))
}
