//! What is known of each connection that takes the manager's word.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_access::Intents;
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_multiaccess::protocol::Tried;

use crate::usage::Usage;

/// The most connections that are asked for. Further ones use what new ones use.
const MAX_FOLLOWED: usize = 4096;
/// A connection is asked for no more often.
const AGAIN: Duration = Duration::from_millis(500);
/// The manager avoids what failed for ten seconds: afterwards it may choose it again.
const AVOIDED: Duration = Duration::from_secs(11);
/// Paths that failed, and addresses of the peer, that are remembered for a connection: it has no more paths.
const MAX_PATHS: usize = 16;
/// So much of a peer's id tells it from others.
const SHOWN: usize = 8;

/// All connections. The lock is held for as long as it takes to read or write a value.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<HashMap<ConnectionId, Followed>>);

/// A connection.
#[derive(Debug)]
struct Followed {
    /// What people see of it.
    label: String,
    /// Its own intents, if it has any.
    intents: Option<Intents>,
    /// Where the peer was reached last.
    addresses: Vec<SocketAddr>,
    /// What was decided last.
    applied: Option<Usage>,
    /// Somebody set its policy otherwise.
    is_left: bool,
    asked: Option<Instant>,
    due: Option<Instant>,
    /// When what failed may be chosen again.
    later: Option<Instant>,
    failed: Vec<Tried>,
}

/// What the manager is asked about a connection.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) id: ConnectionId,
    pub(crate) label: String,
    /// `None`: as most.
    pub(crate) intents: Option<Intents>,
    /// Where the peer was reached last.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// A connection, what was decided for it last, and its own intents.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) id: ConnectionId,
    pub(crate) usage: Option<Usage>,
    pub(crate) intents: Option<Intents>,
}

impl Followed {
    fn new(label: String, now: Instant) -> Self {
        Self {
            label,
            intents: None,
            addresses: Vec::new(),
            applied: None,
            is_left: false,
            asked: None,
            due: Some(now),
            later: None,
            failed: Vec::new(),
        }
    }

    fn want(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// When it is to be asked for.
    fn due(&self) -> Option<Instant> {
        let due = [self.due, self.later].into_iter().flatten().min().filter(|_| !self.is_left)?;
        Some(self.asked.map_or(due, |asked| due.max(asked + AGAIN)))
    }

    fn begin(&mut self, now: Instant) {
        (self.asked, self.due) = (Some(now), None);
        self.later = self.later.filter(|later| *later > now);
    }
}

impl Table {
    /// A connection to this peer is to be asked for, if it is not known yet.
    pub(crate) fn add(&self, id: ConnectionId, peer: EndpointId, now: Instant) {
        let mut table = self.lock();
        if table.len() < MAX_FOLLOWED {
            table.entry(id).or_insert_with(|| Followed::new(format!("whimbrel {peer:.SHOWN$}"), now));
        }
    }

    /// This is known of a connection, and what people call its peer, if they do.
    pub(crate) fn intend(
        &self,
        id: ConnectionId,
        peer: EndpointId,
        name: Option<String>,
        intents: Intents,
        now: Instant,
    ) {
        self.add(id, peer, now);
        if let Some(followed) = self.lock().get_mut(&id) {
            followed.label = name.unwrap_or_else(|| std::mem::take(&mut followed.label));
            followed.intents = Some(intents);
            followed.want(now);
        }
    }

    /// Forgets a connection.
    pub(crate) fn remove(&self, id: ConnectionId) {
        self.lock().remove(&id);
    }

    /// Forgets all but these.
    pub(crate) fn keep(&self, ids: &HashSet<ConnectionId>) {
        self.lock().retain(|id, _| ids.contains(id));
    }

    /// Something happened to it: it is to be asked for again.
    pub(crate) fn want(&self, id: ConnectionId, at: Instant) {
        if let Some(followed) = self.lock().get_mut(&id) {
            followed.want(at);
        }
    }

    /// All are to be asked for again.
    pub(crate) fn want_all(&self, at: Instant) {
        self.lock().values_mut().for_each(|followed| followed.want(at));
    }

    /// When one is to be asked for next.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.lock().values().filter_map(Followed::due).min()
    }

