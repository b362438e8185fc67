//! How long a server's objects took to come lately, of large ones the head, to know when one is late.

use std::time::Duration;

/// So many of the last objects over a network count.
const KEPT: usize = 8;
/// So many networks count. Hosts have fewer.
const NETWORKS: usize = 8;
/// So many objects tell of the server what they took over one of its networks.
const TELL: usize = 3;
/// An object is late that takes so many times as long as the slowest of them.
const TIMES: u32 = 3;
/// Slower ones count as this: some servers hold an answer back for long.
const MOST: Duration = Duration::from_secs(4);
/// None is late before that: a slow network may be busy with others.
const LEAST: Duration = Duration::from_millis(500);
/// None is late before that of whose server nothing is known.
pub(super) const UNKNOWN: Duration = Duration::from_secs(1);

/// What a server's last objects took, over each network.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Vec<(String, Last)>);

/// What the last objects took over one network.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    took: [Duration; KEPT],
    seen: usize,
}

impl Answers {
    /// The same after another object that took so long over this network.
    pub(super) fn after(mut self, network: &str, took: Duration) -> Self {
        let last = self.over(network);
        last.add(took);
        last.seen = last.seen.saturating_add(1);
        self
    }

    /// The same after an object that would have taken so long at least over this network.
    pub(super) fn after_more_than(mut self, network: &str, long: Duration) -> Self {
        let last = self.over(network);
        if long > last.slowest() {
            last.add(long);
        }
        self
    }

    fn over(&mut self, network: &str) -> &mut Last {
        let known = self.0.iter().position(|(name, _)| name == network);
        let at = known.unwrap_or_else(|| {
            self.0.truncate(NETWORKS - 1);
            self.0.push((network.to_owned(), Last::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// When the next one is late.
    pub(super) fn late(&self) -> Duration {
        self.slowest().saturating_mul(TIMES).max(LEAST)
    }

    /// What the slowest took. What a server takes for itself is the same over all networks: so it is the
    /// slowest over that network whose slowest was the quickest, once enough have come over one.
    pub(super) fn slowest(&self) -> Duration {
        let told = self.0.iter().filter(|(_, last)| last.seen >= TELL).map(|(_, last)| last.slowest());
        let all = || self.0.iter().map(|(_, last)| last.slowest());
        told.min().or_else(|| all().max()).unwrap_or_default()
    }
}

impl Last {
    fn add(&mut self, took: Duration) {
        self.took.rotate_right(1);
        self.took[0] = took.min(MOST);
    }

    fn slowest(&self) -> Duration {
        self.took.into_iter().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(answers: Answers, network: &str, millis: &[u64]) -> Answers {
        let took = millis.iter().map(|millis| Duration::from_millis(*millis));
        took.fold(answers, |answers, took| answers.after(network, took))
    }

    #[test]
    fn what_takes_three_times_as_long_as_the_slowest_of_the_last_eight_is_late() {
        let late = |millis: &[u64]| after(Answers::default(), "wlan0", millis).late().as_millis();
        assert_eq!(late(&[20]), 500, "a network may be busy");
        assert_eq!(late(&[20, 900, 20]), 2700);
        assert_eq!(late(&[30_000]), 12_000, "as one that waits for news");
        assert_eq!(late(&[900, 1, 2, 3, 4, 5, 6, 7]), 2700);
        assert_eq!(late(&[900, 1, 2, 3, 4, 5, 6, 7, 300]), 900);
    }

    #[test]
    fn that_a_network_is_slow_says_nothing_of_a_server_that_answers_quickly_over_another() {
        let slow = after(Answers::default(), "usb0", &[900, 400, 700]);
        let quick = |millis: &[u64]| after(slow.clone(), "wlan0", millis).slowest().as_millis();
        assert_eq!(quick(&[30, 60]), 900, "two tell little");
        assert_eq!(quick(&[30, 60, 40]), 60);
        assert_eq!(quick(&[30, 60, 2000]), 900);
        // What would have been as slow there is the server's doing.
        let both = after(slow.clone(), "wlan0", &[30, 60, 40]);
        let more = |millis| both.clone().after_more_than("wlan0", Duration::from_millis(millis));
        assert_eq!([50, 800, 5000].map(|millis| more(millis).slowest().as_millis()), [60, 800, 900]);
        let many = (0..100).fold(slow, |answers, n| after(answers, &format!("tun{n}"), &[1000; 3]));
        assert_eq!((many.0.len(), many.slowest().as_millis()), (NETWORKS, 900));
    }
}
