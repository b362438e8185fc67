//! Which sessions there are, whose they are, and who may take them.

mod lasting;
mod order;
mod rights;

pub(super) use lasting::{before, behind, millis};
pub(super) use order::{Order, Take};

use super::SessionId;
use super::budget::{Budget, Share};
use super::message::{Listed, May, Standing, Takers};
use crate::Destination;
use futures_util::FutureExt;
use rights::Lender;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;

/// A permission lasts no longer, whatever is asked for.
const LONGEST_PERMISSION: Duration = Duration::from_secs(3600);
/// For a session to hear that it is called back.
const RECALL: Duration = Duration::from_secs(10);

/// There is no such session, or the device that asks has no right to it: who has none learns nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no such session for this device; it may be over, or its holder must hand it over first")]
pub struct NoSession;

/// A device that takes a session and leaves may do so again at once, but for this time and later ones.
const FREE_FAILURES: u32 = 3;
/// Then it waits for so long, and each time for twice as long, up to 64 times.
const FAILED: Duration = Duration::from_secs(10);
/// How many such devices are remembered before those are forgotten that may take it again.
const MOST_FAILED: usize = 256;

/// All sessions of a gateway.
#[derive(Default)]
pub(super) struct Table {
    sessions: Mutex<HashMap<SessionId, Entry>>,
    budget: Arc<Budget>,
}

/// What is told of a session's bytes.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) is_tls: AtomicBool,
}

struct Entry {
    holder: EndpointId,
    to: Destination,
    begun: Instant,
    moves: u32,
    rule: Takers,
    permission: Option<Permission>,
    lender: Option<Lender>,
    standing: Standing,
    /// The device that is taking it.
    taker: Option<EndpointId>,
    /// Devices that were given it and did not want it: how often, and when they may take it again.
    failed: HashMap<EndpointId, (u32, Instant)>,
    figures: Arc<Figures>,
    orders: mpsc::Sender<Order>,
}

/// What the holder said: this device may take the session, once.
struct Permission {
    device: EndpointId,
    until: Instant,
}

impl Table {
    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session of a device. It is in the table until the entry is dropped.
    pub(super) fn begin(
        self: &Arc<Self>,
        holder: EndpointId,
        to: Destination,
        rule: Takers,
        orders: mpsc::Sender<Order>,
    ) -> Listing {
        let (id, figures) = (SessionId::fresh(), Arc::new(Figures::default()));
        let entry = Entry {
            holder,
            to,
            begun: Instant::now(),
            moves: 0,
            rule,
            permission: None,
            lender: None,
            standing: Standing::Live,
            taker: None,
            failed: HashMap::new(),
            figures: figures.clone(),
            orders,
        };
        self.sessions().insert(id, entry);
        let share = Share::new(self.budget.clone(), holder);
        Listing { table: self.clone(), id, figures, share }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.sessions().len()
    }

    /// What a device has, and may take.
    pub(super) fn list(&self, device: EndpointId, now: Instant) -> Vec<Listed> {
        let sessions = self.sessions();
        let told = sessions.iter().filter_map(|(id, entry)| {
            let may = entry.right_of(device, now)?;
            // No other device can take it.
            let is_fixed = entry.figures.is_tls.load(Ordering::Relaxed);
            if is_fixed && may != May::Own {
                return None;
            }
            let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
            Some(Listed {
                id: *id,
                moves: entry.moves,
                holder: entry.holder,
                to: entry.to.clone(),
                age: now.duration_since(entry.begun),
                up: figure(&entry.figures.up),
                down: figure(&entry.figures.down),
                kept: u32::try_from(figure(&entry.figures.kept)).unwrap_or(u32::MAX),
                standing: if is_fixed { Standing::Fixed } else { entry.standing },
                may,
            })
        });
        let mut told: Vec<_> = told.collect();
        whimbrel_base::order::by_key(&mut told, |listed| std::cmp::Reverse((listed.age, listed.id)));
        told
    }

