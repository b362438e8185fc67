//! Which DNS each interface has at present.

use super::dns::Dns;
use super::servers::Known;
use crate::paths::KnownPath;
use crate::{Paths, Settings};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By the kernel's number of the interface.
#[derive(Default)]
pub(super) struct Table(Mutex<HashMap<u32, Entry>>);

struct Entry {
    interface: Arc<str>,
    addresses: Vec<IpAddr>,
    /// What the DNS was made of. When that changes, so does the network behind the interface.
    known: Known,
    dns: Arc<Dns>,
}

impl Entry {
    /// Whether the network behind the interface is the same as before. One that has got or lost an address beside
    /// others is, as by IPv6 after IPv4, or by an address that has expired.
    fn is_in_network_of(&self, path: &KnownPath) -> bool {
        *self.interface == *path.interface
            && self.addresses.iter().any(|address| path.addresses.contains(address))
    }
}

impl Table {
    /// The DNS of an interface. `None` if it has no servers.
    pub(super) fn of(&self, path: &KnownPath, settings: &Settings) -> Option<Arc<Dns>> {
        let mut table = self.lock();
        if let Some(entry) = table.get(&path.index)
            && entry.is_in_network_of(path)
            && entry.addresses == path.addresses
            && !entry.known.is_old()
        {
            return Some(Arc::clone(&entry.dns));
        }
        let known = Known::of(path, settings.interface(&path.interface));
        if let Some(entry) = table.get_mut(&path.index)
            && entry.is_in_network_of(path)
            && entry.known.is_same_as(&known)
        {
            entry.known = known;
            entry.addresses.clone_from(&path.addresses);
            return Some(Arc::clone(&entry.dns));
        }
        // The cache of another network goes with its DNS.
        table.remove(&path.index);
        let dns = Arc::new(Dns::new(&path.interface, &known)?);
        let entry = Entry {
            interface: Arc::clone(&path.interface),
            addresses: path.addresses.clone(),
            known,
            dns: Arc::clone(&dns),
        };
        table.insert(path.index, entry);
        Some(dns)
    }

    /// Whether this is the DNS of that interface still.
    pub(super) fn has(&self, index: u32, dns: &Arc<Dns>) -> bool {
        self.lock().get(&index).is_some_and(|entry| Arc::ptr_eq(&entry.dns, dns))
    }

    /// Forgets what is gone: interfaces, and networks behind them.
    pub(super) fn keep(&self, paths: &Paths) {
        self.lock().retain(|index, entry| {
            paths.present().any(|(_, path)| path.index == *index && entry.is_in_network_of(path))
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
