//! Which peers may connect.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::EndpointId;
use whimbrel_proto::CloseCode;

use crate::resolver::BoxFuture;

/// Whoever decides about a peer has this long.
const DECISION_LIMIT: Duration = Duration::from_secs(10);

/// Why a peer is not let in.
pub(crate) type Refusal = (CloseCode, String);

/// Says whether a peer may connect.
pub type Check = Arc<dyn Fn(EndpointId) -> BoxFuture<'static, bool> + Send + Sync>;

/// Who may connect. Peers that may not are refused before anything of theirs reaches the application.
#[derive(Clone)]
#[non_exhaustive]
pub enum Allow {
    /// Nobody; there is no use in listening then.
    Nobody,
    /// Everybody who has a key.
    Any,
    /// These peers.
    Only(Arc<HashSet<EndpointId>>),
    /// Whoever passes the check; see [`check`](Self::check).
    Check(Check),
}

impl Allow {
    /// Just these peers.
    pub fn only(peers: impl IntoIterator<Item = EndpointId>) -> Self {
        Self::Only(Arc::new(peers.into_iter().collect()))
    }

    /// Whoever passes the check, which may take its time: a peer waits up to ten seconds, and nobody waits
    /// for it but that peer.
    ///
    /// It is asked when a connection is opened or handed over to another key, and no more: a connection that
    /// exists keeps its right, also to come back with another path. To take the right back, end the
    /// connection ([`Connection::abort`](crate::Connection::abort)); what was ended can't come back.
    ///
    /// ```
    /// # use whimbrel_transport::Allow;
    /// # async fn is_customer(_: whimbrel_base::EndpointId) -> bool { true }
    /// let allow = Allow::check(|peer| async move { is_customer(peer).await });
    /// ```
    pub fn check<F>(check: impl Fn(EndpointId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self::Check(Arc::new(move |peer| Box::pin(check(peer))))
    }

    /// Whether a peer may connect; at once unless it has to be checked.
    pub(crate) async fn permits(&self, peer: EndpointId) -> Result<bool, Refusal> {
        match self {
            Self::Nobody => Ok(false),
            Self::Any => Ok(true),
            Self::Only(peers) => Ok(peers.contains(&peer)),
            Self::Check(check) => within_limit(check(peer)).await,
        }
    }

    /// Lets a peer in, or says why not. Cancel-safe.
    pub(crate) async fn admit(&self, peer: EndpointId) -> Result<(), Refusal> {
        if self.permits(peer).await? { Ok(()) } else { Err(stranger()) }
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("Nobody"),
            Self::Any => f.write_str("Any"),
            Self::Only(peers) => f.debug_tuple("Only").field(peers).finish(),
            Self::Check(_) => f.write_str("Check(..)"),
        }
    }
}

/// What is decided, if that does not take too long.
pub(crate) async fn within_limit<T>(decision: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(DECISION_LIMIT, decision).await.map_err(|_| busy())
}

/// What a peer hears that is not let in.
pub(crate) fn stranger() -> Refusal {
    (CloseCode::NOT_ALLOWED, "this key is not on the list of those allowed".to_owned())
}

/// What a peer hears for which there is no room, or no time.
pub(crate) fn busy() -> Refusal {
    (CloseCode::BUSY, "too many connections wait".to_owned())
}
