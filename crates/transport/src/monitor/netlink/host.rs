//! The host's addresses, of what the kernel has told.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::super::{AddressSet, LocalAddress};
use super::messages::Told;

/// What the kernel has told.
#[derive(Debug, Default)]
pub(super) struct HostState {
    links: HashMap<u32, (String, bool)>,
    addresses: HashSet<(u32, IpAddr)>,
    /// Routes that were added.
    routes: u64,
    /// Routes that were taken away.
    routes_lost: u64,
}

impl HostState {
    /// Without links and addresses, before all are asked for.
    pub(super) fn emptied(&self) -> Self {
        Self { routes: self.routes, routes_lost: self.routes_lost, ..Self::default() }
    }

    /// Routes may have come and gone unseen.
    pub(super) fn may_have_other_ways(&mut self) {
        self.routes += 1;
        self.routes_lost += 1;
    }

    pub(super) fn apply(&mut self, told: Told) {
        match told {
            Told::Link { index, name, is_usable } => {
                self.links.insert(index, (name, is_usable));
            }
            Told::NoLink { index } => {
                self.links.remove(&index);
                self.addresses.retain(|(of, _)| *of != index);
            }
            Told::Address { index, ip, is_usable: true } => {
                self.addresses.insert((index, ip));
            }
            Told::Address { index, ip, is_usable: false } | Told::NoAddress { index, ip } => {
                self.addresses.remove(&(index, ip));
            }
            Told::Way => self.routes += 1,
            Told::NoWay => self.routes_lost += 1,
            Told::End => {}
        }
    }

    /// Those of links that packets can leave by.
    pub(super) fn addresses(&self, wakes: u64) -> AddressSet {
        let usable = self.addresses.iter().filter_map(|(index, ip)| {
            let (name, _) = self.links.get(index).filter(|(_, usable)| *usable)?;
            Some(LocalAddress { ip: *ip, interface: Some(Arc::from(name.as_str())) })
        });
        let mut addresses: Vec<LocalAddress> = usable.collect();
        addresses.sort_unstable();
        let is_idle = |index: &u32| self.links.get(index).is_some_and(|(_, usable)| !usable);
        let idle = self.addresses.iter().filter(|(index, _)| is_idle(index)).map(|(_, ip)| *ip);
        let mut without_link: Vec<IpAddr> = idle.collect();
        without_link.sort_unstable();
        AddressSet { addresses, without_link, wakes, routes: self.routes, routes_lost: self.routes_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_counts_while_it_and_its_link_can_be_used() {
        let ip = IpAddr::from([192, 0, 2, 1]);
        let link = |is_usable| Told::Link { index: 7, name: "net0".to_owned(), is_usable };
        let address = |is_usable| Told::Address { index: 7, ip, is_usable };
        let mut host = HostState::default();
        // What is told, and whether the address counts then.
        let story = [
            (address(true), false),
            (link(true), true),
            (link(false), false),
            (link(true), true),
            (address(false), false),
            (address(true), true),
            (Told::NoAddress { index: 7, ip }, false),
            (address(true), true),
            (Told::NoLink { index: 7 }, false),
            (link(true), false),
        ];
        for (step, (told, counts)) in story.into_iter().enumerate() {
            host.apply(told);
            assert_eq!(host.addresses(0).contains(ip), counts, "step {step}");
        }
        host.apply(Told::Way);
        host.apply(Told::NoWay);
        let expected = AddressSet { wakes: 3, routes: 1, routes_lost: 1, ..AddressSet::default() };
        assert_eq!(host.emptied().addresses(3), expected);
    }

    #[test]
    fn an_address_whose_link_is_down_is_told_from_one_that_is_gone() {
        let ip = IpAddr::from([192, 0, 2, 1]);
        let link = |is_usable| Told::Link { index: 7, name: "net0".to_owned(), is_usable };
        let mut host = HostState::default();
        [link(true), Told::Address { index: 7, ip, is_usable: true }]
            .into_iter()
            .for_each(|told| host.apply(told));
        assert!(host.addresses(0).without_link.is_empty());
        host.apply(link(false));
        assert_eq!(host.addresses(0).without_link, [ip]);
        assert!(!host.addresses(0).contains(ip));
        host.apply(Told::NoAddress { index: 7, ip });
        assert!(host.addresses(0).without_link.is_empty());
    }
}
