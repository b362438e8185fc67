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

/// What a session keeps beyond what it may have whatever others keep.
fn beyond(bytes: u64) -> u64 {
    bytes.saturating_sub(LEAST_KEPT as u64)
}

/// What so many sessions share of `most`: the least of each is set aside, also of those that keep nothing
/// yet. A quarter is left for a fast one among many that rest.
fn shared(most: u64, sessions: usize) -> u64 {
    let least = u64::try_from(sessions).unwrap_or(u64::MAX).saturating_mul(LEAST_KEPT as u64);
    most - least.min(most / 4 * 3)
}

/// What all sessions of a gateway keep.
#[derive(Default)]
pub(super) struct Budget(Mutex<Weights>);

#[derive(Default)]
struct Weights {
    all: Weight,
    /// Of devices that have sessions.
    of: HashMap<EndpointId, Weight>,
}

/// What some sessions keep.
#[derive(Debug, Default, PartialEq, Eq)]
struct Weight {
    /// Beyond the least of each.
    beyond: u64,
    /// All of them.
    sessions: usize,
    /// Those that keep something.
    keeping: usize,
}

impl Weight {
    /// One that keeps so much is among them from now on.
    fn come(&mut self, bytes: u64) {
        self.sessions += 1;
        self.change(0, bytes);
    }

    /// One that keeps so much is not among them any more.
    fn go(&mut self, bytes: u64) {
        self.change(bytes, 0);
        self.sessions = self.sessions.saturating_sub(1);
    }

    /// One of them kept so much, and keeps so much now.
    fn change(&mut self, before: u64, now: u64) {
        self.beyond = self.beyond.saturating_add(beyond(now)).saturating_sub(beyond(before));
        self.keeping = (self.keeping + usize::from(now > 0)).saturating_sub(usize::from(before > 0));
    }

    /// How much more they may keep beyond the least of each, where `most` is what they may keep.
    fn left(&self, most: u64) -> u64 {
        shared(most, self.sessions).saturating_sub(self.beyond)
    }
}

impl Weights {
    fn come(&mut self, device: EndpointId, bytes: u64) {
        self.all.come(bytes);
        self.of.entry(device).or_default().come(bytes);
    }

    fn go(&mut self, device: EndpointId, bytes: u64) {
        self.all.go(bytes);
        if let Some(of) = self.of.get_mut(&device) {
            of.go(bytes);
            if of.sessions == 0 {
                self.of.remove(&device);
            }
        }
    }

    /// A session of this device kept so much, and keeps so much now.
    fn change(&mut self, device: EndpointId, before: u64, now: u64) {
        self.all.change(before, now);
        if let Some(of) = self.of.get_mut(&device) {
            of.change(before, now);
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

/// What one session keeps, for its device, of whose sessions it is one until it leaves, or this is dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    device: EndpointId,
    bytes: u64,
    has_left: bool,
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>, device: EndpointId) -> Self {
        budget.weights().come(device, 0);
        Self { budget, device, bytes: 0, has_left: false }
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
        weights.go(self.device, self.bytes);
        weights.come(device, self.bytes);
        self.device = device;
    }

    /// How much more it may keep, where one device has this much and all have that much.
    pub(super) fn room(&self, each: u64, all: u64) -> Room {
        let weights = self.budget.weights();
        // It is among the device's own.
        let (left, keeping) = weights.of.get(&self.device).map_or((0, 0), |of| (of.left(each), of.keeping));
        let own = (LEAST_KEPT as u64).saturating_sub(self.bytes);
        let bytes = own + left.min(weights.all.left(all));
        Room { bytes, sessions: keeping + usize::from(self.bytes == 0) }
    }

    /// It is over: nothing is kept, or set aside, for it any more. Nothing else is asked of this then.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.has_left, true) {
            self.budget.weights().go(self.device, self.bytes);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = LEAST_KEPT as u64;

    fn shares<const N: usize>(devices: [EndpointId; N]) -> (Arc<Budget>, [Share; N]) {
        let budget = Arc::new(Budget::default());
        let shares = devices.map(|device| Share::new(budget.clone(), device));
        (budget, shares)
    }

    #[test]
    fn what_sessions_keep_counts_for_their_device_until_they_are_over() {
        let [one, other] = [1, 2].map(|number| EndpointId::from_bytes(&[number; 32]));
        let (budget, mut shares) = shares([one, one, other]);
        shares.iter_mut().for_each(|share| share.set(4 * LEAST));
        let room =
            |shares: &[Share; 3]| [0, 2].map(|at| shares[at].room(10 * LEAST, 13 * LEAST).bytes / LEAST);
        assert_eq!(room(&shares), [1, 1], "all have 13, of which 12 are kept");
        shares[1].go_to(other);
        assert_eq!(room(&shares), [1, 1]);
        // It has its own least, and what the others left.
        shares[0].set(0);
        assert_eq!(room(&shares), [5, 2], "the other device has 10, of which 8 are kept");
        shares[1].set(9 * LEAST);
        assert_eq!(room(&shares), [1, 0], "more than there is");
        shares[1].leave();
        assert_eq!(room(&shares), [9, 6], "its least is set aside no more");
        drop(shares);
        assert!(budget.weights().all == Weight::default() && budget.weights().of.is_empty());
    }

    #[test]
    fn the_first_of_many_sessions_leave_the_others_their_least() {
        const SESSIONS: usize = 1000;
        let device = EndpointId::from_bytes(&[1; 32]);
        let (_, mut shares) = shares([device; SESSIONS]);
        let [each, all] = [1000 * LEAST, 16_000 * LEAST];
        let mut kept = 0;
        for share in &mut shares {
            let most = share.room(each, all).bytes.min(32 * LEAST);
            assert!(most >= LEAST, "each has its least");
            share.set(most);
            kept += most;
        }
        assert!(kept <= SESSIONS as u64 * LEAST + each / 4, "{} each", kept / SESSIONS as u64);
    }

    #[test]
    fn one_fast_session_among_a_thousand_that_rest_has_a_quarter_and_one_alone_has_all() {
        let device = EndpointId::from_bytes(&[1; 32]);
        let (_, many) = shares([device; 1000]);
        assert_eq!(many[0].room(1000 * LEAST, u64::MAX).bytes, 251 * LEAST);
        let (_, alone) = shares([device]);
        assert_eq!(alone[0].room(1000 * LEAST, u64::MAX).bytes, 1000 * LEAST);
    }

    #[test]
    fn sessions_that_keep_nothing_are_not_among_those_that_share_what_a_device_may_keep() {
        let device = EndpointId::from_bytes(&[1; 32]);
        let (_, mut shares) = shares([device; 4]);
        let among = |share: &Share| share.room(LEAST, LEAST).sessions;
        assert_eq!(among(&shares[0]), 1);
        shares[0].set(10);
        shares[1].set(20);
        shares[1].set(30);
        assert_eq!((among(&shares[0]), among(&shares[3])), (2, 3));
        shares[1].set(0);
        assert_eq!(among(&shares[0]), 1);
    }

    #[test]
    fn a_program_that_takes_much_has_more_room_whatever_others_keep_and_a_slow_one_the_least() {
        assert_eq!([0, 12_500, 131_072].map(least_kept), [LEAST_KEPT; 3]);
        assert_eq!(least_kept(400_000), 100_000);
        assert_eq!([524_288, u64::MAX].map(least_kept), [MOST_KEPT_AT_LEAST; 2]);
    }
}
