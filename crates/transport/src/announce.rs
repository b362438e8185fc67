//! What an endpoint announces about its addresses to the peers that use several paths.
//!
//! Each interface has a number; its IPv4 address is announced under twice that number, its IPv6 address
//! under the next. So the peer knows which addresses lead to one link.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use whimbrel_proto::{Connection as Engine, HandoverMode, Priority};

use crate::monitor::AddressSet;
use crate::policy::PathPolicy;

/// Interfaces that can be announced: ids are below 32.
const SLOTS: usize = 16;

/// One announced address: its id, and what paths to it should be.
type Statement = (u8, SocketAddr, Priority);

/// The addresses that are announced now.
#[derive(Debug, Default)]
pub(crate) struct Announcements(Mutex<Stated>);

#[derive(Debug, Default)]
struct Stated {
    /// Interfaces by number.
    slots: Vec<Arc<str>>,
    now: Vec<Statement>,
}

impl Announcements {
    fn lock(&self) -> MutexGuard<'_, Stated> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host's addresses are these now; those in `reachable` are announced.
    pub(crate) fn update(&self, set: &AddressSet, reachable: &[SocketAddr], policy: &PathPolicy) {
        // What an interface is may have to be asked of the kernel. Connections that are locked wait for this
        // lock.
        let interfaces: Vec<_> = set.addresses.iter().map(|local| policy.interface(local)).collect();
        let present: Vec<Arc<str>> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let mut stated = self.lock();
        let mut now: Vec<Statement> = Vec::new();
        for (local, interface) in set.addresses.iter().zip(interfaces) {
            let Some(address) = reachable.iter().find(|address| address.ip() == local.ip) else {
                continue;
            };
            let Some(slot) = stated.slot(&interface.name, &present) else {
                continue;
            };
            let id = 2 * slot + u8::from(matches!(local.ip, IpAddr::V6(_)));
            let priority = if policy.reserves(&interface) { Priority::Backup } else { Priority::Normal };
            if !now.iter().any(|(taken, ..)| *taken == id) {
                now.push((id, *address, priority));
            }
        }
        stated.now = now;
    }

    /// Has the engine announce what holds now, and withdraw what does not. Who uses one path at a time is
    /// told in other ways.
    pub(crate) fn tell(&self, engine: &mut Engine) {
        let before = engine.announced_addresses();
        if engine.handover() == HandoverMode::Single && before.is_empty() {
            return;
        }
        let now = self.lock().now.clone();
        for (id, ..) in before {
            if !now.iter().any(|(of, ..)| *of == id) {
                engine.withdraw_address(id);
            }
        }
        for (id, address, priority) in now {
            engine.announce_address(id, address, priority);
        }
    }
}

impl Stated {
    /// The number of an interface: the one that it has or had, a new one, or that of an interface that is
    /// gone.
    fn slot(&mut self, name: &Arc<str>, present: &[Arc<str>]) -> Option<u8> {
        let known = self.slots.iter().position(|slot| slot == name);
        let slot = known.or_else(|| {
            if self.slots.len() < SLOTS {
                self.slots.push(name.clone());
                return Some(self.slots.len() - 1);
            }
            let gone = self.slots.iter().position(|slot| !present.contains(slot))?;
            self.slots[gone] = name.clone();
            Some(gone)
        })?;
        u8::try_from(slot).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::monitor::LocalAddress;
    use crate::policy::Policy;

    fn announced(
        announcements: &Announcements,
        addresses: &[(&str, &str)],
        policy: &PathPolicy,
    ) -> Vec<Statement> {
        let local = |(ip, interface): &(&str, &str)| LocalAddress {
            ip: ip.parse().unwrap(),
            interface: Some((*interface).into()),
        };
        let set = AddressSet { addresses: addresses.iter().map(local).collect(), ..AddressSet::default() };
        let reachable: Vec<SocketAddr> =
            set.reachable().into_iter().map(|ip| SocketAddr::new(ip, 9)).collect();
        announcements.update(&set, &reachable, policy);
        announcements.lock().now.clone()
    }

    fn ids(statements: &[Statement]) -> Vec<u8> {
        statements.iter().map(|(id, ..)| *id).collect()
    }

    #[test]
    fn an_interface_keeps_its_number_while_others_come_and_go() {
        let announcements = Announcements::default();
        let policy = PathPolicy::default();
        let tell = |addresses: &[(&str, &str)]| ids(&announced(&announcements, addresses, &policy));
        assert_eq!(tell(&[("10.0.0.2", "a"), ("fd00::2", "a"), ("10.1.0.2", "b")]), [0, 1, 2]);
        assert_eq!(tell(&[("10.1.0.2", "b")]), [2]);
        assert_eq!(tell(&[("10.1.0.2", "b"), ("10.2.0.2", "c"), ("10.0.0.9", "a")]), [2, 4, 0]);
    }

    #[test]
    fn many_interfaces_share_the_numbers_of_those_that_are_gone() {
        let announcements = Announcements::default();
        let policy = PathPolicy::default();
        for turn in 0..40 {
            let (ip, name) = (format!("10.0.{turn}.2"), format!("if{turn}"));
            let now = announced(&announcements, &[(&ip, &name)], &policy);
            assert!(now.len() == 1 && now[0].0 < 32, "{now:?}");
        }
    }

    #[test]
    fn what_should_stand_by_is_announced_so() {
        let rules = vec!["usb0=cellular".parse().unwrap()];
        let policy = PathPolicy { interfaces: rules, ..Policy::Cheapest.into() };
        let now = announced(&Announcements::default(), &[("10.0.0.2", "usb0")], &policy);
        assert_eq!(now[0].2, Priority::Backup);
    }
}
