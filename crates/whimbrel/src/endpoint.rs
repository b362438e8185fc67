//! An endpoint with its name service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::{ConnectionId, EndpointAddr, EndpointId, Name, SecretKey, Ticket};
use whimbrel_names::{KnownPeers, NameResolver, ServiceAddress, ServiceAddressError};
use whimbrel_transport::{
    self as transport, AddressMonitor, AddressSet, Carriers, Config, ConnectError, Connection,
    ConnectionInfo, EndpointEvents, HandOverError, HandoverMode, IntoTarget, ListenError, ListenOptions,
    Listener, OpenSockets, PathControl, PathPolicy, RateControl, Resolver, ResumeError, SchedulerKind,
    Suspended, TlsSessions, Watch,
};

use crate::error::BindError;
use crate::identity::{Identity, IdentityError};
use crate::readers;

/// Sets an [`Endpoint`] up. Everything has a default.
#[derive(Default)]
#[must_use = "an endpoint is there after bind()"]
pub struct Builder {
    transport: transport::Builder,
    key: Option<Result<SecretKey, IdentityError>>,
    names: Option<Result<ServiceAddress, ServiceAddressError>>,
    known: Option<KnownPeers>,
    resolver: Option<Arc<dyn Resolver>>,
}

impl Builder {
    /// Who the endpoint is. By default somebody new, whom nobody knows, and who can't have names.
    pub fn identity(mut self, key: SecretKey) -> Self {
        self.key = Some(Ok(key));
        self
    }

    /// Who the endpoint is, by the key in a file; a new one is made if there is none. See
    /// [`Identity::in_file`].
    pub fn identity_file(mut self, file: impl AsRef<Path>) -> Self {
        self.key = Some(Identity::in_file(file).map(|identity| identity.key));
        self
    }

    /// The name service: its [`Ticket`], [`EndpointAddr`] or [`ServiceAddress`], or a
    /// text as `whimbrel:…` or `ID@names.example.org:4480`. By default there is none, and peers are reached
    /// by ticket.
    pub fn names<S>(mut self, service: S) -> Self
    where
        S: TryInto<ServiceAddress>,
        S::Error: Into<ServiceAddressError>,
    {
        self.names = Some(service.try_into().map_err(Into::into));
        self
    }

    /// What is known of who owns names, perhaps [in a file](KnownPeers::in_file). By default the first owner
    /// of each name is remembered for as long as the endpoint lives.
    pub fn known_peers(mut self, known: KnownPeers) -> Self {
        self.known = Some(known);
        self
    }

