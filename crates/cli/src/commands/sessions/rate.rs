//! How fast sessions are: bytes a second between two looks at what they have carried.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::output;

/// Between two looks of a command that prints once.
pub(super) const APART: Duration = Duration::from_millis(500);
/// Looks that are nearer to each other say nothing of a second.
const LEAST: Duration = Duration::from_millis(100);

/// Bytes each way: in all, or a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    /// From the server or the peer.
    pub(crate) down: u64,
    /// To it.
    pub(crate) up: u64,
}

/// What was seen at the last look, and how fast that was. Holds no more sessions than were shown to it last.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    last: BTreeMap<String, (Instant, Ways)>,
    rates: BTreeMap<String, Ways>,
}

impl Rates {
    /// Takes what all sessions have carried until now, by their ids.
    pub(crate) fn look(&mut self, now: Instant, counts: Vec<(String, Ways)>) {
        let (mut last, mut rates) = (BTreeMap::new(), BTreeMap::new());
        for (id, counted) in counts {
            let before = self.last.get(&id).copied();
            let rate =
                before.and_then(|(at, before)| rate(before, counted, now.saturating_duration_since(at)));
            if let Some(rate) = rate {
                rates.insert(id.clone(), rate);
            }
            last.insert(id, (now, counted));
        }
        (self.last, self.rates) = (last, rates);
    }

    /// How fast a session is; `None` if it was not seen twice.
    pub(crate) fn of(&self, id: &str) -> Option<Ways> {
        self.rates.get(id).copied()
    }
}

/// Bytes a second, unless the count began anew or there was no time.
fn rate(before: Ways, now: Ways, passed: Duration) -> Option<Ways> {
    let each = |before: u64, now: u64| {
        let bytes = u128::from(now.checked_sub(before)?);
        u64::try_from(bytes * 1000 / passed.as_millis().max(1)).ok()
    };
    if passed < LEAST {
        return None;
    }
    Some(Ways { down: each(before.down, now.down)?, up: each(before.up, now.up)? })
}

/// For people, behind what was said before; nothing if it is not known.
pub(super) fn describe(rate: Option<Ways>) -> String {
    rate.map_or_else(String::new, |rate| {
        format!("; {}/s down, {}/s up", output::bytes(rate.down), output::bytes(rate.up))
    })
}

/// Adds both to a session's object; null if they are not known.
pub(super) fn put(session: &mut Value, rate: Option<Ways>) {
    session["down_rate"] = json!(rate.map(|rate| rate.down));
    session["up_rate"] = json!(rate.map(|rate| rate.up));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(down: u64, up: u64) -> Ways {
        Ways { down, up }
    }

    #[test]
    fn a_rate_is_what_passed_between_two_looks_by_the_time_between_them() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let look = |rates: &mut Rates, ms: u64, counts: &[(&str, Ways)]| {
            let counts = counts.iter().map(|(id, ways)| ((*id).to_owned(), *ways)).collect();
            rates.look(start + Duration::from_millis(ms), counts);
        };
        look(&mut rates, 0, &[("a", ways(1000, 5))]);
        assert_eq!(rates.of("a"), None, "once is no rate");
        look(&mut rates, 500, &[("a", ways(2000, 5)), ("b", ways(7, 7))]);
        assert_eq!((rates.of("a"), rates.of("b")), (Some(ways(2000, 0)), None));
        // What is gone is forgotten, and what counts anew has no rate.
        look(&mut rates, 2500, &[("b", ways(3, 9))]);
        assert_eq!((rates.of("a"), rates.of("b")), (None, None));
        assert_eq!((rates.last.len(), rates.rates.len()), (1, 0));
        look(&mut rates, 3500, &[("b", ways(u64::MAX, 9))]);
        assert_eq!(rates.of("b"), Some(ways(u64::MAX - 3, 0)));
        // A rate that no number holds, and two looks at one moment.
        look(&mut rates, 3700, &[("b", ways(u64::MAX, 10))]);
        look(&mut rates, 3700, &[("b", ways(u64::MAX, 11))]);
        assert_eq!(rates.of("b"), None);
        assert_eq!(rate(ways(0, 0), ways(u64::MAX, 0), Duration::from_millis(200)), None);
    }

    #[test]
    fn what_is_not_known_is_null_or_not_said() {
        let mut session = json!({});
        put(&mut session, None);
        assert_eq!(session, json!({ "down_rate": null, "up_rate": null }));
        put(&mut session, Some(ways(2048, 1)));
        assert_eq!(session, json!({ "down_rate": 2048, "up_rate": 1 }));
        assert_eq!(describe(None), "");
        assert_eq!(describe(Some(ways(2048, 1))), "; 2.00 KiB/s down, 1 B/s up");
    }
}
