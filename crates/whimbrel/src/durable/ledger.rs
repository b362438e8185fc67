//! What this process knows of durable messages, in memory: peers, journals, what arrived, and the connections
//! that carry them. What is on the disk comes here once it is there, never before.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use whimbrel_base::{ConnectionId, EndpointId, random_bytes};

use super::change::{Change, Done, InboxKey, Loaded};
use super::error::StateError;
use super::inbox::{Arrival, Inbox, Mark};
use super::wire::{STAMP, Stamp, Violation, stamp_of};
use super::{MAX_FLOWS, MAX_PEERS, Owed, StateLimits, cost};

/// Journals of one peer that are kept in memory.
const MAX_INBOXES: usize = 64;

/// A message for the application.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) key: InboxKey,
    pub(super) number: u64,
    pub(super) stamp: Stamp,
    /// The content.
    pub(super) data: Vec<u8>,
}

/// A peer that messages are for, by its name or its id.
#[derive(Debug, Default)]
struct Peer {
    /// Whom to dial; `None`: it comes by itself.
    target: Option<String>,
    id: Option<EndpointId>,
    owed: Owed,
    /// Told when there is room again, or nothing more to wait for.
    room: Arc<Notify>,
    /// Why it was not reached when it was dialled last.
    problem: Option<String>,
}

/// A journal of this side.
#[derive(Debug)]
struct Journal {
    peer: String,
    label: String,
    id: u128,
    /// The cost and stamp of each message that is not acknowledged; the last has the number `end`.
    owed: VecDeque<(u64, Stamp)>,
    end: u64,
    /// The peer has acknowledged all up to this.
    acked: watch::Sender<u64>,
    /// The file has no message up to this any more.
    trimmed: u64,
    /// Why nothing more is sent.
    broken: Option<StateError>,
}

/// A connection that carries journals.
#[derive(Debug)]
struct Link {
    id: u64,
    connection: ConnectionId,
    peer: EndpointId,
    wake: Arc<Notify>,
    /// The peer's store, and how often that was opened.
    opening: Option<(u128, u64)>,
    superseded: bool,
}

/// The cost and stamp of each message, but for the first so many.
fn owed(messages: &[(usize, Stamp)], skipped: usize) -> VecDeque<(u64, Stamp)> {
    messages.iter().skip(skipped).map(|(size, stamp)| (cost(*size), *stamp)).collect()
}

fn total(owed: &VecDeque<(u64, Stamp)>) -> u64 {
    owed.iter().map(|(cost, _)| cost).sum()
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) store: u128,
    pub(super) opening: u64,
    /// What messages that are written now are marked with.
    pub(super) stamp: Stamp,
    limits: StateLimits,
    peers: BTreeMap<String, Peer>,
    journals: BTreeMap<u64, Journal>,
    marks: BTreeMap<InboxKey, Mark>,
    inboxes: BTreeMap<InboxKey, Inbox>,
    ready: VecDeque<Arrived>,
    /// Somebody may take a message.
    arrived: Arc<Notify>,
    /// The oldest first. A peer's newest carries what is sent to it.
    links: Vec<Link>,
    next_link: u64,
    stopped: bool,
}

impl Ledger {
    pub(super) fn new(loaded: Loaded, limits: StateLimits) -> Self {
        let mut this = Self {
            store: loaded.store,
            opening: loaded.opening,
            stamp: Stamp(u64::from_be_bytes(random_bytes())),
            limits,
            peers: BTreeMap::new(),
            journals: BTreeMap::new(),
            marks: loaded.marks,
            inboxes: BTreeMap::new(),
            ready: VecDeque::new(),
            arrived: Arc::default(),
            links: Vec::new(),
            next_link: 0,
            stopped: false,
        };
        for (key, target, id) in loaded.peers {
            this.peers.insert(key, Peer { target, id, ..Peer::default() });
        }
        for journal in loaded.journals {
            let owed = owed(&journal.messages, 0);
            if let Some(peer) = this.peers.get_mut(&journal.peer) {
                peer.owed.messages += owed.len() as u64;
                peer.owed.bytes += total(&owed);
            }
            let acked = journal.end - owed.len() as u64;
            this.journals.insert(
                journal.number,
                Journal {
                    peer: journal.peer,
                    label: journal.label,
                    id: journal.id,
                    owed,
                    end: journal.end,
                    acked: watch::Sender::new(acked),
                    trimmed: acked,
                    broken: None,
                },
            );
        }
        this
    }

