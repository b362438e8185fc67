//! How fast a living connection may send, and how long it waits.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use whimbrel_proto::{BadTimeout, RateLimit, Timeouts, Urgency};

use crate::connection::Connection;
use crate::shared::Shared;

/// Says how fast a connection may send. Does not keep the connection alive, nor wait for anything.
#[derive(Clone)]
pub struct RateControl {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for RateControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateControl").field("connection", &self.shared.id).finish_non_exhaustive()
    }
}

impl RateControl {
    /// Limits what this side sends, or lifts the limit; as [`Connection::set_rate_limit`].
    pub fn set_rate_limit(&self, limit: Option<RateLimit>) {
        self.shared.with(|state| state.engine.set_rate_limit(Instant::now(), limit));
    }

    /// Limits what this side sends of one level of urgency; as [`Connection::set_urgency_limit`].
    pub fn set_urgency_limit(&self, urgency: Urgency, limit: Option<RateLimit>) {
        self.shared.with(|state| state.engine.set_urgency_limit(Instant::now(), urgency, limit));
    }

    /// The limit of what this side sends, if there is one.
    #[must_use]
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.shared.lock().engine.rate_limit()
    }
}

impl Connection {
    /// Limits what this side sends, streams and messages over all paths together; `None` lifts the limit.
    /// Holds from the next byte on, within 3 % over ten seconds. What goes beyond it waits: writers and
    /// senders are held back, and nothing is dropped but messages that outlive their own lifetime. Does not
    /// wait.
    ///
    /// ```
    /// # use whimbrel_transport::{Allow, Endpoint, ListenOptions, RateLimit};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (server, client) = (Endpoint::builder().bind().await?, Endpoint::builder().bind().await?);
    /// # let _listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    /// # let connection = client.connect(server.addr()).await?;
    /// connection.set_rate_limit(RateLimit::new(250_000)); // bytes a second: 2 Mbit/s
    /// # assert_eq!(connection.rate_limit(), RateLimit::new(250_000));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_rate_limit(&self, limit: Option<RateLimit>) {
        self.rate_control().set_rate_limit(limit);
    }

    /// Limits what this side sends of one level of urgency, streams and messages together; `None` lifts the
    /// limit. Otherwise as [`set_rate_limit`](Self::set_rate_limit), beside which it holds.
    pub fn set_urgency_limit(&self, urgency: Urgency, limit: Option<RateLimit>) {
        self.rate_control().set_urgency_limit(urgency, limit);
    }

    /// Sets how long this side waits for what, from now on. Does not wait. An endpoint's connections begin
    /// with [`Config::timeouts`](crate::Config::timeouts).
    ///
    /// # Errors
    /// [`BadTimeout`] if one lies outside of its range; nothing is changed then.
    pub fn set_timeouts(&self, timeouts: Timeouts) -> Result<(), BadTimeout> {
        self.shared().with(|state| state.engine.set_timeouts(timeouts))
    }

    /// How long this side waits for what.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.shared().lock().engine.timeouts()
    }

    /// The limit of what this side sends, if there is one.
    #[must_use]
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.rate_control().rate_limit()
    }

    fn rate_control(&self) -> RateControl {
        RateControl { shared: self.shared().clone() }
    }
}
