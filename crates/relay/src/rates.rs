//! How often somebody may do something: token buckets, as many as there are somebodies lately.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Buckets kept. Beyond that, those that are full again are forgotten, and if there are none, everybody
/// begins anew.
const MAX_BUCKETS: usize = 16 * 1024;

/// So many a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) burst: f64,
}

/// A bucket for each key.
#[derive(Debug)]
pub(crate) struct Rates<K> {
    rate: Rate,
    /// What is left, and when that was so.
    left: HashMap<K, (f64, Instant)>,
}

impl<K: Hash + Eq + Copy> Rates<K> {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, left: HashMap::new() }
    }

    /// Those who have less than all of their turns: how many they had, and how long ago.
    pub(crate) fn used(&self, now: Instant) -> impl Iterator<Item = (K, f64, Duration)> {
        let Rate { per_second, burst } = self.rate;
        self.left.iter().filter_map(move |(key, (left, since))| {
            let ago = now.saturating_duration_since(*since);
            (left + ago.as_secs_f64() * per_second < burst).then_some((*key, *left, ago))
        })
    }

    /// Goes on with what somebody had at that time.
    pub(crate) fn go_on(&mut self, key: K, left: f64, since: Instant) {
        if self.left.len() < MAX_BUCKETS {
            self.left.insert(key, (left.clamp(0.0, self.rate.burst), since));
        }
    }

    /// Takes one turn, if `key` has one left.
    pub(crate) fn take(&mut self, key: K, now: Instant) -> bool {
        let left = self.left(key, now);
        let has_turn = *left >= 1.0;
        if has_turn {
            *left -= 1.0;
        }
        has_turn
    }

    /// Takes so many turns, also such as there are none of yet.
    pub(crate) fn owe(&mut self, key: K, count: f64, now: Instant) {
        *self.left(key, now) -= count;
    }

    /// How long until `key` has a turn.
    pub(crate) fn wait(&mut self, key: K, now: Instant) -> Duration {
        let missing = 1.0 - *self.left(key, now);
        Duration::try_from_secs_f64(missing.max(0.0) / self.rate.per_second).unwrap_or(Duration::MAX)
    }

    /// What `key` has now.
    fn left(&mut self, key: K, now: Instant) -> &mut f64 {
        let Rate { per_second, burst } = self.rate;
        if self.left.len() >= MAX_BUCKETS && !self.left.contains_key(&key) {
            let fill =
                |(left, since): &(f64, Instant)| left + now.duration_since(*since).as_secs_f64() * per_second;
            self.left.retain(|_, bucket| fill(bucket) < burst);
            if self.left.len() >= MAX_BUCKETS {
                self.left.clear();
            }
        }
        let (left, since) = self.left.entry(key).or_insert((burst, now));
        *left = (*left + now.duration_since(*since).as_secs_f64() * per_second).min(burst);
        // Two that ask at once may come in the other order; no time counts twice.
        *since = now.max(*since);
        left
    }
}

/// An IPv4 address, or the first 64 bits of an IPv6 address: whoever has one of these has all of them.
pub(crate) fn source(ip: IpAddr) -> [u8; 8] {
    let mut source = [0; 8];
    match ip.to_canonical() {
        IpAddr::V4(ip) => source[4..].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => source.copy_from_slice(&ip.octets()[..8]),
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_turns_and_they_come_back() {
        let (mut rates, now) = (Rates::new(Rate { per_second: 10.0, burst: 3.0 }), Instant::now());
        assert_eq!((0..5).filter(|_| rates.take(1, now)).count(), 3);
        assert!(rates.take(2, now));
        assert_eq!((0..5).filter(|_| rates.take(1, now + Duration::from_millis(250))).count(), 2);
    }

    #[test]
    fn there_are_never_too_many_buckets() {
        let (mut rates, now) = (Rates::new(Rate { per_second: 1.0, burst: 1.0 }), Instant::now());
        (0..3 * MAX_BUCKETS).for_each(|key| assert!(rates.take(key, now)));
        assert!(rates.left.len() <= MAX_BUCKETS);
    }
}
