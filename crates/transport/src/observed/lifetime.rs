//! For how long gateways keep a UDP mapping that nothing passes through, as far as it was measured, and how
//! often a mapping is to be used so that it is kept. Pure: no clock, no sockets.

use std::net::IpAddr;
use std::time::Duration;

/// Idle times that are tried. Longer ones need not be told apart: what is at the other end forgets a flow
/// then too (`docs/protocol.md` §19).
const IDLE: [Duration; 6] = [secs(15), secs(20), secs(30), secs(45), secs(60), secs(75)];
/// A mapping is used again after so many fifths of the time that it was seen to survive.
const FIFTHS: u32 = 4;
/// Where not even the shortest time is survived.
const SHORTEST: Duration = secs(10);
/// A gateway that has forgotten mappings so often which were used as measured is not measured again.
const MAX_DOUBTS: u8 = 3;
/// Gateways that are remembered.
const MAX_GATEWAYS: usize = 16;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What is known of one gateway: a search for the longest of the idle times that its mappings survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lifetime {
    /// So many of the idle times are survived, from the shortest on.
    survived: usize,
    /// The first that is not, by its index. Never below `survived`.
    lost: usize,
    /// How often that turned out to be wrong.
    doubts: u8,
}

impl Lifetime {
    const UNKNOWN: Self = Self { survived: 0, lost: IDLE.len(), doubts: 0 };

    /// The idle time to try next: the middle of those of which nothing is known. `None` once all is known.
    fn next(self) -> Option<Duration> {
        let is_open = self.survived < self.lost && self.doubts < MAX_DOUBTS;
        is_open.then(|| IDLE[(self.survived + self.lost) / 2])
    }

    /// A mapping was left idle for so long, and was kept or not. The newest word counts, whatever was known.
    fn note(&mut self, idle: Duration, is_kept: bool) {
        if is_kept {
            let survived = IDLE.iter().filter(|tried| **tried <= idle).count();
            self.survived = self.survived.max(survived);
            self.lost = self.lost.max(self.survived);
        } else {
            let lost = IDLE.iter().filter(|tried| **tried < idle).count();
            self.lost = self.lost.min(lost);
            self.survived = self.survived.min(self.lost);
        }
    }

    /// A mapping was forgotten that was used as often as was measured: the gateway may have been started
    /// again, or is another one, or it does not treat all mappings alike.
    fn doubt(&mut self) {
        let doubts = self.doubts + u8::from(self.refresh().is_some());
        *self = Self { doubts, ..Self::UNKNOWN };
    }

    /// How often a mapping is to be used; `None` as long as nothing is known that says so.
    fn refresh(self) -> Option<Duration> {
        match self.survived.checked_sub(1) {
            Some(longest) => Some(IDLE[longest] * FIFTHS / 5),
            None => (self.lost == 0).then_some(SHORTEST),
        }
    }
}

/// What is known of gateways, each by the address at which it shows this host.
#[derive(Debug, Default)]
pub(super) struct Lifetimes(Vec<(IpAddr, Lifetime)>);

impl Lifetimes {
    fn of(&self, gateway: IpAddr) -> Lifetime {
        let known = self.0.iter().find(|(at, _)| *at == gateway);
        known.map_or(Lifetime::UNKNOWN, |(_, lifetime)| *lifetime)
    }

    /// The idle time to try next there.
    pub(super) fn next(&self, gateway: IpAddr) -> Option<Duration> {
        self.of(gateway).next()
    }

    /// How often a mapping there is to be used, if that is known.
    pub(super) fn refresh(&self, gateway: IpAddr) -> Option<Duration> {
        self.of(gateway).refresh()
    }

    /// A mapping there was left idle for so long, and was kept or not.
    pub(super) fn note(&mut self, gateway: IpAddr, idle: Duration, is_kept: bool) {
        self.change(gateway, |lifetime| lifetime.note(idle, is_kept));
    }

    /// A mapping there was forgotten that was to be kept.
    pub(super) fn doubt(&mut self, gateway: IpAddr) {
        self.change(gateway, Lifetime::doubt);
    }

    fn change(&mut self, gateway: IpAddr, change: impl FnOnce(&mut Lifetime)) {
        let mut lifetime = self.of(gateway);
        change(&mut lifetime);
        // The newest last; the oldest makes room.
        self.0.retain(|(at, _)| *at != gateway);
        if self.0.len() >= MAX_GATEWAYS {
            self.0.remove(0);
        }
        self.0.push((gateway, lifetime));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 5));

    /// Measures a gateway whose mappings live so long. What was tried, and how often they are used then.
    fn measured(lives: Duration) -> (Vec<u64>, Option<Duration>) {
        let (mut lifetimes, mut tried) = (Lifetimes::default(), Vec::new());
        while let Some(idle) = lifetimes.next(HERE) {
            tried.push(idle.as_secs());
            lifetimes.note(HERE, idle, idle < lives);
        }
        (tried, lifetimes.refresh(HERE))
    }

    #[test]
    fn a_lifetime_is_found_in_three_measurements_and_mappings_are_used_within_four_fifths_of_it() {
        for lives in 1..300 {
            let (tried, refresh) = measured(secs(lives));
            assert!(tried.len() <= 3, "{lives} s: {tried:?}");
            let refresh = refresh.unwrap_or_else(|| panic!("{lives} s: nothing is known"));
            if lives > 15 {
                assert!(refresh < secs(lives) * 4 / 5, "{lives} s: {refresh:?}");
                // No more than twice as often as is needed, as long as longer times are told apart.
                assert!(refresh * 2 > secs(lives.min(75)) * 4 / 5, "{lives} s: {refresh:?}");
            } else {
                assert_eq!(refresh, SHORTEST);
            }
        }
        assert_eq!(measured(secs(120)), (vec![45, 75], Some(secs(60))));
        assert_eq!(measured(secs(31)), (vec![45, 20, 30], Some(secs(24))));
    }

    #[test]
    fn before_anything_is_known_nothing_is_said() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.refresh(HERE), None);
        lifetimes.note(HERE, secs(45), false);
        assert_eq!(lifetimes.refresh(HERE), None, "it may live for long enough");
        lifetimes.note(HERE, secs(20), true);
        assert_eq!(lifetimes.refresh(HERE), Some(secs(16)));
    }

    #[test]
    fn a_gateway_that_forgets_what_was_used_in_time_is_measured_anew_and_not_for_ever() {
        let mut lifetimes = Lifetimes::default();
        lifetimes.doubt(HERE);
        assert_eq!(lifetimes.next(HERE), Some(secs(45)), "nothing was measured that could be wrong");
        for _ in 0..MAX_DOUBTS {
            lifetimes.note(HERE, secs(75), true);
            assert_eq!((lifetimes.next(HERE), lifetimes.refresh(HERE)), (None, Some(secs(60))));
            lifetimes.doubt(HERE);
            assert_eq!(lifetimes.refresh(HERE), None);
        }
        assert_eq!(lifetimes.next(HERE), None);
    }

    #[test]
    fn gateways_are_told_apart_and_never_too_many() {
        let mut lifetimes = Lifetimes::default();
        let at = |n: u8| IpAddr::from([198, 51, 100, n]);
        (0..100).for_each(|n| lifetimes.note(at(n), secs(75), true));
        assert_eq!(lifetimes.0.len(), MAX_GATEWAYS);
        assert_eq!((lifetimes.refresh(at(99)), lifetimes.refresh(at(0))), (Some(secs(60)), None));
    }
}
