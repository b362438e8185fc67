//! Connections as values: put to sleep here, woken in another process or on another host.

mod sealed;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::random_bytes;
use whimbrel_proto::{Connection as Engine, Side};

use self::sealed::Contents;
use crate::attend::spawn_driver;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, start_listening};
use crate::endpoint_core::EndpointCore;
use crate::error::{ResumeError, SuspendError};
use crate::locator::Locator;
use crate::notices;
use crate::registry::Added;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::supply::Supply;
use crate::whereabouts::Nearness;

/// How long a connection that was suspended in this process may take to leave its endpoint.
const LEAVING: Duration = Duration::from_secs(2);

/// A connection that was put to sleep: bytes, encrypted and authenticated for the identity that had it.
///
/// They hold all that the connection is: what was written and not acknowledged, what arrived and was not read,
/// its streams and messages, its secret. Of several copies that are [resumed](Endpoint::resume) the peer takes
/// the first; the others end with [`CloseCode::SUPERSEDED`](crate::CloseCode::SUPERSEDED).
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
    /// Puts the connection to sleep: tells the peer, gives all paths up, and returns the connection as a value.
    /// Every handle of it here fails from then on, with [`CloseCode::SUSPENDED`](crate::CloseCode::SUSPENDED); the peer's go on, and what
    /// the peer writes waits. If the peer can't be told within `limit`, it finds out by itself. If this is dropped
    /// before it returns the connection goes on, though the peer may have been told that it sleeps.
    ///
    /// # Errors
    /// [`SuspendError`] if the peer has not accepted yet, or the connection is over.
    pub async fn suspend(&self, limit: Duration) -> Result<Suspended, SuspendError> {
        let shared = self.shared();
        if let Some(reason) = shared.close_reason() {
            return Err(SuspendError::Closed(reason));
        }
        if !shared.lock().engine.is_established() {
            return Err(SuspendError::NotEstablished);
        }
        shared.with(|state| state.engine.suspend());
        let told = async {
            loop {
                let changed = shared.news.of_paths();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if shared.with(|state| state.engine.may_detach() || state.engine.is_closed()) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(limit, told).await;
        self.write_down()
    }

    fn write_down(&self) -> Result<Suspended, SuspendError> {
        let shared = self.shared();
        let places = shared.remote().into_iter().flat_map(Locator::pack).collect();
        let written = shared.with(|state| {
            let snapshot = state.engine.put_to_sleep(Instant::now())?;
            let (notice_targets, nearness) = (state.notice_addresses(), state.nearness.flags());
            Some(Contents { name: self.name().cloned(), places, notice_targets, nearness, snapshot })
        });
        match (written, shared.close_reason()) {
            (Some(contents), _) => Ok(Suspended(contents.seal(&shared.key))),
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
    /// [`Connection::streams`]. Returns at once: a side that dialled dials again, one that listened calls its
    /// client and waits, both for as long as the connection may be without contact. If another copy was quicker
    /// the connection ends with [`CloseCode::SUPERSEDED`](crate::CloseCode::SUPERSEDED).
    ///
    /// # Errors
    /// [`ResumeError`] if these are not the bytes of a connection of this identity, or there is no room.
    pub async fn resume(&self, suspended: &Suspended) -> Result<Connection, ResumeError> {
        let core = self.inner();
        if core.is_closed() {
            return Err(ResumeError::EndpointClosed);
        }
        let contents = Contents::open(&suspended.0, &core.key)?;
        let config = core.engine_config(contents.name.as_ref());
        let engine = Engine::restore(config, &contents.snapshot, random_bytes(), Instant::now())
            .map_err(ResumeError::Snapshot)?;
        match engine.side() {
            Side::Client => Ok(dial_again(core, engine, contents)),
            Side::Server => call_client(core, engine, contents).await,
        }
    }
}

fn dial_again(core: &Arc<EndpointCore>, engine: Engine, contents: Contents) -> Connection {
    let places = Locator::list(&contents.places);
    let shared = core.shared(engine, places);
    let told = core.notice_addresses();
    shared.with(|state| state.engine.set_notice_addresses(told));
    core.registry.add_dialled(&shared);
    // It goes on in tasks of its own.
    drop(Supply::new(core, &shared, contents.name.clone()));
    Connection::new(shared, contents.name)
}

async fn call_client(
    core: &Arc<EndpointCore>,
    engine: Engine,
    contents: Contents,
) -> Result<Connection, ResumeError> {
    start_listening(core)?;
    let shared = core.shared(engine, Vec::new());
    shared.with(|state| {
        state.nearness = Nearness::from_flags(contents.nearness);
        state.set_notice_addresses(contents.notice_targets);
    });
    register(core, &shared).await?;
    spawn_driver(core, &shared);
    tokio::spawn(notices::tell(core.clone(), shared.clone()));
    Ok(Connection::new(shared, contents.name))
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
