//! What is known of a session when another instance goes on with it.

use super::rights::Lender;
use super::{Entry, Figures, Listing, Order, Permission, Table};
use crate::Destination;
use crate::sessions::SessionId;
use crate::sessions::budget::Share;
use crate::sessions::lasting::{EntryRecord, LenderRecord};
use crate::sessions::message::{Standing, Takers};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;

/// Of a time to come, or that has passed.
pub(in crate::sessions) fn millis(lasts: Duration) -> u64 {
    u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX)
}

/// So long before a moment, as far as the clock goes back.
pub(in crate::sessions) fn before(now: Instant, millis: u64) -> Instant {
    now.checked_sub(Duration::from_millis(millis)).unwrap_or(now)
}

/// So long behind a moment, and no longer than anything lasts here.
pub(in crate::sessions) fn behind(now: Instant, millis: u64) -> Instant {
    now + Duration::from_millis(millis).min(Duration::from_secs(7 * 24 * 3600))
}

fn bytes(rule: &Takers) -> Vec<[u8; 32]> {
    rule.devices().iter().map(|device| *device.as_bytes()).collect()
}

fn takers(bytes: &[[u8; 32]]) -> Takers {
    Takers::new(bytes.iter().map(EndpointId::from_bytes))
}

impl Lender {
    fn record(&self, now: Instant) -> LenderRecord {
        LenderRecord {
            device: *self.device.as_bytes(),
            rule: bytes(&self.rule),
            left: millis(self.until.saturating_duration_since(now)),
            was_kept_off: self.was_kept_off,
        }
    }

    fn going_on(record: &LenderRecord, now: Instant) -> Self {
        Self {
            device: EndpointId::from_bytes(&record.device),
            rule: takers(&record.rule),
            until: behind(now, record.left),
            was_kept_off: record.was_kept_off,
            first_until: None,
        }
    }
}

impl Table {
    /// Where all sessions take orders.
    pub(in crate::sessions) fn orders(&self) -> Vec<mpsc::Sender<Order>> {
        self.sessions().values().map(|entry| entry.orders.clone()).collect()
    }

    /// A session that was halted. It is in the table until the entry is dropped.
    pub(in crate::sessions) fn go_on(
        self: &Arc<Self>,
        record: &EntryRecord,
        to: Destination,
        orders: mpsc::Sender<Order>,
    ) -> Listing {
        let (now, figures) = (Instant::now(), Arc::new(Figures::default()));
        let (id, holder) = (SessionId::from_bytes(record.id), record.holder());
        let permission = record.permission.map(|(device, left)| Permission {
            device: EndpointId::from_bytes(&device),
            until: behind(now, left),
        });
        let entry = Entry {
            holder,
            to,
            begun: before(now, record.age),
            moves: record.moves,
            rule: takers(&record.rule),
            permission,
            lender: record.lender.as_ref().map(|lender| Lender::going_on(lender, now)),
            standing: Standing::Live,
            taker: None,
            failed: HashMap::new(),
            figures: figures.clone(),
            orders,
        };
        self.sessions().insert(id, entry);
        Listing { table: self.clone(), id, figures, share: Share::new(self.budget.clone(), holder) }
    }
}

impl Listing {
    /// What another instance is to know.
    pub(in crate::sessions) fn record(&self, now: Instant) -> Option<EntryRecord> {
        let sessions = self.table.sessions();
        let entry = sessions.get(&self.id)?;
        let permission = entry.permission.as_ref().filter(|given| now < given.until);
        Some(EntryRecord {
            id: self.id.to_bytes(),
            holder: *entry.holder.as_bytes(),
            moves: entry.moves,
            age: millis(now.duration_since(entry.begun)),
            rule: bytes(&entry.rule),
            permission: permission.map(|given| (*given.device.as_bytes(), millis(given.until - now))),
            lender: entry.lender.as_ref().filter(|it| now < it.until).map(|it| it.record(now)),
        })
    }
}
