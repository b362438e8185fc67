//! Each connection as the manager answers: through the gateway where it says Whimbrel, and over a network of
//! this host where it says Multipath TCP or plain TCP. Where it says nothing of gateways, all goes through
//! the gateway.

use crate::error::not_here;
use crate::upstream::{reached, unreached};
use crate::{Choosing, Destination, Reaching, Upstream, UpstreamError, is_whimbrel_host};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use whimbrel_access::Intents;
use whimbrel_multiaccess::{Candidate, Client, GatewayOr};

/// Through a gateway or not, by the manager's answer for each connection.
pub struct ByAnswer {
    client: Client,
    /// What the user says of all connections.
    intents: Intents,
    gateway: Arc<dyn Upstream>,
    is_told: AtomicBool,
}

impl ByAnswer {
    /// Asks the manager of this client, and tells it these intents of each connection.
    pub fn new(client: &Client, intents: Intents, gateway: Arc<dyn Upstream>) -> Self {
        Self { client: client.beside_gateway(), intents, gateway, is_told: AtomicBool::new(false) }
    }

    /// What is said of a connection: what proxies know of one are sizes.
    fn stated(&self, known: &Intents) -> Intents {
        Intents {
            size_sent: known.size_sent.or(self.intents.size_sent),
            size_received: known.size_received.or(self.intents.size_received),
            ..self.intents
        }
    }

    async fn chosen(&self, to: &Destination, known: &Intents) -> Result<Arc<dyn Upstream>, UpstreamError> {
        if is_whimbrel_host(to.host()) {
            return Err(not_here(to));
        }
        let intents = self.stated(known);
        match self.client.gateway_or(to.host(), to.port(), intents).await {
            Ok(GatewayOr::Gateway(why)) => {
                tracing::debug!(%to, why, "a connection goes through the gateway");
                Ok(Arc::clone(&self.gateway))
            }
            Ok(GatewayOr::Unanswered(why)) => {
                self.tell_once(&why);
                Ok(Arc::clone(&self.gateway))
            }
            Ok(GatewayOr::Ways(ways)) => {
                let why = ways.first().map_or("", |way| &way.why[..]);
                tracing::debug!(%to, why, "a connection does not go through the gateway");
                Ok(Arc::new(Direct { client: self.client.clone(), ways, intents }))
            }
            Err(error) => Err(unreached(to, error)),
        }
    }

    /// Says once that nobody chooses; later times to those who look closely.
    fn tell_once(&self, why: &str) {
        if self.is_told.swap(true, Ordering::Relaxed) {
            tracing::debug!(why, "a connection goes through the gateway, as nobody says otherwise");
        } else {
            tracing::warn!(why, "a connection goes through the gateway, as nobody says otherwise");
        }
    }
}

impl Upstream for ByAnswer {
    fn reach<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let chosen = self.chosen(to, intents).await?;
            chosen.reach(to, intents).await
        })
    }

    /// Messages are never for a gateway: the manager chooses their networks, where it says anything.
    fn manager(&self, to: &Destination) -> Option<&Client> {
        (!is_whimbrel_host(to.host()) && !self.is_here(to)).then_some(&self.client)
    }

    fn is_here(&self, to: &Destination) -> bool {
        to.is_this_host()
    }

    /// With what it gives there may be a session, and with this itself there is none.
    fn choose<'a>(&'a self, to: &'a Destination, intents: &'a Intents) -> Option<Choosing<'a>> {
        Some(Box::pin(self.chosen(to, intents)))
    }
}

/// Over networks of this host, in ways that were decided already.
struct Direct {
    client: Client,
    ways: Vec<Candidate>,
    intents: Intents,
}

impl Upstream for Direct {
    fn reach<'a>(&'a self, to: &'a Destination, _intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let connected = self.client.connect_by(self.ways.clone(), &to.to_string()).await;
            let connected = connected.map_err(|error| unreached(to, error))?;
            self.client.have_steered(&connected, &self.intents);
            Ok(reached(connected))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A gateway that says its name in its errors.
    struct Gate;

    impl Upstream for Gate {
        fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
            let why = "asked at the gateway".to_owned();
            Box::pin(std::future::ready(Err(UpstreamError::NoWay { to: to.to_string(), why })))
        }
    }

    fn without_a_manager(intents: &str) -> ByAnswer {
        ByAnswer::new(&Client::off(), intents.parse().unwrap(), Arc::new(Gate))
    }

    #[tokio::test]
    async fn where_no_manager_answers_all_goes_through_the_gateway_but_what_is_on_this_host() {
        let upstream = without_a_manager("");
        let says = async |to: &'static str| {
            let to: Destination = to.parse().unwrap();
            upstream.reach(&to, &Intents::default()).await.err().unwrap().to_string()
        };
        assert!(says("203.0.113.9:443").await.contains("asked at the gateway"));
        assert!(says("example.org:443").await.contains("asked at the gateway"));
        assert!(says("web.home.ada.at.example.org.whimbrel:80").await.contains("--host"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here: Destination = listener.local_addr().unwrap().to_string().parse().unwrap();
        let intents = Intents::default();
        assert!(upstream.reach(&here, &intents).await.is_ok(), "it is a server of this host");
        assert!(upstream.is_here(&here) && upstream.manager(&here).is_none());
    }

    #[test]
    fn what_the_user_says_is_said_of_each_connection_with_what_is_known_of_its_size() {
        let upstream = without_a_manager("resilience=sensitive size-received=5");
        let known = "size-received=300 size-sent=7".parse().unwrap();
        let stated = upstream.stated(&known);
        assert_eq!(stated, "resilience=sensitive size-received=300 size-sent=7".parse().unwrap());
        let stated = upstream.stated(&Intents::default());
        assert_eq!(stated, "resilience=sensitive size-received=5".parse().unwrap());
    }
}
