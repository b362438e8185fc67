//! The networks that this host is in.

use crate::Prefix;
use crate::addresses::AddressesMessage;
use crate::kernel::Kernel;
use netlink_sys::protocols::NETLINK_ROUTE;
use std::io;

/// The networks of this host's addresses, of all interfaces: their other hosts are reached without a router.
/// Must run inside a tokio runtime.
///
/// # Errors
/// When the kernel cannot be asked, or does not answer within seconds.
pub async fn own_networks() -> io::Result<Vec<Prefix>> {
    let mut found = Vec::new();
    let note = |message| {
        if let AddressesMessage::Address(address) = message {
            found.push(Prefix::new(address.network, address.length));
        }
    };
    Kernel::open(NETLINK_ROUTE)?.dump(AddressesMessage::Request, note).await?;
    Ok(found)
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
