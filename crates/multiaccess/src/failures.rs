//! What clients told did not work: not tried first again for some time.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// For so long a way that failed comes after all others.
const AVOIDED: Duration = Duration::from_secs(10);
/// An interface by which so many different places could not be reached leads nowhere.
const PLACES: usize = 3;
/// Unless something was heard on it so shortly before, or since. A network that is dead has been silent for
/// longer when something fails: a way counts as failed 1.75 s after the first packet, or a second after the
/// last byte of an object, at the earliest, and what was heard is known to a second: of a dead network too
/// late at worst, so that it takes one more failure.
const SILENT: Duration = Duration::from_millis(500);
/// The most failures that are kept.
const MOST: usize = 1024;

/// Ways that failed lately. Pure: the time is the caller's.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    ways: HashMap<(u32, IpAddr), Duration>,
}

impl Failures {
    /// This way failed at this time.
    pub(crate) fn failed(&mut self, now: Duration, interface: u32, destination: SocketAddr) {
        if self.ways.len() >= MOST {
            self.forget(now);
        }
        if self.ways.len() < MOST {
            self.ways.insert((interface, destination.ip()), now);
        }
    }

    /// This way worked: the interface leads somewhere.
    pub(crate) fn worked(&mut self, interface: u32, destination: SocketAddr) {
        self.ways.remove(&(interface, destination.ip()));
        let others = self.ways.keys().filter(|(other, _)| *other == interface).count();
        if others >= PLACES {
            self.ways.retain(|(other, _), _| *other != interface);
        }
    }

    /// Takes away what was too long ago.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.ways.retain(|_, at| now.saturating_sub(*at) < AVOIDED);
    }

    /// Nothing failed lately, as far as it was looked.
    pub(crate) fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Whether this way is to be avoided. `heard` is when something was last heard on the interface: where
    /// others answer, it is not the interface that fails, however many places are dead or feign it.
    pub(crate) fn avoids(
        &self,
        now: Duration,
        interface: u32,
        address: IpAddr,
        heard: Option<Duration>,
    ) -> bool {
        if self.ways.is_empty() {
            return false;
        }
        let recent = |at: &Duration| now.saturating_sub(*at) < AVOIDED;
        if self.ways.get(&(interface, address)).is_some_and(recent) {
            return true;
        }
        let was_silent = |at: &Duration| heard.is_none_or(|heard| heard + SILENT <= *at);
        let places = self.ways.iter().filter(|((other, _), _)| *other == interface);
        places.filter(|(_, at)| recent(at) && was_silent(at)).count() >= PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 443))
    }

    #[test]
    fn a_way_that_failed_is_avoided_for_some_time_and_an_interface_by_which_nothing_works_altogether() {
        let mut failures = Failures::default();
        let at = Duration::from_secs(100);
        failures.failed(at, 1, place(1));
        assert!(failures.avoids(at, 1, place(1).ip(), None));
        assert!(!failures.avoids(at, 2, place(1).ip(), None) && !failures.avoids(at, 1, place(9).ip(), None));
        failures.failed(at, 1, place(2));
        failures.failed(at, 1, place(3));
        assert!(failures.avoids(at, 1, place(9).ip(), None));
        assert!(!failures.avoids(at + AVOIDED, 1, place(1).ip(), None));
        failures.worked(1, place(9));
        assert!(!failures.avoids(at, 1, place(9).ip(), None));
    }

    #[test]
    fn three_dead_places_say_nothing_of_an_interface_on_which_others_answer() {
        let mut failures = Failures::default();
        let at = Duration::from_secs(100);
        for host in 1..=3 {
            failures.failed(at, 1, place(host));
        }
        let avoids = |host: u8, heard: Option<Duration>| failures.avoids(at, 1, place(host).ip(), heard);
        assert!(avoids(9, None) && avoids(9, Some(at - SILENT)) && avoids(9, Some(Duration::ZERO)));
        assert!(!avoids(9, Some(at - SILENT / 2)) && !avoids(9, Some(at)));
        // Those places themselves are avoided all the same.
        assert!(avoids(1, Some(at)));
    }

    #[test]
    fn no_more_failures_are_kept_than_there_is_room_for() {
        let mut failures = Failures::default();
        for number in 0..(MOST as u32 * 2) {
            let ip = IpAddr::from(number.to_be_bytes());
            failures.failed(Duration::from_secs(1), 1, SocketAddr::new(ip, 1));
        }
        assert_eq!(failures.ways.len(), MOST);
        failures.failed(Duration::from_secs(60), 2, place(1));
        assert_eq!(failures.ways.len(), 1);
    }
}
