//! An endpoint: one identity, its sockets, and all its connections.

mod builder;
mod follow;
mod listen;
mod mapped;
mod plain;
mod relayed;
mod serve;
mod signals;
mod target;

use self::follow::bind_error;
use self::target::Whom;
pub use builder::Builder;
pub use listen::ListenOptions;
pub use plain::PlainTcp;
pub use relayed::RelayedQuic;
pub use target::{IntoTarget, Target};

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointAddr, EndpointId, MAX_ADDRESSES, Name, random_bytes};
use whimbrel_proto::{CloseCode, Connection as Engine, HandoverMode, Side, ticket_proof};

use crate::allow::Allow;
use crate::connection::{Connection, stats};
use crate::control::PathControl;
use crate::endpoint_core::{EndpointCore, lock};
use crate::error::{BindError, ConnectError, ListenError, ResolveError};
use crate::events::EndpointEvents;
use crate::handshakes::HandshakeStats;
use crate::limits::RateControl;
use crate::listener::Listener;
use crate::listeners::Access;
use crate::locator::Locator;
use crate::monitor::AddressSet;
use crate::policy::PathPolicy;
use crate::publisher::{Permission, Publisher};
use crate::report::{ConnectionInfo, EndpointEvent};
use crate::resolver::{BoxFuture, Resolver};
use crate::shared::Shared;
use crate::supply::Supply;
use crate::watch::Watch;
use crate::whereabouts::on_own_links;

/// How long the last connections of a closed endpoint may take to leave it.
const LEAVING: Duration = Duration::from_secs(1);

