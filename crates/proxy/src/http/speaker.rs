//! The HTTP of a connection to a server, which moves when its user does: it needs no task of its own, which
//! would have to be woken for each head and each piece, and wake its user in turn.

mod bell;

use super::moving::Moving;
use crate::Duplex;
use bell::Bell;
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::task::AbortHandle;

/// The largest head of an answer, and what is read at once.
const BUFFER: usize = 64 << 10;

/// A connection that speaks HTTP. It closes when this is dropped, whatever is under way on it.
pub(super) struct Speaker {
    sender: SendRequest<Moving>,
    driver: Driver,
    /// Once it moves by itself.
    task: Option<AbortHandle>,
}

type Driven = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// What moves a connection, shared by those that wait for it, one after the other.
#[derive(Clone)]
struct Driver(Arc<Moves>);

struct Moves {
    /// `None` once it has ended, or moves by itself.
    driven: Mutex<Option<Driven>>,
    bell: Bell,
}

impl Driver {
    fn new(connection: Driven) -> Self {
        Self(Arc::new(Moves { driven: Mutex::new(Some(connection)), bell: Bell::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Driven>> {
        self.0.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is possible now, and then polls what its user waits for, who is woken when there is more.
    fn attend<T>(&self, cx: &mut Context<'_>, mut waits: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.0.bell.attend(cx, |cx| {
            self.poll(cx);
            waits(cx)
        })
    }

    /// Polls what its user waits for, and does what is possible only if that is not there yet.
    fn ask_then_attend<T>(
        &self,
        cx: &mut Context<'_>,
        mut asks: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.0.bell.attend(cx, |cx| {
            let asked = asks(cx);
            if asked.is_ready() {
                return asked;
            }
            self.poll(cx);
            asks(cx)
        })
    }

    fn poll(&self, cx: &mut Context<'_>) {
        let mut driven = self.lock();
        if let Some(connection) = driven.as_mut()
            && let Poll::Ready(ended) = connection.as_mut().poll(cx)
        {
            *driven = None;
            tell(ended);
        }
    }
}

fn tell(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to a server ended");
    }
}

impl Speaker {
    pub(super) async fn start(stream: Box<dyn Duplex>) -> hyper::Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER).max_header_size(BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let driven: Driven = Box::pin(connection.with_upgrades());
        Ok(Self { sender, driver: Driver::new(driven), task: None })
    }

    /// Sends a request. What it returns gives the head of its answer.
    pub(super) fn send(&mut self, request: Request<Moving>) -> Awaited {
        if !request.body().is_end_stream() {
            // It goes on to be sent while a client does not read the answer that came before its end.
            self.detach();
        }
        let answer = Box::pin(self.sender.try_send_request(request));
        Awaited { answer, driver: Some(self.driver.clone()) }
    }

    /// An answer whose body brings the connection on.
    pub(super) fn coming(&mut self, answer: Response<Incoming>) -> Response<Coming> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            // It ends by leaving what it carries to its user, who waits for that.
            self.detach();
        }
        answer.map(|incoming| Coming { incoming, driver: Some(self.driver.clone()) })
    }

    /// Whether it takes a request now. Nobody is woken by the request that comes next.
    pub(super) fn is_ready(&self) -> bool {
        self.look();
        self.sender.is_ready()
    }

    /// Waits until it takes a request.
    pub(super) async fn ready(&mut self) -> hyper::Result<()> {
        // Mostly it does.
        if self.is_ready() {
            return Ok(());
        }
        let (driver, sender) = (&self.driver, &mut self.sender);
        poll_fn(|cx| driver.attend(cx, |cx| sender.poll_ready(cx))).await
    }

    /// Whether it was ready for a request when it moved last: it is as soon as an answer has come whole and
    /// the connection can carry another one. What the server has said or done since then is not known.
    pub(super) fn was_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Looks what has come while nobody waited.
    pub(super) fn look(&self) {
        self.driver.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Whether it takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.look();
        self.sender.is_closed()
    }

    /// From now on it moves by itself.
    fn detach(&mut self) {
        let Some(connection) = self.driver.lock().take() else { return };
        let task = tokio::spawn(FutureExt::boxed(async move { tell(connection.await) }));
        self.task = Some(task.abort_handle());
    }

    /// Closes the connection, whatever is under way on it.
    pub(super) fn hang_up(&self) {
        // Else it would wait for a network that may be gone, or live on with the body of an answer.
        self.driver.lock().take();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// The head of an answer, or why there is none, with the request if nothing of it went out.
type Answered = Result<Response<Incoming>, TrySendError<Request<Moving>>>;

/// A request that waits for the head of its answer. The request that may come back is on the heap: what waits
/// for this moves from hand to hand, and is small.
pub(super) struct Awaited {
    answer: Pin<Box<dyn Future<Output = Answered> + Send>>,
    /// `None`: it went out over HTTP/2, whose connection moves by itself.
    driver: Option<Driver>,
}

impl Awaited {
    /// One over HTTP/2.
    pub(super) fn over_http2(answer: impl Future<Output = Answered> + Send + 'static) -> Self {
        Self { answer: Box::pin(answer), driver: None }
    }
}

impl Future for Awaited {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let Self { answer, driver } = &mut *self;
        match driver {
            Some(driver) => driver.attend(cx, |cx| answer.as_mut().poll(cx)),
            None => answer.as_mut().poll(cx),
        }
    }
}

