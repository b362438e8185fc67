//! An endpoint: one identity, its sockets, and all its connections.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_base::{ConnectionId, Delegation, EndpointAddr, EndpointId, Name, SecretKey, Ticket};
use whimbrel_proto::{CloseCode, Connection as Engine};

use crate::accept::spawn_driver;
use crate::config::Config;
use crate::connection::{Connection, ConnectionStats, stats};
use crate::error::{BindError, ConnectError, ListenError, ResolveError};
use crate::half_open::HalfOpen;
use crate::listener::{Allow, Listener, Listeners};
use crate::monitor::{AddressMonitor, AddressSet};
use crate::mover::Mover;
use crate::notices;
use crate::publisher::Publisher;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::shared::Shared;
use crate::sockets::{self, BindPlan, Bound, Sockets};
use crate::tls::TlsIdentity;

/// How often detached connections are counted.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Lost addresses that are remembered; only those lost a moment ago matter.
const MAX_LOST: usize = 256;
/// Between attempts to bind at a new address where the port is taken.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for room in a socket's send buffer.
const NOTICE_LIMIT: Duration = Duration::from_millis(50);

/// Sets an [`Endpoint`] up.
#[derive(Default)]
pub struct Builder {
    key: Option<SecretKey>,
    ip: Option<IpAddr>,
    port: u16,
    monitor: Option<Arc<dyn AddressMonitor>>,
    resolver: Option<Arc<dyn Resolver>>,
    config: Config,
}

impl Builder {
    /// The identity; a fresh one by default.
    #[must_use]
    pub fn secret_key(mut self, key: SecretKey) -> Self {
        self.key = Some(key);
        self
    }

    /// The port for TCP and UDP; any free one by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Binds to one address only. By default an endpoint listens on all its host's addresses, so
    /// that it can move.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Where addresses come from; the kernel by default.
    #[must_use]
    pub fn monitor(mut self, monitor: impl AddressMonitor) -> Self {
        self.monitor = Some(Arc::new(monitor));
        self
    }

    /// How names are resolved; by default only tickets can be dialled.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Limits and times.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Binds the sockets and starts to watch addresses. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`] when a socket cannot be bound or addresses cannot be watched.
    pub async fn bind(self) -> Result<Endpoint, BindError> {
        let key = self.key.unwrap_or_else(SecretKey::generate);
        let monitor = match self.monitor {
            Some(monitor) => monitor,
            None => system_monitor().await.map_err(BindError::Monitor)?,
        };
        let plan = BindPlan { ip: self.ip, port: self.port };
        let mut addresses = monitor.watch();
        let set = addresses.borrow_and_update().clone();
        let ips = plan.addresses(&set, monitor.is_exclusive());
        let port = match self.port {
            0 => sockets::free_port(&ips).map_err(bind_error)?,
            port => port,
        };
        let inner = Arc::new(EndpointInner {
            id: key.id(),
            tls: TlsIdentity::new(&key)?,
            key,
            config: self.config,
            plan: BindPlan { port, ..plan },
            monitor,
            bound: watch::Sender::new(set),
            addresses,
            lost: Mutex::new(HashSet::new()),
            sockets: Mutex::new(Sockets::default()),
            resolver: Mutex::new(self.resolver),
            registry: Registry::default(),
            listeners: Listeners::default(),
            half_open: HalfOpen::default(),
            closed: AtomicBool::new(false),
            tasks: Mutex::new(Vec::new()),
        });
        lock(&inner.sockets).bind(&inner, &ips, port).map_err(bind_error)?;
        let task = tokio::spawn(follow_addresses(inner.clone()));
        lock(&inner.tasks).push(task.abort_handle());
        Ok(Endpoint { guard: Arc::new(Guard(inner)) })
    }
}

#[cfg(target_os = "linux")]
async fn system_monitor() -> std::io::Result<Arc<dyn AddressMonitor>> {
    Ok(Arc::new(crate::monitor::NetlinkMonitor::start().await?))
}

