//! HTTP on a client's connection. The same for all that serve clients, over one type of connection: hyper's
//! code comes once for each kind of service and of connection, 20 to 40 KB of the program.

use super::body::Body;
use super::clock::Clock;
use super::sending::Sending;
use super::tasks::Tasks;
use super::watched::{Traffic, Watched};
use crate::Duplex;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
/// Requests that a client took back before they were looked at: with more the connection ends, since nobody
/// but an attacker has so many (CVE-2023-44487).
const RESETS: usize = 32;
/// How often it is looked whether anything is asked, in the time in which something has to be.
const LOOKS: u32 = 8;

/// Answers requests. What it returns is on the heap, so that a connection that only waits has no need of the
/// memory.
pub(super) type Answering<'a> =
    &'a (dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync);

/// Speaks HTTP on a watched connection until it ends, or something else has been agreed on.
pub(super) async fn speak(watched: Watched, traffic: &Arc<Traffic>, limits: Limits, answer: Answering<'_>) {
    let service = service_fn(|request| sending(answer(request), Arc::clone(traffic)));
    let mut builder = http1::Builder::new();
    builder
        .timer(Clock::default())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.buffer)
        .max_header_size(limits.buffer);
    if let Err(error) = builder.serve_connection(TokioIo::new(watched), service).with_upgrades().await {
        tracing::debug!(%error, "a client's connection ended");
    }
}

/// The same over HTTP/2: several requests at once. On the heap as connections to servers are, so that the
/// code that reads and writes frames is there once.
pub(super) async fn speak_http2(watched: Box<dyn Duplex>, limits: Limits, answer: Answering<'_>) {
    // An answer that breaks off ends its own stream with an error, and not the connection. Each one that is
    // on its way holds this.
    let traffic = Arc::new(Traffic::default());
    let asked = AtomicU64::new(0);
    let service = service_fn(|request| {
        asked.fetch_add(1, Ordering::Relaxed);
        sending(answer(request), Arc::clone(&traffic))
    });
    let tasks = Tasks::default();
    let _ends = tasks.end_with();
    let mut builder = http2::Builder::new(tasks);
    builder
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(limits.buffer).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(limits.buffer)
        .max_pending_accept_reset_streams(RESETS);
    let connection = builder.serve_connection(TokioIo::new(watched), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = nothing_is_asked(&traffic, &asked, limits.head) => {
            connection.as_mut().graceful_shutdown();
            // A request that was on its way then is answered. A client that does not agree to the end is not
            // waited for any longer.
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = nothing_is_asked(&traffic, &asked, limits.head) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended");
    }
}

/// Waits until no request has come for so long, while none was being answered: a head that is never whole
/// does not keep a connection of HTTP/2 open, which hyper has no limit for. Cancel-safe.
async fn nothing_is_asked(answering: &Arc<Traffic>, asked: &AtomicU64, limit: Duration) {
    let mut last = (asked.load(Ordering::Relaxed), Instant::now());
    loop {
        tokio::time::sleep(limit / LOOKS).await;
        let now = asked.load(Ordering::Relaxed);
        if now != last.0 || Arc::strong_count(answering) > 1 {
            last = (now, Instant::now());
        } else if last.1.elapsed() >= limit {
            return;
        }
    }
}

/// An answer on its way.
async fn sending(
    answer: BoxFuture<'static, Response<Body>>,
    traffic: Arc<Traffic>,
) -> Result<Response<Sending>, Infallible> {
    Ok(answer.await.map(|body| Sending::new(body, traffic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_is_at_rest_when_no_request_came_and_none_is_answered_for_that_time() {
        let (traffic, asked) = (Arc::new(Traffic::default()), AtomicU64::new(0));
        let limit = Duration::from_millis(40);
        let answer = Arc::clone(&traffic);
        let rests = tokio::time::timeout(10 * limit, nothing_is_asked(&traffic, &asked, limit));
        assert!(rests.await.is_err(), "an answer is on its way");
        drop(answer);
        let began = Instant::now();
        let rests = nothing_is_asked(&traffic, &asked, limit);
        assert!(tokio::time::timeout(Duration::from_secs(20), rests).await.is_ok());
        assert!(began.elapsed() >= limit);
    }
}
