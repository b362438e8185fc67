//! A store that forgets: for tests, and for `names serve --ephemeral`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::{Appointment, Delegation, EndpointId, Name, UnixTime};

use super::{
    Admitted, Answer, Batch, Changes, Cursor, Decided, Entry, Kept, MAX_APPOINTMENTS, MAX_INVITATIONS,
    MAX_RENEWALS, NewBatch, Placed, Proposing, Store, StoreError, Stored, Version, batches, proposals,
};
use crate::admission::{CodeHash, Invitation};
use crate::proposal::ProposalId;

/// Keeps entries in memory, for as long as the process lives.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    head: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Name, Stored>,
    owned: HashMap<EndpointId, BTreeSet<Name>>,
    due: BTreeSet<(UnixTime, Name)>,
    /// The last change of each name that is there.
    changes: BTreeMap<u64, Name>,
    head: u64,
    invitations: HashMap<CodeHash, Invitation>,
    admitted: HashMap<EndpointId, Vec<Admitted>>,
    /// By issuer and name.
    renewals: BTreeMap<(EndpointId, Name), Delegation>,
    /// By issuer and device.
    appointments: BTreeMap<(EndpointId, Name), Appointment>,
    proposals: BTreeMap<ProposalId, Kept>,
    /// By user, in the order of their numbers.
    batches: HashMap<EndpointId, Vec<Batch>>,
    /// Each user's names.
    of_users: HashMap<Name, BTreeSet<Name>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { state: Mutex::default(), head: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn check(&self, name: &Name, expected: Option<Version>) -> Result<(), StoreError> {
        let version = self.entries.get(name).map(|stored| stored.version);
        if version == expected { Ok(()) } else { Err(StoreError::Conflict) }
    }

    fn put(&mut self, expected: Option<Version>, entry: Entry) -> Result<Version, StoreError> {
        let name = entry.name().clone();
        self.check(&name, expected)?;
        self.take_out(&name);
        self.head += 1;
        let version = Version(self.head);
        self.owned.entry(entry.owner()).or_default().insert(name.clone());
        self.due.insert((entry.held_until, name.clone()));
        self.changes.insert(self.head, name.clone());
        self.of_users.entry(name.user()).or_default().insert(name.clone());
        self.entries.insert(name, Stored { version, entry });
        Ok(version)
    }

    fn take_out(&mut self, name: &Name) {
        let Some(Stored { version, entry }) = self.entries.remove(name) else {
            return;
        };
        self.changes.remove(&version.0);
        self.due.remove(&(entry.held_until, name.clone()));
        let user = name.user();
        if let Some(names) = self.of_users.get_mut(&user) {
            names.remove(name);
            if names.is_empty() {
                self.of_users.remove(&user);
            }
        }
        if let Some(names) = self.owned.get_mut(&entry.owner()) {
            names.remove(name);
            if names.is_empty() {
                self.owned.remove(&entry.owner());
            }
        }
    }
}

fn answer<'a, T: Send + 'a>(result: Result<T, StoreError>) -> Answer<'a, T> {
    Box::pin(ready(result))
}

impl Store for MemoryStore {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Stored>> {
        answer(Ok(self.state().entries.get(name).cloned()))
    }

    fn place(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Placed> {
        let version = self.state().put(expected, entry);
        if let Ok(Version(head)) = version {
            raise(&self.head, head);
        }
        answer(version.map(Placed::durable))
    }

    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()> {
        let mut state = self.state();
        let checked = state.check(name, Some(expected));
        if checked.is_ok() {
            state.take_out(name);
        }
        answer(checked)
    }

    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64> {
        answer(Ok(self.state().owned.get(owner).map_or(0, |names| names.len() as u64)))
    }

    fn names_of<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, Vec<Name>> {
        let state = self.state();
        answer(Ok(state.owned.get(owner).into_iter().flatten().cloned().collect()))
    }

    fn count(&self) -> Answer<'_, u64> {
        answer(Ok(self.state().entries.len() as u64))
    }