    /// Those to be dialled: what names them here, and whom to dial.
    pub(super) fn targets(&self) -> Vec<(String, String)> {
        let dialled = |(key, peer): (&String, &Peer)| Some((key.clone(), peer.target.clone()?));
        self.peers.iter().filter_map(dialled).collect()
    }

    /// The peer as it is known, or `None`.
    pub(super) fn peer(&self, key: &str) -> Option<(Option<&str>, Option<EndpointId>)> {
        self.peers.get(key).map(|peer| (peer.target.as_deref(), peer.id))
    }

    /// # Errors
    /// [`StateError::TooManyPeers`] if there is no room for another one.
    pub(super) fn check_room_for_peer(&self) -> Result<(), StateError> {
        if self.peers.len() < MAX_PEERS { Ok(()) } else { Err(StateError::TooManyPeers) }
    }

    /// The number of a peer's journal with a label.
    pub(super) fn journal(&self, peer: &str, label: &str) -> Option<u64> {
        let named = |journal: &Journal| journal.peer == peer && journal.label == label;
        self.journals.iter().find(|(_, journal)| named(journal)).map(|(number, _)| *number)
    }

    /// # Errors
    /// [`StateError::TooManyFlows`] if the peer has no room for another journal, [`StateError::Forgotten`] if
    /// it is not known.
    pub(super) fn check_room_for_journal(&self, peer: &str) -> Result<(), StateError> {
        if !self.peers.contains_key(peer) {
            return Err(StateError::Forgotten);
        }
        let open = self.journals.values().filter(|journal| journal.peer == peer).count();
        if open < MAX_FLOWS { Ok(()) } else { Err(StateError::TooManyFlows { peer: peer.to_owned() }) }
    }

    /// What waits for a peer.
    pub(super) fn owed(&self, peer: &str) -> Owed {
        self.peers.get(peer).map(|peer| peer.owed).unwrap_or_default()
    }

    /// What a journal's last message is, and how far it is acknowledged.
    pub(super) fn progress(&self, journal: u64) -> Result<(u64, watch::Receiver<u64>), StateError> {
        let journal = self.journals.get(&journal).ok_or(StateError::Forgotten)?;
        Ok((journal.end, journal.acked.subscribe()))
    }

    /// # Errors
    /// Why nothing more is sent of a journal, if that is so.
    pub(super) fn check(&self, journal: u64) -> Result<(), StateError> {
        let journal = self.journals.get(&journal).ok_or(StateError::Forgotten)?;
        journal.broken.clone().map_or(Ok(()), Err)
    }

    /// Nothing more is sent of a journal. Those who wait are told.
    pub(super) fn break_off(&mut self, journal: u64, error: StateError) {
        if let Some(journal) = self.journals.get_mut(&journal) {
            journal.broken = Some(error);
            journal.acked.send_modify(|_| {});
        }
    }

    /// Takes room for a message of a journal.
    ///
    /// # Errors
    /// [`StateError::Full`], or what [`check`](Self::check) says.
    pub(super) fn reserve(&mut self, journal: u64, size: usize) -> Result<(), StateError> {
        self.check(journal)?;
        let (key, limits) = (&self.journals[&journal].peer, self.limits);
        let peer = self.peers.get_mut(key).ok_or(StateError::Forgotten)?;
        let Owed { messages, bytes } = peer.owed;
        if messages >= limits.messages || bytes + cost(size) > limits.bytes {
            return Err(StateError::Full { peer: key.clone(), messages, bytes });
        }
        peer.owed = Owed { messages: messages + 1, bytes: bytes + cost(size) };
        Ok(())
    }

