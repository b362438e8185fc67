//! A program's side of the manager's socket.

mod connect;
mod gateway;
mod idle;
pub(crate) mod lines;
mod link;
mod message;
mod pool;
mod race;
mod steering;
mod watching;

pub use connect::{Candidate, Connected};
pub use gateway::GatewayOr;
pub use pool::{Pool, Pooled};
pub use watching::Watcher;

use crate::protocol::{Ask, Report, Request, Verdict};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use link::Link;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// For a report that nobody waits for.
const REPORT: Duration = Duration::from_secs(2);
/// Reports, and ways that were overtaken, that are under way beside what the program does. More are left out.
const BESIDE: usize = 1024;
/// How long a decision may take, names included, before the system's way is gone.
const LIMIT: Duration = Duration::from_secs(10);
/// A manager that was not there is looked for again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// One that did not answer in time hangs, and holds nobody else up during this time.
const HANGS: Duration = Duration::from_secs(30);

/// The socket of this user's manager: `$XDG_RUNTIME_DIR/whimbrel/access`, or `/tmp/whimbrel-UID/access`.
pub fn socket_path() -> PathBuf {
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() => directory.join("whimbrel"),
        _ => PathBuf::from(format!("/tmp/whimbrel-{}", rustix::process::getuid().as_raw())),
    };
    directory.join("access")
}

/// The socket of the manager that serves all users of this host. It is asked where the user has none.
pub fn host_socket_path() -> PathBuf {
    PathBuf::from("/run/whimbrel/access")
}

/// Why there is no answer of a manager.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No manager listens on the socket.
    #[error("no manager answers on {socket}: {source}; start one with `whimbrel access serve`")]
    Absent {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody else listens, who might send this program's traffic anywhere.
    #[error("{socket} is user {uid}'s, and no manager of yours or of root; remove it")]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The manager went away, or does not answer in time.
    #[error("the manager does not answer any more: {0}")]
    Lost(io::Error),
    /// The manager, or what this program asks of it, is too busy for this question. It may be asked again.
    #[error("{0}")]
    Busy(String),
    /// The manager refuses the question.
    #[error("{0}")]
    Refused(String),
    /// The manager found no way. Why, in words.
    #[error("no way leads to {to}: {why}")]
    NoWay {
        /// Where to.
        to: String,
        /// Why.
        why: String,
    },
    /// It is no host of DNS: an endpoint of the program's own, and no socket, leads there.
    #[error("{to} has no address; connect to {endpoint} by Whimbrel, as `whimbrel pipe` does")]
    ByWhimbrel {
        /// Where to.
        to: String,
        /// The name of the endpoint.
        endpoint: String,
    },
    /// All ways were tried.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// Where to.
        to: String,
        /// What the system said of the last one.
        source: io::Error,
    },
}

/// A client of a manager, for as many questions as one likes at the same time. Clones share one connection.
///
/// It connects when it is first asked something, and again after the manager was restarted. Where there is
/// none, [`Client::connect`], [`Client::resolve`] and [`Pool::request`] go the system's way, and say so once
/// in the log.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// The program goes through a gateway where a manager does not say otherwise.
    is_beside_gateway: bool,
}

struct Inner {
    socket: PathBuf,
    /// The socket of another manager, which is asked where there is none on the first.
    or: Option<PathBuf>,
    state: Mutex<State>,
    opening: tokio::sync::Mutex<()>,
    is_told: AtomicBool,
    beside: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// A manager is not looked for before this time.
    not_before: Option<Instant>,
}

impl Default for Client {
    fn default() -> Self {
        Self::at_either(&socket_path(), &host_socket_path())
    }
}

impl Client {
    /// A client of the manager with this socket.
    pub fn at(socket: &Path) -> Self {
        Self::new(socket, None)
    }

    /// A client of the manager with the first socket, or, where there is none, of that with the other.
    pub fn at_either(socket: &Path, or: &Path) -> Self {
        Self::new(socket, Some(or.to_owned()))
    }

    fn new(socket: &Path, or: Option<PathBuf>) -> Self {
        let inner = Inner {
            socket: socket.to_owned(),
            or,
            state: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            is_told: AtomicBool::new(false),
            beside: Arc::new(Semaphore::new(BESIDE)),
        };
        Self { inner: Arc::new(inner), is_beside_gateway: false }
    }

    /// A client that asks nobody: the system chooses, and nothing is said of that.
    pub fn off() -> Self {
        let client = Self::at(Path::new(""));
        client.inner.is_told.store(true, Ordering::Relaxed);
        client
    }

