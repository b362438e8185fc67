//! What this endpoint wants to be known, and by whom.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_base::{Name, SignedRecord};

use crate::clock::now;
use crate::protocol::Request;
use crate::readers::Readers;
use crate::resolver::AskError;

/// Names of this endpoint.
const MAX_PUBLISHED: usize = 256;
/// What the service refused when it was said again is said once more after this, and then after twice that.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The newest record of each name of this endpoint, to be said again to a service that lost it.
#[derive(Default)]
pub(super) struct Publications {
    records: HashMap<Name, Published>,
    /// Who may read what is published; everybody if nothing is said.
    readers: HashMap<Name, Shown>,
    /// Until when user names are held, as the service said last.
    leases: HashMap<Name, Instant>,
}

/// Whom a name is shown to.
struct Shown {
    readers: Readers,
    /// They were not said: they give way to those that are.
    is_default: bool,
}

struct Published {
    record: SignedRecord,
    /// When somebody last wanted it to be known.
    wanted: Instant,
    refused: Option<Refused>,
}

/// The service refused what it was told once more, as one does whose store was reset until the user's name is
/// registered again.
#[derive(Clone, Copy)]
struct Refused {
    retry: Instant,
    pause: Duration,
}

impl Published {
    fn holds(&self) -> bool {
        let record = self.record.record();
        self.wanted.elapsed() < record.lifetime && !record.is_expired(now())
    }
}

impl Publications {
    /// Notes a record that is to be known, and returns the request that says so.
    pub(super) fn want(&mut self, record: SignedRecord) -> Request {
        let request = self.request(&record);
        self.forget_ended();
        let name = &record.record().name;
        let has_room = self.records.len() < MAX_PUBLISHED || self.records.contains_key(name);
        let is_newest = self
            .records
            .get(name)
            .is_none_or(|known| known.record.record().sequence <= record.record().sequence);
        if has_room && is_newest {
            self.records.insert(name.clone(), Published { record, wanted: Instant::now(), refused: None });
        }
        request
    }

    /// The requests that say everything again.
    pub(super) fn again(&mut self) -> Vec<Request> {
        self.forget_ended();
        self.records.values().map(|published| self.request(&published.record)).collect()
    }

    /// Whether there is anything to be known still.
    pub(super) fn is_empty(&mut self) -> bool {
        self.forget_ended();
        self.records.is_empty()
    }

    /// The service does not want this record, and the one that published it knows.
    pub(super) fn refused(&mut self, record: &[u8]) {
        self.records.retain(|_, published| published.record.encode() != record);
    }

    /// The service refused this record when it was said again, of which the one that published it hears
    /// nothing: it is said once more later.
    pub(super) fn refused_again(&mut self, record: &[u8], now: Instant) {
        let of_record = |published: &&mut Published| published.record.encode() == record;
        if let Some(published) = self.records.values_mut().find(of_record) {
            let pause =
                published.refused.map_or(FIRST_PAUSE, |refused| (refused.pause * 2).min(LONGEST_PAUSE));
            published.refused = Some(Refused { retry: now + pause, pause });
        }
    }

    /// The service has taken this record in.
    pub(super) fn accepted(&mut self, record: &[u8]) {
        let of_record = |published: &&mut Published| published.record.encode() == record;
        if let Some(published) = self.records.values_mut().find(of_record) {
            published.refused = None;
        }
    }

    /// When something that was refused is to be said once more.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let refused = self.records.values().filter_map(|published| published.refused);
        refused.map(|refused| refused.retry).min()
    }

    /// The requests that say once more what was refused, if it is time. Each is returned once.
    pub(super) fn retries(&mut self, now: Instant) -> Vec<Request> {
        self.forget_ended();
        let mut due = Vec::new();
        for published in self.records.values_mut() {
            if let Some(refused) = published.refused.as_mut().filter(|refused| refused.retry <= now) {
                // Should the answer be lost, with the connection, everything is said again.
                refused.retry = now + LONGEST_PAUSE;
                due.push(published.record.clone());
            }
        }
        due.iter().map(|record| self.request(record)).collect()
    }

    /// Sets who may read what is published under a name; a default only if nothing was said. Returns the
    /// request that says so of its record, if there is one. Refuses what it could not remember: the record
    /// would be for everybody.
    pub(super) fn set_readers(
        &mut self,
        name: Name,
        readers: Readers,
        is_default: bool,
    ) -> Result<Option<Request>, AskError> {
        self.forget_ended();
        let known = self.readers.get(&name);
        if is_default && known.is_some_and(|known| !known.is_default) {
            return Ok(None);
        }
        let has_room = self.readers.len() < MAX_PUBLISHED || known.is_some();
        let before = self.records.get(&name).map(|published| self.request(&published.record));
        if has_room {
            self.readers.insert(name.clone(), Shown { readers, is_default });
        } else if readers != Readers::Public {
            return Err(AskError::Busy);
        }
        let now = self.records.get(&name).map(|published| self.request(&published.record));
        Ok(now.filter(|now| before.as_ref() != Some(now)))
    }

    /// What to say again once the service has taken this request in: the same record, if its readers have
    /// changed since. Requests may be taken in in another order than they were made.
    pub(super) fn correction(&self, taken: &Request) -> Option<Request> {
        let Request::Register { record, .. } = taken else { return None };
        let published = self.records.values().find(|published| published.record.encode() == record)?;
        let now = self.request(&published.record);
        (now != *taken).then_some(now)
    }

    /// Notes for how long the service holds a user name.
    pub(super) fn set_lease(&mut self, user: Name, lease: Duration) {
        let ends = Instant::now().checked_add(lease);
        if let Some(ends) =
            ends.filter(|_| self.leases.len() < MAX_PUBLISHED || self.leases.contains_key(&user))
        {
            self.leases.insert(user, ends);
        }
    }

    /// For how long the service holds a user name from now on, if it said so.
    pub(super) fn lease(&self, user: &Name) -> Option<Duration> {
        self.leases.get(user).map(|ends| ends.saturating_duration_since(Instant::now()))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn request(&self, record: &SignedRecord) -> Request {
        let shown = self.readers.get(&record.record().name);
        let readers = shown.map(|shown| shown.readers.clone()).unwrap_or_default();
        Request::Register { record: record.encode().to_vec(), readers }
    }

    fn forget_ended(&mut self) {
        self.records.retain(|_, published| published.holds());
    }
}