    /// Those that are to be asked for now, which they are not any more then.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<Question> {
        let mut table = self.lock();
        let due = table.iter_mut().filter(|(_, followed)| followed.due().is_some_and(|due| due <= now));
        due.map(|(id, followed)| {
            followed.begin(now);
            let (label, addresses) = (followed.label.clone(), followed.addresses.clone());
            Question { id: *id, label, intents: followed.intents, addresses }
        })
        .collect()
    }

    /// The peer was reached there.
    pub(crate) fn reached(&self, id: ConnectionId, addresses: &[SocketAddr]) {
        if let Some(followed) = self.lock().get_mut(&id) {
            followed.addresses = addresses.iter().take(MAX_PATHS).copied().collect();
        }
    }

    /// Notes that a path failed. It is asked again now, and when the manager does not avoid that way any
    /// more. False if it was noted before.
    pub(crate) fn failed(&self, id: ConnectionId, tried: &Tried, now: Instant) -> bool {
        let mut table = self.lock();
        let Some(followed) = table.get_mut(&id) else { return false };
        if followed.failed.contains(tried) || followed.failed.len() >= MAX_PATHS {
            return false;
        }
        followed.failed.push(tried.clone());
        followed.later = Some(now + AVOIDED);
        followed.want(now);
        true
    }

    /// Notes that a path works, and asks again if it had failed. True if it had.
    pub(crate) fn worked(&self, id: ConnectionId, tried: &Tried, now: Instant) -> bool {
        let mut table = self.lock();
        let Some(followed) = table.get_mut(&id) else { return false };
        let before = followed.failed.len();
        followed.failed.retain(|failed| failed != tried);
        let had_failed = before > followed.failed.len();
        if had_failed {
            followed.want(now);
        }
        had_failed
    }

    /// What was decided last for each that still takes the manager's word.
    pub(crate) fn applied(&self) -> Vec<Applied> {
        let table = self.lock();
        let steered = table.iter().filter(|(_, followed)| !followed.is_left);
        steered
            .map(|(id, followed)| Applied {
                id: *id,
                usage: followed.applied.clone(),
                intents: followed.intents,
            })
            .collect()
    }

    /// The same of one.
    pub(crate) fn applied_to(&self, id: ConnectionId) -> Option<Applied> {
        let table = self.lock();
        let followed = table.get(&id).filter(|followed| !followed.is_left)?;
        Some(Applied { id, usage: followed.applied.clone(), intents: followed.intents })
    }

    /// This is decided.
    pub(crate) fn apply(&self, id: ConnectionId, usage: Usage) {
        if let Some(followed) = self.lock().get_mut(&id) {
            followed.applied = Some(usage);
        }
    }

    /// Somebody else decides from now on.
    pub(crate) fn leave(&self, id: ConnectionId) {
        if let Some(followed) = self.lock().get_mut(&id) {
            followed.is_left = true;
        }
    }

    /// Each value is right by itself: one that panicked left none half done.
    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    fn tried() -> Tried {
        Tried { interface: "wlan0".to_owned(), destination: "192.0.2.1:443".parse().unwrap() }
    }

    fn one(now: Instant) -> (Table, ConnectionId) {
        let (table, id) = (Table::default(), ConnectionId::random());
        table.add(id, SecretKey::generate().id(), now);
        (table, id)
    }

    #[test]
    fn a_connection_is_asked_for_at_once_and_then_no_more_often_than_it_may() {
        let now = Instant::now();
        let (table, id) = one(now);
        assert_eq!(table.take_due(now).len(), 1);
        assert_eq!((table.due(), table.take_due(now).len()), (None, 0));
        table.want(id, now);
        table.want_all(now + AGAIN / 2);
        assert_eq!(table.due(), Some(now + AGAIN));
        assert!(table.take_due(now + AGAIN / 2).is_empty());
        assert_eq!(table.take_due(now + AGAIN).len(), 1);
    }

    #[test]
    fn what_failed_is_told_once_and_asked_for_again_when_it_is_not_avoided_any_more() {
        let now = Instant::now();
        let (table, id) = one(now);
        table.take_due(now);
        assert!(table.failed(id, &tried(), now) && !table.failed(id, &tried(), now));
        assert_eq!(table.take_due(now + AGAIN).len(), 1);
        assert_eq!(table.due(), Some(now + AVOIDED), "the manager may choose it again");
        assert_eq!((table.take_due(now + AVOIDED).len(), table.due()), (1, None));
        assert!(table.worked(id, &tried(), now) && !table.worked(id, &tried(), now));
        assert!(table.due().is_some());
    }

    #[test]
    fn one_whose_policy_was_set_otherwise_is_left_alone() {
        let now = Instant::now();
        let (table, id) = one(now);
        assert_eq!(table.applied().len(), 1);
        table.leave(id);
        table.want_all(now);
        assert_eq!((table.due(), table.applied().len()), (None, 0));
        assert!(table.applied_to(id).is_none());
        table.keep(&HashSet::new());
        assert!(!table.failed(id, &tried(), now), "it is forgotten");
    }

    #[test]
    fn its_own_intents_and_name_are_asked_with_and_no_more_are_followed_than_there_is_room_for() {
        let now = Instant::now();
        let (table, peer) = (Table::default(), SecretKey::generate().id());
        let id = ConnectionId::random();
        table.intend(id, peer, Some("web.home.ada@example.org".to_owned()), Intents::receive(5), now);
        table.intend(id, peer, None, Intents::receive(7), now);
        let asked = table.take_due(now).pop().unwrap();
        assert_eq!(asked.label, "web.home.ada@example.org");
        assert_eq!(asked.intents, Some(Intents::receive(7)));
        (0..MAX_FOLLOWED + 3).for_each(|_| table.add(ConnectionId::random(), peer, now));
        assert_eq!(table.applied().len(), MAX_FOLLOWED);
    }
}
