//! Slots in which two peers meet who do not know each other's ids.
//!
//! A slot belongs to the peer that opened it, and lets one other side in, ever. It is kept in memory only: a
//! service that is started again knows no meetings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::{EndpointId, random_bytes};

use super::rates::Rates;
use crate::error::NamesError;
use crate::protocol::{MEETING_FRAMES, MEETING_SLOTS};
use crate::registry::MeetingLimits;

mod side;

pub(super) use self::side::{Arrival, serve};

/// The slots of a service.
#[derive(Debug)]
pub(super) struct Meetings {
    limits: MeetingLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slots: HashMap<u16, Slot>,
    joins: Rates<EndpointId>,
}

#[derive(Debug)]
struct Slot {
    opener: EndpointId,
    ends: Instant,
    /// The joiner's ends of the pipe, until there is one.
    joiner: Option<Pipe>,
}

/// Frames to the other side, and from it.
#[derive(Debug)]
struct Pipe {
    to: mpsc::Sender<Vec<u8>>,
    from: mpsc::Receiver<Vec<u8>>,
}

impl Pipe {
    fn pair() -> (Self, Self) {
        let (to_joiner, from_opener) = mpsc::channel(MEETING_FRAMES);
        let (to_opener, from_joiner) = mpsc::channel(MEETING_FRAMES);
        (Self { to: to_joiner, from: from_joiner }, Self { to: to_opener, from: from_opener })
    }
}

/// One side of a meeting.
#[derive(Debug)]
pub(super) struct Side {
    slot: u16,
    ends: Instant,
    pipe: Pipe,
    /// The opener's: frees the slot when it is dropped.
    _place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    slot: u16,
    meetings: Arc<Meetings>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.meetings.state().slots.remove(&self.slot);
    }
}

impl Meetings {
    pub(super) fn new(limits: MeetingLimits) -> Arc<Self> {
        let joins = Rates::new(limits.joins_per_minute, Duration::from_secs(60));
        Arc::new(Self { limits, state: Mutex::new(State { slots: HashMap::new(), joins }) })
    }

    /// Opens a random free slot for `peer`, or joins the one that is named.
    ///
    /// # Errors
    /// [`NamesError::TooManyMeetings`], [`NamesError::TooOften`]; [`NamesError::NoMeeting`] for a slot that
    /// was never opened, has ended, or was joined before: the three look the same.
    pub(super) fn enter(
        self: &Arc<Self>,
        peer: EndpointId,
        slot: Option<u16>,
        now: Instant,
    ) -> Result<Side, NamesError> {
        match slot {
            None => self.open(peer, now),
            Some(slot) => self.join(peer, slot, now),
        }
    }

    fn open(self: &Arc<Self>, peer: EndpointId, now: Instant) -> Result<Side, NamesError> {
        let mut state = self.state();
        let of_peer = state.slots.values().filter(|slot| slot.opener == peer).count();
        if of_peer >= self.limits.per_peer || state.slots.len() >= self.limits.slots {
            return Err(NamesError::TooManyMeetings);
        }
        let free: Vec<u16> = (0..MEETING_SLOTS).filter(|slot| !state.slots.contains_key(slot)).collect();
        let random = u64::from_be_bytes(random_bytes());
        let chosen = random.checked_rem(free.len() as u64).and_then(|at| free.get(at as usize));
        let slot = *chosen.ok_or(NamesError::TooManyMeetings)?;
        let (pipe, joiner) = Pipe::pair();
        let ends = now + self.limits.lifetime;
        state.slots.insert(slot, Slot { opener: peer, ends, joiner: Some(joiner) });
        drop(state);
        Ok(Side { slot, ends, pipe, _place: Some(Place { slot, meetings: self.clone() }) })
    }

    fn join(&self, peer: EndpointId, slot: u16, now: Instant) -> Result<Side, NamesError> {
        let mut state = self.state();
        // Failed ones count too: they are guesses.
        if !state.joins.take(peer, now) {
            return Err(NamesError::TooOften);
        }
        let found = state.slots.get_mut(&slot).filter(|found| found.ends > now);
        let found = found.and_then(|found| Some((found.ends, found.joiner.take()?)));
        let (ends, pipe) = found.ok_or(NamesError::NoMeeting)?;
        Ok(Side { slot, ends, pipe, _place: None })
    }

    /// How many slots are open.
    pub(super) fn count(&self) -> usize {
        self.state().slots.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    fn peer(seed: u16) -> EndpointId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&seed.to_be_bytes());
        SecretKey::from_bytes(&bytes).id()
    }

    #[test]
    fn slots_are_bounded_for_one_peer_and_altogether_and_come_back() {
        let meetings = Meetings::new(MeetingLimits::default());
        let now = Instant::now();
        let mut open = Vec::new();
        for seed in 0..512 {
            for _ in 0..4 {
                open.push(meetings.enter(peer(seed), None, now).unwrap());
            }
            assert_eq!(meetings.enter(peer(seed), None, now).unwrap_err(), NamesError::TooManyMeetings);
        }
        // All numbers are taken, each once.
        let mut slots: Vec<u16> = open.iter().map(|side| side.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..MEETING_SLOTS).collect::<Vec<_>>());
        assert_eq!(meetings.enter(peer(600), None, now).unwrap_err(), NamesError::TooManyMeetings);
        let freed = open.pop().unwrap().slot;
        assert_eq!(meetings.enter(peer(600), None, now).unwrap().slot, freed);
    }

    #[test]
    fn joins_of_one_peer_are_limited_and_failed_ones_count() {
        let meetings = Meetings::new(MeetingLimits::default());
        let now = Instant::now();
        let open = meetings.enter(peer(1), None, now).unwrap();
        let free = (open.slot + 1) % MEETING_SLOTS;
        for _ in 0..10 {
            assert_eq!(meetings.enter(peer(2), Some(free), now).unwrap_err(), NamesError::NoMeeting);
        }
        let refused = meetings.enter(peer(2), Some(open.slot), now).unwrap_err();
        assert_eq!(refused, NamesError::TooOften);
        // Another peer is not held up by that, and time gives turns back.
        let later = now + Duration::from_secs(7);
        assert_eq!(meetings.enter(peer(2), Some(free), later).unwrap_err(), NamesError::NoMeeting);
        meetings.enter(peer(3), Some(open.slot), now).unwrap();
    }

    #[test]
    fn a_slot_that_is_used_over_or_unknown_refuses_alike() {
        let meetings = Meetings::new(MeetingLimits::default());
        let now = Instant::now();
        let (used, late) =
            (meetings.enter(peer(1), None, now).unwrap(), meetings.enter(peer(1), None, now).unwrap());
        let _joined = meetings.enter(peer(2), Some(used.slot), now).unwrap();
        let over = now + MeetingLimits::default().lifetime;
        for (slot, at) in [(used.slot, now), (MEETING_SLOTS, now), (u16::MAX, now), (late.slot, over)] {
            assert_eq!(meetings.enter(peer(3), Some(slot), at).unwrap_err(), NamesError::NoMeeting);
        }
    }
}
