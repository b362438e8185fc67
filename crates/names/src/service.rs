//! The service: a registry on an endpoint, for whoever connects.
//!
//! Who speaks is proved by the connection; a peer may publish about itself only. One task serves a stream,
//! one more each of its requests that is under way (at most [`REQUESTS`]), and one each of its watches. When
//! a peer reads its replies slowly, its requests wait, and nobody else.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use whimbrel_base::{EndpointAddr, EndpointId, SecretKey};
use whimbrel_transport::{
    Allow, CloseCode, Config, Connection, Endpoint, ListenError, ListenOptions, Listener,
};

use crate::admission::Admission;
use crate::clock::now;
use crate::registry::{Limits, Registry};
use crate::smtp::Smtp;
use crate::store::Store;

mod answers;
mod batches;
mod between_users;
mod broken;
mod counters;
mod following;
mod mail;
mod meetings;
mod rates;
mod session;
mod turns;

use self::counters::Counters;
pub use self::counters::ServiceStats;
use self::meetings::Meetings;
pub use self::session::REQUESTS;
use self::turns::Turns;

const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// After an error of the store.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// Connections of one key. A process needs one, and a user may run many commands with one key.
const CONNECTIONS_PER_PEER: usize = 64;
/// Streams of one connection that are served at once: one for questions, news of requests, and meetings.
const STREAMS_PER_CONNECTION: usize = 8;

/// A running name service. It stops when it is dropped, or in order with [`shutdown`](Self::shutdown).
pub struct Service {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// Closes when no task has the registry any more.
    alive: mpsc::Receiver<()>,
}

/// What all tasks of a service use.
struct Shared {
    registry: Registry,
    counters: Counters,
    meetings: Arc<Meetings>,
    turns: Turns,
    peers: Mutex<HashMap<EndpointId, Vec<Connection>>>,
    /// What vouchers are signed with, if any are.
    key: OnceLock<SecretKey>,
    /// By which codes are sent, if any are.
    smtp: OnceLock<Smtp>,
    /// Dropped after the registry, being last.
    _alive: mpsc::Sender<()>,
}

impl Service {
    /// Serves a registry over `store` to everybody who connects to `endpoint`: anybody may look names up, and
    /// those may register new user names whom `admission` names ([`Admission::any`] for tests and services
    /// that only friends reach). Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`] if the endpoint cannot listen, or does already.
    pub async fn start(
        endpoint: Endpoint,
        store: impl Store,
        admission: Admission,
        limits: Limits,
    ) -> Result<Self, ListenError> {
        Self::start_with(endpoint, Registry::new(store, admission, limits)).await
    }

    /// As [`start`](Self::start), over a registry that others use too.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(endpoint: Endpoint, registry: Registry) -> Result<Self, ListenError> {
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
        let (sender, alive) = mpsc::channel(1);
        let (counters, peers) = (Counters::default(), Mutex::default());
        let meetings = Meetings::new(registry.limits().meetings);
        let turns = Turns::new(registry.limits());
        let (key, smtp) = (OnceLock::new(), OnceLock::new());
        let shared =
            Arc::new(Shared { registry, counters, meetings, turns, peers, key, smtp, _alive: sender });
        let mut tasks = JoinSet::new();
        tasks.spawn(FutureExt::boxed(accept(listener, shared.clone())));
        tasks.spawn(FutureExt::boxed(sweep(shared.registry.clone())));
        tasks.spawn(FutureExt::boxed(follow(shared.registry.clone())));
        Ok(Self { endpoint, shared, tasks, alive })
    }

    /// Vouches from now on for those who have names here, with the endpoint's own `key`: they show it to
    /// others, such as relays, who know the service by that key. The first key stays.
    pub fn vouch_with(&self, key: SecretKey) {
        let _ = self.shared.key.set(key);
    }

    /// Sends codes by this relay from now on to those who register user names. The first relay stays. That a
    /// proof is [required](Registry::require_mail) says the registry.
    pub fn mail_with(&self, smtp: Smtp) {
        let _ = self.shared.smtp.set(smtp);
    }

    /// How an endpoint that serves names is best configured: many connections, each with little memory;
    /// whoever was away for longer than an hour connects anew and loses nothing by it.
    pub fn config() -> Config {
        Config {
            linger: Duration::from_secs(60 * 60),
            stream_window: 256 << 10,
            window: 512 << 10,
            stream_send_buffer: 256 << 10,
            send_buffer: 512 << 10,
            max_streams: STREAMS_PER_CONNECTION as u64,
            ..Config::default()
        }
    }

    /// Where it is: to be told to those who use it.
    pub fn addr(&self) -> EndpointAddr {
        self.endpoint.addr()
    }

    /// The endpoint that it answers on.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What it has done so far, and what it is doing.
    pub fn stats(&self) -> ServiceStats {
        ServiceStats { meetings: self.shared.meetings.count() as u64, ..self.shared.counters.read() }
    }

    /// Reads the same from elsewhere, for as long as the service runs; nothing but zeros afterwards.
    pub fn stats_reader(&self) -> impl Fn() -> ServiceStats + Send + Sync + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || match shared.upgrade() {
            Some(shared) => {
                ServiceStats { meetings: shared.meetings.count() as u64, ..shared.counters.read() }
            }
            None => ServiceStats::default(),
        }
    }

    /// The registry that is served.
    pub fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Stops, and tells all peers; waits for them for at most `limit`. Everything that was acknowledged is in
    /// the store, and the store is free for the next service, unless others have the registry too.
    pub async fn shutdown(mut self, limit: Duration) {
        self.tasks.shutdown().await;
        let peers = std::mem::take(&mut *self.shared.peers.lock().await);
        let mut closing = JoinSet::new();
        for connection in peers.into_values().flatten() {
            closing.spawn(FutureExt::boxed(async move {
                // Who doesn't confirm in time finds out by itself.
                let _ = connection.close(CloseCode::GOING_AWAY, "the name service stops", limit).await;
            }));
        }
        closing.join_all().await;
        let Self { shared, mut alive, .. } = self;
        drop(shared);
        if tokio::time::timeout(limit, alive.recv()).await.is_err() {
            tracing::warn!("the store is still busy");
        }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("id", &self.endpoint.id()).finish_non_exhaustive()
    }
}

