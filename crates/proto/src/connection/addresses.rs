//! Addresses that the sides announce and withdraw: statements with ids, repeated until acknowledged on
//! whatever path lives. (Their loss cost kernel MPTCP seconds [mptcp-handover §5].)

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Connection;
use super::draft::Draft;
use crate::event::Event;
use crate::frame::{Frame, MAX_ADDRESSES};
use crate::handover::Priority;
use crate::path::Content;

/// One side's addresses by id. A withdrawn one keeps its place, so that an older announcement cannot bring it
/// back.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    sequence: u64,
    stated: BTreeMap<u8, Statement>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Statement {
    sequence: u64,
    address: Option<(SocketAddr, Priority)>,
}

impl Addresses {
    fn present(&self) -> impl Iterator<Item = (u8, SocketAddr, Priority)> + '_ {
        let present = |(&id, s): (&u8, &Statement)| s.address.map(|(at, priority)| (id, at, priority));
        self.stated.iter().filter_map(present)
    }

    fn get(&self, id: u8) -> Option<(SocketAddr, Priority)> {
        self.stated.get(&id)?.address
    }

    fn state(&mut self, id: u8, address: Option<(SocketAddr, Priority)>) -> bool {
        if self.get(id) == address {
            return false;
        }
        self.sequence += 1;
        self.stated.insert(id, Statement { sequence: self.sequence, address });
        true
    }

    /// True if this is news.
    fn hear(&mut self, id: u8, sequence: u64, address: Option<(SocketAddr, Priority)>) -> bool {
        let known = self.stated.get(&id).copied();
        if known.is_some_and(|known| sequence <= known.sequence) {
            return false;
        }
        self.stated.insert(id, Statement { sequence, address });
        known.and_then(|known| known.address) != address
    }
}

impl Connection {
    /// Announces an address at which this side can be reached, or changes it. The peer is told reliably. `id`
    /// names it and may be used again; false, and nothing is done, unless it is below [`MAX_ADDRESSES`].
    pub fn announce_address(&mut self, id: u8, address: SocketAddr, priority: Priority) -> bool {
        if id >= MAX_ADDRESSES {
            return false;
        }
        if self.announced.state(id, Some((address, priority))) {
            self.control.addresses_by_id.insert(id);
        }
        true
    }

    /// Withdraws an address that was announced. The peer is told reliably.
    pub fn withdraw_address(&mut self, id: u8) {
        if self.announced.state(id, None) {
            self.control.addresses_by_id.insert(id);
        }
    }

    /// The addresses that this side announced: id, address, priority.
    #[must_use]
    pub fn announced_addresses(&self) -> Vec<(u8, SocketAddr, Priority)> {
        self.announced.present().collect()
    }

    /// The addresses that the peer announced: id, address, priority.
    #[must_use]
    pub fn peer_addresses(&self) -> Vec<(u8, SocketAddr, Priority)> {
        self.peer_announced.present().collect()
    }

    pub(super) fn address_heard(&mut self, id: u8, sequence: u64, address: Option<(SocketAddr, Priority)>) {
        if self.peer_announced.hear(id, sequence, address) {
            self.push(Event::PeerAddress { id, address });
        }
    }

    pub(super) fn put_addresses_by_id(&mut self, draft: &mut Draft<'_>, fits: fn(&Draft<'_>) -> bool) {
        while fits(draft)
            && let Some(id) = self.control.addresses_by_id.pop_first()
        {
            let Some(Statement { sequence, address }) = self.announced.stated.get(&id).copied() else {
                continue;
            };
            let frame = match address {
                Some((address, priority)) => Frame::AddAddress { id, sequence, priority, address },
                None => Frame::RemoveAddress { id, sequence },
            };
            draft.put(&frame, Some(Content::Address(id)));
        }
    }
}
