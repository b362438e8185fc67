//! A router that passes ports on and is asked by UPnP: what it is told (WANIPConnection:1 and :2,
//! WANPPPConnection:1).

mod wish;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;
use tokio::time::timeout;

use self::wish::{Choice, Wish};
use crate::device::{Search, Service, UpnpError, UpnpRefusal};
use crate::pcp::Nonce;
use crate::router::{LIFETIME, Router};

/// The services that pass ports on. That of version 2 can choose one.
const SERVICES: [&str; 3] = [
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
    VERSION_2,
];
const VERSION_2: &str = "urn:schemas-upnp-org:service:WANIPConnection:2";
/// What is searched for: to that of version 1 those of version 2 answer as well.
const TARGETS: [&str; 3] = [
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:service:WANIPConnection:1",
    "urn:schemas-upnp-org:service:WANPPPConnection:1",
];
/// For an answer: some routers load all their rules anew.
const TALK: Duration = Duration::from_secs(10);
/// For all that is asked until a port is passed on.
const ADDING: Duration = Duration::from_secs(20);
/// What the router's owner reads in its list of ports.
const DESCRIPTION: &str = "whimbrel";

/// A router that passes ports on to an address of this host.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    own: Ipv4Addr,
    service: Service,
}

impl Gateway {
    /// Finds the device that this router is, and no other one. Takes 2.5 seconds at most. Cancel-safe.
    pub(crate) async fn find(router: Router) -> Result<Self, UpnpError> {
        let search = Search {
            own: router.own.into(),
            router: SocketAddr::new(router.ip.into(), 0),
            targets: &TARGETS,
            services: &SERVICES,
            missing: "connection whose ports can be passed on",
        };
        Ok(Self { own: router.own, service: search.find().await? })
    }

    /// Has it pass a port on: the same one if that is free, otherwise one that the router or the nonce
    /// chooses. Where that is, and for how long. Takes 20 seconds at most.
    pub(crate) async fn add(
        &self,
        protocol: InternetProtocol,
        port: NonZeroU16,
        nonce: Nonce,
    ) -> Result<(SocketAddr, Duration), UpnpError> {
        timeout(ADDING, self.added(protocol, port, nonce)).await.unwrap_or(Err(UpnpError::Silent))
    }

    async fn added(
        &self,
        protocol: InternetProtocol,
        port: NonZeroU16,
        nonce: Nonce,
    ) -> Result<(SocketAddr, Duration), UpnpError> {
        let answer = self.service.ask("GetExternalIPAddress", &[], TALK).await?;
        let ip = answer.value("NewExternalIPAddress").and_then(|ip| ip.parse::<IpAddr>().ok());
        let ip = ip.ok_or(UpnpError::Garbled)?;
        let may_choose = self.service.kind() == VERSION_2;
        let mut wish = Wish::first(port, LIFETIME.as_secs() as u32, may_choose, nonce);
        loop {
            let error = match self.granted(wish, protocol, port).await {
                Ok(outside) => return Ok((SocketAddr::new(ip, outside), LIFETIME)),
                Err(error) => error,
            };
            let refusal = match error {
                UpnpError::Refused(refusal) => refusal,
                UpnpError::Garbled => UpnpRefusal::FAILED,
                _ => return Err(error),
            };
            wish = wish.after(refusal).ok_or(error)?;
        }
    }

    /// The port that it passes on when it is asked for one.
    async fn granted(
        &self,
        wish: Wish,
        protocol: InternetProtocol,
        inside: NonZeroU16,
    ) -> Result<u16, UpnpError> {
        let wanted = self.wanted(wish, protocol, inside);
        if wish.choice != Choice::Router {
            return self.service.ask("AddPortMapping", &wanted, TALK).await.map(|_| wish.outside);
        }
        let answer = self.service.ask("AddAnyPortMapping", &wanted, TALK).await?;
        let chosen = answer.value("NewReservedPort").and_then(|port| port.parse::<NonZeroU16>().ok());
        chosen.map(NonZeroU16::get).ok_or(UpnpError::Garbled)
    }

    /// The arguments of both actions, in the order of the services' descriptions.
    fn wanted(
        &self,
        wish: Wish,
        protocol: InternetProtocol,
        inside: NonZeroU16,
    ) -> [(&'static str, String); 8] {
        [
            // From wherever.
            ("NewRemoteHost", String::new()),
            ("NewExternalPort", wish.outside.to_string()),
            ("NewProtocol", named(protocol).to_owned()),
            ("NewInternalPort", inside.to_string()),
            ("NewInternalClient", self.own.to_string()),
            ("NewEnabled", "1".to_owned()),
            ("NewPortMappingDescription", DESCRIPTION.to_owned()),
            ("NewLeaseDuration", wish.seconds.to_string()),
        ]
    }

    /// Tells it that a port is no longer needed.
    pub(crate) async fn remove(&self, protocol: InternetProtocol, outside: u16) -> Result<(), UpnpError> {
        let which = [
            ("NewRemoteHost", String::new()),
            ("NewExternalPort", outside.to_string()),
            ("NewProtocol", named(protocol).to_owned()),
        ];
        self.service.ask("DeletePortMapping", &which, TALK).await.map(drop)
    }
}

fn named(protocol: InternetProtocol) -> &'static str {
    match protocol {
        InternetProtocol::Tcp => "TCP",
        InternetProtocol::Udp => "UDP",
    }
}

#[cfg(test)]
mod tests;