    fn due(&self, now: UnixTime, limit: usize) -> Answer<'_, Vec<Name>> {
        let state = self.state();
        let due = state.due.iter().take_while(|(held_until, _)| *held_until <= now);
        answer(Ok(due.take(limit).map(|(_, name)| name.clone()).collect()))
    }

    fn head(&self) -> Answer<'_, Cursor> {
        answer(Ok(Cursor(self.state().head)))
    }

    fn changes_since(&self, cursor: Cursor, limit: usize) -> Answer<'_, Changes> {
        let state = self.state();
        let changes = state.changes.range(cursor.0.saturating_add(1)..).take(limit);
        let mut found = Changes { names: Vec::new(), cursor };
        for (place, name) in changes {
            found.names.push(name.clone());
            found.cursor = Cursor(*place);
        }
        answer(Ok(found))
    }

    fn changed_since(&self, cursor: Cursor) -> Answer<'_, ()> {
        Box::pin(wait(self.head.subscribe(), cursor))
    }

    fn invite(&self, code: CodeHash, invitation: Invitation, now: UnixTime) -> Answer<'_, ()> {
        let mut state = self.state();
        state.invitations.retain(|_, invitation| invitation.expires > now);
        if state.invitations.len() >= MAX_INVITATIONS {
            return answer(Err(StoreError::TooManyInvitations));
        }
        state.invitations.insert(code, invitation);
        answer(Ok(()))
    }

    fn redeem(&self, code: CodeHash, key: EndpointId, now: UnixTime) -> Answer<'_, Option<Admitted>> {
        let mut state = self.state();
        let Some(invitation) = state.invitations.get_mut(&code) else {
            return answer(Ok(None));
        };
        if !invitation.redeem(key, now) {
            return answer(Ok(None));
        }
        let admitted = Admitted { domain: invitation.domain.clone() };
        let of_key = state.admitted.entry(key).or_default();
        if !of_key.contains(&admitted) {
            of_key.push(admitted.clone());
        }
        answer(Ok(Some(admitted)))
    }

    fn admissions<'a>(&'a self, key: &'a EndpointId) -> Answer<'a, Vec<Admitted>> {
        answer(Ok(self.state().admitted.get(key).cloned().unwrap_or_default()))
    }

    fn renew(&self, delegation: Delegation, now: UnixTime) -> Answer<'_, bool> {
        let renewals = &mut self.state().renewals;
        let issuer = delegation.issuer();
        renewals.retain(|(of, _), known| *of != issuer || !known.is_expired(now));
        let place = (issuer, delegation.name().clone());
        let others = renewals.keys().filter(|key| key.0 == issuer && **key != place).count();
        if others >= MAX_RENEWALS {
            return answer(Ok(false));
        }
        renewals.insert(place, delegation);
        answer(Ok(true))
    }

    fn renewed<'a>(&'a self, issuer: &'a EndpointId, name: &'a Name) -> Answer<'a, Option<Delegation>> {
        answer(Ok(self.state().renewals.get(&(*issuer, name.clone())).cloned()))
    }

    fn forget_renewals(&self, now: UnixTime) -> Answer<'_, ()> {
        self.state().renewals.retain(|_, known| !known.is_expired(now));
        answer(Ok(()))
    }

    fn appoint(&self, appointment: Appointment, now: UnixTime) -> Answer<'_, bool> {
        let appointments = &mut self.state().appointments;
        let issuer = appointment.issuer();
        appointments.retain(|(of, _), known| *of != issuer || !known.is_expired(now));
        let place = (issuer, appointment.name().clone());
        let others = appointments.keys().filter(|key| key.0 == issuer && **key != place).count();
        if others >= MAX_APPOINTMENTS {
            return answer(Ok(false));
        }
        appointments.insert(place, appointment);
        answer(Ok(true))
    }

    fn appointment<'a>(
        &'a self,
        issuer: &'a EndpointId,
        device: &'a Name,
    ) -> Answer<'a, Option<Appointment>> {
        answer(Ok(self.state().appointments.get(&(*issuer, device.clone())).cloned()))
    }

    fn dismiss<'a>(&'a self, issuer: &'a EndpointId, device: &'a Name) -> Answer<'a, ()> {
        self.state().appointments.remove(&(*issuer, device.clone()));
        answer(Ok(()))
    }

    fn forget_appointments(&self, now: UnixTime) -> Answer<'_, ()> {
        self.state().appointments.retain(|_, known| !known.is_expired(now));
        answer(Ok(()))
    }

    fn names_under<'a>(
        &'a self,
        user: &'a Name,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Answer<'a, Vec<Name>> {
        let state = self.state();
        let names = state.of_users.get(user).into_iter().flatten();
        let wanted = names.filter(|name| after.is_none_or(|after| *name > after));
        answer(Ok(wanted.take(limit).cloned().collect()))
    }

    fn propose(&self, proposal: Kept, now: UnixTime) -> Answer<'_, Proposing> {
        let kept = &mut self.state().proposals;
        kept.retain(|_, known| known.expires > now);
        let of_both = kept.values().filter(|known| known.is_of(&proposal.from) || known.is_of(&proposal.to));
        let known: Vec<Kept> = of_both.cloned().collect();
        answer(Ok(match proposals::judge(&known, &proposal) {
            Some(said) => said,
            None if kept.len() >= proposals::MAX_PROPOSALS => Proposing::Full,
            None => {
                kept.insert(proposal.id, proposal);
                Proposing::Kept
            }
        }))
    }

    fn proposals<'a>(&'a self, user: &'a EndpointId) -> Answer<'a, Vec<Kept>> {
        let state = self.state();
        answer(Ok(state.proposals.values().filter(|known| known.is_of(user)).cloned().collect()))
    }

    fn decide<'a>(
        &'a self,
        user: &'a EndpointId,
        id: ProposalId,
        decided: Decided,
        now: UnixTime,
    ) -> Answer<'a, bool> {
        let mut state = self.state();
        let known = state.proposals.get_mut(&id);
        answer(Ok(known.is_some_and(|known| known.decide(user, decided, now))))
    }

    fn withdraw<'a>(&'a self, user: &'a EndpointId, id: ProposalId) -> Answer<'a, bool> {
        let mut state = self.state();
        answer(Ok(state.proposals.get_mut(&id).is_some_and(|known| known.withdraw(user))))
    }

    fn forget_proposals(&self, now: UnixTime) -> Answer<'_, ()> {
        self.state().proposals.retain(|_, known| known.expires > now);
        answer(Ok(()))
    }

    fn leave_batch(&self, new: NewBatch, now: UnixTime) -> Answer<'_, Option<UnixTime>> {
        let mut state = self.state();
        let others = state.batches.iter().filter(|(user, _)| **user != new.user);
        let others: usize = others.map(|(_, batches)| batches.len()).sum();
        let NewBatch { user, by, expires, .. } = new;
        let known = state.batches.entry(user).or_default();
        let (number, forgotten) = match batches::place(known, &new, now) {
            batches::Placing::Known(until) => return answer(Ok(Some(until))),
            batches::Placing::New { number, forgotten } => (number, forgotten),
        };
        known.retain(|known| !forgotten.contains(&known.number));
        if others + known.len() >= batches::MAX_BATCHES {
            return answer(Ok(None));
        }
        known.push(Batch { number, by, expires, bytes: new.bytes });
        answer(Ok(Some(expires)))
    }

    fn batches<'a>(&'a self, user: &'a EndpointId, after: u64, now: UnixTime) -> Answer<'a, Vec<Batch>> {
        let state = self.state();
        let all = state.batches.get(user).into_iter().flatten();
        let behind = all.filter(|batch| batch.number > after && batch.expires > now);
        answer(Ok(batches::page(behind.cloned())))
    }

    fn forget_batches(&self, now: UnixTime) -> Answer<'_, ()> {
        self.state().batches.retain(|_, batches| {
            batches.retain(|batch| batch.expires > now);
            !batches.is_empty()
        });
        answer(Ok(()))
    }
}

/// Announces that the feed of changes has grown to `head`. Two puts may announce in the wrong order.
pub(super) fn raise(sender: &watch::Sender<u64>, head: u64) {
    sender.send_if_modified(|current| {
        let higher = head > *current;
        *current = head.max(*current);
        higher
    });
}

/// Waits for the feed to grow beyond `cursor`.
pub(super) async fn wait(mut head: watch::Receiver<u64>, cursor: Cursor) -> Result<(), StoreError> {
    match head.wait_for(|head| *head > cursor.0).await {
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::Stopped),
    }
}