    /// The holder lets another device take a session that was moved so often until now, once and for some
    /// time. A later word replaces this one.
    pub(super) fn permit(
        &self,
        holder: EndpointId,
        (id, moves): (SessionId, u32),
        device: EndpointId,
        limit: Duration,
        now: Instant,
    ) -> Result<(), NoSession> {
        let mut sessions = self.sessions();
        // A word of a time when it had the session before says nothing now.
        let is_its = |entry: &&mut Entry| entry.holder == holder && entry.moves == moves;
        let entry = sessions.get_mut(&id).filter(is_its).ok_or(NoSession)?;
        entry.permission = Some(Permission { device, until: now + limit.min(LONGEST_PERMISSION) });
        Ok(())
    }

    /// A device says anew which others may take its sessions without being asked to. What one took that may
    /// no more comes back.
    pub(super) fn set_rule(&self, device: EndpointId, rule: &Takers, now: Instant) {
        for entry in self.sessions().values_mut() {
            for out in entry.set_rule(device, rule, now) {
                recall(&entry.orders, out);
            }
        }
    }

    /// Begins a move, of which there is one at a time. It ends when the claim is dropped.
    pub(super) fn claim(
        self: &Arc<Self>,
        device: EndpointId,
        id: SessionId,
        moves: u32,
        now: Instant,
    ) -> Result<Claim, NoSession> {
        let mut sessions = self.sessions();
        let entry = sessions.get_mut(&id).ok_or(NoSession)?;
        let by = entry.right_of(device, now).ok_or(NoSession)?;
        let lent = entry.lent_by(device, now);
        // A lender takes it from any device that has it meanwhile.
        if !entry.is_free_for(device, now) || entry.moves != moves && lent.is_none() {
            return Err(NoSession);
        }
        let must_wait = |(times, until): &(u32, Instant)| *times >= FREE_FAILURES && now < *until;
        if entry.failed.get(&device).is_some_and(must_wait) {
            return Err(NoSession);
        }
        entry.taker = Some(device);
        let from = entry.holder;
        let before = std::mem::replace(&mut entry.standing, Standing::Moving);
        let orders = entry.orders.clone();
        let table = self.clone();
        Ok(Claim { table, id, device, from, by, lent, before, has_begun: false, orders })
    }

    /// Where a session takes orders that a device has, or is taking: after so many moves.
    pub(super) fn orders_of(
        &self,
        device: EndpointId,
        id: SessionId,
        moves: u32,
    ) -> Result<mpsc::Sender<Order>, NoSession> {
        let sessions = self.sessions();
        let is_its = |entry: &&Entry| {
            let has_it = entry.holder == device && entry.moves == moves;
            has_it || entry.taker == Some(device) && entry.moves + 1 == moves
        };
        let entry = sessions.get(&id).filter(is_its);
        entry.map(|entry| entry.orders.clone()).ok_or(NoSession)
    }
}

/// A session's place in the table.
pub(super) struct Listing {
    table: Arc<Table>,
    id: SessionId,
    figures: Arc<Figures>,
    share: Share,
}

impl Listing {
    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What it keeps for its device.
    pub(super) fn share(&mut self) -> &mut Share {
        &mut self.share
    }

    /// A device has it no more: the one that had it before, and did not give it away, has it again. Returns
    /// that.
    pub(super) fn give_back(&mut self, from: EndpointId) -> Option<EndpointId> {
        let (mut sessions, now) = (self.table.sessions(), Instant::now());
        let entry = sessions.get_mut(&self.id).filter(|entry| entry.holder == from)?;
        let lender = entry.lender.take().filter(|lender| now < lender.until)?;
        let Lender { device, rule, .. } = lender;
        entry.go_to(device, rule, May::Own, now);
        self.share.go_to(device);
        Some(device)
    }

