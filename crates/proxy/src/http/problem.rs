//! Why a request is not passed on.

use crate::UpstreamError;
use hyper::StatusCode;
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

    /// The status, and what is wrong.
    pub(super) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.text)
    }
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
