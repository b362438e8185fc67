//! Answers of the proxy's own.

use super::body::Body;
use super::problem::Problem;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, VIA, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

impl Problem {
    /// What a client is told whose request is not passed on.
    pub(super) fn answer(self) -> Response<Body> {
        let (status, text) = self.into_parts();
        let mut answer = page(status, text);
        // What comes behind a request that was not understood is not to be understood either.
        if matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED) {
            close(&mut answer);
        }
        answer
    }
}

/// Has the connection end behind an answer.
pub(super) fn close(answer: &mut Response<Body>) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
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
