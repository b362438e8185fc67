//! One port that a router passes on, over one protocol.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::{
    InternetProtocol, MappingFailure, PortMapping, PortMappingOptions, PortMappingType, TimeoutConfig,
    natpmp, pcp,
};

use crate::device::UpnpError;
use crate::pcp::{Nonce, PcpError};
use crate::router::{LIFETIME, Router};
use crate::upnp::Gateway;

/// 250, 500 and 1000 ms: a router is one hop away.
const PATIENCE: TimeoutConfig =
    TimeoutConfig { initial_timeout: Duration::from_millis(250), max_retries: 2, max_retry_timeout: None };

/// How a router was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// The Port Control Protocol, RFC 6887.
    Pcp,
    /// The NAT Port Mapping Protocol, RFC 6886.
    NatPmp,
    /// UPnP's Internet Gateway Device.
    Upnp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcp => "PCP",
            Self::NatPmp => "NAT-PMP",
            Self::Upnp => "UPnP",
        })
    }
}

/// Why no port is passed on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No default route leads to a router that hides this host.
    #[error("there is no router that hides this host")]
    NoRouter,
    /// The router speaks none of the protocols, or refuses.
    #[error("the router {router} passes no port on: {tried}; {upnp}")]
    Refused {
        /// The router.
        router: IpAddr,
        /// What came of PCP and NAT-PMP.
        tried: MappingFailure,
        /// What came of UPnP.
        upnp: UpnpError,
    },
    /// No default route leads a global IPv6 address of this host to a router.
    #[error("this host has no global IPv6 address behind a router")]
    NoGate,
    /// No router says that its firewall lets peers in.
    #[error("the router {router} opens no pinhole for {own}: {why}; {upnp}")]
    Closed {
        /// The router that was asked last.
        router: Ipv6Addr,
        /// For which address of this host.
        own: Ipv6Addr,
        /// What came of PCP.
        why: PcpError,
        /// What came of UPnP.
        upnp: UpnpError,
    },
    /// The router is behind another one.
    #[error("the router's own address {0} is not public: it is behind another router")]
    Hidden(IpAddr),
}

/// A port of a router that leads here.
pub(crate) struct Mapping {
    pub(crate) outside: SocketAddr,
    pub(crate) by: Protocol,
    pub(crate) lifetime: Duration,
    kind: Kind,
}

enum Kind {
    Asked(PortMapping),
    Upnp(Gateway, InternetProtocol),
}

impl Mapping {
    /// Asks a router for a port, the same one outside if it can be had; one that this endpoint has had before
    /// it keeps. Returns within half a minute.
    pub(crate) async fn ask(
        router: Router,
        protocol: InternetProtocol,
        port: NonZeroU16,
        nonce: Nonce,
    ) -> Result<Self, MapError> {
        let options = PortMappingOptions {
            external_port: Some(port),
            lifetime_seconds: Some(LIFETIME.as_secs() as u32),
            timeout_config: Some(PATIENCE),
        };
        let tried = match Self::ask_by_packet(router, protocol, port, nonce, options).await {
            Ok(mapping) => return Ok(mapping),
            Err(tried) => tried,
        };
        match Self::ask_upnp(router, protocol, port, nonce).await {
            Ok(mapping) => Ok(mapping),
            Err(upnp) => Err(MapError::Refused { router: router.ip.into(), tried, upnp }),
        }
    }

    /// By PCP, and by NAT-PMP if the router does not know it: it says so, or says nothing.
    async fn ask_by_packet(
        router: Router,
        protocol: InternetProtocol,
        port: NonZeroU16,
        nonce: Nonce,
        options: PortMappingOptions,
    ) -> Result<Self, MappingFailure> {
        let gateway = router.ip.into();
        let request = pcp::BaseMapRequest::new(gateway, router.own.into(), protocol, port);
        let mapping = match pcp::port_mapping(request, Some(nonce), None, options).await {
            Err(pcp::Failure::UnsupportedVersion(_) | pcp::Failure::Timeout) => {
                natpmp::port_mapping(gateway, protocol, port, options).await?
            }
            asked => asked?,
        };
        Ok(Self::asked(mapping).await?)
    }

    async fn asked(mapping: PortMapping) -> Result<Self, natpmp::Failure> {
        let (by, ip) = match mapping.mapping_type() {
            PortMappingType::Pcp { external_ip, .. } => (Protocol::Pcp, external_ip.to_canonical()),
            PortMappingType::NatPmp => {
                let ip = natpmp::external_address(mapping.gateway(), Some(PATIENCE)).await?;
                (Protocol::NatPmp, ip.into())
            }
        };
        let outside = SocketAddr::new(ip, mapping.external_port().get());
        let lifetime = Duration::from_secs(mapping.lifetime().into());
        Ok(Self { outside, by, lifetime, kind: Kind::Asked(mapping) })
    }

    async fn ask_upnp(
        router: Router,
        protocol: InternetProtocol,
        port: NonZeroU16,
        nonce: Nonce,
    ) -> Result<Self, UpnpError> {
        let gateway = Gateway::find(router).await?;
        let (outside, lifetime) = gateway.add(protocol, port, nonce).await?;
        Ok(Self { outside, by: Protocol::Upnp, lifetime, kind: Kind::Upnp(gateway, protocol) })
    }

    /// Over which protocol it is reached.
    pub(crate) fn protocol(&self) -> InternetProtocol {
        match &self.kind {
            Kind::Asked(mapping) => mapping.protocol(),
            Kind::Upnp(_, protocol) => *protocol,
        }
    }

    /// Tells the router that it is no longer needed.
    pub(crate) async fn give_back(self) {
        let refused = match self.kind {
            Kind::Asked(mapping) => mapping.try_drop().await.map_err(|(failure, _)| failure.to_string()),
            Kind::Upnp(gateway, protocol) => {
                gateway.remove(protocol, self.outside.port()).await.map_err(|why| why.to_string())
            }
        };
        if let Err(why) = refused {
            tracing::debug!("the router keeps {} for a while: {why}", self.outside);
        }
    }
}
