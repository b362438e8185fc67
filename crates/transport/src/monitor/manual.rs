//! Addresses set by hand: an endpoint can be moved from one loopback address to another, without root.

use std::net::IpAddr;
use std::sync::Arc;

use super::{AddressMonitor, AddressSet, LocalAddress};
use crate::watch::{Watch, Watched};

/// Reports what it is told. For demos and tests.
///
/// ```
/// use whimbrel_transport::{AddressMonitor, ManualMonitor};
/// let monitor = ManualMonitor::new(["127.0.0.2".parse().unwrap()]);
/// let watch = monitor.watch();
/// monitor.set(["127.0.0.3".parse().unwrap()]);
/// assert!(watch.current().contains("127.0.0.3".parse().unwrap()));
/// ```
#[derive(Debug, Clone)]
pub struct ManualMonitor {
    present: Arc<Watched<Arc<AddressSet>>>,
}

impl ManualMonitor {
    /// Starts with these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let set = AddressSet { addresses: local(addresses), ..AddressSet::default() };
        Self { present: Arc::new(Watched::new(Arc::new(set))) }
    }

    /// Replaces the addresses: those left out are lost at once.
    pub fn set(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = local(addresses);
        self.present.update(|set| {
            *set = Arc::new(AddressSet { addresses, ..AddressSet::clone(set) });
        });
    }

    /// Replaces the addresses, and tells which interfaces they are on: addresses of one interface are one
    /// link.
    pub fn set_local(&self, addresses: impl IntoIterator<Item = LocalAddress>) {
        let addresses: Vec<LocalAddress> = addresses.into_iter().collect();
        self.present.update(|set| {
            *set = Arc::new(AddressSet { addresses, ..AddressSet::clone(set) });
        });
    }

    /// Pretends that the host woke from sleep.
    pub fn wake(&self) {
        self.present.update(|set| {
            *set = Arc::new(AddressSet { wakes: set.wakes + 1, ..AddressSet::clone(set) });
        });
    }
}

fn local(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<LocalAddress> {
    addresses.into_iter().map(|ip| LocalAddress { ip, interface: None }).collect()
}

impl AddressMonitor for ManualMonitor {
    fn watch(&self) -> Watch<Arc<AddressSet>> {
        self.present.watch()
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}
