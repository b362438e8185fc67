//! To which hosts a connection was opened lately before anything needed it.

use super::{IDLE, Key};
use std::collections::HashMap;
use std::time::Instant;

/// So many hosts are remembered. For further ones none is opened meanwhile.
const REMEMBERED: usize = 1024;

/// The manager is told of idle connections alone: while all are in use it says with each message that another
/// one is worth it.
#[derive(Default)]
pub(in crate::client) struct Ahead {
    opened: HashMap<Key, Instant>,
}

impl Ahead {
    /// Whether one may be opened to this host now, because none was in the time for which idle ones are kept.
    /// It counts as opened then.
    pub(in crate::client) fn begins(&mut self, key: &Key, now: Instant) -> bool {
        self.opened.retain(|_, at| now.saturating_duration_since(*at) < IDLE);
        if self.opened.contains_key(key) || self.opened.len() >= REMEMBERED {
            return false;
        }
        self.opened.insert(key.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_is_opened_to_each_host_in_a_while_and_to_no_more_hosts_than_are_remembered() {
        let (mut ahead, start) = (Ahead::default(), Instant::now());
        let host = |n: usize| (format!("host{n}"), 80);
        for n in 0..REMEMBERED {
            assert!(ahead.begins(&host(n), start), "{n}");
            assert!(!ahead.begins(&host(n), start), "{n}");
        }
        assert!(!ahead.begins(&host(REMEMBERED), start));
        assert!(!ahead.begins(&host(0), start + IDLE - Duration::from_secs(1)));
        assert!(ahead.begins(&host(REMEMBERED), start + IDLE) && ahead.begins(&host(0), start + IDLE));
    }
}
