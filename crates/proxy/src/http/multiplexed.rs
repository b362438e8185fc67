//! HTTP/2 with a server: a connection that carries several messages at the same time (RFC 9113).

use super::moving::Moving;
use super::tasks::{Ends, Tasks};
use crate::Duplex;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::rt::Executor as _;
use hyper::{Request, Response, Uri, Version};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// So much of an answer comes ahead of its reader.
const STREAM_WINDOW: u32 = 1 << 20;
/// Messages at once. For further ones there is another connection.
const MOST_STREAMS: usize = 8;
/// An answer that nobody reads holds up no other one: there is room for all of them.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS as u32;
/// The largest head of an answer.
const HEAD: u32 = 64 << 10;
/// What is taken of a request's body before it can go.
const UNSENT: usize = 256 << 10;

/// A hold on such a connection, for one message or for those to come. It closes when the last one is dropped.
pub(super) struct Multiplexed {
    sender: SendRequest<Moving>,
    shared: Arc<Shared>,
}

/// What all holds have together.
struct Shared {
    /// Nothing else is to go there.
    is_left: AtomicBool,
    _ends: Ends,
}

impl Multiplexed {
    pub(super) async fn start(stream: Box<dyn Duplex>) -> hyper::Result<Self> {
        let tasks = Tasks::default();
        // From now on: an attempt that is given up leaves nothing behind.
        let shared = Arc::new(Shared { is_left: AtomicBool::new(false), _ends: tasks.end_with() });
        let mut builder = Builder::new(tasks.clone());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD)
            .max_send_buf_size(UNSENT);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        tasks.execute(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a server ended");
            }
        });
        Ok(Self { sender, shared })
    }

    /// Sends a request, and returns the head of its answer. A request that comes back is one of HTTP/2: see
    /// [`to_http1`].
    pub(super) fn send(
        &mut self,
        request: Request<Moving>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Moving>>>> + use<> {
        let mut request = request;
        to_http2(&mut request);
        self.sender.try_send_request(request)
    }

    /// Another hold on it.
    pub(super) fn share(&self) -> Self {
        Self { sender: self.sender.clone(), shared: Arc::clone(&self.shared) }
    }

    /// Whether it carries a message, beside the hold for those to come.
    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Whether it takes one message more, beside the hold for those to come.
    pub(super) fn has_room(&self) -> bool {
        !self.is_closed() && Arc::strong_count(&self.shared) <= MOST_STREAMS
    }

    /// Whether it takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.is_left.load(Ordering::Relaxed) || self.sender.is_closed()
    }

    /// Nothing else is to go on it: its network is dead, or it belongs to one client.
    pub(super) fn leave(&self) {
        self.shared.is_left.store(true, Ordering::Relaxed);
    }
}

/// Makes a request of HTTP/1.1 to a server over TLS one of HTTP/2: its host is a part of the target (RFC
/// 9113, §8.3.1).
fn to_http2<B>(request: &mut Request<B>) {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let Some(authority) = host.and_then(|host| host.parse::<Authority>().ok()) else { return };
    let mut parts = request.uri().clone().into_parts();
    (parts.scheme, parts.authority) = (Some(Scheme::HTTPS), Some(authority));
    let Ok(uri) = Uri::from_parts(parts) else { return };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
}

/// Takes that back, for a request that has to go elsewhere.
pub(super) fn to_http1<B>(request: &mut Request<B>) {
    let mut parts = request.uri().clone().into_parts();
    let Some(authority) = parts.authority.take() else { return };
    parts.scheme = None;
    if let (Ok(host), Ok(uri)) = (HeaderValue::from_str(authority.as_str()), Uri::from_parts(parts)) {
        request.headers_mut().insert(HOST, host);
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_host_in_its_target_over_http2_and_comes_back_as_it_was() {
        for (host, target, whole) in [
            ("example.org", "/a?b=c", "https://example.org/a?b=c"),
            ("example.org:8443", "/", "https://example.org:8443/"),
        ] {
            let built = Request::builder().uri(target).header(HOST, host).header("x-one", "1").body(());
            let mut request = built.unwrap();
            to_http2(&mut request);
            assert_eq!((request.uri().to_string(), request.version()), (whole.to_owned(), Version::HTTP_2));
            assert!(!request.headers().contains_key(HOST) && request.headers().contains_key("x-one"));
            to_http1(&mut request);
            assert_eq!((request.uri().to_string(), request.version()), (target.to_owned(), Version::HTTP_11));
            assert_eq!(request.headers()[HOST], host);
        }
    }

    #[test]
    fn options_of_the_whole_server_stay_that() {
        let mut request = Request::options("*").header(HOST, "example.org").body(()).unwrap();
        to_http2(&mut request);
        assert_eq!(request.uri().path_and_query().map(|path| path.as_str()), Some("*"));
        to_http1(&mut request);
        assert_eq!(request.uri().to_string(), "*");
    }
}
