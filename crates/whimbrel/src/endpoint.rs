//! An endpoint with its name service.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use whimbrel_base::{Name, SecretKey, Ticket};
use whimbrel_names::{KnownPeers, NameResolver, ServiceAddress, ServiceAddressError};
use whimbrel_transport::{
    self as transport, AddressMonitor, Config, Connection, HandoverMode, ListenOptions, Listener, PathPolicy,
    Resolver, SchedulerKind,
};

use crate::error::{BindError, ConnectError, ListenError};
use crate::target::{IntoName, IntoTarget};

/// Sets an [`Endpoint`] up. Everything has a default.
#[derive(Default)]
#[must_use = "an endpoint is there after bind()"]
pub struct Builder {
    transport: transport::Builder,
    names: Option<Result<ServiceAddress, ServiceAddressError>>,
    known: Option<KnownPeers>,
    resolver: Option<Arc<dyn Resolver>>,
}

impl Builder {
    /// Who the endpoint is. By default somebody new, whom nobody knows.
    pub fn identity(mut self, key: SecretKey) -> Self {
        self.transport = self.transport.secret_key(key);
        self
    }

    /// The name service: its [`Ticket`], [`EndpointAddr`](crate::EndpointAddr) or [`ServiceAddress`], or a
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

    /// What is known of who owns names, perhaps [in a file](KnownPeers::in_file). By default the first owner of
    /// each name is remembered for as long as the endpoint lives.
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

    /// Limits and times.
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
        let transport = self.transport.bind().await?;
        let mut guard = Guard { names: None };
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
/// It is a [`transport::Endpoint`], whose methods it has too, with a name service. When the last clone is
/// dropped it stops to listen; connections that are still held go on. [`close`](transport::Endpoint::close)
/// ends them in order.
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

    /// Connects to a name, a ticket (`"whimbrel:…"` or [`Ticket`]) or an
    /// [`EndpointAddr`](crate::EndpointAddr), and returns once the peer has accepted. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectError`] says what to do.
    pub async fn connect(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        Ok(self.transport.connect(target.into_target()?).await?)
    }

    /// Connects without waiting for the peer: what is written at once travels with the first flight. See
    /// [`connect_early`](transport::Endpoint::connect_early) of the transport.
    ///
    /// # Errors
    /// [`ConnectError`] if it is not clear to whom.
    pub async fn connect_early(&self, target: impl IntoTarget) -> Result<Connection, ConnectError> {
        Ok(self.transport.connect_early(target.into_target()?).await?)
    }

    /// Listens under a name, for everybody. The name is registered with the name service, if there is one,
    /// and kept up to date for as long as the listener lives.
    ///
    /// # Errors
    /// [`ListenError`] says what to do.
    pub async fn listen(&self, name: impl IntoName) -> Result<Listener, ListenError> {
        Ok(self.transport.listen(&name.into_name()?).await?)
    }

    /// Listens under a name, for those who are [allowed](ListenOptions::allow), perhaps with the user's
    /// [delegation](ListenOptions::delegation).
    ///
    /// # Errors
    /// [`ListenError`] says what to do.
    pub async fn listen_with(
        &self,
        name: impl IntoName,
        options: ListenOptions,
    ) -> Result<Listener, ListenError> {
        Ok(self.transport.listen_with(Some(name.into_name()?), options).await?)
    }

    /// Where this endpoint can be reached now, in one line of text: enough for others to connect without any
    /// name service. `name` is the one listened for, if any.
    pub fn ticket(&self, name: Option<Name>) -> Ticket {
        Ticket::new(self.transport.id(), self.transport.addr().addrs, name)
    }

    /// The resolver over the name service, if there is one.
    pub fn names(&self) -> Option<&NameResolver> {
        self.guard.names.as_deref()
    }
}

impl Deref for Endpoint {
    type Target = transport::Endpoint;

    fn deref(&self) -> &transport::Endpoint {
        &self.transport
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.transport.id()).finish_non_exhaustive()
    }
}