    /// Gives back the room of a message that was not written.
    pub(super) fn release(&mut self, journal: u64, size: usize) {
        self.pay(journal, 1, cost(size));
    }

    fn pay(&mut self, journal: u64, messages: u64, bytes: u64) {
        let peer = self.journals.get(&journal).map(|journal| &journal.peer);
        if let Some(peer) = peer.and_then(|key| self.peers.get_mut(key)) {
            peer.owed.messages = peer.owed.messages.saturating_sub(messages);
            peer.owed.bytes = peer.owed.bytes.saturating_sub(bytes);
            peer.room.notify_waiters();
        }
    }

    /// What is told when there is room again for messages of a journal.
    ///
    /// # Errors
    /// What [`check`](Self::check) says.
    pub(super) fn room(&self, journal: u64) -> Result<Arc<Notify>, StateError> {
        self.check(journal)?;
        let peer = self.peers.get(&self.journals[&journal].peer).ok_or(StateError::Forgotten)?;
        Ok(peer.room.clone())
    }

    /// The disk has this now.
    pub(super) fn settle(&mut self, change: &Change, done: &Done) {
        match (change, done) {
            (Change::Append { journal, data }, Done::Appended(number)) => {
                if let Some(journal) = self.journals.get_mut(journal) {
                    journal.end = *number;
                    journal.owed.push_back((cost(data.len()), stamp_of(data).unwrap_or(Stamp(0))));
                    let peer = journal.peer.clone();
                    self.wake(self.peers.get(&peer).and_then(|peer| peer.id));
                }
            }
            (Change::Trim { journal, acked }, _) => {
                if let Some(journal) = self.journals.get_mut(journal) {
                    journal.trimmed = journal.trimmed.max(*acked);
                }
            }
            (Change::Ack { key, number, stamp, .. }, Done::Marked { mark, evicted }) => {
                if let Some(evicted) = evicted {
                    self.marks.remove(evicted);
                }
                self.marks.insert(key.clone(), mark.clone());
                if let Some(inbox) = self.inboxes.get_mut(key) {
                    inbox.acked(*number, *stamp);
                }
                self.wake(Some(key.peer));
            }
            (Change::Peer { key, target, id }, _) => {
                let peer = self.peers.entry(key.clone()).or_default();
                (peer.target, peer.id) = (target.clone(), *id);
                self.wake(*id);
            }
            (Change::Journal { peer, label, id }, Done::Opened(number)) => {
                let journal = Journal {
                    peer: peer.clone(),
                    label: label.clone(),
                    id: *id,
                    owed: VecDeque::new(),
                    end: 0,
                    acked: watch::Sender::new(0),
                    trimmed: 0,
                    broken: None,
                };
                self.journals.insert(*number, journal);
            }
            (Change::Forget { peer }, _) => {
                self.peers.remove(peer);
                self.journals.retain(|_, journal| journal.peer != *peer);
            }
            _ => {}
        }
    }

    /// The file was opened again after it failed: it says which messages it has.
    pub(super) fn reconcile(&mut self, loaded: Loaded) {
        for journal in loaded.journals {
            let Some(known) = self.journals.get_mut(&journal.number) else { continue };
            let acked = *known.acked.borrow();
            let skipped = acked.saturating_sub(journal.end - journal.messages.len() as u64);
            let owed = owed(&journal.messages, skipped as usize);
            let count = |owed: &VecDeque<_>| (owed.len() as u64, total(owed));
            let (before, now) = (count(&known.owed), count(&owed));
            (known.owed, known.end) = (owed, journal.end);
            if let Some(peer) = self.peers.get_mut(&known.peer) {
                peer.owed.messages = (peer.owed.messages + now.0).saturating_sub(before.0);
                peer.owed.bytes = (peer.owed.bytes + now.1).saturating_sub(before.1);
            }
        }
    }

