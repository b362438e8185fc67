//! What a request carries, on its way to a server.

use bytes::Bytes;
use http_body_util::{Either, Empty};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// What a request carries on.
pub(super) type Sent = Either<Incoming, Empty<Bytes>>;

/// A body on its way to a server, which tells that it moves.
pub(super) struct Moving {
    body: Sent,
    moved: Arc<AtomicU64>,
}

impl Moving {
    /// Each piece of it that goes adds to `moved`.
    pub(super) fn new(body: Sent, moved: Arc<AtomicU64>) -> Self {
        Self { body, moved }
    }

    /// What has not gone.
    pub(super) fn into_body(self) -> Sent {
        self.body
    }
}

impl Body for Moving {
    type Data = Bytes;
    type Error = <Sent as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if next.is_ready() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
