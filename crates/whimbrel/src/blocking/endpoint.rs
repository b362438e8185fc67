//! Endpoints for programs without an async runtime.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_base::{EndpointId, IntoName, Name, Ticket};
use whimbrel_transport::{ConnectError, Connection, IntoTarget, ListenOptions, Target};

use super::runtime;
use super::{Listener, Stream};
use crate::users::{Registered, UserError};

/// The environment variable that says where the name service of the [default
/// endpoint](Endpoint::process_default) is.
pub const NAMES_VARIABLE: &str = "WHIMBREL_NAMES";

/// The environment variable that names the [file](crate::Identity::in_file) with the key of the [default
/// endpoint](Endpoint::process_default).
pub const IDENTITY_VARIABLE: &str = "WHIMBREL_IDENTITY";

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

    /// The endpoint that [`Stream::connect`] and [`Listener::bind`] use. The first use makes one, with what
    /// two environment variables say: `WHIMBREL_NAMES` the name service, `WHIMBREL_IDENTITY` the file with the
    /// key. Without a file the key is a fresh one, and no name can be listened for.
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
        if let Some(file) = std::env::var_os(IDENTITY_VARIABLE) {
            builder = builder.identity_file(PathBuf::from(file));
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

    /// Listens, with options that say under which name and for whom.
    ///
    /// # Errors
    /// [`ListenError`](crate::ListenError), wrapped.
    pub fn listen(&self, options: ListenOptions) -> io::Result<Listener> {
        let endpoint = self.endpoint.clone();
        let listener = runtime::run(async move { endpoint.listen(options).await })??;
        Listener::start(self.clone(), listener)
    }

    /// Registers a user name for this endpoint's key; see [`crate::Endpoint::register_user`].
    ///
    /// # Errors
    /// [`UserError`], wrapped.
    pub fn register_user(&self, user: impl IntoName) -> io::Result<Registered> {
        let user: Name = user.into_name().map_err(UserError::from)?;
        let endpoint = self.endpoint.clone();
        Ok(runtime::run(async move { endpoint.register_user(user).await })??)
    }

    /// As [`register_user`](Self::register_user), with the code of an invitation where the service wants one.
    ///
    /// # Errors
    /// [`UserError`], wrapped.
    pub fn register_user_invited(&self, user: impl IntoName, invitation: &str) -> io::Result<Registered> {
        let user: Name = user.into_name().map_err(UserError::from)?;
        let (endpoint, invitation) = (self.endpoint.clone(), invitation.to_owned());
        Ok(runtime::run(async move { endpoint.register_user_invited(user, &invitation).await })??)
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