    /// What the file need not keep any more.
    pub(super) fn trims(&self) -> Vec<Change> {
        let due = |(number, journal): (&u64, &Journal)| {
            let acked = *journal.acked.borrow();
            (acked > journal.trimmed).then_some(Change::Trim { journal: *number, acked })
        };
        self.journals.iter().filter_map(due).collect()
    }

    /// The peer has acknowledged all messages of a journal up to this, which has that stamp there. If it was
    /// not sent, or another one, the journal is broken.
    pub(super) fn acknowledged(&mut self, number: u64, low: u64, stamp: Option<Stamp>) {
        let Some(journal) = self.journals.get_mut(&number) else { return };
        let acked = *journal.acked.borrow();
        let ours = || (low - acked).checked_sub(1).and_then(|at| journal.owed.get(at as usize));
        let differs =
            low > acked && ours().is_some_and(|(_, ours)| stamp.is_some_and(|stamp| stamp != *ours));
        if low > journal.end || differs {
            let (peer, label) = (journal.peer.clone(), journal.label.clone());
            return self.break_off(number, StateError::OlderCopy { peer, label });
        }
        if let Some(count) = low.checked_sub(acked).filter(|count| *count > 0) {
            let paid = journal.owed.drain(..(count as usize).min(journal.owed.len()));
            let bytes = paid.map(|(cost, _)| cost).sum();
            journal.acked.send_replace(low);
            self.pay(number, count, bytes);
        }
    }

    /// The journals that are for the peer at the other end of a connection.
    pub(super) fn journals_for(&self, peer: EndpointId) -> impl Iterator<Item = u64> {
        let is_for = move |journal: &Journal| {
            journal.broken.is_none()
                && self.peers.get(&journal.peer).is_some_and(|entry| entry.id == Some(peer))
        };
        self.journals.iter().filter(move |(_, journal)| is_for(journal)).map(|(number, _)| *number)
    }

    /// Id, label, first message and last message of a journal that is sent.
    pub(super) fn contents(&self, number: u64) -> Option<(u128, &str, u64, u64)> {
        let journal = self.journals.get(&number).filter(|journal| journal.broken.is_none())?;
        Some((journal.id, &journal.label, *journal.acked.borrow() + 1, journal.end))
    }

    /// A peer offers one of its journals.
    pub(super) fn offered(&mut self, key: &InboxKey, first: u64) -> Result<(), Violation> {
        if !self.inboxes.contains_key(key) {
            let of_peer = |this: &Self| this.inboxes.keys().filter(|known| known.peer == key.peer).count();
            if of_peer(self) >= MAX_INBOXES {
                self.inboxes.retain(|known, inbox| known.peer != key.peer || !inbox.is_idle());
            }
            if of_peer(self) >= MAX_INBOXES {
                return Err(Violation("too many journals of one peer"));
            }
            let mark = self.marks.get(key).cloned().unwrap_or_default();
            self.inboxes.insert(key.clone(), Inbox::new(mark));
        }
        if let Some(inbox) = self.inboxes.get_mut(key) {
            inbox.offered(first);
        }
        Ok(())
    }

    /// A message of a peer's journal arrives. True if the writer has to be asked to start again.
    pub(super) fn arrive(&mut self, key: &InboxKey, number: u64, data: &[u8]) -> Result<bool, Violation> {
        let Some(inbox) = self.inboxes.get_mut(key) else { return Ok(false) };
        let stamp = stamp_of(data).ok_or(Violation("a message without its stamp"))?;
        let content = &data[STAMP..];
        match inbox.arrive(number, data.len()) {
            Arrival::Deliver => {
                self.ready.push_back(Arrived { key: key.clone(), number, stamp, data: content.to_vec() });
                self.arrived.notify_one();
                Ok(false)
            }
            Arrival::Known => Ok(false),
            Arrival::Gap => Ok(inbox.ask()),
            Arrival::TooMuch => Err(Violation("more durable messages than the window allows")),
        }
    }

