//! UPnP's side: how a router is found, and what it is told.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crab_nat::InternetProtocol;
use igd_next::{AddPortError, PortMappingProtocol, SearchOptions, search_gateway};
use tokio::sync::oneshot;

use crate::router::{LIFETIME, Router};

pub(crate) type Gateway = igd_next::Gateway;

/// A router on this link answers within this.
const SEARCH: Duration = Duration::from_secs(2);
/// What the router's owner reads in its list of ports.
const DESCRIPTION: &str = "whimbrel";

/// What came of asking by UPnP.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpnpError {
    /// No device answered that is the router.
    #[error("UPnP: {0}")]
    Search(#[from] igd_next::SearchError),
    /// The device that answered is another one.
    #[error("UPnP: {0} answered, which is not the router")]
    Stranger(IpAddr),
    /// It does not say where it is.
    #[error("UPnP: {0}")]
    Address(#[from] igd_next::GetExternalIpError),
    /// It refuses.
    #[error("UPnP: {0}")]
    Port(#[from] igd_next::AddAnyPortError),
}

/// Finds the device that this router is, and no other one.
pub(crate) async fn search(router: Router) -> Result<Gateway, UpnpError> {
    let mut options = SearchOptions::default();
    options.bind_addr = SocketAddr::new(router.own.into(), 0);
    options.timeout = Some(SEARCH);
    options.single_search_timeout = Some(SEARCH);
    let gateway = waiting(move || search_gateway(options)).await?;
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
    let gateway = gateway.clone();
    waiting(move || {
        let ip = gateway.get_external_ip()?;
        let outside = match gateway.add_port(protocol, port.get(), inside, seconds, DESCRIPTION) {
            Ok(()) => port.get(),
            // Some routers know no end; then it is given back, or stays until somebody else takes the port.
            Err(AddPortError::OnlyPermanentLeasesSupported) => {
                gateway.add_any_port(protocol, inside, 0, DESCRIPTION)?
            }
            Err(_) => gateway.add_any_port(protocol, inside, seconds, DESCRIPTION)?,
        };
        Ok((SocketAddr::new(ip, outside), LIFETIME))
    })
    .await
}

pub(crate) async fn remove(gateway: &Gateway, protocol: InternetProtocol, port: u16) -> Result<(), String> {
    let gateway = gateway.clone();
    waiting(move || gateway.remove_port(named(protocol), port)).await.map_err(|error| error.to_string())
}

/// Runs what waits for the router, within the library's own limits, on a thread that may wait. The library's other
/// face is asynchronous, and brings an HTTP client with it that has version 2, of which no router knows.
async fn waiting<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (reply, answer) = oneshot::channel();
    // One type of task for all: what the runtime does with a task is compiled for each type of one, 2 KB.
    let ask: Box<dyn FnOnce() + Send> =
        Box::new(move || drop(reply.send(catch_unwind(AssertUnwindSafe(ask)))));
    drop(tokio::task::spawn_blocking(ask));
    match answer.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => resume_unwind(panic),
        // Blocking tasks are not aborted: the runtime ends, and with it this task.
        Err(_) => std::future::pending().await,
    }
}

fn named(protocol: InternetProtocol) -> PortMappingProtocol {
    match protocol {
        InternetProtocol::Tcp => PortMappingProtocol::TCP,
        InternetProtocol::Udp => PortMappingProtocol::UDP,
    }
}
