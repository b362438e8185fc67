//! How many bytes a gateway keeps for sessions: of one device, and in all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use whimbrel_base::EndpointId;

/// What a session may keep of its server however little room there is: so it goes on, if slowly.
pub(super) const LEAST_KEPT: usize = 32 * 1024;
/// What may wait for its server likewise: a device that keeps the rules sends no more before it pauses.
pub(super) const LEAST_WAITING: usize = 320 * 1024;

/// What all sessions of a gateway keep.
#[derive(Default)]
pub(super) struct Budget(Mutex<Weights>);

#[derive(Default)]
struct Weights {
    all: u64,
    /// Of devices whose sessions keep something.
    of: HashMap<EndpointId, u64>,
}

impl Weights {
    fn add(&mut self, device: EndpointId, bytes: u64) {
        if bytes > 0 {
            self.all = self.all.saturating_add(bytes);
            let of = self.of.entry(device).or_default();
            *of = of.saturating_add(bytes);
        }
    }

    fn remove(&mut self, device: EndpointId, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(of) = self.of.get_mut(&device) {
            *of = of.saturating_sub(bytes);
            if *of == 0 {
                self.of.remove(&device);
            }
        }
    }
}

impl Budget {
    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            let mut weights = self.budget.weights();
            weights.remove(self.device, self.bytes);
            weights.add(self.device, bytes);
            self.bytes = bytes;
        }
    }

    /// It keeps that for this device from now on.
    pub(super) fn go_to(&mut self, device: EndpointId) {
        let mut weights = self.budget.weights();
        weights.remove(self.device, self.bytes);
        weights.add(device, self.bytes);
        self.device = device;
    }

    /// How much more it may keep, where one device has this much and all have that much.
    pub(super) fn room(&self, each: u64, all: u64) -> u64 {
        let weights = self.budget.weights();
        let of = weights.of.get(&self.device).copied().unwrap_or_default();
        each.saturating_sub(of).min(all.saturating_sub(weights.all))
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
        let room = |shares: &[Share; 3]| [0, 2].map(|at| shares[at].room(100, 130));
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
}
