//! The networks that this host is in.

use crate::Prefix;
use crate::kernel::Kernel;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use std::io;

/// The networks of this host's addresses, of all interfaces: their other hosts are reached without a router.
/// Must run inside a tokio runtime.
///
/// # Errors
/// When the kernel cannot be asked, or does not answer within seconds.
pub async fn own_networks() -> io::Result<Vec<Prefix>> {
    let mut found = Vec::new();
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    Kernel::open(NETLINK_ROUTE)?.dump(question, |message| found.extend(network(&message))).await?;
    Ok(found)
}

/// On point-to-point links, that of the peer.
fn network(message: &RouteNetlinkMessage) -> Option<Prefix> {
    let RouteNetlinkMessage::NewAddress(address) = message else { return None };
    let ip = address.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })?;
    Some(Prefix::new(ip, address.header.prefix_len))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_is_in_the_network_of_its_loopback_and_not_everywhere() {
        let networks = own_networks().await.unwrap();
        assert!(networks.iter().any(|network| network.contains("127.9.9.9".parse().unwrap())));
        assert!(!networks.iter().any(|network| network.contains("203.0.113.77".parse().unwrap())));
    }
}
