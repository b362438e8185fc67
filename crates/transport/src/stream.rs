//! Streams: `AsyncRead + AsyncWrite`, like the sockets they stand in for.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use whimbrel_base::{EndpointId, Name};
use whimbrel_proto::{Backlog, CloseCode, Connection as Engine, Read, StreamError, StreamId, Urgency};

use crate::connection::{Connection, Handle};
use crate::error::ConnectionError;
use crate::shared::Wait;

/// An ordered, reliable byte stream in both directions. Reading and writing never wait for each
/// other. Dropping it ends the sending direction in order and stops the receiving one.
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Arc<Handle>,
    id: StreamId,
    finished: AtomicBool,
    ended: AtomicBool,
}

impl Connection {
    /// Opens a stream. Waits only while the peer's limit of open streams is reached; the peer learns
    /// of the stream without anything being written. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub async fn open_stream(&self) -> Result<Stream, ConnectionError> {
        let id = self.open(Engine::open_stream).await?;
        Ok(Stream::new(self.handle.clone(), id))
    }

    /// Opens a stream on which this side alone writes. A peer of an older version takes it for a stream of
    /// both ways that nobody reads. Otherwise as [`open_stream`](Self::open_stream). Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub async fn open_uni(&self) -> Result<SendHalf, ConnectionError> {
        let id = self.open(Engine::open_one_way).await?;
        let stream = Stream::new(self.handle.clone(), id);
        stream.inner.ended.store(true, Ordering::Relaxed);
        Ok(SendHalf(stream))
    }

    async fn open(
        &self,
        open: impl Fn(&mut Engine) -> Option<StreamId>,
    ) -> Result<StreamId, ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.shared().lock();
            if let Some(id) = open(&mut state.engine) {
                state.wakers.drive();
                return Poll::Ready(Ok(id));
            }
            if state.engine.end_reason().is_some() {
                drop(state);
                return Poll::Ready(Err(self.closed_error()));
            }
            state.wakers.wait_to_open(cx);
            Poll::Pending
        })
        .await
    }

    /// The next stream that the peer opens for both ways. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub async fn accept_stream(&self) -> Result<Stream, ConnectionError> {
        let id = self.accept(Engine::accept_stream).await?;
        Ok(Stream::new(self.handle.clone(), id))
    }

    /// The next stream that the peer opens to write on it alone. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub async fn accept_uni(&self) -> Result<RecvHalf, ConnectionError> {
        let id = self.accept(Engine::accept_one_way).await?;
        let stream = Stream::new(self.handle.clone(), id);
        stream.inner.finished.store(true, Ordering::Relaxed);
        Ok(RecvHalf(stream))
    }

    async fn accept(
        &self,
        accept: impl Fn(&mut Engine) -> Option<StreamId>,
    ) -> Result<StreamId, ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.shared().lock();
            if let Some(id) = accept(&mut state.engine) {
                return Poll::Ready(Ok(id));
            }
            if state.engine.end_reason().is_some() {
                drop(state);
                return Poll::Ready(Err(self.closed_error()));
            }
            state.wakers.wait_to_accept(cx);
            Poll::Pending
        })
        .await
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.inner.id)
    }
}

impl Stream {
    pub(crate) fn new(handle: Arc<Handle>, id: StreamId) -> Self {
        let inner = Inner { handle, id, finished: AtomicBool::new(false), ended: AtomicBool::new(false) };
        Self { inner: Arc::new(inner) }
    }

