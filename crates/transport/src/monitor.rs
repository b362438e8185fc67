//! Which addresses this host has, as they come and go.

mod kind;
mod manual;
#[cfg(target_os = "linux")]
mod netlink;
mod sleep;

use std::net::IpAddr;
use std::sync::Arc;

use whimbrel_base::address::AddressScope;

use crate::watch::Watch;

pub use kind::{InterfaceKind, UnknownKind};
pub use manual::ManualMonitor;
#[cfg(target_os = "linux")]
pub use netlink::NetlinkMonitor;

/// One usable local address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The interface that has it, where known.
    pub interface: Option<Arc<str>>,
}

/// The usable addresses of this host at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// Addresses of interfaces that are up and have a carrier; loopback included.
    pub addresses: Vec<LocalAddress>,
    /// Addresses of interfaces that are switched off, have no carrier or are gone, and those that went with
    /// them, as far as that is known.
    pub without_link: Vec<IpAddr>,
    /// Grows each time the host wakes from sleep.
    pub wakes: u64,
    /// Grows each time the host learns a way to others, which it often does only after its address.
    pub routes: u64,
    /// Grows each time the host loses a way to others.
    pub routes_lost: u64,
}

impl AddressSet {
    /// Whether the host has this address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.addresses.iter().any(|a| a.ip == ip)
    }

    /// The addresses that others may reach us at: everything but loopback and link-local ones, or
    /// these if there is nothing else; but never IPv6's link-local ones, which mean nothing to others
    /// without the number of their own interface.
    #[must_use]
    pub fn reachable(&self) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = self.addresses.iter().map(|a| a.ip).collect();
        ips.retain(|ip| ip.is_ipv4() || AddressScope::of(*ip) != AddressScope::LinkLocal);
        if !self.is_cut_off() {
            ips.retain(|ip| serves_others(*ip));
        }
        ips
    }

    /// Nobody but this host, or its own link, can reach any of the addresses.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        !self.addresses.iter().any(|address| serves_others(address.ip))
    }
}

fn serves_others(ip: IpAddr) -> bool {
    !matches!(AddressScope::of(ip), AddressScope::Loopback | AddressScope::LinkLocal)
}

/// Watches the host's addresses. A lost address is reported at once, a new one once it is usable.
pub trait AddressMonitor: Send + Sync + 'static {
    /// The current set, and every later one.
    fn watch(&self) -> Watch<Arc<AddressSet>>;

    /// True if the host has further addresses that are not ours to use: sockets are then bound to
    /// exactly the addresses in the set.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// False if it is known that no route leads from a local address to a remote one; by the address'
    /// interface, if that is named. Asked a moment after [`AddressSet::routes_lost`] has grown. It must not
    /// wait.
    fn has_way(&self, from: &LocalAddress, to: IpAddr) -> bool {
        let _ = (from, to);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_others_cannot_dial_is_left_out() {
        let reachable = |ips: &[&str]| {
            let addresses = ips.iter().map(|ip| LocalAddress { ip: ip.parse().unwrap(), interface: None });
            let set = AddressSet { addresses: addresses.collect(), ..AddressSet::default() };
            set.reachable().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let all = ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "10.0.0.2", "2001:db8::2"];
        assert_eq!(reachable(&all), ["10.0.0.2", "2001:db8::2"]);
        assert_eq!(reachable(&all[..4]), ["127.0.0.1", "::1", "169.254.1.1"]);
        assert_eq!(reachable(&["fe80::1"]), [""; 0]);
    }
}
