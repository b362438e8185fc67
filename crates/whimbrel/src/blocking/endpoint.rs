//! Endpoints for programs without an async runtime.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_base::{EndpointId, Ticket};
use whimbrel_transport::{Connection, ListenOptions, Target};

use super::runtime;
use super::{Listener, Stream};
use crate::error::{ConnectError, ListenError};
use crate::target::{IntoName, IntoTarget};

/// The environment variable that says where the name service of the [default
/// endpoint](Endpoint::process_default) is.
pub const NAMES_VARIABLE: &str = "WHIMBREL_NAMES";

static DEFAULT: Mutex<Option<Endpoint>> = Mutex::new(None);

/// As [`crate::Endpoint`], for programs without an async runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Endpoint {
    endpoint: crate::Endpoint,
}

impl Endpoint {
    /// Binds what was set up with [`crate::Endpoint::builder`].
    ///
    /// # Errors
    /// [`BindError`](crate::BindError), wrapped.
    pub fn bind(builder: crate::Builder) -> io::Result<Self> {
        let endpoint = runtime::run(builder.bind())??;
        Ok(Self { endpoint })
    }

    /// The endpoint that [`Stream::connect`] and [`Listener::bind`] use. The first use makes one: with a
    /// fresh key, and the name service that the environment variable `WHIMBREL_NAMES` says.
    ///
    /// # Errors
    /// [`BindError`](crate::BindError), wrapped, when it can't be made.
    pub fn process_default() -> io::Result<Self> {
        let mut default = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = &*default {
            return Ok(endpoint.clone());
        }
        let mut builder = crate::Endpoint::builder();
        if let Ok(names) = std::env::var(NAMES_VARIABLE) {
            builder = builder.names(names);
        }
        let endpoint = Self::bind(builder)?;
        *default = Some(endpoint.clone());
        Ok(endpoint)
    }

    /// Makes this one the [default](Self::process_default) from now on.
    pub fn set_process_default(self) {
        *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// Connects, and opens a stream.
    ///
    /// # Errors
    /// [`ConnectError`], wrapped.
    pub fn connect(&self, target: impl IntoTarget) -> io::Result<Stream> {
        let target = target.into_target().map_err(ConnectError::from)?;
        runtime::run(connect(self.endpoint.clone(), target))?
    }

    /// As [`connect`](Self::connect), for at most `limit`.
    ///
    /// # Errors
    /// [`ConnectError`], wrapped; `TimedOut` after `limit`.
    pub fn connect_timeout(&self, target: impl IntoTarget, limit: Duration) -> io::Result<Stream> {
        if limit.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot connect within no time at all"));
        }
        let target = target.into_target().map_err(ConnectError::from)?;
        let connect = connect(self.endpoint.clone(), target);
        runtime::run(async move {
            let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection within the time given");
            tokio::time::timeout(limit, connect).await.unwrap_or_else(|_| Err(late()))
        })?
    }

    /// Listens under a name, for everybody.
    ///
    /// # Errors
    /// [`ListenError`], wrapped.
    pub fn listen(&self, name: impl IntoName) -> io::Result<Listener> {
        self.listen_with(name, ListenOptions::default())
    }

    /// Listens under a name, for those who are [allowed](ListenOptions::allow).
    ///
    /// # Errors
    /// [`ListenError`], wrapped.
    pub fn listen_with(&self, name: impl IntoName, options: ListenOptions) -> io::Result<Listener> {
        let name = name.into_name().map_err(ListenError::from)?;
        let endpoint = self.endpoint.clone();
        let listener = runtime::run(async move { endpoint.listen_with(name, options).await })??;
        Listener::start(self.clone(), listener)
    }

    /// Listens for those who have this endpoint's [ticket](Self::ticket).
    ///
    /// # Errors
    /// [`ListenError`], wrapped.
    pub fn listen_unnamed(&self) -> io::Result<Listener> {
        let endpoint = self.endpoint.clone();
        let listener =
            runtime::run(async move { endpoint.listen_unnamed().await })?.map_err(ListenError::from)?;
        Listener::start(self.clone(), listener)
    }

    /// Who this is.
    pub fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// Where it can be reached now: enough for others to connect without any name service.
    pub fn ticket(&self) -> Ticket {
        self.endpoint.ticket(None)
    }

    /// Ends all connections in order, for at most `limit`, and stops.
    pub fn close(&self, limit: Duration) {
        let endpoint = self.endpoint.clone();
        // Without a runtime there is nothing to end.
        let _ = runtime::run(async move { endpoint.close(limit).await });
    }

    /// The endpoint itself.
    pub fn inner(&self) -> &crate::Endpoint {
        &self.endpoint
    }
}

async fn connect(endpoint: crate::Endpoint, target: Target) -> io::Result<Stream> {
    let connection: Connection = endpoint.connect(target).await?;
    let stream = connection.open_stream().await?;
    Ok(Stream::dialled(stream, endpoint.id()))
}