#[cfg(not(target_os = "linux"))]
async fn system_monitor() -> std::io::Result<Arc<dyn AddressMonitor>> {
    Err(std::io::Error::new(
        std::io::ErrorKind::Unsupported,
        "no address monitor exists for this system yet; set one by hand",
    ))
}

fn bind_error((address, source): (SocketAddr, std::io::Error)) -> BindError {
    BindError::Socket { address, source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct EndpointInner {
    pub(crate) id: EndpointId,
    pub(crate) key: SecretKey,
    pub(crate) tls: TlsIdentity,
    pub(crate) config: Config,
    plan: BindPlan,
    monitor: Arc<dyn AddressMonitor>,
    addresses: watch::Receiver<Arc<AddressSet>>,
    /// The addresses that the sockets were bound for last.
    bound: watch::Sender<Arc<AddressSet>>,
    /// Addresses that this host had and lost.
    lost: Mutex<HashSet<IpAddr>>,
    sockets: Mutex<Sockets>,
    resolver: Mutex<Option<Arc<dyn Resolver>>>,
    pub(crate) registry: Registry,
    pub(crate) listeners: Listeners,
    pub(crate) half_open: HalfOpen,
    closed: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Closes the endpoint when the last handle is dropped.
struct Guard(Arc<EndpointInner>);

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

/// Whom to connect to: a [`Name`], an [`EndpointAddr`] or a [`Ticket`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    name: Option<Name>,
    addr: Option<EndpointAddr>,
}

impl From<Name> for Target {
    fn from(name: Name) -> Self {
        Self { name: Some(name), addr: None }
    }
}

impl From<&Name> for Target {
    fn from(name: &Name) -> Self {
        name.clone().into()
    }
}

impl From<EndpointAddr> for Target {
    fn from(addr: EndpointAddr) -> Self {
        Self { name: None, addr: Some(addr) }
    }
}

impl From<Ticket> for Target {
    fn from(ticket: Ticket) -> Self {
        Self { name: ticket.name().cloned(), addr: Some(ticket.to_endpoint_addr()) }
    }
}

/// How to listen.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// Who may connect; everybody by default.
    pub allow: Allow,
    /// The user's permission for a device's or service's name.
    pub delegation: Option<Delegation>,
    /// How long the record holds without a sign of life. Default 10 minutes.
    pub lifetime: Duration,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { allow: Allow::Any, delegation: None, lifetime: Duration::from_secs(600) }
    }
}

