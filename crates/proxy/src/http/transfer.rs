//! What of HTTPS that ends here is under way to a program, and can go on at another device: that one asks the
//! server for what the program does not have. Until it has it, this one only waits.

use super::validator::Span;
use super::watched::Traffic;
use super::web_object::WebObject;
use crate::{Destination, UnderWay};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderMap};
use hyper::{Method, Request, StatusCode};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// With less of it nothing is told: it is over before anybody could take it.
const LEAST: u64 = 256 << 10;
/// For a program to read what it was sent.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(10);

/// Why an answer stays on this device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StaysHere {
    /// It has an effect, or may have one, or it was asked with a body.
    #[error("this answers a {0}, and only what a GET asks for can be asked for again")]
    Method(String),
    /// It is not the body of an object, or nobody knows how long it is.
    #[error("the server does not say how long this is, so that nobody can ask for the rest")]
    Length,
    /// Nothing says which version of the object it is.
    #[error(
        "the server does not say which version this is (a strong ETag, or a Last-Modified that is a minute \
         old), so that the rest may be of another one"
    )]
    Version,
    /// The server has said so.
    #[error("the server gives no parts of this (Accept-Ranges: none)")]
    Parts,
    /// It reads too slowly, or not at all.
    #[error("the program does not read what it was sent; try again when it does")]
    NotRead,
    /// It is not on this host, or this is not Linux.
    #[error("how much of it the program has is not known: it is on another host, or the system is not Linux")]
    Unknown,
    /// There is nothing left, or nobody who wants it.
    #[error("it is over: the program has all of it, or has left")]
    Over,
}

/// A client whose requests are followed.
pub(super) struct Client {
    pub(super) told: mpsc::Sender<WebTransfer>,
    /// Both ends of its socket.
    pub(super) ends: (SocketAddr, SocketAddr),
    /// What is said within its TLS.
    pub(super) traffic: Arc<Traffic>,
}

/// A request whose answer is to be followed.
pub(super) struct Asked {
    client: Arc<Client>,
    to: Destination,
    method: Method,
    has_body: bool,
    path: String,
    headers: HeaderMap,
}

impl Asked {
    pub(super) fn new(client: Arc<Client>, to: &Destination, request: &Request<Incoming>) -> Self {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let has_body = !request.body().is_end_stream();
        Self { client, to: to.clone(), method, has_body, path, headers }
    }

    /// Follows its answer, of whose body so many bytes come. `None`: it is not worth it.
    pub(super) fn answered(
        self,
        (status, headers): (StatusCode, &HeaderMap),
        length: Option<u64>,
    ) -> Option<Box<Follow>> {
        let is_object = matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT);
        if !is_object || self.method == Method::HEAD || length.is_some_and(|length| length < LEAST) {
            return None;
        }
        let wanted = self.object((status, headers), length);
        let place = WebObject::shown(&self.to, &self.path);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            passed: Arc::default(),
            pieces: Arc::default(),
            body: AtomicWaker::new(),
            client: Arc::clone(&self.client),
        });
        let untold = Some(Box::new(Untold { place, wanted }));
        Some(Box::new(Follow { shared, untold, _alive: None }))
    }

    fn object(
        &self,
        (status, headers): (StatusCode, &HeaderMap),
        length: Option<u64>,
    ) -> Result<WebObject, StaysHere> {
        if self.method != Method::GET {
            return Err(StaysHere::Method(self.method.to_string()));
        }
        if self.has_body {
            return Err(StaysHere::Method("GET with a body".to_owned()));
        }
        let length = length.ok_or(StaysHere::Length)?;
        if headers.get(ACCEPT_RANGES).is_some_and(|unit| unit.as_bytes().eq_ignore_ascii_case(b"none")) {
            return Err(StaysHere::Parts);
        }
        let (bytes, total) = match status {
            StatusCode::PARTIAL_CONTENT => {
                let span = Span::of(headers).filter(|span| span.len() == length);
                let span = span.ok_or(StaysHere::Length)?;
                (span.first..span.last + 1, span.total)
            }
            _ if headers.contains_key(CONTENT_RANGE) => return Err(StaysHere::Length),
            _ => (0..length, length),
        };
        let asked = (&self.to, &self.path[..], &self.headers);
        WebObject::new(asked, headers, bytes, total).ok_or(StaysHere::Version)
    }
}

/// What is told of an answer once it is large enough.
struct Untold {
    place: String,
    wanted: Result<WebObject, StaysHere>,
}

/// The side of a body that is followed.
pub(super) struct Follow {
    shared: Arc<Shared>,
    untold: Option<Box<Untold>>,
    /// Ends with the body.
    _alive: Option<oneshot::Sender<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Bytes of the body that HTTP was given.
    passed: Arc<AtomicU64>,
    /// Each piece that HTTP has not written yet holds one of these.
    pieces: Arc<()>,
    /// Who asks for the body.
    body: AtomicWaker,
    client: Arc<Client>,
}