    /// Resolves names in a way of your own, instead of with [`names`](Self::names).
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// The port for TCP and UDP. By default any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.transport = self.transport.port(port);
        self
    }

    /// Uses these sockets, which are open already, and their port, instead of binding others: those that a
    /// service manager hands over. Wins over [`port`](Self::port) and [`ip`](Self::ip).
    pub fn sockets(mut self, open: OpenSockets) -> Self {
        self.transport = self.transport.sockets(open);
        self
    }

    /// Remembers the TLS sessions of an endpoint that [passed them on](transport::Leaving::pass_on): its
    /// clients come back with their tickets.
    pub fn sessions(mut self, sessions: TlsSessions) -> Self {
        self.transport = self.transport.sessions(sessions);
        self
    }

    /// Uses one address only. By default all of the host's, so that the endpoint can move.
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.transport = self.transport.ip(ip);
        self
    }

    /// Where the host's addresses come from. By default the kernel.
    pub fn monitor(mut self, monitor: impl AddressMonitor) -> Self {
        self.transport = self.transport.monitor(monitor);
        self
    }

    /// Where else the endpoint is reached, such as the outside of a gateway that passes its port on. It is
    /// told to others before this host's own addresses; port 0 stands for the endpoint's own.
    pub fn advertise(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.transport = self.transport.advertise(addresses);
        self
    }

    /// How connections use several networks: all together (`Full`), one with the others standing by
    /// (`Backup`), or one at a time (`Single`, the default). Wins over the [config](Self::config).
    pub fn handover(mut self, mode: HandoverMode) -> Self {
        self.transport = self.transport.handover(mode);
        self
    }

    /// Which networks connections use, and which they like best: a [`Policy`](crate::Policy), or a
    /// [`PathPolicy`] with interfaces of your own choice. It brings its own [mode](Self::handover) unless one
    /// is set.
    pub fn paths(mut self, policy: impl Into<PathPolicy>) -> Self {
        self.transport = self.transport.paths(policy);
        self
    }

    /// How data is shared out among several paths. Default: each chunk goes where it arrives first.
    pub fn scheduler(mut self, kind: SchedulerKind) -> Self {
        self.transport = self.transport.scheduler(kind);
        self
    }

    /// Which carriers connections may use. Default: TCP and QUIC, whichever serves better.
    pub fn carriers(mut self, carriers: Carriers) -> Self {
        self.transport = self.transport.carriers(carriers);
        self
    }

    /// Limits and times. Wins over [`carriers`](Self::carriers) said before.
    pub fn config(mut self, config: Config) -> Self {
        self.transport = self.transport.config(config);
        self
    }

    /// Binds the sockets. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`] says what can't be used.
    pub async fn bind(self) -> Result<Endpoint, BindError> {
        let names = self.names.transpose()?;
        let key = self.key.transpose()?;
        let transport = match &key {
            Some(key) => self.transport.secret_key(key.clone()),
            None => self.transport,
        };
        let transport = transport.bind().await?;
        let mut guard = Guard { names: None, key };
        if let Some(service) = names {
            let known = self.known.unwrap_or_else(KnownPeers::in_memory);
            let names = Arc::new(NameResolver::with_known_peers(transport.clone(), service, known));
            transport.set_resolver(names.clone());
            guard.names = Some(names);
        }
        if let Some(resolver) = self.resolver {
            transport.set_resolver(resolver);
        }
        Ok(Endpoint { transport, guard: Arc::new(guard) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Lets the resolver, which holds the transport's endpoint, let it go when nobody else has it.
struct Guard {
    names: Option<Arc<NameResolver>>,
    /// The key, if it outlives the endpoint.
    key: Option<SecretKey>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(names) = &self.names {
            names.release();
        }
    }
}

/// A process's presence: one key, its sockets, its connections. Cheap to clone.
///
/// When the last clone is dropped it stops to listen; connections that are still held go on.
/// [`close`](Self::close) ends them in order.
#[derive(Clone)]
pub struct Endpoint {
    transport: transport::Endpoint,
    guard: Arc<Guard>,
}

impl Endpoint {
    /// Starts to set one up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects to a name, a [`Ticket`] or [`EndpointId`], given as such or as text, or to an
    /// [`EndpointAddr`], and returns once the peer has accepted. Tries for
    /// [`connect_timeout`](Config::connect_timeout), through moves of either side. Cancel-safe: an abandoned
    /// attempt is given up.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub async fn connect(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        self.transport.connect(target).await
    }

    /// Connects without waiting for the peer: what is written at once travels with the first flight, to a
    /// known peer even before the TLS handshake ends. A refusal shows as the connection's end. The peer may
    /// see early data of a connection that it then loses, but never twice.
    ///
    /// # Errors
    /// [`ConnectError`] if it is not clear to whom.
    pub async fn connect_early(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        self.transport.connect_early(target).await
    }

    /// Listens, with options that say under which name and for whom. A name is registered with the name
    /// service before this returns, and kept up to date for as long as the listener lives; its user must
    /// [be registered](Self::register_user) before.
    ///
    /// The name is shown to those whom [`Allow::only`](crate::Allow::only) lets in, and to the devices of its
    /// own user; to everybody, where it is not known beforehand who may connect.
    /// [`NameResolver::set_readers`], called before, says otherwise.
    ///
    /// # Errors
    /// [`ListenError`] says what to do.
    pub async fn listen(&self, options: ListenOptions) -> Result<Listener, ListenError> {
        if let Some(names) = self.names()
            && let Some(name) = options.published_name()
            && let Some(readers) = readers::of_listener(&options, name)
        {
            let readers =
                readers.map_err(|readers::TooManyReaders| ListenError::TooManyReaders(name.clone()))?;
            names
                .set_default_readers(name.clone(), readers)
                .map_err(|error| ListenError::Publish { name: name.clone(), source: error.into() })?;
        }
        self.transport.listen(options).await
    }

    /// Wakes a connection that [`Connection::suspend`] put to sleep, in this process or another one, here or
    /// on another host, under the same key; or that was [handed over](Connection::suspend_for) to this key.
    /// It goes on at the exact byte; [`Connection::streams`] has its streams. Returns at once, and looks for
    /// the peer from then on. If another copy was quicker, the connection ends with
    /// [`CloseCode::SUPERSEDED`](crate::CloseCode::SUPERSEDED).
    ///
    /// # Errors
    /// [`ResumeError`] if these are not the bytes of a connection of this identity, or there is no room.
    pub async fn resume(&self, suspended: &Suspended) -> Result<Connection, ResumeError> {
        self.transport.resume(suspended).await
    }

    /// Takes the next connection that the endpoint at the other end of `over` [hands
    /// over](Connection::hand_over), while it is used. Returns once its peer has taken this endpoint for its
    /// owner; [`Connection::streams`] has its streams.
    ///
    /// # Errors
    /// [`HandOverError`]; the connection goes on at the other endpoint then. [`HandOverError::TimedOut`]
    /// after `limit`.
    pub async fn accept_hand_over(
        &self,
        over: &Connection,
        limit: Duration,
    ) -> Result<Connection, HandOverError> {
        self.transport.accept_hand_over(over, limit).await
    }

    /// Who this is.
    pub fn id(&self) -> EndpointId {
        self.transport.id()
    }

    /// The port of its sockets, for TCP and UDP.
    pub fn port(&self) -> u16 {
        self.transport.port()
    }

    /// Where it can be reached now, while it listens.
    pub fn addr(&self) -> EndpointAddr {
        self.transport.addr()
    }

    /// The same in one line of text: enough for others to connect without any name service. `name` is the one
    /// listened for, if any. Whoever knows it can ask to be let in, no more.
    pub fn ticket(&self, name: Option<Name>) -> Ticket {
        Ticket::new(self.id(), self.addr().addrs, name)
    }

    /// The addresses of this host, now and as they change.
    pub fn watch_addresses(&self) -> Watch<Arc<AddressSet>> {
        self.transport.watch_addresses()
    }

    /// The resolver over the name service, if there is one.
    pub fn names(&self) -> Option<&NameResolver> {
        self.guard.names.as_deref()
    }

    /// The same, for a resolver of one's own that asks the name service among others. Set it with
    /// [`set_resolver`](transport::Endpoint::set_resolver) of the [floor below](Self::transport).
    pub fn shared_names(&self) -> Option<Arc<NameResolver>> {
        self.guard.names.clone()
    }

    /// All connections, with their counters.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.transport.connections()
    }

    /// One of the connections, with its counters; `None` if it is over.
    pub fn connection(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        self.transport.connection(id)
    }

    /// Reports what happens to all connections from now on, and which attempts fail.
    pub fn events(&self) -> EndpointEvents {
        self.transport.events()
    }

    /// Says how one of the connections uses its paths; `None` if it is over. Does not keep it alive.
    pub fn path_control(&self, id: ConnectionId) -> Option<PathControl> {
        self.transport.path_control(id)
    }

    /// Says how fast one of the connections may send; `None` if it is over. Does not keep it alive.
    pub fn rate_control(&self, id: ConnectionId) -> Option<RateControl> {
        self.transport.rate_control(id)
    }

    /// Ends all connections in order, for at most `limit`, and stops. If they all ended, the port is free
    /// afterwards.
    pub async fn close(&self, limit: Duration) {
        self.transport.close(limit).await;
    }

    /// The floor below, which knows no name service of its own.
    pub fn transport(&self) -> &transport::Endpoint {
        &self.transport
    }

    /// The key, if it outlives the endpoint.
    pub(crate) fn key(&self) -> Option<&SecretKey> {
        self.guard.key.as_ref()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id()).finish_non_exhaustive()
    }
}
