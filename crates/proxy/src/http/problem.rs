//! What a client is told when its request is not passed on.

use super::body::Body;
use crate::UpstreamError;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, VIA, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use std::io::ErrorKind;

/// Why there is no answer of a server: a status, and a line that says what is wrong and what to do.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    text: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The request is none that a proxy can pass on.
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The server, or the way to it, failed.
    pub(super) fn gateway(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, text)
    }

    /// The server did not begin to answer in time.
    pub(super) fn late(text: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, text)
    }

    /// What is wrong.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    pub(super) fn answer(self) -> Response<Body> {
        let mut answer = page(self.status, self.text);
        // What comes behind a request that was not understood is not to be understood either.
        if matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED) {
            close(&mut answer);
        }
        answer
    }
}

/// Has the connection end behind an answer.
pub(super) fn close(answer: &mut Response<Body>) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

impl From<UpstreamError> for Problem {
    fn from(error: UpstreamError) -> Self {
        let status = match &error {
            UpstreamError::Refused { .. } => StatusCode::FORBIDDEN,
            UpstreamError::Unreachable { source, .. } if source.kind() == ErrorKind::TimedOut => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, error.to_string())
    }
}

/// A page of our own, which browsers take for nothing but text: it may repeat what the client said.
pub(super) fn page(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    let text = format!("whimbrel proxy: {}\n", text.into());
    let mut answer = Response::new(Body::of(text.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(VIA, HeaderValue::from_static("1.1 whimbrel"));
    answer
}

/// The answer of the proxy to OPTIONS whose last hop it is.
pub(super) fn options() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE, CONNECT");
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}
