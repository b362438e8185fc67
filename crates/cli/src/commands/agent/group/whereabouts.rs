//! Where devices were reached last, for when no name service says where they are: a file of tickets, one a
//! line.

use std::net::SocketAddr;

use anyhow::Result;
use whimbrel_base::{EndpointId, Ticket};
use whimbrel_transport::{Connection, Locator};

use super::policy::MOST_CALLED;
use crate::presence::kept;

/// What its file is called behind the user's key.
const ENDING: &str = "places";
/// No file that the agent writes is larger: a ticket has no more than 16 addresses.
const LARGEST: u64 = 256 * 1024;

/// Where devices were, the one that was reached last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Whereabouts(Vec<Ticket>);

impl Whereabouts {
    /// A device was reached there. One that was reached only through others says nothing.
    pub(super) fn reached(&mut self, device: EndpointId, at: Vec<SocketAddr>) {
        let ticket = Ticket::new(device, at, None);
        if ticket.addrs().is_empty() {
            return;
        }
        self.0.retain(|known| known.id() != device);
        if self.0.len() >= MOST_CALLED {
            self.0.remove(0);
        }
        self.0.push(ticket);
    }

    /// Where a device was.
    pub(super) fn of(&self, device: EndpointId) -> Option<Ticket> {
        self.0.iter().find(|known| known.id() == device).cloned()
    }

    /// Forgets all but these devices.
    pub(super) fn keep(&mut self, devices: &[EndpointId]) {
        self.0.retain(|known| devices.contains(&known.id()));
    }

    /// What was written for a user's group. Lines that make no sense say nothing. Blocks.
    pub(super) fn read(user: EndpointId) -> Self {
        let text = String::from_utf8(kept::read(user, ENDING, LARGEST)).unwrap_or_default();
        let mut known = Self::default();
        for ticket in text.lines().filter_map(|line| line.parse::<Ticket>().ok()) {
            known.reached(ticket.id(), ticket.addrs().to_vec());
        }
        known
    }

    /// Writes it for the next start. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&self, user: EndpointId) -> Result<()> {
        let lines: String = self.0.iter().map(|ticket| format!("{ticket}\n")).collect();
        kept::write(user, ENDING, lines.as_bytes())
    }
}

/// Where the peer of a connection that has just been made was dialled, without relays and proxies.
pub(super) fn dialled(connection: &Connection) -> Vec<SocketAddr> {
    let remotes = connection.stats().paths.into_iter().map(|path| path.remote);
    let direct = remotes.filter_map(|remote| match remote {
        Locator::Direct(address) => Some(address),
        _ => None,
    });
    direct.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u16) -> EndpointId {
        let mut secret = [7; 32];
        secret[..2].copy_from_slice(&number.to_be_bytes());
        whimbrel_base::SecretKey::from_bytes(&secret).id()
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn the_last_place_of_each_device_is_known_and_those_that_were_reached_last_are_kept() {
        let mut known = Whereabouts::default();
        known.reached(device(1), vec![at(1)]);
        known.reached(device(1), vec![at(2)]);
        known.reached(device(2), vec![at(3)]);
        // Behind a relay, this time.
        known.reached(device(2), Vec::new());
        assert_eq!(known.of(device(1)).map(|ticket| ticket.addrs().to_vec()), Some(vec![at(2)]));
        assert_eq!(known.of(device(2)).map(|ticket| ticket.addrs().to_vec()), Some(vec![at(3)]));
        assert_eq!(known.of(device(3)), None);
        known.keep(&[device(2)]);
        assert_eq!((known.of(device(1)), known.of(device(2)).is_some()), (None, true));
        for number in 10..10 + u16::try_from(MOST_CALLED).unwrap_or(u16::MAX) {
            known.reached(device(number), vec![at(number)]);
        }
        assert_eq!((known.0.len(), known.of(device(2))), (MOST_CALLED, None), "the oldest makes room");
        // One that is reached again where it was is no longer the oldest.
        known.reached(device(10), vec![at(10)]);
        known.reached(device(1), vec![at(1)]);
        assert_eq!((known.of(device(10)).is_some(), known.of(device(11))), (true, None));
    }
}