    /// Notes whether a device has the session. False if it would be held, and its device has as many held
    /// ones as it may, in number or in bytes.
    pub(super) fn stands(&self, is_live: bool, most: usize, most_bytes: u64) -> bool {
        let mut sessions = self.table.sessions();
        let Some(holder) = sessions.get(&self.id).map(|entry| entry.holder) else { return false };
        let others = sessions.iter().filter(|(id, entry)| {
            **id != self.id && entry.holder == holder && entry.standing == Standing::Held
        });
        let (mut held, mut bytes) = (0, self.figures.kept.load(Ordering::Relaxed));
        for (_, entry) in others {
            held += 1;
            bytes = bytes.saturating_add(entry.figures.kept.load(Ordering::Relaxed));
        }
        if !is_live && (held >= most || bytes > most_bytes) {
            return false;
        }
        if let Some(entry) = sessions.get_mut(&self.id).filter(|entry| entry.standing != Standing::Moving) {
            entry.standing = if is_live { Standing::Live } else { Standing::Held };
        }
        true
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // Those that see that it is over find the room that it leaves.
        self.share.leave();
        self.table.sessions().remove(&self.id);
    }
}

/// The right to move a session, as long as it is not dropped.
pub(super) struct Claim {
    table: Arc<Table>,
    id: SessionId,
    device: EndpointId,
    /// That had the session then, and whose word or rule counts.
    from: EndpointId,
    by: May,
    /// The device had the session before it was taken by the rule, and takes it back: whether it was kept
    /// from that before.
    lent: Option<bool>,
    before: Standing,
    /// The session stands still for the device, which has not said yet that its program is there.
    has_begun: bool,
    orders: mpsc::Sender<Order>,
}

impl Claim {
    pub(super) fn device(&self) -> EndpointId {
        self.device
    }

    /// Whether the device takes back what another one took by the rule.
    pub(super) fn is_lenders(&self) -> bool {
        self.lent.is_some()
    }

    /// Whether it was kept from that before by a device that had it.
    pub(super) fn insists(&self) -> bool {
        self.lent == Some(true)
    }

    /// The device that has the session does not give it yet.
    pub(super) fn is_kept_off(&self) {
        if let Some(entry) = self.table.sessions().get_mut(&self.id) {
            entry.keep_off(self.device);
        }
    }

    /// Whether the session is the device's own, so that it needs no place beside the one that it has.
    pub(super) fn is_own(&self) -> bool {
        self.by == May::Own || self.is_lenders()
    }

    /// The session stands still until the device confirms. That it does not is a failure from now on, also if
    /// another one is the cause: the server waits all the same.
    pub(super) fn begins(&mut self) {
        self.has_begun = true;
    }

    /// The device may not have it any more, which is no failure of its own.
    pub(super) fn withdrawn(&mut self) {
        self.has_begun = false;
    }

    /// Where the session takes orders.
    pub(super) fn orders(&self) -> mpsc::Sender<Order> {
        self.orders.clone()
    }

    /// Moves the session: the device has it from now on, with a rule of its own. What the device before
    /// permitted is used up. Returns how often the session has moved.
    ///
    /// # Errors
    /// When the device that let this one have it was itself out meanwhile.
    pub(super) fn confirm(&mut self, rule: Takers) -> Result<u32, NoSession> {
        self.has_begun = false;
        let mut sessions = self.table.sessions();
        let entry = sessions.get_mut(&self.id).ok_or(NoSession)?;
        if entry.holder != self.device && entry.holder != self.from {
            return Err(NoSession);
        }
        self.before = Standing::Live;
        if entry.holder != self.device {
            entry.go_to(self.device, rule, self.by, Instant::now());
        } else {
            (entry.rule, entry.permission) = (rule, None);
        }
        entry.failed.clear();
        entry.moves += 1;
        Ok(entry.moves)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(entry) = self.table.sessions().get_mut(&self.id) {
            entry.standing = self.before;
            entry.taker = None;
            if self.has_begun {
                entry.has_failed(self.device, Instant::now());
            }
        }
    }
}

/// Has a session leave a device.
fn recall(orders: &mpsc::Sender<Order>, device: EndpointId) {
    if let Err(mpsc::error::TrySendError::Full(order)) = orders.try_send(Order::Recall(device)) {
        let orders = orders.clone();
        // One that hears nothing is about to end.
        tokio::spawn(FutureExt::boxed(async move { drop(orders.send_timeout(order, RECALL).await) }));
    }
}

#[cfg(test)]
mod tests;
