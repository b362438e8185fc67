//! Which records are told in the network now.

use std::collections::HashMap;

use whimbrel_base::order;
use whimbrel_base::{EndpointId, Name, SignedRecord, UnixTime};

/// Records that are kept, at most; others are not heard until some have gone.
const MAX_RECORDS: usize = 1024;

/// The records that were heard, by the instance that tells them and the endpoint that they are of: one that
/// calls itself like another endpoint's instance takes nothing of that one's place.
#[derive(Debug, Default)]
pub(crate) struct Table(HashMap<(String, EndpointId), SignedRecord>);

impl Table {
    /// An instance tells this record now. A newer one of the same endpoint is not replaced by an older one.
    pub(crate) fn told(&mut self, instance: String, record: SignedRecord) {
        let place = (instance, record.record().id);
        let is_older = self.0.get(&place).is_some_and(|known| {
            let (known, new) = (known.record(), record.record());
            known.name == new.name && known.sequence > new.sequence
        });
        if !is_older && (self.0.len() < MAX_RECORDS || self.0.contains_key(&place)) {
            self.0.insert(place, record);
        }
    }

    /// An instance is gone.
    pub(crate) fn gone(&mut self, instance: &str) {
        self.0.retain(|(of, _), _| of != instance);
    }

    /// The records of a name, the newest of each endpoint, the newest first.
    pub(crate) fn of_name(&self, name: &Name, now: UnixTime) -> Vec<SignedRecord> {
        self.usable(now, |record| record.record().name == *name)
    }

    /// The newest record of an endpoint.
    pub(crate) fn of_endpoint(&self, id: EndpointId, now: UnixTime) -> Option<SignedRecord> {
        self.usable(now, |record| record.record().id == id).into_iter().next()
    }

    fn usable(&self, now: UnixTime, wanted: impl Fn(&SignedRecord) -> bool) -> Vec<SignedRecord> {
        let usable = |record: &&SignedRecord| {
            !record.record().revoked && !record.record().is_expired(now) && wanted(record)
        };
        let mut all: Vec<SignedRecord> = self.0.values().filter(usable).cloned().collect();
        order::by_key(&mut all, |record| std::cmp::Reverse(record.record().sequence));
        let mut ids = Vec::new();
        all.retain(|record| {
            let is_first = !ids.contains(&record.record().id);
            ids.push(record.record().id);
            is_first
        });
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use whimbrel_base::{Record, SecretKey};

    use super::*;

    fn record(key: u8, sequence: u64) -> SignedRecord {
        let key = SecretKey::from_bytes(&[key; 32]);
        let record = Record {
            name: "ada@example.org".parse().unwrap(),
            id: key.id(),
            addrs: vec![SocketAddr::from(([192, 0, 2, 1], 4480))],
            sequence,
            expires: UnixTime::from_secs(1000),
            lifetime: Duration::from_secs(60),
            revoked: false,
        };
        SignedRecord::sign(record, &key, None).unwrap()
    }

    #[test]
    fn the_newest_record_of_each_endpoint_counts_until_it_ends() {
        let (mut table, name) = (Table::default(), "ada@example.org".parse().unwrap());
        table.told("a".into(), record(1, 5));
        table.told("a".into(), record(1, 4));
        table.told("b".into(), record(2, 7));
        table.told("c".into(), record(1, 3));
        let sequences = |table: &Table, now| -> Vec<u64> {
            table.of_name(&name, UnixTime::from_secs(now)).iter().map(|r| r.record().sequence).collect()
        };
        assert_eq!(sequences(&table, 1), [7, 5]);
        assert_eq!(sequences(&table, 1000), [0; 0], "they have ended");
        table.gone("b");
        assert_eq!(sequences(&table, 1), [5]);
        let id = SecretKey::from_bytes(&[1; 32]).id();
        assert_eq!(table.of_endpoint(id, UnixTime::from_secs(1)), Some(record(1, 5)));
    }

    #[test]
    fn an_endpoint_that_takes_anothers_instance_does_not_take_its_record_away() {
        let mut table = Table::default();
        table.told("a".into(), record(1, 5));
        table.told("a".into(), record(2, 9));
        let id = SecretKey::from_bytes(&[1; 32]).id();
        assert_eq!(table.of_endpoint(id, UnixTime::from_secs(1)), Some(record(1, 5)));
    }

    #[test]
    fn a_flood_of_instances_is_bounded() {
        let mut table = Table::default();
        let one = record(1, 1);
        (0..5000).for_each(|n| table.told(n.to_string(), one.clone()));
        assert_eq!(table.0.len(), MAX_RECORDS);
    }
}
