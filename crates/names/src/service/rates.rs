//! How often something may happen, by whoever makes it happen.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// The most keys that are remembered. While so many are busy, further ones are refused.
const MAX_KEYS: usize = 65_536;

/// The least time between two searches for keys to forget.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// Lets each key do something `limit` times at once, and as often again in each `window`, spread evenly (the
/// generic cell rate algorithm).
#[derive(Debug)]
pub(super) struct Rates<K> {
    limit: u32,
    window: Duration,
    /// When a key has all its turns again.
    full_at: HashMap<K, Instant>,
    forgot: Option<Instant>,
}

impl<K: Eq + Hash> Rates<K> {
    pub(super) fn new(limit: u32, window: Duration) -> Self {
        Self { limit, window, full_at: HashMap::new(), forgot: None }
    }

    /// Takes one of the key's turns; false if it has none at `now`.
    pub(super) fn take(&mut self, key: K, now: Instant) -> bool {
        let Some(interval) = self.window.checked_div(self.limit) else {
            return false;
        };
        if !self.full_at.contains_key(&key) && !self.has_room(now) {
            return false;
        }
        let full_at = self.full_at.entry(key).or_insert(now);
        let next = (*full_at).max(now) + interval;
        let fits = next.saturating_duration_since(now) <= self.window;
        if fits {
            *full_at = next;
        }
        fits
    }

    fn has_room(&mut self, now: Instant) -> bool {
        let may_search = self.forgot.is_none_or(|forgot| now.duration_since(forgot) >= FORGET_EVERY);
        if self.full_at.len() >= MAX_KEYS && may_search {
            self.forgot = Some(now);
            self.full_at.retain(|_, full_at| *full_at > now);
        }
        self.full_at.len() < MAX_KEYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_key_has_its_turns_and_gets_them_back_with_time() {
        let start = Instant::now();
        let mut rates = Rates::new(10, MINUTE);
        for _ in 0..10 {
            assert!(rates.take("a", start));
        }
        assert!(!rates.take("a", start));
        assert!(rates.take("b", start));
        assert!(!rates.take("a", start + MINUTE / 11));
        assert!(rates.take("a", start + MINUTE / 10));
        assert!(!rates.take("a", start + MINUTE / 10));
        let later = start + 3 * MINUTE;
        assert_eq!((0..20).filter(|_| rates.take("a", later)).count(), 10);
    }

    #[test]
    fn what_is_limited_to_nothing_never_happens() {
        assert!(!Rates::new(0, MINUTE).take("a", Instant::now()));
    }

    #[test]
    fn keys_without_end_are_bounded_and_forgotten_in_time() {
        let start = Instant::now();
        let mut rates = Rates::new(1, MINUTE);
        let taken = (0..2 * MAX_KEYS).filter(|key| rates.take(*key, start)).count();
        assert_eq!((taken, rates.full_at.len()), (MAX_KEYS, MAX_KEYS));
        assert!(rates.take(usize::MAX, start + MINUTE));
        assert_eq!(rates.full_at.len(), 1);
    }
}
