//! Has a router that hides this host pass a port on.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crab_nat::InternetProtocol;
use whimbrel_base::AddressScope;
use whimbrel_transport::{Endpoint, Watched};

use crate::favour::Favour;
use crate::mapping::{MapError, Mapping};
use crate::news::Mapped;
use crate::pcp::Nonce;
use crate::router::{Router, routers};

/// An endpoint's port, passed on by the first router that does so.
pub(crate) struct PassingOn {
    endpoint: Endpoint,
    port: NonZeroU16,
    nonce: Nonce,
    news: Arc<Watched<Mapped>>,
    held: Option<Held>,
}

impl PassingOn {
    pub(crate) fn new(
        endpoint: Endpoint,
        port: NonZeroU16,
        nonce: Nonce,
        news: Arc<Watched<Mapped>>,
    ) -> Self {
        Self { endpoint, port, nonce, news, held: None }
    }

    /// Asks the router that passes the port on to go on, or whichever there is now. How that stands, and for
    /// how long.
    async fn hold(&mut self) -> Result<(Mapped, Duration), MapError> {
        let routers = routers();
        if let Some(held) = &mut self.held
            && routers.contains(&held.router)
            && held.renew(self.port, self.nonce).await.is_ok()
        {
            return Ok((held.told(), held.soonest_end()));
        }
        self.held = None;
        let mut last = MapError::NoRouter;
        for router in routers {
            match Held::ask(router, self.port, self.nonce).await {
                Ok(now) => {
                    let held = self.held.insert(now);
                    return Ok((held.told(), held.soonest_end()));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn tell(&self, now: Mapped) {
        self.endpoint.set_mapped(now.places.clone());
        self.news.update(|mapped| {
            let pinholes = std::mem::take(&mut mapped.pinholes);
            *mapped = Mapped { pinholes, ..now };
        });
    }
}

impl Favour for PassingOn {
    async fn ask(&mut self) -> Result<Duration, MapError> {
        match self.hold().await {
            Ok((told, lifetime)) => {
                self.tell(told);
                Ok(lifetime)
            }
            Err(error) => {
                self.tell(Mapped { problem: Some(error.to_string()), ..Mapped::default() });
                Err(error)
            }
        }
    }

    async fn give_back(mut self) {
        self.tell(Mapped::default());
        for port in self.held.take().into_iter().flat_map(|held| held.ports) {
            port.give_back().await;
        }
    }
}

/// What a router passes on for the endpoint.
struct Held {
    router: Router,
    ports: Vec<Mapping>,
}

impl Held {
    async fn ask(router: Router, port: NonZeroU16, nonce: Nonce) -> Result<Self, MapError> {
        let over = |protocol| Mapping::ask(router, protocol, port, nonce);
        let (tcp, udp) = tokio::join!(over(InternetProtocol::Tcp), over(InternetProtocol::Udp));
        let ports = match (tcp, udp) {
            (Err(error), Err(_)) => return Err(error),
            // One of the two is enough to be reached.
            (tcp, udp) => tcp.into_iter().chain(udp).collect::<Vec<_>>(),
        };
        let held = Self { router, ports };
        match held.hidden_at() {
            Some(ip) => {
                for port in held.ports {
                    port.give_back().await;
                }
                Err(MapError::Hidden(ip))
            }
            None => Ok(held),
        }
    }

    async fn renew(&mut self, port: NonZeroU16, nonce: Nonce) -> Result<(), MapError> {
        for mapping in &mut self.ports {
            *mapping = Mapping::ask(self.router, mapping.protocol(), port, nonce).await?;
        }
        match self.hidden_at() {
            Some(ip) => Err(MapError::Hidden(ip)),
            None => Ok(()),
        }
    }

    /// The router's address, if it leads nowhere.
    fn hidden_at(&self) -> Option<IpAddr> {
        let ips = self.ports.iter().map(|port| port.outside.ip());
        ips.into_iter().find(|ip| AddressScope::of(*ip) != AddressScope::Global)
    }

    fn soonest_end(&self) -> Duration {
        self.ports.iter().map(|port| port.lifetime).min().unwrap_or_default()
    }

    fn told(&self) -> Mapped {
        let mut places: Vec<SocketAddr> = self.ports.iter().map(|port| port.outside).collect();
        places.dedup();
        Mapped { places, by: self.ports.first().map(|port| port.by), ..Mapped::default() }
    }
}
