//! Connections as values: put to sleep here, woken in another process or on another host.

mod live;
mod sealed;
mod waking;

use futures_util::FutureExt;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::{EndpointId, random_bytes};
use whimbrel_proto::{Assignment, Connection as Engine, Side};

use self::sealed::Contents;
pub use self::waking::Waking;
use crate::attend::spawn_driver;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, start_listening};
use crate::endpoint_core::EndpointCore;
use crate::error::{ResumeError, SuspendError};
use crate::locator::Locator;
use crate::manager::Kept;
use crate::notices;
use crate::registry::Added;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::supply::Supply;
use crate::whereabouts::Nearness;

/// Decodes whatever comes as a connection that sleeps, and as what is said when one is handed over. For
/// fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    sealed::decode_anything(bytes);
    live::decode_anything(bytes);
}

/// How long a connection that was suspended in this process may take to leave its endpoint.
const LEAVING: Duration = Duration::from_secs(2);
/// How often it is looked whether the peer has acknowledged something that nothing else tells of.
const LOOK: Duration = Duration::from_millis(10);

/// A connection that was put to sleep: bytes, encrypted and authenticated for the identity that had it, or
/// [for another one](Connection::suspend_for).
///
/// They hold all that the connection is: what was written and not acknowledged, what arrived and was not
/// read, its streams and messages, its secret. Of several copies that are [resumed](Endpoint::resume) the
/// peer takes the first; the others end with [`CloseCode::SUPERSEDED`](crate::CloseCode::SUPERSEDED).
#[derive(Clone, PartialEq, Eq)]
pub struct Suspended(Vec<u8>);

impl Suspended {
    /// The bytes, to be kept or sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, to be kept or sent.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Takes bytes that were kept. Whether they are what they should be shows when they are resumed.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Suspended({} bytes)", self.0.len())
    }
}

impl Connection {
    /// Puts the connection to sleep: tells the peer, gives all paths up, and returns the connection as a
    /// value. Every handle of it here fails from then on, with
    /// [`CloseCode::SUSPENDED`](crate::CloseCode::SUSPENDED); the peer's go on, and what the peer writes
    /// waits. If the peer can't be told within `limit`, it finds out by itself. If this is dropped before it
    /// returns the connection goes on, though the peer may have been told that it sleeps.
    ///
    /// # Errors
    /// [`SuspendError`] if the peer has not accepted yet, or the connection is over.
    pub async fn suspend(&self, limit: Duration) -> Result<Suspended, SuspendError> {
        self.check_established()?;
        self.leave(limit).await;
        Ok(Suspended(self.write_down(Engine::put_to_sleep)?.seal(&self.shared().key)))
    }

    /// As [`suspend`](Self::suspend), for another key: only its owner can resume the connection, and this
    /// endpoint can't any more, once the other has. The peer is shown that this key has handed its end over,
    /// asks its own rules whether it is content with the other one
    /// ([`allow_hand_over`](Self::allow_hand_over)), and knows the connection by that key from then on.
    ///
    /// # Errors
    /// As [`suspend`](Self::suspend); [`SuspendError::Unsupported`] if the peer does not know of such a
    /// thing, [`SuspendError::Unheard`] if it could not be told within `limit` that this copy has the
    /// connection, and [`SuspendError::NotAKey`] if `to` is no key, or one of the two ends. The connection
    /// goes on then.
    pub async fn suspend_for(&self, to: EndpointId, limit: Duration) -> Result<Suspended, SuspendError> {
        let start = Instant::now();
        let assignment = self.assign(to, limit).await?;
        let shared = self.shared();
        shared.with(|state| state.engine.announce_owner(assignment.clone(), Vec::new()));
        self.leave(limit.saturating_sub(start.elapsed())).await;
        let contents = self.write_down(Engine::put_to_sleep)?;
        contents.seal_for(&shared.key, &assignment).map(Suspended).ok_or(SuspendError::NotAKey(to))
    }

