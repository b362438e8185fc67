//! How a proxy reaches a destination.

use crate::error::not_here;
use crate::whole::Whole;
use crate::{Attached, Destination, UpstreamError, is_whimbrel_host};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use whimbrel_access::Intents;
use whimbrel_multiaccess::{Client, ClientError, Connected};

/// A byte stream in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a destination.
pub struct Reached {
    /// The connection. It looks broken to its peer if it is dropped before it was shut down.
    pub stream: Box<dyn Duplex>,
    /// How it was made, in words, for people.
    pub by: String,
    /// The network that it takes, where the manager chose one.
    pub network: Option<String>,
}

/// What [`Upstream::reach`] returns.
pub type Reaching<'a> = Pin<Box<dyn Future<Output = Result<Reached, UpstreamError>> + Send + 'a>>;

/// What [`Upstream::session`] returns: a session, and how it was made, in words.
pub type InSession<'a> =
    Pin<Box<dyn Future<Output = Result<Option<(Attached, String)>, UpstreamError>> + Send + 'a>>;

/// What [`Upstream::choose`] returns: what reaches the destination.
pub type Choosing<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Upstream>, UpstreamError>> + Send + 'a>>;

/// Reaches destinations: over one of this host's networks, through a gateway, or by name through Whimbrel.
pub trait Upstream: Send + Sync + 'static {
    /// Connects to a destination, for traffic with these intents. It has a limit of its own, and nothing is
    /// left behind when it is dropped.
    fn reach<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Reaching<'a>;

    /// Whether a destination may be reached at all, as far as that is known without a word to anybody.
    ///
    /// # Errors
    /// As [`Upstream::reach`] would have.
    fn knows(&self, _to: &Destination) -> Result<(), UpstreamError> {
        Ok(())
    }

    /// The manager that chooses a network for each message to this destination, where messages can be told
    /// apart. `None`: the destination is reached in another way, such as through a gateway, and
    /// [`Upstream::reach`] alone leads there.
    fn manager(&self, _to: &Destination) -> Option<&Client> {
        None
    }

    /// Whether a destination is this host itself, to which no network leads. Where it is reached from another
    /// one, such as a gateway, the same name or address is that host's.
    fn is_here(&self, _to: &Destination) -> bool {
        false
    }

    /// Decides how one connection to this destination is reached, where that is decided for each: what it
    /// gives then reaches it, or has a session. `None`: it is this one.
    fn choose<'a>(&'a self, _to: &'a Destination, _intents: &'a Intents) -> Option<Choosing<'a>> {
        None
    }

    /// Opens a session that can move to another device, where there is a gateway that may keep it. It is
    /// `None` in the end if that does not: then [`Upstream::reach`] leads there. Otherwise as that.
    fn session<'a>(&'a self, _to: &'a Destination) -> Option<InSession<'a>> {
        None
    }
}

/// Over the network that the manager chooses; over the system's where there is no manager.
pub struct Managed {
    client: Client,
}

impl Managed {
    /// Asks the manager of this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

impl Upstream for Managed {
    fn reach<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            if is_whimbrel_host(to.host()) {
                return Err(not_here(to));
            }
            let connected = self.client.connect(to.host(), to.port(), *intents).await;
            Ok(reached(connected.map_err(|error| unreached(to, error))?))
        })
    }

    fn manager(&self, to: &Destination) -> Option<&Client> {
        // To this host no network leads: there is nothing to ask, for each of its objects.
        (!is_whimbrel_host(to.host()) && !self.is_here(to)).then_some(&self.client)
    }

    fn is_here(&self, to: &Destination) -> bool {
        to.is_this_host()
    }
}

/// A connection of this host as one that was reached.
pub(crate) fn reached(connected: Connected) -> Reached {
    // What is passed on is not held back until there is more of it.
    let _ = connected.stream.set_nodelay(true);
    let (by, network) = (connected.by.why, connected.by.interface);
    Reached { stream: Box::new(Whole::new(connected.stream)), by, network }
}

pub(crate) fn unreached(to: &Destination, error: ClientError) -> UpstreamError {
    let to = to.to_string();
    match error {
        ClientError::Connect { source, .. } => UpstreamError::Unreachable { to, source },
        other => UpstreamError::NoWay { to, why: other.to_string() },
    }
}