/// Closes the endpoint when the last handle is dropped.
struct Guard(Arc<EndpointCore>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// One identity and its connections. Cheap to clone; when the last clone is dropped it stops to
/// listen, while connections that are still held go on.
#[derive(Clone)]
pub struct Endpoint {
    guard: Arc<Guard>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Starts to set one up.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn inner(&self) -> &Arc<EndpointCore> {
        &self.guard.0
    }

    /// This endpoint's identity.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.inner().id
    }

    /// The port of its sockets.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner().plan.port
    }

    /// Where it can be reached now, while it listens.
    #[must_use]
    pub fn addr(&self) -> EndpointAddr {
        EndpointAddr::new(self.id(), self.inner().stated(MAX_ADDRESSES))
    }

    /// The addresses of this host, now and as they change.
    #[must_use]
    pub fn watch_addresses(&self) -> Watch<Arc<AddressSet>> {
        Watch::begin(&self.inner().addresses)
    }

    /// Sets how names are resolved, for resolvers that need the endpoint themselves.
    pub fn set_resolver(&self, resolver: Arc<dyn Resolver>) {
        *lock(&self.inner().resolver) = Some(resolver);
    }

    /// Connects, and returns once the peer has accepted. Tries for
    /// [`connect_timeout`](crate::Config::connect_timeout), through moves of either side. Cancel-safe: an
    /// abandoned attempt is given up.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub async fn connect(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        self.reach(target.into_target()?).await
    }

    // Made here, and not inlined: async code of this crate that another one polls is compiled there once more.
    #[inline(never)]
    fn reach(&self, target: Target) -> BoxFuture<'_, Result<Connection, ConnectError>> {
        Box::pin(async move {
            let (connection, mut supply) = self.begin(target).await?;
            let limit = self.inner().config.connect_timeout;
            match tokio::time::timeout(limit, supply.until(established(&connection))).await {
                Ok(Ok(())) => Ok(connection),
                Ok(Err(error)) => Err(error),
                Err(_) => {
                    let shared = &connection.handle.shared;
                    shared.give_up(CloseCode::NONE, "not reached in time");
                    let addresses: Vec<String> = shared.remote().iter().map(ToString::to_string).collect();
                    Err(ConnectError::TimedOut { peer: shared.peer(), addresses: addresses.join(", ") })
                }
            }
        })
    }

    /// Connects without waiting for the peer: what is written at once travels with the first
    /// flight, to a known peer even before the TLS handshake ends. A refusal shows as the
    /// connection's end. The peer may see early data of a connection that it then loses, but
    /// never twice.
    ///
    /// # Errors
    /// [`ConnectError`] if the target cannot be looked up.
    pub async fn connect_early(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        Ok(self.begin(target.into_target()?).await?.0)
    }

    /// Makes a connection that nobody has dialled yet. Not inlined, as [`Self::reach`].
    #[inline(never)]
    fn begin(&self, target: Target) -> BoxFuture<'_, Result<(Connection, Supply), ConnectError>> {
        Box::pin(async move {
            let name = target.name().cloned();
            let begun = self.prepare(target).await;
            begun.inspect_err(|error| {
                let (peer, side, reason) = (None, Side::Client, error.to_string());
                self.inner().bulletin.post(|| EndpointEvent::Failed { peer, name, side, reason });
            })
        })
    }

    async fn prepare(&self, Target(whom): Target) -> Result<(Connection, Supply), ConnectError> {
        let inner = self.inner();
        if inner.life.is_closed() {
            return Err(ConnectError::EndpointClosed);
        }
        // What only tells listeners apart is not looked up, neither now nor when the peer moves.
        let is_looked_up = !matches!(whom, Whom::Listener(..));
        let (addr, name, secret) = match whom {
            Whom::Addr(addr) => (addr, None, None),
            Whom::Ticket(ticket) => {
                (ticket.to_endpoint_addr(), ticket.name().cloned(), ticket.secret().copied())
            }
            Whom::Name(name) => (lookup(inner, &name).await?, Some(name), None),
            Whom::Id(id) => (find(inner, id).await?, None, None),
            Whom::Listener(id, name) => (find(inner, id).await?, Some(name), None),
        };
        let own = inner.addresses();
        let places = on_own_links(Locator::list(&addr.addrs), own.addresses.iter().map(|address| address.ip));
        if places.is_empty() && inner.resolver().is_none() {
            return Err(ConnectError::NoAddress(addr.id));
        }
        let random = random_bytes();
        let mut config = inner.engine_config(name.as_ref());
        let name = name.filter(|_| is_looked_up);
        let paths = lock(&inner.dialled).clone();
        config.handover = paths.as_ref().map_or(config.handover, |(_, mode)| *mode);
        let id = ConnectionId::random();
        config.params.ticket_proof = secret.map(|secret| ticket_proof(&secret, id, inner.id).into());
        let engine = Engine::client(config, id, inner.id, addr.id, random, Instant::now());
        let shared = inner.shared(engine, places);
        if let Some((policy, _)) = paths {
            shared.set_policy(policy);
        }
        inner.registry.add_dialled(&shared);
        let supply = Supply::new(inner, &shared, name.clone());
        Ok((Connection::new(shared, name), supply))
    }

    /// Listens, with options that say under which name and for whom. A name is registered before this returns.
    ///
    /// # Errors
    /// [`ListenError`] if nobody would be let in, the sockets cannot be bound or the name cannot be registered.
    pub async fn listen(&self, options: ListenOptions) -> Result<Listener, ListenError> {
        let inner = self.inner();
        if inner.life.is_closed() {
            return Err(ListenError::EndpointClosed);
        }
        let name = options.name?;
        if matches!(options.allow, Allow::Nobody) && options.secret.is_none() {
            return Err(ListenError::Nobody);
        }
        let published = name.clone().filter(|_| options.publish);
        let resolver = match &published {
            Some(name) => Some(inner.resolver().ok_or_else(|| ListenError::NoResolver(name.clone()))?),
            None => None,
        };
        if let Some(name) = &published
            && inner.is_fleeting
        {
            return Err(ListenError::FleetingKey(name.clone()));
        }
        let shown = || name.as_ref().map_or("(no name)".to_owned(), ToString::to_string);
        let access = Access { allow: options.allow, secret: options.secret };
        let arrivals = inner.listeners.add(name.clone(), access, options.ask_first);
        let arrivals = arrivals.ok_or_else(|| ListenError::InUse(shown()))?;
        let mut listener = Listener { endpoint: inner.clone(), name, arrivals, publisher: None };
        // Those who come find the listener there.
        start_listening(inner)?;
        let permission = Permission::new(options.delegation, options.renewals);
        if let (Some(name), Some(resolver)) = (published, resolver) {
            let publisher = Publisher::new(inner.clone(), resolver, name, permission, options.lifetime);
            listener.publisher = Some(match options.goes_on {
                true => publisher.go_on()?,
                false => publisher.start().await?,
            });
        }
        Ok(listener)
    }

    /// Reads how the handshakes of those who came have ended, also once this is gone.
    pub fn handshakes(&self) -> impl Fn() -> HandshakeStats + Send + Sync + use<> {
        let handshakes = self.inner().handshakes.clone();
        move || handshakes.stats()
    }

    /// All connections, with their counters.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let registry = &self.inner().registry;
        let list = |all: Vec<Arc<Shared>>, side| {
            all.into_iter().map(move |s| ConnectionInfo { id: s.id, peer: s.peer(), side, stats: stats(&s) })
        };
        let accepted = list(registry.accepted(), Side::Server);
        accepted.chain(list(registry.dialled(), Side::Client)).collect()
    }

    /// Reports what happens to all connections from now on, and which attempts fail.
    #[must_use]
    pub fn events(&self) -> EndpointEvents {
        self.inner().bulletin.subscribe()
    }

    /// One of the connections, with its counters; `None` if it is over.
    #[must_use]
    pub fn connection(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        let shared = self.inner().registry.all().into_iter().find(|shared| shared.id == id)?;
        let side = shared.lock().engine.side();
        Some(ConnectionInfo { id, peer: shared.peer(), side, stats: stats(&shared) })
    }

    /// Says how one of the connections uses its paths; `None` if it is over. Does not keep it alive.
    #[must_use]
    pub fn path_control(&self, id: ConnectionId) -> Option<PathControl> {
        let shared = self.inner().registry.all().into_iter().find(|shared| shared.id == id)?;
        Some(PathControl { shared })
    }

    /// How connections that are dialled now use their paths.
    #[must_use]
    pub fn paths(&self) -> (PathPolicy, HandoverMode) {
        let inner = self.inner();
        let said = lock(&inner.dialled).clone();
        said.unwrap_or_else(|| (PathPolicy::clone(&inner.policy), inner.config.handover))
    }

    /// Says how connections that are dialled from now on use their paths, instead of what the endpoint was bound
    /// with. Those that there are stay as they are: [`path_control`](Self::path_control) changes them.
    pub fn set_paths(&self, policy: impl Into<PathPolicy>, mode: HandoverMode) {
        *lock(&self.inner().dialled) = Some((policy.into(), mode));
    }

    /// Says how fast one of the connections may send; `None` if it is over. Does not keep it alive.
    #[must_use]
    pub fn rate_control(&self, id: ConnectionId) -> Option<RateControl> {
        let shared = self.inner().registry.all().into_iter().find(|shared| shared.id == id)?;
        Some(RateControl { shared })
    }

    /// Ends all connections in order, for at most `limit`, and stops. If they all ended, the port is free
    /// afterwards.
    pub async fn close(&self, limit: Duration) {
        let inner = self.inner();
        inner.shut();
        for shared in inner.registry.all() {
            shared.with(|state| state.engine.close(CloseCode::GOING_AWAY, ""));
        }
        let _ = tokio::time::timeout(limit, async {
            while inner.registry.all().iter().any(|shared| !shared.has_cut_farewell()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        for shared in inner.registry.all() {
            shared.give_up(CloseCode::GOING_AWAY, "the endpoint was closed");
        }
        // Their tasks end when they next run; until then the sockets are held.
        let _ = tokio::time::timeout(LEAVING, async {
            while !inner.registry.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        inner.unbind().await;
    }
}

/// Waits until the peer has accepted or refused.
async fn established(connection: &Connection) -> Result<(), ConnectError> {
    let shared = &connection.handle.shared;
    loop {
        let settled = shared.news.of_connection();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if let Some(reason) = shared.close_reason() {
            return Err(ConnectError::Refused {
                peer: shared.peer(),
                code: reason.code,
                reason: reason.reason,
            });
        }
        if shared.lock().engine.is_established() {
            return Ok(());
        }
        settled.await;
    }
}

async fn lookup(core: &EndpointCore, name: &Name) -> Result<EndpointAddr, ConnectError> {
    let resolver = core.resolver().ok_or_else(|| ConnectError::NoResolver(name.clone()))?;
    let looked_up = tokio::time::timeout(core.config.connect_timeout, resolver.lookup(name)).await;
    let late = || ResolveError::Unreachable("no answer in time".into());
    match looked_up.unwrap_or_else(|_| Err(late())) {
        Ok(record) if record.record().revoked => Err(ConnectError::NotFound(name.clone())),
        Ok(record) if record.members().is_some() => Err(ConnectError::Group(name.clone())),
        Ok(record) => Ok(EndpointAddr::new(record.record().id, record.record().addrs.clone())),
        Err(ResolveError::NotFound) => Err(ConnectError::NotFound(name.clone())),
        Err(source) => Err(ConnectError::Resolve { name: name.clone(), source }),
    }
}

async fn find(core: &EndpointCore, id: EndpointId) -> Result<EndpointAddr, ConnectError> {
    let resolver = core.resolver().ok_or(ConnectError::NoAddress(id))?;
    match tokio::time::timeout(core.config.connect_timeout, resolver.find(id)).await {
        Ok(Ok(addr)) if addr.id == id => Ok(addr),
        Ok(Ok(_) | Err(ResolveError::NotFound)) => Err(ConnectError::NoAddress(id)),
        Ok(Err(source)) => Err(ConnectError::Find { id, source }),
        Err(_) => {
            let source = ResolveError::Unreachable("no answer in time".into());
            Err(ConnectError::Find { id, source })
        }
    }
}

/// Adds TCP listeners to the sockets, once.
pub(crate) fn start_listening(core: &Arc<EndpointCore>) -> Result<(), BindError> {
    let kind = core.config.carriers.listens_to();
    lock(&core.sockets).listen(core, &core.quic, core.plan.port, kind).map_err(bind_error)
}
