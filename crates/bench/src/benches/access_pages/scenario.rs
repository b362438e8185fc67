//! The networks of the testbed, and what the simulator says of them.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use whimbrel_lab::{Queue, Rate, Trace};
use whimbrel_pageload::modern::{Network, Settings};
use whimbrel_pageload::scenario::{Link, Outcome};
use whimbrel_pageload::simulator::{Conditions, Model, Simulator};

use super::site::Site;
use super::system::System;
use crate::lab::Access;

/// The bytes of a packet of 1500 that a program gets, over TCP with time stamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;
/// Cellular networks keep much.
const CELLULAR_QUEUE: Queue = Queue::Time(Duration::from_secs(1));

/// Two links.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Round-trip times in milliseconds.
    pub(super) rtts: [u64; 2],
    /// Rates in kbit/s.
    pub(super) kbits: [u64; 2],
    /// What was recorded of the second link, whose rate above is then only what it carries roughly.
    pub(super) trace: Option<&'static str>,
}

/// What a link carried up and down.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    pub(super) up: Trace,
    pub(super) down: Trace,
}

impl Recording {
    /// From a moment on.
    pub(super) fn starting_at(&self, moment: Duration) -> Self {
        Self { up: self.up.starting_at(moment), down: self.down.starting_at(moment) }
    }
}

/// From symmetric to strongly asymmetric, as in Table III, and a recorded network. The symmetric one is what
/// Figure 5 says of it; for the others the text says which link is better for what, and the levels are those
/// of Table IV.
pub(super) const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "symmetric", rtts: [50, 50], kbits: [6_000, 5_000], trace: None },
    Scenario { name: "asymmetric", rtts: [20, 50], kbits: [6_000, 20_000], trace: None },
    Scenario { name: "strongly asymmetric", rtts: [10, 100], kbits: [2_000, 20_000], trace: None },
    Scenario { name: "recorded", rtts: [30, 50], kbits: [8_000, 4_500], trace: Some("ATT-LTE-driving-2016") },
];

impl Scenario {
    /// The client's links, with a queue of 100 ms each; that of a recorded one is longer.
    pub(super) fn accesses(&self, recording: Option<&Recording>) -> [Access; 2] {
        let rtt = |link: usize| Duration::from_millis(self.rtts[link]);
        let steady = |name, link: usize| Access::new(name, Rate::kbit(self.kbits[link]), rtt(link));
        let second = match recording.cloned() {
            None => steady("two", 1),
            Some(Recording { up, down }) => Access::recorded("two", up, down, rtt(1)).queue(CELLULAR_QUEUE),
        };
        [steady("one", 0), second]
    }

    /// What was recorded of the second link, from this folder.
    pub(super) fn recording(&self, traces: &Path) -> Result<Option<Recording>> {
        let Some(file) = self.trace else { return Ok(None) };
        let load = |way: &str| Trace::load(traces.join(format!("{file}.{way}")));
        Ok(Some(Recording { up: load("up")?, down: load("down")? }))
    }

    /// How much a program gets over a link, in bytes a second. `None`: that changes.
    pub(super) fn goodput(&self, link: usize) -> Option<f64> {
        let is_steady = link == 0 || self.trace.is_none();
        is_steady.then(|| self.kbits[link] as f64 * 1000.0 / 8.0 * PAYLOAD)
    }

    /// How long the simulator says that a page takes, in milliseconds. `None`: it cannot know which part of a
    /// recorded network a page comes over.
    pub(super) fn predict(&self, site: &Site, system: System) -> Result<Option<f64>> {
        let (Some(first), Some(second)) = (self.goodput(0), self.goodput(1)) else { return Ok(None) };
        let page = site.page()?;
        let network = |link: usize, rate| Network::plain(Link { rtt: self.rtts[link] as f64 / 1000.0, rate });
        // What is true here of HTTP/1.1 without TLS, to addresses instead of names.
        let settings = Settings { request_rtt: true, idle_restart: true, ..Settings::bare() };
        let networks = &[network(0, first), network(1, second)];
        let conditions = Conditions { model: Model::Modern, networks, settings: &settings, seed: 1 };
        let mut policy = system.simulated().build()?;
        let mut outcome = Outcome::default();
        Simulator::new().load(&page, conditions, policy.as_mut(), &mut outcome);
        Ok(Some(outcome.plt * 1000.0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_finds_two_links_better_than_one_where_there_is_much_to_load() {
        let site = Site::handcrafted("32 x 100 KB", &[(32, 100_000)]);
        let of = |system| SCENARIOS[0].predict(&site, system).unwrap().unwrap();
        let (alone, both) = (of(System::Single(1)), of(System::Eaf));
        assert_eq!(alone, of(System::NoProxy));
        // 3.2 MB at 6 Mbit/s are 4.4 s.
        assert!((4400.0..5000.0).contains(&alone) && both * 1.5 < alone, "{alone} and {both}");
    }

    #[test]
    fn nothing_is_simulated_of_a_network_that_changes() {
        let site = Site::handcrafted("2 x 1 KB", &[(2, 1_000)]);
        assert_eq!(SCENARIOS[3].predict(&site, System::Eaf).unwrap(), None);
    }
}