    /// Asks which way something is to go.
    ///
    /// # Errors
    /// [`ClientError::Absent`], [`ClientError::Stranger`], [`ClientError::Lost`] or [`ClientError::Refused`].
    pub async fn ask(&self, ask: Ask) -> Result<Verdict, ClientError> {
        let answer = self.exchange(Request { ask: Some(ask), ..Request::default() }).await?;
        answer.decision.ok_or_else(|| ClientError::Refused("the answer is no decision".to_owned()))
    }

    /// Tells what became of something, or what this program measured.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub async fn report(&self, report: Report) -> Result<(), ClientError> {
        self.exchange(Request { report: Some(report), ..Request::default() }).await.map(drop)
    }

    /// Tells the manager something without holding anybody up. Too much at once is left out, and all of it
    /// without a runtime.
    pub fn tell(&self, report: Report) {
        self.beside(|client| async move {
            // It is for others: what is lost is measured or forgotten.
            let _ = tokio::time::timeout(REPORT, client.report(report)).await;
        });
    }

    /// Does something beside, unless there is no runtime any more, or too much is done beside already.
    fn beside<F: Future<Output = ()> + Send + 'static>(&self, what: impl FnOnce(Self) -> F) {
        let permit = Arc::clone(&self.inner.beside).try_acquire_owned();
        if let (Ok(permit), Ok(runtime)) = (permit, Handle::try_current()) {
            let doing = what(self.clone());
            runtime.spawn(FutureExt::boxed(async move {
                doing.await;
                drop(permit);
            }));
        }
    }

    // Made here, and not inlined: async code of this crate that another one polls is compiled there once
    // more.
    #[inline(never)]
    fn exchange(&self, request: Request) -> BoxFuture<'_, Result<crate::protocol::Answer, ClientError>> {
        Box::pin(self.exchange_now(request))
    }

    async fn exchange_now(&self, request: Request) -> Result<crate::protocol::Answer, ClientError> {
        let link = self.link().await?;
        let answer = tokio::time::timeout(LIMIT, link.exchange(request)).await;
        let answer = answer.unwrap_or_else(|_| {
            let mut state = self.state();
            // Unless there is another one meanwhile.
            if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, &link)) {
                *state = State { link: None, not_before: Some(Instant::now() + HANGS) };
            }
            Err(io::ErrorKind::TimedOut.into())
        });
        match answer {
            Ok(answer) => match answer.error {
                Some(error) if answer.busy => Err(ClientError::Busy(error)),
                Some(error) => Err(ClientError::Refused(error)),
                None => Ok(answer),
            },
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(ClientError::Busy(error.to_string()))
            }
            Err(error) => Err(ClientError::Lost(error)),
        }
    }

    /// The connection to the manager, opened anew if it is not there.
    async fn link(&self) -> Result<Arc<Link>, ClientError> {
        if let Some(link) = self.living() {
            return Ok(link);
        }
        // One attempt for all that ask at the same time.
        let _one = self.inner.opening.lock().await;
        if let Some(link) = self.living() {
            return Ok(link);
        }
        if self.state().not_before.is_some_and(|at| Instant::now() < at) {
            let source = io::ErrorKind::NotConnected.into();
            return Err(ClientError::Absent { socket: self.inner.socket.clone(), source });
        }
        let opened = self.open().await;
        let mut state = self.state();
        state.not_before = opened.is_err().then(|| Instant::now() + AGAIN);
        let link = Arc::new(Link::over(opened?, Arc::new(self.ends())));
        state.link = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Ends units of which nobody heard, as long as this client is there.
    fn ends(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let inner = Arc::downgrade(&self.inner);
        move |unit| {
            if let Some(inner) = inner.upgrade() {
                Self { inner, is_beside_gateway: false }.ended(unit);
            }
        }
    }

    /// Connects to a manager.
    async fn open(&self) -> Result<UnixStream, ClientError> {
        let opened = lines::open(&self.inner.socket).await;
        match (&self.inner.or, opened) {
            (Some(or), Err(absent @ ClientError::Absent { .. })) => {
                let is_absent = |error: &ClientError| matches!(error, ClientError::Absent { .. });
                lines::open(or).await.map_err(|error| if is_absent(&error) { absent } else { error })
            }
            (_, opened) => opened,
        }
    }

    fn living(&self) -> Option<Arc<Link>> {
        self.state().link.clone().filter(|link| link.lives())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says once that the system decides; of a manager that is busy only to those who look closely.
    fn tell_once(&self, error: &ClientError) {
        if matches!(error, ClientError::Busy(_)) {
            tracing::debug!(%error, "the system chooses the network for one connection");
        } else if !self.inner.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the system chooses the network for this program's connections");
        }
    }
}