    /// Signs that this end goes to another key, once the peer knows this copy of it.
    async fn assign(&self, to: EndpointId, limit: Duration) -> Result<Assignment, SuspendError> {
        self.check_established()?;
        let shared = self.shared();
        if to == shared.peer() || to == shared.key.id() || to.to_x25519().is_none() {
            return Err(SuspendError::NotAKey(to));
        }
        if !shared.lock().engine.can_hand_over() {
            return Err(SuspendError::Unsupported);
        }
        self.within(limit, Engine::may_assign).await;
        self.check_established()?;
        let assigned = shared.lock().engine.assign(&shared.key, to);
        assigned.ok_or(SuspendError::Unheard)
    }

    fn check_established(&self) -> Result<(), SuspendError> {
        let shared = self.shared();
        if let Some(reason) = shared.close_reason() {
            return Err(SuspendError::Closed(reason));
        }
        if shared.lock().engine.is_established() { Ok(()) } else { Err(SuspendError::NotEstablished) }
    }

    /// Tells the peer that this side leaves.
    async fn leave(&self, limit: Duration) {
        self.shared().with(|state| state.engine.suspend());
        self.within(limit, Engine::may_detach).await;
    }

    /// Waits until something is so, or the connection is over, or `limit` has passed.
    async fn within(&self, limit: Duration, is_so: impl Fn(&Engine) -> bool) {
        let shared = self.shared();
        let so = async {
            loop {
                let changed = shared.news.of_paths();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if shared.with(|state| is_so(&state.engine) || state.engine.is_closed()) {
                    return;
                }
                // What is acknowledged tells nobody.
                let _ = tokio::time::timeout(LOOK, changed).await;
            }
        };
        let _ = tokio::time::timeout(limit, so).await;
    }

    /// Puts the connection to sleep without a word to the peer.
    pub(crate) fn sleep_unannounced(&self) -> Result<Suspended, SuspendError> {
        Ok(Suspended(self.write_down(Engine::put_to_sleep)?.seal(&self.shared().key)))
    }

    /// Gives all paths up and writes the connection down by `write`.
    fn write_down(
        &self,
        write: impl FnOnce(&mut Engine, Instant) -> Option<Vec<u8>>,
    ) -> Result<Contents, SuspendError> {
        let shared = self.shared();
        let places = shared.remote().into_iter().flat_map(Locator::pack).collect();
        let mut inbox = shared.inbox.open();
        let written = shared.with(move |state| {
            inbox.empty_into(&mut state.engine);
            let snapshot = write(&mut state.engine, Instant::now())?;
            let (notice_targets, nearness) = (state.notice_addresses(), state.nearness.flags());
            let (name, by_ticket) = (self.name().cloned(), self.is_by_ticket());
            Some(Contents { name, places, notice_targets, nearness, by_ticket, snapshot })
        });
        match (written, shared.close_reason()) {
            (Some(contents), _) => Ok(contents),
            (None, Some(reason)) => Err(SuspendError::Closed(reason)),
            (None, None) => Err(SuspendError::NotEstablished),
        }
    }

    /// The streams that were opened or accepted on this side and are not over: how an application comes by
    /// them after [`Endpoint::resume`]. Streams that it had not accepted come by
    /// [`accept_stream`](Self::accept_stream), as always.
    #[must_use]
    pub fn streams(&self) -> Vec<Stream> {
        let ids = self.shared().lock().engine.known_streams();
        ids.into_iter().map(|id| Stream::new(self.handle.clone(), id)).collect()
    }
}

impl Endpoint {
    /// Wakes a connection that was put to sleep, which goes on at the exact byte; its streams are in
    /// [`Connection::streams`], its flows in [`Connection::flows`]. It may have been [handed
    /// over](Connection::suspend_for) to this key by another one. Returns at once: a side that dialled dials
    /// again, one that listened calls its client and waits, both for as long as the connection may be without
    /// contact. If another copy was quicker the connection ends with
    /// [`CloseCode::SUPERSEDED`](crate::CloseCode::SUPERSEDED).
    ///
    /// # Errors
    /// [`ResumeError`] if these are not the bytes of a connection of this identity, or there is no room.
    pub async fn resume(&self, suspended: &Suspended) -> Result<Connection, ResumeError> {
        let core = self.inner();
        let (contents, assignment) = Contents::open_any(&suspended.0, &core.key)?;
        wake(core, contents, assignment, Kept::default()).await
    }
}

