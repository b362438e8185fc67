//! What an application has of its durable messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use whimbrel_base::{EndpointId, random_bytes};
use whimbrel_transport::{Connection, IntoTarget};

use super::change::{Change, Done};
use super::error::StateError;
use super::flow::DurableFlow;
use super::hub::{Hub, Open};
use super::keeper::keep;
use super::link::attach;
use super::message::DurableMessage;
use super::store::Store;
use super::wire::is_label;
use super::{Owed, StateLimits, lock};
use crate::endpoint::Endpoint;

/// Durable messages: what was sent is on the disk, and is delivered although either side is killed or loses
/// its power, once with respect to the receiver's [acknowledgement](DurableMessage::ack).
///
/// It lives in a directory, which one process has open at a time. When it is opened again after a crash it
/// dials the peers that were [dialled](Self::dial) before, and goes on where it was. Cheap to clone; it is
/// closed when the last clone, and the last handle that came of it, is dropped, which waits for the disk.
///
/// ```
/// # use std::path::Path;
/// # use whimbrel::names::{Admission, Limits, MemoryStore, Service};
/// # use whimbrel::{Allow, Endpoint, ListenOptions, SecretKey};
/// # async fn meter(endpoint: Endpoint, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
/// // The side that sends, and dials.
/// let state = endpoint.open_state(folder.join("meter")).await?; // or "/var/lib/meter/state"
/// let readings = state.dial("collector.user@example.org").await?.flow("readings").await?;
/// let receipt = readings.send("20.5").await?; // on the disk
/// receipt.acked().await?; // the collector has dealt with it
/// # Ok(())
/// # }
/// # async fn collector(endpoint: Endpoint, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
/// // The side that receives, and listens.
/// let state = endpoint.open_state(folder.join("collector")).await?;
/// let options = ListenOptions::named("collector.user@example.org").allow(Allow::Any);
/// let mut listener = endpoint.listen(options).await?;
/// let of_connections = state.clone();
/// tokio::spawn(async move {
///     while let Some(connection) = listener.accept().await {
///         if let Err(error) = of_connections.attach(&connection).await {
///             println!("{}: {error}", connection.peer_id());
///         }
///     }
/// });
/// loop {
///     let message = state.recv().await?;
///     println!("{}: {:?}", message.peer(), message.data());
///     message.ack().await?; // it does not come again
/// }
/// # }
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let own = whimbrel::transport::Endpoint::builder().bind().await?;
/// # let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await?;
/// # let [meters, collectors] = [SecretKey::generate(), SecretKey::generate()];
/// # let measuring = Endpoint::builder().identity(meters).names(service.addr()).bind().await?;
/// # let collecting = Endpoint::builder().identity(collectors).names(service.addr()).bind().await?;
/// # collecting.register_user("user@example.org").await?;
/// # let folder = tempfile::tempdir()?;
/// # tokio::select! {
/// #     ended = meter(measuring, folder.path()) => ended,
/// #     failed = collector(collecting, folder.path()) => failed,
/// # }
/// # }
/// ```
#[derive(Clone)]
pub struct State {
    open: Arc<Open>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("file", &self.hub().store.path()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens the durable messages in a directory, and makes it if it is not there: those that wait are sent,
    /// to peers that were [dialled](State::dial) before and to those that come. Connections that are made
    /// from now on can carry durable messages.
    ///
    /// # Errors
    /// [`StateError`], above all if another process has it open, or it is damaged.
    pub async fn open_state(&self, directory: impl AsRef<Path>) -> Result<State, StateError> {
        self.open_state_with(directory, StateLimits::default()).await
    }

    /// As [`open_state`](Self::open_state), with limits of your own.
    ///
    /// # Errors
    /// As [`open_state`](Self::open_state).
    pub async fn open_state_with(
        &self,
        directory: impl AsRef<Path>,
        limits: StateLimits,
    ) -> Result<State, StateError> {
        let directory = directory.as_ref().to_owned();
        let opening = tokio::task::spawn_blocking(move || Store::open(&directory, limits));
        let (store, ledger) = opening.await.unwrap_or(Err(StateError::Stopped))?;
        self.transport().carry_journals();
        let hub = Arc::new(Hub::new(self.clone(), store, ledger));
        let state = State { open: Arc::new(Open(hub)) };
        let targets = lock(&state.hub().ledger).targets();
        for (key, target) in targets {
            let keeper = keep(state.hub().clone(), key.clone(), target.into_target()?);
            state.hub().run_keeper(key, keeper);
        }
        Ok(state)
    }
}

impl State {
    fn hub(&self) -> &Arc<Hub> {
        &self.open.0
    }

    /// A peer that is dialled: from now on, and whenever this state is opened again, a connection to it is
    /// kept, until it is [forgotten](DurablePeer::forget). Does not wait until it is reached. Cancel-safe.
    ///
    /// # Errors
    /// [`StateError`] if it is not clear whom to dial, or the disk does not take it.
    pub async fn dial(&self, target: impl IntoTarget) -> Result<DurablePeer, StateError> {
        let target = target.into_target()?;
        let text = target.to_string();
        let key = target.id().map_or_else(|| text.clone(), |id| id.to_string());
        let hub = self.hub();
        let _adding = hub.adding.lock().await;
        let known = lock(&hub.ledger).peer(&key).map(|(dialled, id)| (dialled == Some(&*text), id));
        if known.is_none_or(|(as_before, _)| !as_before) {
            let id = target.id().or(known.and_then(|(_, id)| id));
            self.add(key.clone(), Some(text), id).await?;
            hub.run_keeper(key.clone(), keep(hub.clone(), key.clone(), target));
        }
        Ok(DurablePeer { open: self.open.clone(), key })
    }