    /// The stream's number within its connection.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id.0
    }

    /// The connection that the stream belongs to.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection { handle: self.inner.handle.clone() }
    }

    /// The peer's identity.
    #[must_use]
    pub fn peer_id(&self) -> EndpointId {
        self.inner.handle.shared.peer()
    }

    /// The name that the connection was made to.
    #[must_use]
    pub fn peer_name(&self) -> Option<&Name> {
        self.inner.handle.name.as_ref()
    }

    /// Says how urgent this side's data on the stream is, among streams and flows of messages, from the next
    /// piece on: what is more urgent goes first, and what is less urgent gets at least 2 % of the rate. The
    /// default is 3, [`Urgency::default`]. Does nothing once the stream is over.
    pub fn set_urgency(&self, urgency: Urgency) {
        self.inner.handle.shared.lock().engine.set_stream_urgency(self.inner.id, urgency);
    }

    /// Splits the stream in halves that different tasks can own.
    #[must_use]
    pub fn into_split(self) -> (RecvHalf, SendHalf) {
        (RecvHalf(Self { inner: self.inner.clone() }), SendHalf(Self { inner: self.inner.clone() }))
    }

    /// Ends the sending direction: the peer reads what was written and then the end. Does not wait.
    ///
    /// # Errors
    /// When the stream or connection is over.
    pub fn finish(&self) -> io::Result<()> {
        self.inner.finish()
    }

    /// Gives the sending direction up: the peer sees an error with `code`. Does not wait.
    pub fn reset(&self, code: CloseCode) {
        self.inner.finished.store(true, Ordering::Relaxed);
        let shared = &self.inner.handle.shared;
        // A stream that is over needs no reset.
        let _ = shared.with(|state| state.engine.reset(self.inner.id, code));
    }

    /// Asks the peer to stop sending; what it sent is dropped. Does not wait.
    pub fn stop(&self, code: CloseCode) {
        self.inner.stop(code);
    }

    /// What was written and is not with the peer yet: on its way, or waiting for its turn. Nothing, if the
    /// stream is over. Does not wait.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.inner.handle.shared.lock().engine.backlog(self.inner.id)
    }

    /// Waits until the peer has everything written so far. Cancel-safe.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn drained(&self) -> io::Result<()> {
        poll_fn(|cx| self.inner.poll_drained(cx)).await
    }

    /// The next bytes, in the memory that they arrived in, without a copy; `None` at the end. How many come
    /// at once is not known before: 16 KiB mostly, where data flows. Cancel-safe.
    ///
    /// # Errors
    /// When the stream was reset or the connection is over.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|cx| self.inner.poll_chunk(cx)).await
    }

    /// Reads into `buf` without `&mut`, as [`AsyncRead`] does. 0 means the end.
    ///
    /// # Errors
    /// When the stream was reset or the connection is over.
    pub fn poll_read_bytes(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.inner.poll_read(cx, buf)
    }

    /// Writes from `buf` without `&mut`, as [`AsyncWrite`] does.
    ///
    /// # Errors
    /// When the stream was stopped or the connection is over.
    pub fn poll_write_bytes(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner.poll_write(cx, buf)
    }
}

