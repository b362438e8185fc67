//! Streams that never look ended when they broke.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use whimbrel_transport::{CloseCode, Stream};

/// The connection behind the stream broke. The same as in `forward` and `expose`.
const BROKEN: CloseCode = CloseCode::application(1);

/// A stream whose end can be a break: the peer learns that bytes are missing.
pub(crate) trait Breaks: AsyncRead + AsyncWrite + Send + Unpin {
    /// Makes the end, when it is dropped next, a break.
    fn break_off(&self);
}

impl Breaks for TcpStream {
    fn break_off(&self) {
        // Without it the end is an ordinary one, which is the best that is left then.
        let _ = socket2::SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

impl Breaks for Stream {
    fn break_off(&self) {
        self.reset(BROKEN);
        self.stop(BROKEN);
    }
}

/// A stream that breaks if it is dropped before its sending direction was shut down: a program that reads to
/// the end must not take half a file for a whole one.
pub(crate) struct Whole<S: Breaks> {
    stream: S,
    has_ended: bool,
}

impl<S: Breaks> Whole<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, has_ended: false }
    }
}

impl<S: Breaks> Drop for Whole<S> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.stream.break_off();
        }
    }
}

impl<S: Breaks> AsyncRead for Whole<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Breaks> AsyncWrite for Whole<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        if let Poll::Ready(Ok(())) = done {
            self.has_ended = true;
        }
        done
    }
}

/// Has a socket's peer noticed when it is gone without a word: after about two minutes.
pub(crate) fn keep_alive(socket: &TcpStream) {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    // Without it such a connection stays until its program ends it.
    let _ = socket2::SockRef::from(socket).set_tcp_keepalive(&probes);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_stream_that_is_dropped_early_looks_broken_and_one_that_was_ended_does_not() {
        let (client, mut server) = pair().await;
        let mut client = Whole::new(client);
        client.write_all(b"half").await.unwrap();
        drop(client);
        let mut all = Vec::new();
        let error = server.read_to_end(&mut all).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

        let (client, mut server) = pair().await;
        let mut client = Whole::new(client);
        client.write_all(b"whole").await.unwrap();
        client.shutdown().await.unwrap();
        drop(client);
        server.read_to_end(&mut all).await.unwrap();
        assert!(all.ends_with(b"whole"));
    }
}
