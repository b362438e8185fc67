//! UPnP's side: how a router is found, and what it is told.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;
use igd_next::aio::tokio::{Tokio, search_gateway};
use igd_next::{AddPortError, PortMappingProtocol, SearchOptions};

use crate::mapping::{LIFETIME, UpnpError};
use crate::router::Router;

pub(crate) type Gateway = igd_next::aio::Gateway<Tokio>;

/// A router on this link answers within this.
const SEARCH: Duration = Duration::from_secs(2);
/// What the router's owner reads in its list of ports.
const DESCRIPTION: &str = "whimbrel";

/// Finds the device that this router is, and no other one.
pub(crate) async fn search(router: Router) -> Result<Gateway, UpnpError> {
    let mut options = SearchOptions::default();
    options.bind_addr = SocketAddr::new(router.own.into(), 0);
    options.timeout = Some(SEARCH);
    options.single_search_timeout = Some(SEARCH);
    let gateway = search_gateway(options).await?;
    match gateway.addr.ip() {
        ip if ip == IpAddr::V4(router.ip) => Ok(gateway),
        stranger => Err(UpnpError::Stranger(stranger)),
    }
}

/// Has it pass a port on: the same one if that is free, otherwise any. Where that is, and for how long.
pub(crate) async fn add(
    gateway: &Gateway,
    router: Router,
    protocol: InternetProtocol,
    port: NonZeroU16,
) -> Result<(SocketAddr, Duration), UpnpError> {
    let inside = SocketAddr::new(router.own.into(), port.get());
    let (protocol, seconds) = (named(protocol), LIFETIME.as_secs() as u32);
    let ip = gateway.get_external_ip().await?;
    let same = gateway.add_port(protocol, port.get(), inside, seconds, DESCRIPTION).await;
    let outside = match same {
        Ok(()) => port.get(),
        // Some routers know no end; then it is given back, or stays until somebody else takes the port.
        Err(AddPortError::OnlyPermanentLeasesSupported) => {
            gateway.add_any_port(protocol, inside, 0, DESCRIPTION).await?
        }
        Err(_) => gateway.add_any_port(protocol, inside, seconds, DESCRIPTION).await?,
    };
    Ok((SocketAddr::new(ip, outside), LIFETIME))
}

pub(crate) async fn remove(gateway: &Gateway, protocol: InternetProtocol, port: u16) -> Result<(), String> {
    gateway.remove_port(named(protocol), port).await.map_err(|error| error.to_string())
}

fn named(protocol: InternetProtocol) -> PortMappingProtocol {
    match protocol {
        InternetProtocol::Tcp => PortMappingProtocol::TCP,
        InternetProtocol::Udp => PortMappingProtocol::UDP,
    }
}
