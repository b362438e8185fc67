//! How to listen.

use std::time::Duration;

use whimbrel_base::{Delegation, IntoName, Name, NameError, TicketSecret};

use crate::allow::Allow;
use crate::publisher::OnRenewal;

/// How long a record holds without a sign of life.
const LIFETIME: Duration = Duration::from_secs(600);

/// How to listen: for a name or without one, and for whom.
///
/// ```
/// use whimbrel_transport::{Allow, ListenOptions};
/// let website = ListenOptions::named("web.desk.user@example.org").allow(Allow::Any);
/// let by_ticket = ListenOptions::unnamed().allow(Allow::only([]));
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing listens before Endpoint::listen"]
pub struct ListenOptions {
    /// What was given as the name; [`Endpoint::listen`](crate::Endpoint::listen) says what is wrong with it.
    pub(super) name: Result<Option<Name>, NameError>,
    pub(super) allow: Allow,
    pub(super) secret: Option<TicketSecret>,
    pub(super) delegation: Option<Delegation>,
    pub(super) renewals: Option<OnRenewal>,
    pub(super) lifetime: Duration,
    pub(super) publish: bool,
    pub(super) ask_first: bool,
    pub(super) goes_on: bool,
}

impl ListenOptions {
    /// Listens for a name, which is registered with the name service and kept up to date while the listener
    /// lives.
    pub fn named(name: impl IntoName) -> Self {
        Self::new(name.into_name().map(Some))
    }

    /// Listens for peers that have a ticket, or know this endpoint by its id.
    pub fn unnamed() -> Self {
        Self::new(Ok(None))
    }

    fn new(name: Result<Option<Name>, NameError>) -> Self {
        Self {
            name,
            allow: Allow::Nobody,
            secret: None,
            delegation: None,
            renewals: None,
            lifetime: LIFETIME,
            publish: true,
            ask_first: false,
            goes_on: false,
        }
    }

    /// The name that is registered with the name service, if one is.
    #[must_use]
    pub fn published_name(&self) -> Option<&Name> {
        self.name.as_ref().ok()?.as_ref().filter(|_| self.publish)
    }

    /// Who may connect without a ticket's secret.
    #[must_use]
    pub fn allowed(&self) -> &Allow {
        &self.allow
    }

    /// Whether a ticket's secret lets in, too.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Who may connect. Nobody, unless it is said.
    pub fn allow(mut self, allow: Allow) -> Self {
        self.allow = allow;
        self
    }

    /// Lets those in as well who have a ticket with this secret ([`Ticket::with_secret`]): a way in beside
    /// [`allow`](Self::allow), for as long as the listener lives.
    ///
    /// [`Ticket::with_secret`]: whimbrel_base::Ticket::with_secret
    pub fn ticket_secret(mut self, secret: TicketSecret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The user's permission for a device's or service's name. None is needed by the user's own key.
    pub fn delegation(mut self, delegation: Option<Delegation>) -> Self {
        self.delegation = delegation;
        self
    }

    /// Has `keep` called with each delegation that the user made in place of the [present](Self::delegation)
    /// one: the listener uses it from then on, and a program that is started again needs it. `keep` must not
    /// block for long.
    pub fn on_renewal(mut self, keep: impl Fn(&Delegation) + Send + Sync + 'static) -> Self {
        self.renewals = Some(OnRenewal::new(keep));
        self
    }

    /// For how long the name is found without a sign of life of this endpoint. Default: ten minutes.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// Tells no name service: the name only says which of the endpoint's listeners a ticket means.
    pub fn unpublished(mut self) -> Self {
        self.publish = false;
        self
    }

    /// The name leads to this endpoint's sockets already, because it goes on with those of
    /// [another](crate::Leaving::pass_on): listening begins at once, and the record is said again meanwhile.
    pub fn going_on(mut self) -> Self {
        self.goes_on = true;
        self
    }

    /// Keeps peers waiting until [`Listener::incoming`](crate::Listener::incoming) has shown them and they
    /// are let in, or [`Listener::accept`](crate::Listener::accept) takes them: both only see peers that are
    /// [allowed](Self::allow). By default these are let in at once, which is faster.
    pub fn ask_first(mut self) -> Self {
        self.ask_first = true;
        self
    }
}