/// The body of an answer, as it comes.
pub(super) struct Coming {
    incoming: Incoming,
    /// `None`: it is of HTTP/2, whose connection moves by itself.
    driver: Option<Driver>,
}

impl Coming {
    /// One over HTTP/2.
    pub(super) fn over_http2(incoming: Incoming) -> Self {
        Self { incoming, driver: None }
    }

    /// Whether nothing is missing of what has ended. A stream of HTTP/2 that its server takes back without an
    /// error ends for hyper as one that is whole (RFC 9113, §8.1).
    pub(super) fn is_whole(&self) -> bool {
        self.driver.is_some() || self.incoming.is_end_stream()
    }
}

impl Body for Coming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, driver } = &mut *self;
        match driver {
            Some(driver) => driver.ask_then_attend(cx, |cx| Pin::new(&mut *incoming).poll_frame(cx)),
            None => Pin::new(incoming).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use http_body_util::{BodyExt as _, Either, Empty};
    use hyper::header::HeaderValue;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    fn request() -> Request<Moving> {
        let mut request = Request::new(Moving::new(Either::Right(Empty::new()), Arc::default()));
        request.headers_mut().insert("host", HeaderValue::from_static("server.example"));
        request
    }

    /// Reads the head of a request, and says this.
    async fn say(server: &mut DuplexStream, says: &str) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
        server.write_all(says.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn it_takes_the_next_request_right_behind_an_answer_and_sees_an_end_that_nobody_waited_for() {
        let (stream, mut server) = tokio::io::duplex(1 << 20);
        let mut speaker = Speaker::start(Box::new(stream)).await.unwrap();
        for (says, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"),
            ("HTTP/1.1 204 No Content\r\n\r\n", ""),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
                "hello",
            ),
            ("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        ] {
            let sending = speaker.send(request());
            let (sent, ()) = tokio::join!(sending, say(&mut server, says));
            let Ok(answer) = sent else { panic!("no answer came of {says:?}") };
            let read = speaker.coming(answer).into_body().collect().await.unwrap().to_bytes();
            assert_eq!(read, body.as_bytes(), "{says:?}");
            assert!(speaker.was_ready(), "it can be kept without a look: {says:?}");
            // What a task may do at once is counted, and it has read byte by byte.
            tokio::task::yield_now().await;
            assert!(!speaker.is_closed(), "{says:?}");
            assert!(speaker.ready().now_or_never().is_some_and(|ready| ready.is_ok()), "{says:?}");
        }
        assert!(speaker.task.is_none(), "nothing was to be sent that it has to move for");
        drop(server);
        tokio::task::yield_now().await;
        assert!(speaker.was_ready() && !speaker.is_ready(), "an end is seen by a look");
        assert!(speaker.is_closed());
    }

    #[tokio::test]
    async fn what_cannot_carry_another_answer_is_not_ready_for_a_request() {
        for says in [
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            // Whose answer would that be?
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 204 No Content\r\n\r\n",
        ] {
            let (stream, mut server) = tokio::io::duplex(1 << 20);
            let mut speaker = Speaker::start(Box::new(stream)).await.unwrap();
            let sending = speaker.send(request());
            let (sent, ()) = tokio::join!(sending, say(&mut server, says));
            let Ok(answer) = sent else { panic!("no answer came of {says:?}") };
            let read = speaker.coming(answer).into_body().collect().await.unwrap().to_bytes();
            assert_eq!(read, &b"hello"[..], "{says:?}");
            tokio::task::yield_now().await;
            assert!(!speaker.is_ready(), "{says:?}");
        }
    }

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn its_user_is_woken_for_what_the_server_says_and_not_for_what_it_does_itself() {
        let (stream, mut server) = tokio::io::duplex(1 << 20);
        let mut speaker = Speaker::start(Box::new(stream)).await.unwrap();
        let task = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&task));
        let (mut cx, woken) = (Context::from_waker(&waker), || task.0.load(Ordering::SeqCst));
        for answers in 1..=3 {
            assert!(speaker.ready().now_or_never().is_some_and(|ready| ready.is_ok()));
            let mut sending = Box::pin(speaker.send(request()));
            assert!(sending.as_mut().poll(&mut cx).is_pending());
            assert_eq!(woken(), answers - 1, "nothing has come");
            say(&mut server, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await;
            // What a task may do at once is counted.
            tokio::task::yield_now().await;
            assert_eq!(woken(), answers);
            let Poll::Ready(Ok(answer)) = sending.as_mut().poll(&mut cx) else { panic!("no answer came") };
            let mut body = Box::pin(speaker.coming(answer).into_body().collect());
            let Poll::Ready(Ok(read)) = body.as_mut().poll(&mut cx) else { panic!("it is not whole") };
            assert_eq!((read.to_bytes().as_ref(), woken()), (&b"hello"[..], answers));
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_let_go_ends_although_the_body_of_an_answer_is_there_still() {
        let (stream, mut server) = tokio::io::duplex(1 << 20);
        let mut speaker = Speaker::start(Box::new(stream)).await.unwrap();
        let sending = speaker.send(request());
        let says = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello";
        let (sent, ()) = tokio::join!(sending, say(&mut server, says));
        let Ok(answer) = sent else { panic!("no answer came") };
        let body = speaker.coming(answer).into_body();
        drop(speaker);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        assert!(body.collect().await.is_err(), "it is not whole");
    }
}
