//! A client's connection, whose traffic is counted: one on which nothing moves is closed.

use super::flushed::Flushed;
use crate::Duplex;
use crate::whole::Breaks as _;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How often it is looked whether anything moved, in the time that it may rest.
const LOOKS: u32 = 8;

/// What moved on a socket.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    read: AtomicU64,
    written: AtomicU64,
    is_tunnel: AtomicBool,
    is_broken: AtomicBool,
    is_elsewhere: AtomicBool,
    /// Within TLS.
    flushed: Flushed,
    /// Both ends of the socket, ours first, where somebody may want to know.
    ends: OnceLock<(SocketAddr, SocketAddr)>,
}

impl Traffic {
    /// The bytes that the client has sent, and those that it was sent.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }

    /// Whether all that was written within TLS is in the socket.
    pub(super) fn flushed(&self) -> &Flushed {
        &self.flushed
    }

    /// It is that of this socket.
    pub(super) fn note_ends(&self, socket: &TcpStream) {
        if let (Ok(here), Ok(there)) = (socket.local_addr(), socket.peer_addr()) {
            // It is noted once.
            let _ = self.ends.set((here, there));
        }
    }

    /// Both ends of its socket, ours first, if they were noted.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.ends.get().copied()
    }

    /// From now on the limit of tunnels counts.
    pub(super) fn is_tunnel_now(&self) {
        self.is_tunnel.store(true, Ordering::Relaxed);
    }

    /// The socket was taken away from here: what moves on it is not counted any more, and no limit is over.
    pub(super) fn is_elsewhere_now(&self) {
        self.is_elsewhere.store(true, Ordering::Relaxed);
    }

    /// What was to come does not: when the socket closes, its client must not take that for an end.
    pub(super) fn break_off(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// All has come that was to come.
    pub(super) fn end(&self) {
        self.is_broken.store(false, Ordering::Relaxed);
    }

    /// Waits until nothing has moved for so long, or for the longer time in a tunnel. Cancel-safe.
    pub(super) async fn rests(&self, limit: Duration, in_tunnel: Duration) {
        let mut last = (self.bytes(), Instant::now());
        loop {
            let is_tunnel = self.is_tunnel.load(Ordering::Relaxed);
            tokio::time::sleep(limit.min(in_tunnel) / LOOKS).await;
            let now = self.bytes();
            if now != last.0 || self.is_elsewhere.load(Ordering::Relaxed) {
                last = (now, Instant::now());
            } else if last.1.elapsed() >= if is_tunnel { in_tunnel } else { limit } {
                return;
            }
        }
    }
}

/// The connection. One type for all kinds, so that the code that speaks HTTP on it is there once.
pub(super) struct Watched {
    /// Until it is taken away.
    stream: Option<Client>,
    traffic: Arc<Traffic>,
}

enum Client {
    Socket(TcpStream),
    /// TLS that ends here. Without a word of TLS its end looks broken to its client already.
    Secured(Box<dyn Duplex>),
}

impl Watched {
    /// A client's own socket.
    pub(super) fn socket(socket: TcpStream, traffic: Arc<Traffic>) -> Self {
        Self { stream: Some(Client::Socket(socket)), traffic }
    }

    /// What a client says within its TLS.
    pub(super) fn secured(stream: Box<dyn Duplex>, traffic: Arc<Traffic>) -> Self {
        Self { stream: Some(Client::Secured(stream)), traffic }
    }

    /// The client's own socket, which is not watched any more. `None`: the connection is not that alone.
    pub(super) fn into_socket(mut self) -> Option<TcpStream> {
        match self.stream.take() {
            Some(Client::Socket(socket)) => Some(socket),
            Some(Client::Secured(_)) | None => None,
        }
    }

    fn is_secured(&self) -> bool {
        matches!(self.stream, Some(Client::Secured(_)))
    }

    fn stream(&mut self) -> io::Result<Pin<&mut dyn Duplex>> {
        let stream: &mut dyn Duplex = match &mut self.stream {
            Some(Client::Socket(socket)) => socket,
            Some(Client::Secured(stream)) => stream.as_mut(),
            None => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(Pin::new(stream))
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if self.is_secured() {
            self.traffic.flushed.wrote();
        }
        if let Poll::Ready(Ok(count)) = written {
            self.traffic.written.fetch_add(count as u64, Ordering::Relaxed);
        }
        written
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(Client::Socket(socket)) = &self.stream
            && self.traffic.is_broken.load(Ordering::Relaxed)
        {
            socket.break_off();
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.stream()?.poll_read(cx, buffer);
        self.traffic.read.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        if read.is_pending() && self.is_secured() {
            self.traffic.flushed.waits(cx.waker());
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write_vectored(cx, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Some(Client::Socket(socket)) => socket.is_write_vectored(),
            Some(Client::Secured(stream)) => stream.is_write_vectored(),
            None => false,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream()?.poll_flush(cx);
        if self.is_secured() {
            self.traffic.flushed.flushed(matches!(flushed, Poll::Ready(Ok(()))));
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A client that reads an ordinary end before the reset takes what it has for all. In a tunnel one
        // side may end before the other.
        let traffic = &self.traffic;
        if traffic.is_broken.load(Ordering::Relaxed) && !traffic.is_tunnel.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_shutdown(cx)
    }
}