#[derive(Default)]
struct State {
    /// Nothing more is to be given.
    is_halted: bool,
    /// And whoever asks for the body knows that.
    waits: bool,
    /// It goes on elsewhere.
    has_left: bool,
}

/// A piece that HTTP has not written yet.
struct Piece {
    bytes: Bytes,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Follow {
    /// Whether the body may be asked for its next piece: false once it goes on elsewhere.
    pub(super) fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.shared.body.register(cx.waker());
        let mut state = self.shared.lock();
        if state.has_left {
            return Poll::Ready(false);
        }
        state.waits = state.is_halted;
        if state.waits { Poll::Pending } else { Poll::Ready(true) }
    }

    /// A piece on its way to the program.
    pub(super) fn passed(&mut self, bytes: Bytes) -> Bytes {
        let length = bytes.len() as u64;
        let passed = self.shared.passed.fetch_add(length, Ordering::SeqCst) + length;
        if passed >= LEAST
            && let Some(untold) = self.untold.take()
        {
            let (alive, ended) = oneshot::channel();
            let Untold { place, wanted } = *untold;
            let transfer = WebTransfer { shared: Arc::clone(&self.shared), place, wanted, ended };
            // Where too many are told at once, this one stays.
            if self.shared.client.told.try_send(transfer).is_ok() {
                self._alive = Some(alive);
            }
        }
        Bytes::from_owner(Piece { bytes, _held: Arc::clone(&self.shared.pieces) })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.body.wake();
    }

    /// Waits until the program has read everything that the body gave, which gives no more.
    async fn is_read(self: &Arc<Self>) -> Result<(), StaysHere> {
        while !self.lock().waits || Arc::strong_count(&self.pieces) > 1 {
            self.body.wake();
            self.look_again().await?;
        }
        let Client { ends: (here, there), traffic, .. } = &*self.client;
        // HTTP has written all pieces, as far as it knows.
        traffic.flushed().ask();
        loop {
            if traffic.flushed().is_so() {
                let under_way = UnderWay::between(*here, *there).ok_or(StaysHere::Unknown)?;
                if under_way.to_program == 0 {
                    return Ok(());
                }
            }
            self.look_again().await?;
        }
    }

    /// A little later. The body may have ended by then: nobody else shares this.
    async fn look_again(self: &Arc<Self>) -> Result<(), StaysHere> {
        tokio::time::sleep(LOOK).await;
        if Arc::strong_count(self) > 1 { Ok(()) } else { Err(StaysHere::Over) }
    }
}

/// An answer of HTTPS that ended in the proxy, on its way to a program.
pub struct WebTransfer {
    shared: Arc<Shared>,
    place: String,
    wanted: Result<WebObject, StaysHere>,
    ended: oneshot::Receiver<()>,
}

impl WebTransfer {
    /// Where it comes from, for people: without the query, which may have secrets.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Bytes of it that are under way to the program, or there: they become more.
    pub fn passed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.passed)
    }

    /// Waits for its end, however that comes. Cancel-safe; not to be called again.
    pub async fn ended(&mut self) {
        // Nothing is sent: the other side is dropped.
        let _ = (&mut self.ended).await;
    }

    /// Halts it until the program has all that it was sent, which takes ten seconds at most. It goes on when
    /// what is returned is dropped, or this is.
    ///
    /// # Errors
    /// Why it stays here. It goes on then.
    pub async fn halt(&self) -> Result<Halted<'_>, StaysHere> {
        let wanted = self.wanted.clone()?;
        self.shared.set(State { is_halted: true, ..State::default() });
        let resumes = Resumes(&self.shared);
        tokio::time::timeout(LIMIT, self.shared.is_read()).await.map_err(|_| StaysHere::NotRead)??;
        let object = wanted.after(self.shared.passed.load(Ordering::SeqCst)).ok_or(StaysHere::Over)?;
        Ok(Halted { object, resumes })
    }
}

/// An answer that goes on here when this is dropped.
pub struct Halted<'a> {
    object: WebObject,
    resumes: Resumes<'a>,
}

struct Resumes<'a>(&'a Shared);

impl Drop for Resumes<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if !state.has_left {
            *state = State::default();
        }
        drop(state);
        self.0.body.wake();
    }
}

impl Halted<'_> {
    /// What another device needs to ask for the rest.
    pub fn object(&self) -> &WebObject {
        &self.object
    }

    /// It goes on at another device: for the program here it breaks.
    pub fn leave(self) {
        self.resumes.0.set(State { has_left: true, ..State::default() });
    }
}
