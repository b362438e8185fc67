//! Connections that are being made. A message is bound to one as late as can be: it takes one that becomes
//! idle while its own is made, as browsers do, and what was begun is there for the next one.

use super::Origins;
use crate::http::line::Line;
use crate::{Destination, UpstreamError};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, poll};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;

/// At most so many connections are made at a time whose message found another one, and as many that are
/// opened ahead. Others are not made.
pub(super) const MOST: usize = 16;
/// A connection that nobody waits for may take so long: TCP has sent its first packet three times by then.
const LONGEST: Duration = Duration::from_secs(4);

type Connecting = BoxFuture<'static, Result<Box<Line>, UpstreamError>>;

/// A connection that is being made. When nobody waits for it any more it becomes idle as soon as it is there.
struct Making {
    origins: Arc<Origins>,
    /// Until it is there.
    connecting: Option<Connecting>,
}

impl Future for Making {
    type Output = Result<Box<Line>, UpstreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(connecting) = &mut self.connecting else { return Poll::Pending };
        let made = connecting.poll_unpin(cx);
        if made.is_ready() {
            self.connecting = None;
        }
        made
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Some(connecting) = self.connecting.take() else { return };
        if let Ok(place) = Arc::clone(&self.origins.left).try_acquire_owned()
            && Handle::try_current().is_ok()
        {
            self.origins.make_idle(connecting, place);
        }
    }
}

impl Origins {
    /// Gives the connection that is there first: one that fits and becomes idle, or a new one by these ways,
    /// and opens another `beside` that. If this is dropped before, what was begun becomes idle.
    pub(super) async fn connect_or_take(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        ways: Vec<Candidate>,
        (alone, beside): (bool, bool),
        fits: impl Fn(&Line, Instant) -> bool,
    ) -> Result<Box<Line>, UpstreamError> {
        if let Some(line) = self.take(to, &fits).await {
            return Ok(line);
        }
        let freed = self.lock().freed(to);
        let taking = async {
            loop {
                let one_is_freed = freed.notified();
                if let Some(line) = self.take(to, &fits).await {
                    return line;
                }
                one_is_freed.await;
            }
        };
        let other = ways.first().filter(|_| beside).cloned();
        let connecting = Some(self.connecting(to, *intents, ways, alone));
        let mut making = Making { origins: Arc::clone(self), connecting };
        if let Poll::Ready(made) = poll!(&mut making) {
            return made;
        }
        other.into_iter().for_each(|by| self.open_beside(to, by));
        tokio::select! {
            biased;
            made = making => made,
            line = taking => Ok(line),
        }
    }

    /// Makes a connection that nobody waits for, and that is idle then.
    pub(super) fn make_idle(self: &Arc<Self>, connecting: Connecting, place: OwnedSemaphorePermit) {
        let origins = Arc::clone(self);
        tokio::spawn(async move {
            match tokio::time::timeout(LONGEST, connecting).await {
                Ok(Ok(line)) => origins.keep(line),
                Ok(Err(error)) => tracing::debug!(%error, "a connection fails that nobody waits for"),
                Err(_) => tracing::debug!("a connection is given up that nobody waits for"),
            }
            drop(place);
        });
    }

    /// On the heap: it goes from hand to hand.
    pub(super) fn connecting(
        self: &Arc<Self>,
        to: &Destination,
        intents: Intents,
        ways: Vec<Candidate>,
        alone: bool,
    ) -> Connecting {
        let (origins, to) = (Arc::clone(self), to.clone());
        async move { origins.connect(&to, &intents, ways, alone).await }.boxed()
    }
}
