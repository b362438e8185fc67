//! The body of an answer on its way to a client, who learns it if some of it is missing: where nothing says
//! how long it is, as with HTTP/1.0, a break would look like its end.

use super::body::{Body, Broken};
use super::watched::Traffic;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A body that breaks its client's connection off if it is dropped before its end.
pub(super) struct Sending {
    body: Body,
    has_ended: bool,
    /// Why it breaks off, once what came before is on its way.
    broken: Option<Broken>,
    traffic: Arc<Traffic>,
}

impl Sending {
    pub(super) fn new(body: Body, traffic: Arc<Traffic>) -> Self {
        Self { body, has_ended: false, broken: None, traffic }
    }
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(why) = self.broken.take() {
            return Poll::Ready(Some(Err(why)));
        }
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Err(why))) = next {
            // At an error what was written is given up. Whoever waits writes it out first.
            self.broken = Some(why);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_ended = matches!(next, Poll::Ready(None));
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.has_ended && !self.body.is_end_stream() {
            self.traffic.break_off();
        }
    }
}
