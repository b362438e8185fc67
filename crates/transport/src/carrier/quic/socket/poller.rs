//! Waiting until a socket takes more.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use quinn::UdpPoller;

use super::QuicSocket;

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits until the socket takes more; asks it only after it took no more.
pub(super) struct Poller {
    socket: Arc<QuicSocket>,
    waiting: Option<Writable>,
}

impl Poller {
    pub(super) fn new(socket: Arc<QuicSocket>) -> Self {
        Self { socket, waiting: None }
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(open) = self.socket.open() else { return Poll::Ready(Ok(())) };
        if self.waiting.is_none() && !open.full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let held = open.clone();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(async move { held.takes_more().await }));
        let result = std::task::ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        open.full.store(false, Ordering::Relaxed);
        Poll::Ready(result)
    }
}