impl Inner {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_take(cx, |engine| engine.read(self.id, buf)).map_ok(Option::unwrap_or_default)
    }

    fn poll_chunk(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        self.poll_take(cx, |engine| engine.read_chunk(self.id)).map_ok(|chunk| chunk.map(Bytes::from_owner))
    }

    /// Takes what has arrived; `None` at the end.
    fn poll_take<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Engine) -> Result<Read<T>, StreamError>,
    ) -> Poll<io::Result<Option<T>>> {
        if self.ended.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(None));
        }
        let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let mut state = self.handle.shared.lock();
        match take(&mut state.engine) {
            Ok(Read::Data(data)) => {
                // More credit for the peer goes out with the next segment; a large grant at once.
                if state.engine.has_urgent_control() {
                    state.wakers.drive();
                }
                drop(state);
                coop.made_progress();
                Poll::Ready(Ok(Some(data)))
            }
            Ok(Read::Fin) => {
                self.ended.store(true, Ordering::Relaxed);
                Poll::Ready(Ok(None))
            }
            Ok(Read::Blocked) => {
                state.wakers.wait(self.id, Wait::Read, cx);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(io_error(error))),
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        let written = match state.engine.write(self.id, buf) {
            Ok(0) if !buf.is_empty() => {
                state.wakers.wait(self.id, Wait::Write, cx);
                if !state.is_stuck() {
                    state.wakers.drive();
                }
                return Poll::Pending;
            }
            Ok(n) => n,
            Err(error) => return Poll::Ready(Err(io_error(error))),
        };
        coop.made_progress();
        shared.after_write(state, None);
        Poll::Ready(Ok(written))
    }

    fn poll_write_chunks(
        &self,
        cx: &mut Context<'_>,
        chunks: &mut VecDeque<Bytes>,
    ) -> Poll<io::Result<usize>> {
        let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        let mut written = 0;
        while let Some(chunk) = chunks.front_mut() {
            written += match state.engine.write_chunk(self.id, chunk) {
                Ok(n) => n,
                Err(error) => return Poll::Ready(Err(io_error(error))),
            };
            if !chunk.is_empty() {
                break;
            }
            chunks.pop_front();
        }
        if written == 0 && !chunks.is_empty() {
            state.wakers.wait(self.id, Wait::Write, cx);
            if !state.is_stuck() {
                state.wakers.drive();
            }
            return Poll::Pending;
        }
        coop.made_progress();
        shared.after_write(state, None);
        Poll::Ready(Ok(written))
    }

    fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.handle.shared.lock();
        if state.engine.is_drained(self.id) {
            return Poll::Ready(Ok(()));
        }
        if let Some((_, code, _)) = state.engine.end_reason() {
            return Poll::Ready(Err(io_error(StreamError::ConnectionClosed(code))));
        }
        state.wakers.wait(self.id, Wait::Drained, cx);
        Poll::Pending
    }

    fn finish(&self) -> io::Result<()> {
        if self.finished.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        state.engine.finish(self.id).map_err(io_error)?;
        shared.after_write(state, None);
        Ok(())
    }

    fn stop(&self, code: CloseCode) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            // A stream that is over needs no stop.
            let _ = self.handle.shared.with(|state| state.engine.stop(self.id, code));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Neither can fail in a way that matters to anybody any more.
        let _ = self.finish();
        self.stop(CloseCode::STREAM_DROPPED);
        self.handle.shared.lock().wakers.forget(self.id);
    }
}

fn io_error(error: StreamError) -> io::Error {
    let kind = match error {
        StreamError::Closed(_) | StreamError::Finished(_) => io::ErrorKind::NotConnected,
        StreamError::Stopped(..) => io::ErrorKind::BrokenPipe,
        StreamError::Reset(..) => io::ErrorKind::ConnectionReset,
        StreamError::ConnectionClosed(_) => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n = std::task::ready!(self.inner.poll_read(cx, buf.initialize_unfilled()))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written bytes leave on their own, as with a TCP socket.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.inner.finish())
    }
}

/// The receiving half of a [`Stream`], or a stream on which only the peer writes. Dropping it alone asks the
/// peer to stop sending.
#[derive(Debug)]
pub struct RecvHalf(Stream);

/// The sending half of a [`Stream`], or a stream on which only this side writes. Dropping it alone ends the
/// direction in order.
#[derive(Debug)]
pub struct SendHalf(Stream);

impl RecvHalf {
    /// The next bytes without a copy; see [`Stream::read_chunk`]. Cancel-safe.
    ///
    /// # Errors
    /// When the stream was reset or the connection is over.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        self.0.read_chunk().await
    }

    /// The whole stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0
    }
}

impl SendHalf {
    /// Writes from the front of `chunks` what there is room for, and takes that away: at least something,
    /// unless they are empty. Chunks of 2 KiB and more are not copied: the memory that they are part of is
    /// held until the peer has them. Returns how many bytes were written. Cancel-safe.
    ///
    /// # Errors
    /// When the stream was stopped or finished, or the connection is over. What was written before stays
    /// written.
    pub async fn write_chunks(&mut self, chunks: &mut VecDeque<Bytes>) -> io::Result<usize> {
        poll_fn(|cx| self.0.inner.poll_write_chunks(cx, chunks)).await
    }

    /// The whole stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0
    }
}

impl Drop for RecvHalf {
    fn drop(&mut self) {
        self.0.inner.stop(CloseCode::STREAM_DROPPED);
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        // A stream that is over needs no end.
        let _ = self.0.inner.finish();
    }
}

impl AsyncRead for RecvHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for SendHalf {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