async fn accept(mut listener: Listener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Some(connection) => {
                    shared.clone().admit(&connection).await;
                    connections.spawn(FutureExt::boxed(serve(connection, shared.clone())));
                }
                None => break,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    // The endpoint is closed: no new ones come, and the present ones end by themselves.
    while connections.join_next().await.is_some() {}
}

impl Shared {
    /// Notes a connection. A process that lost its connection and connects anew would otherwise have its
    /// watches counted twice for as long as the transport keeps the lost one.
    async fn admit(&self, connection: &Connection) {
        let mut peers = self.peers.lock().await;
        let known = peers.entry(connection.peer_id()).or_default();
        let end =
            |connection: &Connection| connection.abort(CloseCode::EVICTED, "replaced by a newer connection");
        known.retain(|connection| {
            let lost = connection.stats().unreachable.is_some();
            if lost {
                end(connection);
            }
            !lost
        });
        if known.len() >= CONNECTIONS_PER_PEER {
            end(&known.remove(0));
        }
        known.push(connection.clone());
        self.counters.connected();
    }

    async fn forget(&self, connection: &Connection) {
        let mut peers = self.peers.lock().await;
        if let Some(known) = peers.get_mut(&connection.peer_id()) {
            known.retain(|other| other.id() != connection.id());
            if known.is_empty() {
                peers.remove(&connection.peer_id());
            }
        }
    }
}

/// Serves a connection until it ends.
async fn serve(connection: Connection, shared: Arc<Shared>) {
    let _counted = shared.counters.connection();
    let mut streams = JoinSet::new();
    while let Ok(stream) = connection.accept_stream().await {
        while streams.try_join_next().is_some() {}
        if streams.len() >= STREAMS_PER_CONNECTION {
            stream.reset(CloseCode::STREAM_LIMIT);
            continue;
        }
        streams.spawn(FutureExt::boxed(session::serve(stream, shared.clone())));
    }
    // What is under way is of no use to a peer that is gone.
    streams.shutdown().await;
    shared.forget(&connection).await;
}

async fn sweep(registry: Registry) {
    loop {
        match registry.sweep(now()).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "names lapsed"),
            Err(error) => tracing::warn!(%error, "cannot sweep"),
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

/// Tells watchers here what other servers on the same store take in.
async fn follow(registry: Registry) {
    let mut cursor = None;
    loop {
        let error = match &mut cursor {
            Some(cursor) => registry.follow_from(cursor).await,
            None => match registry.head().await {
                Ok(head) => {
                    cursor = Some(head);
                    continue;
                }
                Err(error) => error,
            },
        };
        tracing::warn!(%error, "cannot follow the store");
        tokio::time::sleep(STORE_PAUSE).await;
    }
}
