//! The process's default endpoint, and what uses it.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_transport::{IntoTarget, ListenOptions};

use super::{Endpoint, Listener, Stream};

/// The environment variable that says where the name service of the [default
/// endpoint](Endpoint::process_default) is.
pub const NAMES_VARIABLE: &str = "WHIMBREL_NAMES";

/// The environment variable that names the [file](crate::Identity::in_file) with the key of the [default
/// endpoint](Endpoint::process_default).
pub const IDENTITY_VARIABLE: &str = "WHIMBREL_IDENTITY";

static DEFAULT: Mutex<Option<Endpoint>> = Mutex::new(None);

impl Endpoint {
    /// The endpoint that [`Stream::connect`] and [`Listener::bind`] use. The first use makes one, with what
    /// two environment variables say: `WHIMBREL_NAMES` the name service, `WHIMBREL_IDENTITY` the file with
    /// the key. Without a file the key is a fresh one, and no name can be listened for.
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
}

impl Stream {
    /// Connects with the process's [default endpoint](Endpoint::process_default), to a name or a ticket.
    ///
    /// # Errors
    /// [`ConnectError`](crate::ConnectError) or [`BindError`](crate::BindError), wrapped.
    pub fn connect(target: impl IntoTarget) -> io::Result<Self> {
        Endpoint::process_default()?.connect(target)
    }

    /// As [`connect`](Self::connect), for at most `limit`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `TimedOut` after `limit`.
    pub fn connect_timeout(target: impl IntoTarget, limit: Duration) -> io::Result<Self> {
        Endpoint::process_default()?.connect_timeout(target, limit)
    }
}

impl Listener {
    /// Listens with the process's [default endpoint](Endpoint::process_default).
    ///
    /// # Errors
    /// [`ListenError`](crate::ListenError) or [`BindError`](crate::BindError), wrapped.
    pub fn bind(options: ListenOptions) -> io::Result<Self> {
        Endpoint::process_default()?.listen(options)
    }
}
