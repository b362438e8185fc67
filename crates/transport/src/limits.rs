//! How fast a living connection may send, and how long it waits.

use std::time::Instant;

use whimbrel_proto::{BadTimeout, RateLimit, Timeouts, Urgency};

use crate::connection::Connection;

impl Connection {
    /// Limits what this side sends, streams and messages over all paths together; `None` lifts the limit.
    /// Holds from the next byte on, within 3 % over ten seconds. What goes beyond it waits: writers and senders
    /// are held back, and nothing is dropped but messages that outlive their own lifetime. Does not wait.
    ///
    /// ```no_run
    /// # use whimbrel_transport::{Connection, RateLimit};
    /// # fn hold_back(connection: &Connection) {
    /// connection.set_rate_limit(RateLimit::new(250_000)); // bytes a second: 2 Mbit/s
    /// # }
    /// ```
    pub fn set_rate_limit(&self, limit: Option<RateLimit>) {
        self.shared().with(|state| state.engine.set_rate_limit(Instant::now(), limit));
    }

    /// Limits what this side sends of one level of urgency, streams and messages together; `None` lifts the
    /// limit. Otherwise as [`set_rate_limit`](Self::set_rate_limit), beside which it holds.
    pub fn set_urgency_limit(&self, urgency: Urgency, limit: Option<RateLimit>) {
        self.shared().with(|state| state.engine.set_urgency_limit(Instant::now(), urgency, limit));
    }

    /// Sets how long this side waits for what, from now on. Does not wait. An endpoint's connections begin with
    /// [`Config::timeouts`](crate::Config::timeouts).
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
        self.shared().lock().engine.rate_limit()
    }
}