impl Endpoint {
    /// Starts to set one up.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn inner(&self) -> &Arc<EndpointInner> {
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
        EndpointAddr::new(self.id(), self.inner().reachable())
    }

    /// The addresses of this host, now and as they change.
    #[must_use]
    pub fn watch_addresses(&self) -> watch::Receiver<Arc<AddressSet>> {
        self.inner().addresses.clone()
    }

    /// Sets how names are resolved, for resolvers that need the endpoint themselves.
    pub fn set_resolver(&self, resolver: Arc<dyn Resolver>) {
        *lock(&self.inner().resolver) = Some(resolver);
    }

    /// Connects, and returns once the peer has accepted. Tries for
    /// [`connect_timeout`](Config::connect_timeout), through moves of either side. Cancel-safe: an
    /// abandoned attempt is given up.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub async fn connect(&self, target: impl Into<Target>) -> Result<Connection, ConnectError> {
        let connection = self.connect_early(target).await?;
        let limit = self.inner().config.connect_timeout;
        match tokio::time::timeout(limit, established(&connection)).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let shared = &connection.handle.shared;
                shared.give_up(CloseCode::NONE, "not reached in time");
                let addresses: Vec<String> = shared.remote().iter().map(ToString::to_string).collect();
                Err(ConnectError::TimedOut { peer: shared.peer, addresses: addresses.join(", ") })
            }
        }
    }

    /// Connects without waiting for the peer: what is written at once travels with the first
    /// flight, to a known peer even before the TLS handshake ends. A refusal shows as the
    /// connection's end. The peer may see early data of a connection that it then loses, but
    /// never twice.
    ///
    /// # Errors
    /// [`ConnectError`] if the name cannot be resolved.
    pub async fn connect_early(&self, target: impl Into<Target>) -> Result<Connection, ConnectError> {
        let Target { name, addr } = target.into();
        let inner = self.inner();
        if inner.closed.load(Ordering::Relaxed) {
            return Err(ConnectError::EndpointClosed);
        }
        let addr = match (addr, &name) {
            (Some(addr), _) => addr,
            (None, Some(name)) => inner.lookup(name).await?,
            (None, None) => return Err(ConnectError::EndpointClosed),
        };
        if addr.addrs.is_empty() && inner.resolver().is_none() {
            return Err(ConnectError::NoAddress(addr.id));
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|_| ConnectError::EndpointClosed)?;
        let config = inner.engine_config(name.as_ref());
        let id = ConnectionId::random();
        let engine = Engine::client(config, id, inner.id, addr.id, random, Instant::now());
        let shared = Shared::new(engine, addr.addrs);
        inner.registry.add_dialled(&shared);
        spawn_driver(inner, &shared);
        let mover = Mover { shared: shared.clone(), endpoint: inner.clone(), name: name.clone() };
        tokio::spawn(mover.run());
        Ok(Connection::new(shared, name))
    }

    /// Listens under a name, registered with the name service, for everybody. With no name
    /// service, use [`listen_unnamed`](Self::listen_unnamed) and tickets.
    ///
    /// # Errors
    /// [`ListenError`] if the sockets cannot be bound or the name cannot be registered.
    pub async fn listen(&self, name: &Name) -> Result<Listener, ListenError> {
        self.listen_with(Some(name.clone()), ListenOptions::default()).await
    }

    /// Listens for peers that know this endpoint by its id.
    ///
    /// # Errors
    /// [`ListenError`] if the sockets cannot be bound.
    pub async fn listen_unnamed(&self) -> Result<Listener, ListenError> {
        self.listen_with(None, ListenOptions::default()).await
    }

    /// Listens with options. A name is registered if the endpoint has a resolver; without one it
    /// is only used to tell connections apart.
    ///
    /// # Errors
    /// [`ListenError`] if the sockets cannot be bound or the name cannot be registered.
    pub async fn listen_with(
        &self,
        name: Option<Name>,
        options: ListenOptions,
    ) -> Result<Listener, ListenError> {
        let inner = self.inner();
        if inner.closed.load(Ordering::Relaxed) {
            return Err(ListenError::EndpointClosed);
        }
        inner.start_listening()?;
        let shown = || name.as_ref().map_or("(no name)".to_owned(), ToString::to_string);
        let receiver =
            inner.listeners.add(name.clone(), options.allow).ok_or_else(|| ListenError::InUse(shown()))?;
        let mut listener =
            Listener { endpoint: inner.clone(), name: name.clone(), receiver, publisher: None };
        if let (Some(name), Some(resolver)) = (name, inner.resolver()) {
            let publisher =
                Publisher::new(inner.clone(), resolver, name, options.delegation, options.lifetime);
            listener.publisher = Some(publisher.start().await?);
        }
        Ok(listener)
    }

    /// Counters of all connections, with their peers: `(id, peer, accepted here, stats)`.
    #[must_use]
    pub fn connections(&self) -> Vec<(ConnectionId, EndpointId, bool, ConnectionStats)> {
        let list = |all: Vec<Arc<Shared>>, accepted| {
            all.into_iter().map(move |s| (s.id, s.peer, accepted, stats(&s))).collect::<Vec<_>>()
        };
        let registry = &self.inner().registry;
        [list(registry.accepted(), true), list(registry.dialled(), false)].concat()
    }

    /// Ends all connections in order, for at most `limit`, and stops.
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
    }
}

