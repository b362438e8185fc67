//! Waiting until a socket takes more.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::UdpPoller;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::{Open, QuicSocket};

/// Until a full socket is tried again, where the runtime cannot tell when it takes more.
const FULL_PAUSE: Duration = Duration::from_millis(1);

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

/// Waits until the kernel takes more.
///
/// Once an error was queued (ICMP), which anybody can bring about, the runtime takes what it has registered
/// for writable for good, full or not. A copy of the socket, registered for this wait alone, still tells.
async fn takes_more(open: &Open) -> io::Result<()> {
    if !open.io.ready(Interest::WRITABLE).await?.is_write_closed() {
        return Ok(());
    }
    let is_told = match registered_again(open) {
        Ok(copy) => !copy.ready(Interest::WRITABLE).await?.is_write_closed(),
        // There are no more descriptors.
        Err(_) => false,
    };
    if !is_told {
        // Another error came meanwhile.
        tokio::time::sleep(FULL_PAUSE).await;
    }
    Ok(())
}

/// The same socket once more, of which the runtime knows nothing yet.
pub(super) fn registered_again(open: &Open) -> io::Result<UdpSocket> {
    UdpSocket::from_std(open.io.as_fd().try_clone_to_owned()?.into())
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(open) = self.socket.open() else {
            // What waits holds the socket.
            self.waiting = None;
            return Poll::Ready(Ok(()));
        };
        if self.waiting.is_none() && !open.full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let held = open.clone();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(async move { takes_more(&held).await }));
        let result = std::task::ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        open.full.store(false, Ordering::Relaxed);
        Poll::Ready(result)
    }
}
