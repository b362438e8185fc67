//! How often new clients may come: from one address, and for one reservation.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

use crate::estate::{self, BATCH, Bucket, Whose, before, millis};
use crate::limits::Limits;
use crate::rates::{Rate, Rates, source};

/// What may come at once, in seconds of what may come on and on.
const BURST: f64 = 10.0;
/// An address from which no more clients come than this comes now and then.
const SELDOM: Rate = Rate { per_second: 1.0, burst: 5.0 };

/// Turns are written in thousandths.
const THOUSAND: f64 = 1000.0;

/// Turns of new clients, as the limits have it. Half of a reservation's turns are kept for addresses that
/// come now and then, so that a few that come all the time do not keep the others from its server.
#[derive(Debug)]
pub(crate) struct Turns {
    of_addresses: Rates<[u8; 8]>,
    /// Has a turn for an address as long as that comes now and then.
    seldom: Rates<[u8; 8]>,
    for_seldom: Rates<RelayToken>,
    for_all: Rates<RelayToken>,
}

impl Turns {
    pub(crate) fn new(limits: &Limits) -> Self {
        let rate = |per_second: f64| Rate { per_second, burst: per_second * BURST };
        let half = rate(limits.clients_per_second / 2.0);
        Self {
            of_addresses: Rates::new(rate(limits.clients_per_address)),
            seldom: Rates::new(SELDOM),
            for_seldom: Rates::new(half),
            for_all: Rates::new(half),
        }
    }

    /// What was used of them, in parts.
    pub(crate) fn hand_over(&self, quic: bool, now: Instant) -> Vec<estate::Turns> {
        fn of<K: AsRef<[u8]>>(used: impl Iterator<Item = (K, f64, Duration)>) -> Vec<Bucket> {
            let bucket = |(key, left, ago): (K, f64, Duration)| {
                let (key, ago_ms) = (key.as_ref().to_vec(), millis(ago));
                Bucket { key, left: (left * THOUSAND) as u64, ago_ms }
            };
            used.map(bucket).collect()
        }
        let tokens = |rates: &Rates<RelayToken>| {
            of(rates.used(now).map(|(token, left, ago)| (*token.as_bytes(), left, ago)))
        };
        let all = [
            (Whose::Addresses, of(self.of_addresses.used(now))),
            (Whose::Seldom, of(self.seldom.used(now))),
            (Whose::ForSeldom, tokens(&self.for_seldom)),
            (Whose::ForAll, tokens(&self.for_all)),
        ];
        let parts = |(of, buckets): &(Whose, Vec<Bucket>)| {
            let of = *of;
            let part = move |buckets: &[Bucket]| estate::Turns { quic, of, buckets: buckets.to_vec() };
            buckets.chunks(BATCH).map(part).collect::<Vec<_>>()
        };
        all.iter().flat_map(parts).collect()
    }

    /// Goes on with a part of what was used of another one's. What is no key is left out.
    pub(crate) fn go_on(&mut self, used: &estate::Turns, now: Instant) {
        for Bucket { key, left, ago_ms } in &used.buckets {
            let (left, since) = (*left as f64 / THOUSAND, before(now, *ago_ms));
            let source = <[u8; 8]>::try_from(&key[..]);
            let token = <[u8; RelayToken::LENGTH]>::try_from(&key[..]).map(RelayToken::from_bytes);
            match (used.of, source, token) {
                (Whose::Addresses, Ok(source), _) => self.of_addresses.go_on(source, left, since),
                (Whose::Seldom, Ok(source), _) => self.seldom.go_on(source, left, since),
                (Whose::ForSeldom, _, Ok(token)) => self.for_seldom.go_on(token, left, since),
                (Whose::ForAll, _, Ok(token)) => self.for_all.go_on(token, left, since),
                _ => {}
            }
        }
    }

    /// Takes a turn of an address, if it has one.
    pub(crate) fn of_address(&mut self, from: IpAddr, now: Instant) -> bool {
        self.of_addresses.take(source(from), now)
    }

    /// Takes a turn of a reservation for a client from there, if it has one.
    pub(crate) fn of_reservation(&mut self, token: RelayToken, from: IpAddr, now: Instant) -> bool {
        let is_seldom = self.seldom.take(source(from), now);
        is_seldom && self.for_seldom.take(token, now) || self.for_all.take(token, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: RelayToken = RelayToken::from_bytes([1; 10]);

    fn ip(network: u8, host: u8) -> IpAddr {
        [192, 0, network, host].into()
    }

    #[test]
    fn a_few_addresses_that_come_all_the_time_do_not_keep_others_from_a_server() {
        let (mut turns, begin) = (Turns::new(&Limits::default()), Instant::now());
        let mut passed = [0, 0];
        for millis in 0..20_000u32 {
            let now = begin + Duration::from_millis(millis.into());
            // Ten addresses with a hundred clients a second each, and one client a second from elsewhere.
            for (who, from) in [(0, ip(1, (millis % 10) as u8)), (1, ip(2, (millis / 1000) as u8))] {
                let comes = who == 0 || millis % 1000 == 500;
                let is_let_in =
                    comes && turns.of_address(from, now) && turns.of_reservation(TOKEN, from, now);
                passed[who] += u32::from(is_let_in);
            }
        }
        assert_eq!(passed[1], 20, "all others are served");
        let limits = Limits::default();
        let most = limits.clients_per_second * (20.0 + BURST);
        assert!(f64::from(passed[0]) <= most, "{passed:?}");
    }

    #[test]
    fn turns_that_were_used_are_used_up_for_the_one_that_goes_on_too() {
        let (mut turns, now) = (Turns::new(&Limits::default()), Instant::now());
        let take = |turns: &mut Turns, now| {
            let taken = (0..5000).filter(|_| turns.of_address(ip(1, 1), now)).count();
            (taken, (0..5000).filter(|_| turns.of_reservation(TOKEN, ip(1, 1), now)).count())
        };
        assert_eq!(take(&mut turns, now), (200, 505));
        let later = now + Duration::from_secs(1);
        let mut next = Turns::new(&Limits::default());
        let parts = turns.hand_over(true, later);
        assert_eq!(parts.len(), 3, "those of reservations for addresses that come seldom are there again");
        parts.iter().for_each(|part| next.go_on(part, later));
        assert_eq!(take(&mut next, later), take(&mut turns, later));
        let long_after = now + Duration::from_secs(60);
        assert!(turns.hand_over(true, long_after).is_empty(), "all have all of theirs again");
    }

    #[test]
    fn a_crowd_from_everywhere_has_all_turns() {
        let (mut turns, now) = (Turns::new(&Limits::default()), Instant::now());
        let from = |n: u16| ip((n / 250) as u8, (n % 250) as u8);
        let passed = (0..5000).filter(|n| turns.of_reservation(TOKEN, from(*n), now)).count();
        assert_eq!(passed, 1000);
        let other = RelayToken::from_bytes([2; 10]);
        assert!(turns.of_reservation(other, from(5000), now), "each server has its own");
    }
}