    /// All of a peer's journal up to this are acknowledged, and the disk has that; with that one's stamp.
    pub(super) fn low(&self, key: &InboxKey) -> Option<(u64, Option<Stamp>)> {
        self.inboxes.get(key).map(|inbox| (inbox.low(), inbox.stamp()))
    }

    /// Takes the next message for the application.
    ///
    /// # Errors
    /// [`StateError::Stopped`] once the state is closed.
    pub(super) fn take(&mut self) -> Result<Option<Arrived>, StateError> {
        if self.stopped { Err(StateError::Stopped) } else { Ok(self.ready.pop_front()) }
    }

    /// Tells when there may be a message to take.
    pub(super) fn arrivals(&self) -> Arc<Notify> {
        self.arrived.clone()
    }

    /// A connection to a peer carries journals from now on. Returns its number, and what wakes its task.
    /// `None` if it does so already.
    pub(super) fn add_link(
        &mut self,
        connection: ConnectionId,
        peer: EndpointId,
    ) -> Option<(u64, Arc<Notify>)> {
        if self.links.iter().any(|link| link.connection == connection) {
            return None;
        }
        self.next_link += 1;
        let (id, wake) = (self.next_link, Arc::new(Notify::new()));
        self.links.push(Link { id, connection, peer, wake: wake.clone(), opening: None, superseded: false });
        Some((id, wake))
    }

    pub(super) fn remove_link(&mut self, id: u64) {
        if let Some(at) = self.links.iter().position(|link| link.id == id) {
            let peer = self.links.remove(at).peer;
            self.wake(Some(peer));
        }
    }

    /// What is sent to the peer goes over this connection.
    pub(super) fn carries(&self, id: u64, peer: EndpointId) -> bool {
        self.links
            .iter()
            .rfind(|link| link.peer == peer && !link.superseded)
            .is_some_and(|link| link.id == id)
    }

    /// A connection of the peer's process as it was before it died.
    pub(super) fn is_superseded(&self, id: u64) -> bool {
        self.links.iter().any(|link| link.id == id && link.superseded)
    }

    /// The peer says on a connection which opening of its store it belongs to: connections of older ones are
    /// those of a process that has died, for only one process has a store open.
    pub(super) fn greeted(&mut self, id: u64, store: u128, opening: u64) {
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.opening = Some((store, opening));
            let peer = link.peer;
            let openings = self.links.iter().filter(|link| link.peer == peer).filter_map(|link| link.opening);
            let newest = openings.filter(|(of, _)| *of == store).map(|(_, at)| at).max();
            for link in self.links.iter_mut().filter(|link| link.peer == peer) {
                link.superseded |= link.opening.is_some_and(|(of, at)| of == store && Some(at) < newest);
            }
            self.wake(Some(peer));
        }
    }

    /// Why a peer was not reached when it was dialled last; `None` if it was.
    pub(super) fn problem(&self, key: &str) -> Option<String> {
        self.peers.get(key).and_then(|peer| peer.problem.clone())
    }

    pub(super) fn note_problem(&mut self, key: &str, problem: Option<String>) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.problem = problem;
        }
    }

    /// The state is closed: those who wait are told.
    pub(super) fn stop(&mut self) {
        let numbers: Vec<u64> = self.journals.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.break_off(number, StateError::Stopped));
        self.stopped = true;
        self.arrived.notify_waiters();
    }

    fn wake(&self, peer: Option<EndpointId>) {
        self.links.iter().filter(|link| Some(link.peer) == peer).for_each(|link| link.wake.notify_one());
    }
}