/// A connection that this endpoint had, or that another one handed over to it. Its peer may have been dialled
/// `ahead`.
async fn wake(
    core: &Arc<EndpointCore>,
    contents: Contents,
    assignment: Option<Assignment>,
    ahead: Kept,
) -> Result<Connection, ResumeError> {
    if core.life.is_closed() {
        return Err(ResumeError::EndpointClosed);
    }
    let engine = restored(core, &contents, assignment)?;
    match engine.side() {
        Side::Client => Ok(dial_again(core, engine, contents, ahead)),
        Side::Server => call_client(core, engine, contents).await,
    }
}

/// The engine and the rest of what the bytes hold. Nothing happens yet.
fn read(core: &EndpointCore, suspended: &Suspended) -> Result<(Engine, Contents), ResumeError> {
    let (contents, assignment) = Contents::open_any(&suspended.0, &core.key)?;
    Ok((restored(core, &contents, assignment)?, contents))
}

fn restored(
    core: &EndpointCore,
    contents: &Contents,
    assignment: Option<Assignment>,
) -> Result<Engine, ResumeError> {
    let (config, now) = (core.engine_config(contents.name.as_ref()), Instant::now());
    let engine = match assignment {
        None => Engine::restore(config, &contents.snapshot, random_bytes(), now),
        Some(assignment) => {
            Engine::restore_assigned(config, &contents.snapshot, assignment, random_bytes(), now)
        }
    };
    engine.map_err(ResumeError::Snapshot)
}

fn dial_again(core: &Arc<EndpointCore>, engine: Engine, contents: Contents, ahead: Kept) -> Connection {
    let shared = dialling(core, engine, &contents.places);
    core.registry.add_dialled(&shared);
    // It goes on in tasks of its own.
    drop(Supply::with(core, &shared, contents.name.clone(), ahead));
    Connection::new(shared, contents.name)
}

/// A connection that this side had dialled.
fn dialling(core: &EndpointCore, engine: Engine, places: &[SocketAddr]) -> Arc<Shared> {
    let shared = core.shared(engine, Locator::list(places));
    let told = core.notice_addresses();
    shared.with(|state| state.engine.set_notice_addresses(told));
    shared
}

/// A connection that this side had accepted.
fn accepted(core: &EndpointCore, engine: Engine, contents: &Contents) -> Arc<Shared> {
    let shared = core.shared(engine, Vec::new());
    shared.with(|state| {
        state.nearness = Nearness::from_flags(contents.nearness);
        state.set_notice_addresses(contents.notice_targets.clone());
    });
    shared.accepted();
    shared
}

async fn call_client(
    core: &Arc<EndpointCore>,
    engine: Engine,
    contents: Contents,
) -> Result<Connection, ResumeError> {
    start_listening(core)?;
    let shared = accepted(core, engine, &contents);
    register(core, &shared).await?;
    spawn_driver(core, &shared);
    tokio::spawn(FutureExt::boxed(notices::tell(core.clone(), shared.clone())));
    Ok(Connection::accepted(shared, contents.name, contents.by_ticket))
}

/// The same connection may still be leaving.
async fn register(core: &EndpointCore, shared: &Arc<Shared>) -> Result<(), ResumeError> {
    let start = Instant::now();
    loop {
        match core.registry.add_accepted(shared) {
            Added::Yes => return Ok(()),
            Added::Full => return Err(ResumeError::Full),
            Added::Exists(other) if other.close_reason().is_none() || start.elapsed() > LEAVING => {
                return Err(ResumeError::InUse(shared.id));
            }
            Added::Exists(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