/// Waits until the peer has accepted or refused.
async fn established(connection: &Connection) -> Result<(), ConnectError> {
    let shared = &connection.handle.shared;
    loop {
        let settled = shared.settled.notified();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if let Some(reason) = shared.close_reason() {
            return Err(ConnectError::Refused {
                peer: shared.peer,
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

impl EndpointInner {
    pub(crate) fn addresses(&self) -> Arc<AddressSet> {
        self.addresses.borrow().clone()
    }

    /// Changes once the sockets have followed the addresses, so that others can be told.
    pub(crate) fn bound_watch(&self) -> watch::Receiver<Arc<AddressSet>> {
        self.bound.subscribe()
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.monitor.is_exclusive()
    }

    pub(crate) fn resolver(&self) -> Option<Arc<dyn Resolver>> {
        lock(&self.resolver).clone()
    }

    /// Where others may reach this endpoint's sockets.
    pub(crate) fn reachable(&self) -> Vec<SocketAddr> {
        self.reachable_in(&self.addresses())
    }

    /// As [`reachable`](Self::reachable), but a new address counts only from when we are heard there.
    pub(crate) fn bound_at(&self) -> Vec<SocketAddr> {
        self.reachable_in(&self.bound.borrow())
    }

    fn reachable_in(&self, set: &AddressSet) -> Vec<SocketAddr> {
        let ips = match self.plan.ip {
            Some(ip) if !ip.is_unspecified() => vec![ip],
            _ => set.reachable(),
        };
        ips.into_iter().map(|ip| SocketAddr::new(ip, self.plan.port)).collect()
    }

    pub(crate) fn engine_config(&self, target: Option<&Name>) -> whimbrel_proto::Config {
        let mut config = self.config.engine();
        config.params.target = target.map(ToString::to_string);
        config.params.notice_addresses = self.reachable();
        config.params.notice_addresses.truncate(whimbrel_proto::MAX_NOTICE_ADDRESSES);
        config
    }

    async fn lookup(&self, name: &Name) -> Result<EndpointAddr, ConnectError> {
        let resolver = self.resolver().ok_or_else(|| ConnectError::NoResolver(name.clone()))?;
        let looked_up = tokio::time::timeout(self.config.connect_timeout, resolver.lookup(name)).await;
        let late = || ResolveError::Unreachable("no answer in time".into());
        match looked_up.unwrap_or_else(|_| Err(late())) {
            Ok(record) if record.record().revoked => Err(ConnectError::NotFound(name.clone())),
            Ok(record) => Ok(EndpointAddr::new(record.record().id, record.record().addrs.clone())),
            Err(ResolveError::NotFound) => Err(ConnectError::NotFound(name.clone())),
            Err(source) => Err(ConnectError::Resolve { name: name.clone(), source }),
        }
    }

    /// Adds TCP listeners to the sockets, once.
    fn start_listening(self: &Arc<Self>) -> Result<(), BindError> {
        lock(&self.sockets).listen(self, self.plan.port).map_err(bind_error)
    }

    /// Binds anew for these addresses, on the same port. False if that must be tried again.
    async fn rebind(self: &Arc<Self>, set: &AddressSet) -> bool {
        let ips = self.plan.addresses(set, self.is_exclusive());
        let gone: Vec<Bound> = {
            let mut sockets = lock(&self.sockets);
            sockets.bound.extract_if(|ip, _| !ips.contains(ip)).map(|(_, bound)| bound).collect()
        };
        for bound in gone {
            bound.close().await;
        }
        let result = lock(&self.sockets).bind(self, &ips, self.plan.port);
        if let Err((address, error)) = &result {
            tracing::warn!(%address, %error, "cannot listen at the new address yet");
        }
        result.is_ok()
    }

    /// Sends a datagram from the sockets of the target's family. What cannot be sent now is lost, as
    /// datagrams are.
    pub(crate) async fn send_notice(&self, datagram: &[u8], target: SocketAddr) {
        let sockets: Vec<Arc<UdpSocket>> =
            lock(&self.sockets).bound.values().map(|bound| bound.notices.clone()).collect();
        for socket in sockets {
            let fits = socket.local_addr().is_ok_and(|a| a.is_ipv4() == target.is_ipv4());
            if !fits {
                continue;
            }
            match tokio::time::timeout(NOTICE_LIMIT, socket.send_to(datagram, target)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%target, %error, "cannot send a notice now"),
                Err(_) => tracing::debug!(%target, "the notice socket is full"),
            }
        }
    }

    fn shut(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.listeners.clear();
        self.stop_if_done();
    }

    /// Once the endpoint is closed, its sockets go with its last connection: until then they are
    /// needed to move.
    pub(crate) fn stop_if_done(&self) {
        if self.closed.load(Ordering::Relaxed) && self.registry.is_empty() {
            lock(&self.sockets).bound.values().for_each(Bound::abort);
            lock(&self.tasks).drain(..).for_each(|task| task.abort());
        }
    }

    /// Whether nobody else can reach this host for now. Addresses that were given by hand are meant as they are.
    pub(crate) fn is_cut_off(&self, set: &AddressSet) -> bool {
        set.is_cut_off() && !self.is_exclusive()
    }

    fn has(&self, set: &AddressSet, ip: IpAddr) -> bool {
        // All of 127/8 belongs to every host, although only 127.0.0.1 is listed.
        set.contains(ip) || (ip.is_loopback() && !self.is_exclusive())
    }

    fn note_lost(&self, before: &AddressSet, set: &AddressSet) {
        let mut lost = lock(&self.lost);
        if lost.len() > MAX_LOST {
            lost.clear();
        }
        lost.extend(before.addresses.iter().map(|address| address.ip));
        lost.retain(|ip| !self.has(set, *ip));
    }

    /// Whether the address is known to be gone. A new path that was being made meanwhile may still be on it, and what
    /// gave up the others has not seen it: whoever adds a path asks afterwards.
    pub(crate) fn has_lost(&self, ip: IpAddr) -> bool {
        // It may be back already and not told of yet: the kernel knows.
        let is_back = || !self.is_exclusive() && std::net::UdpSocket::bind((ip, 0)).is_ok();
        lock(&self.lost).contains(&ip) && !is_back()
    }

    /// Reacts to a new set of addresses.
    fn addresses_changed(self: &Arc<Self>, before: &AddressSet, set: &AddressSet) {
        self.note_lost(before, set);
        let reachable = self.reachable_in(set);
        // Loopback addresses, when nothing else is left, are no use to anybody elsewhere.
        let moved = before.reachable() != set.reachable() && !self.is_cut_off(set);
        for shared in self.registry.all() {
            shared.lose_paths_without(|ip| self.has(set, ip));
            let mut told = reachable.clone();
            told.truncate(whimbrel_proto::MAX_NOTICE_ADDRESSES);
            shared.with(|state| state.engine.set_notice_addresses(told));
            if set.wakes != before.wakes {
                shared.probe();
            }
        }
        for shared in self.registry.dialled() {
            shared.restart.notify_one();
        }
        if moved {
            for shared in self.registry.accepted() {
                tokio::spawn(notices::tell(self.clone(), shared));
            }
        }
    }
}

async fn follow_addresses(endpoint: Arc<EndpointInner>) {
    let mut addresses = endpoint.addresses.clone();
    // A change since then is still unseen.
    let mut before = endpoint.bound.borrow().clone();
    let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
    let mut bound = true;
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            changed = addresses.changed() => {
                if changed.is_err() {
                    return;
                }
                let set = addresses.borrow_and_update().clone();
                // Sockets on all addresses, as the others have, need not follow.
                bound = !endpoint.is_exclusive() || endpoint.rebind(&set).await;
                pause = FIRST_PAUSE;
                endpoint.bound.send_replace(set.clone());
                endpoint.addresses_changed(&before, &set);
                before = set;
            }
            () = tokio::time::sleep(pause), if !bound => {
                bound = endpoint.rebind(&before).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            _ = housekeeping.tick() => endpoint.registry.bound_detached(endpoint.config.max_detached_bytes),
        }
    }
}
