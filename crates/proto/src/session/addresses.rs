//! Addresses that the sides announce and withdraw: statements with ids, repeated until acknowledged on
//! whatever path lives. (Their loss cost kernel MPTCP seconds [mptcp-handover §5].)

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use whimbrel_base::order;

use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::DecodeError;
use crate::frame::Frame;
use crate::handover::Priority;
use crate::params::MAX_NOTICE_ADDRESSES;
use crate::snapshot;
use crate::varint::Reader;

/// ADD_ADDRESS with an IPv6 address.
const ADDRESS_FRAME: usize = SMALL_FRAME + 2 + 16;
/// ADDRESSES with as many as there may be, each with its length and port.
const ADDRESSES_FRAME: usize = 3 + 8 + MAX_NOTICE_ADDRESSES * (2 + 2 + 16);

/// Where paths to one side may go, and what it is worth.
pub(crate) type Place = (SocketAddr, Priority);

/// One side's addresses by id. A withdrawn one keeps its place, so that an older announcement cannot bring it
/// back.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    sequence: u64,
    stated: BTreeMap<u8, Statement>,
    /// Our own ones that the peer has to be told of.
    waiting: BTreeSet<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Statement {
    sequence: u64,
    address: Option<Place>,
}

impl Addresses {
    pub(crate) fn present(&self) -> impl Iterator<Item = (u8, SocketAddr, Priority)> + '_ {
        let present = |(&id, s): (&u8, &Statement)| s.address.map(|(at, priority)| (id, at, priority));
        self.stated.iter().filter_map(present)
    }

    /// This side has an address, or has it no more (`None`); the peer will be told.
    pub(crate) fn state(&mut self, id: u8, address: Option<Place>) {
        if self.stated.get(&id).and_then(|known| known.address) == address {
            return;
        }
        self.sequence += 1;
        self.stated.insert(id, Statement { sequence: self.sequence, address });
        self.waiting.insert(id);
    }

    /// The peer's word. True if it is news.
    pub(crate) fn hear(&mut self, id: u8, sequence: u64, address: Option<Place>) -> bool {
        let known = self.stated.get(&id).copied();
        if known.is_some_and(|known| sequence <= known.sequence) {
            return false;
        }
        self.stated.insert(id, Statement { sequence, address });
        known.and_then(|known| known.address) != address
    }

    /// Something has to be told.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// An address has to be told again.
    pub(crate) fn mark(&mut self, id: u8) {
        self.waiting.insert(id);
    }

    /// Has everything said again that this side ever said.
    pub(crate) fn mark_all(&mut self) {
        self.waiting = order::set(self.stated.keys().copied());
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.sequence, self.stated.len() as u64]);
        for (id, statement) in &self.stated {
            out.push(*id);
            snapshot::number(out, statement.sequence);
            snapshot::flag(out, statement.address.is_some());
            if let Some((address, priority)) = statement.address {
                snapshot::address(out, address);
                snapshot::number(out, priority.code());
            }
        }
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [sequence] = snapshot::read_counts(reader)?;
        let mut this = Self { sequence, ..Self::default() };
        for _ in 0..reader.varint()? {
            let (id, sequence) = (reader.byte()?, reader.varint()?);
            let address = match snapshot::read_flag(reader)? {
                true => Some((snapshot::read_address(reader)?, snapshot::read_priority(reader)?)),
                false => None,
            };
            this.stated.insert(id, Statement { sequence, address });
        }
        Ok(this)
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        while draft.room() >= ADDRESS_FRAME
            && let Some(id) = self.waiting.pop_first()
        {
            let Some(Statement { sequence, address }) = self.stated.get(&id).copied() else {
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

/// Where this side hears notices, as it states it to the peer, and which of the peer's statements counts.
#[derive(Debug)]
pub(crate) struct NoticeAddresses {
    sequence: u64,
    addresses: Vec<SocketAddr>,
    waits: bool,
    peer_sequence: u64,
}

impl NoticeAddresses {
    /// The first statement is made by the parameters.
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { sequence: 0, addresses, waits: false, peer_sequence: 0 }
    }

    /// States the addresses anew; the peer will be told.
    pub(crate) fn state(&mut self, addresses: Vec<SocketAddr>) {
        if self.addresses != addresses {
            self.sequence += 1;
            self.addresses = addresses;
            self.waits = true;
        }
    }

    /// The peer's word. False if a newer one was heard.
    pub(crate) fn hear(&mut self, sequence: u64) -> bool {
        let newer = sequence > self.peer_sequence;
        self.peer_sequence = self.peer_sequence.max(sequence);
        newer
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn mark(&mut self) {
        self.waits = true;
    }

    /// Has the newest statement made again, unless the parameters made it.
    pub(crate) fn mark_all(&mut self) {
        self.waits = self.sequence > 0;
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.sequence, self.peer_sequence, self.addresses.len() as u64]);
        self.addresses.iter().for_each(|address| snapshot::address(out, *address));
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [sequence] = snapshot::read_counts(reader)?;
        let [peer_sequence, count] = snapshot::read_numbers(reader)?;
        let addresses = (0..count).map(|_| snapshot::read_address(reader)).collect::<Result<_, _>>()?;
        Ok(Self { sequence, addresses, waits: false, peer_sequence })
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        if draft.room() >= ADDRESSES_FRAME && std::mem::take(&mut self.waits) {
            let frame = Frame::Addresses { sequence: self.sequence, addresses: self.addresses.clone() };
            draft.put(&frame, Some(Content::Addresses));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn place(port: u16) -> Option<Place> {
        Some((SocketAddr::from(([192, 0, 2, 1], port)), Priority::Normal))
    }

    #[test]
    fn an_older_announcement_does_not_bring_a_withdrawn_address_back() {
        let mut peer = Addresses::default();
        assert!(peer.hear(3, 1, place(1)) && peer.hear(3, 5, None));
        assert!(!peer.hear(3, 4, place(2)));
        assert_eq!(peer.present().count(), 0);
    }

    #[test]
    fn what_was_said_waits_once_and_again_when_it_was_lost() {
        let mut own = Addresses::default();
        own.state(1, place(1));
        own.state(1, place(1));
        let mut out = Vec::new();
        own.put(&mut Draft::new(&mut out, 1000));
        assert!(!own.waits());
        own.state(1, place(1));
        assert!(!own.waits(), "nothing has changed");
        own.mark(1);
        assert!(own.waits());
    }

    #[test]
    fn the_newest_notice_addresses_count() {
        let mut ours = NoticeAddresses::new(Vec::new());
        ours.state(Vec::new());
        assert!(!ours.waits());
        assert!(ours.hear(2) && !ours.hear(1) && !ours.hear(2));
    }
}
