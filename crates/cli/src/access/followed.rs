//! The keys that names in the rules stand for, and until when.

use std::time::{Duration, SystemTime};

use tokio::task::AbortHandle;
use whimbrel_base::{EndpointId, Name, SignedRecord, UnixTime};
use whimbrel_transport::Watch;

use super::Access;

/// The clock is looked at this often before an end comes: it may be set, and stands still for timers while
/// the machine sleeps.
const LOOK: Duration = Duration::from_secs(10);

/// The key that a name stood for when its owner's word was last heard, and the end of that word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedKey {
    pub(crate) key: EndpointId,
    /// The end of the delegation. `None` for the owner's own key, which signs for itself.
    pub(crate) until: Option<UnixTime>,
}

impl NamedKey {
    /// The key that a verified record lets in by its name; `None` if it lets nobody in.
    fn of(record: &SignedRecord) -> Option<Self> {
        // The key of a group's record is that of whoever keeps the group, and no member's.
        let is_endpoints = record.members().is_none() && !record.record().revoked;
        let until = record.delegation().map(|delegation| delegation.expires());
        is_endpoints.then_some(Self { key: record.record().id, until })
    }

    /// Whether the name stands for this key now, as far as its owner has said.
    pub(super) fn is(&self, key: EndpointId, now: UnixTime) -> bool {
        self.key == key && !self.has_ended(now)
    }

    fn has_ended(&self, now: UnixTime) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// The key that a name stands for just now, and the task that follows it.
pub(super) struct Followed {
    pub(super) key: Option<NamedKey>,
    pub(super) task: AbortHandle,
}

/// Keeps the key of a name up to date for as long as it is in the rules. Nobody says when a delegation ends,
/// and a name service that withholds a revocation would not: the end counts by itself.
pub(super) async fn follow(access: Access, name: Name, mut records: Watch<Option<SignedRecord>>) {
    let mut is_watched = true;
    loop {
        let key = access.followed(&name);
        let ended = async {
            match key {
                Some(key) => end_of(key).await,
                None => std::future::pending().await,
            }
        };
        let key = tokio::select! {
            record = records.changed(), if is_watched => match record {
                Some(Some(record)) => NamedKey::of(&record),
                // Nothing is known before the first answer.
                Some(None) => continue,
                // What is known holds until its end although there will be no more news.
                None => {
                    is_watched = false;
                    continue;
                }
            },
            () = ended => None,
        };
        tracing::info!(%name, key = ?key.map(|key| key.key), "a name in --allow changed");
        access.set_followed(&name, key);
    }
}

/// Waits until a key may no longer be let in.
async fn end_of(key: NamedKey) {
    let Some(until) = key.until else { return std::future::pending().await };
    loop {
        let now = UnixTime::from(SystemTime::now());
        if key.has_ended(now) {
            return;
        }
        tokio::time::sleep(until.since(now).min(LOOK)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{Delegation, Record, SecretKey};

    use super::*;

    const NOW: UnixTime = UnixTime::from_secs(1_800_000_000);

    fn record(key: &SecretKey, until: Option<(UnixTime, &SecretKey)>, revoked: bool) -> SignedRecord {
        let name: Name = "laptop.ada@example.org".parse().unwrap();
        let delegation =
            until.map(|(until, user)| Delegation::sign(name.clone(), key.id(), NOW, until, user).unwrap());
        let revocation = Record::revocation(name, key.id(), 1, NOW);
        SignedRecord::sign(Record { revoked, ..revocation }, key, delegation).unwrap()
    }

    #[test]
    fn a_key_is_let_in_by_a_name_no_longer_than_its_delegation_holds() {
        let (ada, laptop) = (SecretKey::generate(), SecretKey::generate());
        let end = NOW.saturating_add(Duration::from_secs(60));
        let lent = NamedKey::of(&record(&laptop, Some((end, &ada)), false)).unwrap();
        assert_eq!(lent, NamedKey { key: laptop.id(), until: Some(end) });
        assert!(lent.is(laptop.id(), NOW) && !lent.is(ada.id(), NOW) && !lent.is(laptop.id(), end));
        let own = NamedKey::of(&record(&ada, None, false)).unwrap();
        assert!(own.is(ada.id(), end), "the owner's own key has no end");
        assert_eq!(NamedKey::of(&record(&laptop, Some((end, &ada)), true)), None);
    }
}
