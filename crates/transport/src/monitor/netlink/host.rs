//! The host's addresses, of what the kernel has told.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::super::{AddressSet, LocalAddress};
use super::messages::Told;
use whimbrel_base::order;

/// Addresses that went with their links, of which so many are remembered.
const MAX_FALLEN: usize = 256;

/// What the kernel has told.
#[derive(Debug, Default)]
pub(super) struct HostState {
    links: HashMap<u32, (String, bool)>,
    addresses: HashSet<(u32, IpAddr)>,
    /// What was taken from links that are down or gone, until they run again or the address is back: with a
    /// link that is switched off its IPv6 addresses go, and whoever looks later must not take them for
    /// withdrawn.
    fallen: HashSet<(u32, IpAddr)>,
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
                if is_usable {
                    self.fallen.retain(|(of, _)| *of != index);
                }
                self.links.insert(index, (name, is_usable));
            }
            Told::NoLink { index } => {
                self.links.remove(&index);
                let gone: Vec<(u32, IpAddr)> = self.addresses.extract_if(|(of, _)| *of == index).collect();
                gone.into_iter().for_each(|address| self.fell(address));
            }
            Told::Address { index, ip, is_usable: true } => {
                self.fallen.retain(|(_, other)| *other != ip);
                self.addresses.insert((index, ip));
            }
            Told::Address { index, ip, is_usable: false } | Told::NoAddress { index, ip } => {
                let was_there = self.addresses.remove(&(index, ip));
                if was_there && self.is_down(index) {
                    self.fell((index, ip));
                }
            }
            Told::Way => self.routes += 1,
            Told::NoWay => self.routes_lost += 1,
            Told::OtherWay => self.may_have_other_ways(),
            Told::End => {}
        }
    }

    fn fell(&mut self, address: (u32, IpAddr)) {
        // Only those that went a moment ago matter.
        if self.fallen.len() >= MAX_FALLEN {
            self.fallen.clear();
        }
        self.fallen.insert(address);
    }

    fn is_down(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|(_, usable)| !usable)
    }

    /// Those of links that packets can leave by.
    pub(super) fn addresses(&self, wakes: u64) -> AddressSet {
        let usable = self.addresses.iter().filter_map(|(index, ip)| {
            let (name, _) = self.links.get(index).filter(|(_, usable)| *usable)?;
            Some(LocalAddress { ip: *ip, interface: Some(Arc::from(name.as_str())) })
        });
        let mut addresses: Vec<LocalAddress> = usable.collect();
        order::by(&mut addresses, Ord::cmp);
        let idle = self.addresses.iter().filter(|(index, _)| self.is_down(*index));
        let mut without_link: Vec<IpAddr> = idle.chain(&self.fallen).map(|(_, ip)| *ip).collect();
        order::by(&mut without_link, Ord::cmp);
        without_link.dedup();
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
        // As an IPv6 address goes with its link, and the link itself.
        host.apply(Told::NoAddress { index: 7, ip });
        assert_eq!(host.addresses(0).without_link, [ip]);
        host.apply(Told::NoLink { index: 7 });
        assert_eq!(host.addresses(0).without_link, [ip]);
        // It is back elsewhere, and then it is withdrawn.
        host.apply(Told::Link { index: 8, name: "net1".to_owned(), is_usable: true });
        host.apply(Told::Address { index: 8, ip, is_usable: true });
        assert!(host.addresses(0).without_link.is_empty());
        host.apply(Told::NoAddress { index: 8, ip });
        assert_eq!(host.addresses(0), AddressSet::default());
    }

    #[test]
    fn a_link_that_runs_again_has_lost_what_it_does_not_get_back() {
        let ip = IpAddr::from([192, 0, 2, 1]);
        let link = |is_usable| Told::Link { index: 7, name: "net0".to_owned(), is_usable };
        let mut host = HostState::default();
        let story = [
            link(true),
            Told::Address { index: 7, ip, is_usable: true },
            link(false),
            Told::NoAddress { index: 7, ip },
            link(true),
        ];
        story.into_iter().for_each(|told| host.apply(told));
        assert_eq!(host.addresses(0), AddressSet::default());
    }

    #[test]
    fn what_went_with_links_is_bounded() {
        let mut host = HostState::default();
        for index in 0..MAX_FALLEN as u32 + 10 {
            let ip = IpAddr::from(index.to_be_bytes());
            host.apply(Told::Address { index, ip, is_usable: true });
            host.apply(Told::NoLink { index });
            let set = host.addresses(0);
            assert!(set.without_link.contains(&ip) && set.without_link.len() <= MAX_FALLEN);
        }
    }
}