    /// A peer that comes by itself: what is sent to it waits until a connection of it is
    /// [attached](Self::attach). Cancel-safe.
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it.
    pub async fn expect(&self, peer: EndpointId) -> Result<DurablePeer, StateError> {
        let (hub, key) = (self.hub(), peer.to_string());
        let _adding = hub.adding.lock().await;
        let known = lock(&hub.ledger).peer(&key).is_some();
        if !known {
            self.add(key.clone(), None, Some(peer)).await?;
        }
        Ok(DurablePeer { open: self.open.clone(), key })
    }

    async fn add(
        &self,
        key: String,
        target: Option<String>,
        id: Option<EndpointId>,
    ) -> Result<(), StateError> {
        let hub = self.hub();
        let is_new = lock(&hub.ledger).peer(&key).is_none();
        let admit = || if is_new { lock(&hub.ledger).check_room_for_peer() } else { Ok(()) };
        hub.store.write(Change::Peer { key, target, id }, admit).await.map(drop)
    }

    /// Has a connection carry durable messages, both ways: one that was accepted, or dialled otherwise. It
    /// stays the application's for everything else, and lives until either side closes it. Waits only until
    /// it is established. Cancel-safe.
    ///
    /// # Errors
    /// [`StateError::Unsupported`] unless both sides opened their state before the connection was made;
    /// [`StateError::Closed`] if it is over.
    pub async fn attach(&self, connection: &Connection) -> Result<(), StateError> {
        attach(self.hub(), connection).await
    }

    /// The next message, of whichever peer and flow; those of one flow in the order sent. It comes again,
    /// when the state is opened the next time, unless it is [acknowledged](DurableMessage::ack). At most 1024
    /// messages, or a mebibyte, of a flow are out unacknowledged: then its next ones wait. Cancel-safe.
    ///
    /// # Errors
    /// [`StateError::Stopped`] once the state is closed.
    pub async fn recv(&self) -> Result<DurableMessage, StateError> {
        let arrivals = lock(&self.hub().ledger).arrivals();
        loop {
            let arrived = arrivals.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if let Some(message) = lock(&self.hub().ledger).take()? {
                return Ok(DurableMessage::new(self.open.clone(), message));
            }
            arrived.await;
        }
    }

    /// Writes what waits for the disk, and closes the state: its directory is free afterwards. Handles fail
    /// from then on. What was not delivered is sent when the state is opened again.
    pub async fn close(self) {
        let hub = self.hub().clone();
        // A panic there has been told of.
        let _ = tokio::task::spawn_blocking(move || hub.shut()).await;
    }
}

/// A peer that durable messages are for. Cheap to clone.
#[derive(Clone)]
pub struct DurablePeer {
    open: Arc<Open>,
    key: String,
}

impl fmt::Debug for DurablePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurablePeer({})", self.key)
    }
}

impl DurablePeer {
    /// The durable flow with a label, of 1 to 64 bytes; the same one as before, if the state has it. The peer
    /// sees the label with each message. A peer may have 16. Cancel-safe.
    ///
    /// # Errors
    /// [`StateError`] if the label is none, or the disk does not take it.
    pub async fn flow(&self, label: &str) -> Result<DurableFlow, StateError> {
        if !is_label(label) {
            return Err(StateError::Label(label.to_owned()));
        }
        let hub = &self.open.0;
        let _adding = hub.adding.lock().await;
        let known = lock(&hub.ledger).journal(&self.key, label);
        let number = match known {
            Some(number) => number,
            None => {
                let id = u128::from_be_bytes(random_bytes());
                let (peer, label) = (self.key.clone(), label.to_owned());
                let admit = || lock(&hub.ledger).check_room_for_journal(&self.key);
                match hub.store.write(Change::Journal { peer, label, id }, admit).await? {
                    Done::Opened(number) => number,
                    _ => return Err(StateError::Stopped),
                }
            }
        };
        Ok(DurableFlow::new(self.open.clone(), number, label))
    }

    /// What waits for the peer.
    #[must_use]
    pub fn owed(&self) -> Owed {
        lock(&self.open.0.ledger).owed(&self.key)
    }

    /// Why the peer was not reached when it was dialled last; `None` if it was, or is not dialled.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        lock(&self.open.0.ledger).problem(&self.key)
    }

    /// Forgets the peer: it is not dialled any more, and what waits for it is lost. Its flows fail from then
    /// on.
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it; nothing has happened then.
    pub async fn forget(self) -> Result<(), StateError> {
        let hub = &self.open.0;
        let _adding = hub.adding.lock().await;
        hub.store.write(Change::Forget { peer: self.key.clone() }, || Ok(())).await?;
        hub.end_keeper(&self.key);
        Ok(())
    }
}
