//! How many bytes a gateway keeps for sessions: of one device, and in all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use whimbrel_base::EndpointId;

/// More than a gateway may send to a device before the program there has taken it.
pub(super) const MOST_DOWN: usize = 8 * 1024 * 1024;
/// What a session may keep of its server however little room there is: so it goes on, if slowly.
pub(super) const LEAST_KEPT: usize = 32 * 1024;
/// The same for one whose program takes much: what passes at a time costs as much however little it is. As
/// many sessions as a gateway takes of a device by itself, 256, keep no more by it than that device may.
const MOST_KEPT_AT_LEAST: usize = 4 * LEAST_KEPT;
/// That takes much which takes all of that in so many parts of a second.
const A_SECOND: u64 = 4;
/// What may wait for its server likewise: a device that keeps the rules sends no more before it pauses.
pub(super) const LEAST_WAITING: usize = 320 * 1024;

/// What a session may keep however little room there is, if its program takes so many bytes a second.
pub(super) fn least_kept(rate: u64) -> usize {
    usize::try_from(rate / A_SECOND).unwrap_or(usize::MAX).clamp(LEAST_KEPT, MOST_KEPT_AT_LEAST)
}

/// What all sessions of a gateway keep.
#[derive(Default)]
pub(super) struct Budget(Mutex<Weights>);

#[derive(Default)]
struct Weights {
    all: u64,
    /// Of devices whose sessions keep something.
    of: HashMap<EndpointId, Weight>,
}

/// What the sessions of one device keep.
#[derive(Default)]
struct Weight {
    bytes: u64,
    /// Those that keep something.
    sessions: usize,
}

impl Weights {
    /// A session of this device kept so much, and keeps so much now.
    fn change(&mut self, device: EndpointId, before: u64, now: u64) {
        if before == now {
            return;
        }
        self.all = self.all.saturating_sub(before).saturating_add(now);
        let of = self.of.entry(device).or_default();
        of.bytes = of.bytes.saturating_sub(before).saturating_add(now);
        match (before, now) {
            (0, _) => of.sessions += 1,
            (_, 0) => of.sessions = of.sessions.saturating_sub(1),
            _ => {}
        }
        if of.sessions == 0 {
            self.of.remove(&device);
        }
    }
}

impl Budget {
    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much more a session may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) bytes: u64,
    /// Among how many sessions of its device that keep something, this one included.
    pub(super) sessions: usize,
}

/// What one session keeps, for its device. Nothing once this is dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    device: EndpointId,
    bytes: u64,
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>, device: EndpointId) -> Self {
        Self { budget, device, bytes: 0 }
    }

    /// It keeps so much now.
    pub(super) fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            self.budget.weights().change(self.device, self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// It keeps that for this device from now on.
    pub(super) fn go_to(&mut self, device: EndpointId) {
        let mut weights = self.budget.weights();
        weights.change(self.device, self.bytes, 0);
        weights.change(device, 0, self.bytes);
        self.device = device;
    }

    /// How much more it may keep, where one device has this much and all have that much.
    pub(super) fn room(&self, each: u64, all: u64) -> Room {
        let weights = self.budget.weights();
        let of = weights.of.get(&self.device);
        let (bytes, sessions) = of.map_or((0, 0), |of| (of.bytes, of.sessions));
        let bytes = each.saturating_sub(bytes).min(all.saturating_sub(weights.all));
        Room { bytes, sessions: sessions + usize::from(self.bytes == 0) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sessions_keep_counts_for_their_device_until_they_are_over() {
        let [one, other] = [1, 2].map(|number| EndpointId::from_bytes(&[number; 32]));
        let budget = Arc::new(Budget::default());
        let mut shares = [one, one, other].map(|device| Share::new(budget.clone(), device));
        shares.iter_mut().for_each(|share| share.set(40));
        let room = |shares: &[Share; 3]| [0, 2].map(|at| shares[at].room(100, 130).bytes);
        assert_eq!(room(&shares), [10, 10]);
        shares[1].go_to(other);
        assert_eq!(room(&shares), [10, 10]);
        shares[0].set(0);
        assert_eq!(room(&shares), [50, 20]);
        shares[1].set(90);
        assert_eq!(room(&shares), [0, 0], "more than there is");
        drop(shares);
        assert!(budget.weights().all == 0 && budget.weights().of.is_empty());
    }

    #[test]
    fn sessions_that_keep_nothing_are_not_among_those_that_share_what_a_device_may_keep() {
        let device = EndpointId::from_bytes(&[1; 32]);
        let budget = Arc::new(Budget::default());
        let mut shares = [(); 4].map(|()| Share::new(budget.clone(), device));
        let among = |share: &Share| share.room(100, 100).sessions;
        assert_eq!(among(&shares[0]), 1);
        shares[0].set(10);
        shares[1].set(20);
        shares[1].set(30);
        assert_eq!((among(&shares[0]), among(&shares[3])), (2, 3));
        shares[1].set(0);
        assert_eq!(shares[0].room(100, 100), Room { bytes: 90, sessions: 1 });
    }

    #[test]
    fn a_program_that_takes_much_has_more_room_whatever_others_keep_and_a_slow_one_the_least() {
        assert_eq!([0, 12_500, 131_072].map(least_kept), [LEAST_KEPT; 3]);
        assert_eq!(least_kept(400_000), 100_000);
        assert_eq!([524_288, u64::MAX].map(least_kept), [MOST_KEPT_AT_LEAST; 2]);
    }
}
