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

/// What a server's last objects took, over each network, the one that was used last first.
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

    /// The same after an object that was asked for over two networks, because it did not come, and came over
    /// the first after so long: it was the server that took that, over whichever network.
    pub(super) fn after_server_took(mut self, long: Duration) -> Self {
        let quicker = self.0.iter_mut().filter(|(_, last)| last.slowest() < long);
        quicker.for_each(|(_, last)| last.add(long));
        self
    }

    fn over(&mut self, network: &str) -> &mut Last {
        match self.0.iter().position(|(name, _)| name == network) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => self.0.insert(0, (network.to_owned(), Last::default())),
        }
        self.0.truncate(NETWORKS);
        &mut self.0[0].1
    }

    /// When the next one is late, whichever network it comes over.
    pub(super) fn late(&self) -> Duration {
        self.slowest().saturating_mul(TIMES).max(LEAST)
    }

    /// What the slowest took over any network.
    fn slowest(&self) -> Duration {
        self.0.iter().map(|(_, last)| last.slowest()).max().unwrap_or_default()
    }

    /// What the server takes at most by itself: the slowest over that network whose slowest was the quickest,
    /// once enough have come over one; else the slowest.
    pub(super) fn usual(&self) -> Duration {
        let told = self.0.iter().filter(|(_, last)| last.seen >= TELL).map(|(_, last)| last.slowest());
        told.min().unwrap_or_else(|| self.slowest())
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
        let quick = |millis: &[u64]| after(slow.clone(), "wlan0", millis);
        let usual = |answers: Answers| answers.usual().as_millis();
        assert_eq!(usual(quick(&[30, 60])), 900, "two tell little");
        assert_eq!(usual(quick(&[30, 60, 40])), 60);
        assert_eq!(usual(quick(&[30, 60, 2000])), 900);
        assert_eq!(quick(&[30, 60, 40]).late().as_millis(), 2700, "whichever network it comes over");
    }

    #[test]
    fn what_a_server_thinks_about_for_long_it_thinks_about_over_all_networks() {
        let both = after(after(Answers::default(), "usb0", &[80; 9]), "wlan0", &[60; 9]);
        let usual =
            |millis| both.clone().after_server_took(Duration::from_millis(millis)).usual().as_millis();
        assert_eq!([50, 70, 150, 9000].map(usual), [60, 70, 150, 4000]);
        let unknown = Answers::default().after_server_took(Duration::from_secs(1));
        assert_eq!(unknown.usual(), Duration::ZERO, "nothing is known of it still");
    }

    #[test]
    fn networks_that_are_not_used_any_more_are_forgotten() {
        let many = (0..100).fold(Answers::default(), |answers, n| {
            after(after(answers, "wlan0", &[30; 3]), &format!("tun{n}"), &[1000; 3])
        });
        assert_eq!((many.0.len(), many.usual().as_millis()), (NETWORKS, 30));
    }
}
