//! Which relays of many a server takes: near ones first, the less loaded of two among them, each in another
//! place.
//!
//! Power of two choices keeps relays of one place even, at the price of two looks. It does not keep places
//! even: where a region has more servers than its relays can carry, or has lost its relays, the nearest class
//! is full, and the next one is asked. What is full is said by the mean load of the whole group.

use std::time::Duration;
use whimbrel_base::order;

/// Places that are this much farther than the nearest one are of the same class.
const CLASSES: [f64; 4] = [1.1, 1.5, 2.5, f64::INFINITY];
/// Differences below this do not make a class.
const INDISTINCT: Duration = Duration::from_millis(1);
/// A relay with more than this share of the mean load is full while there are others.
const FULL: f64 = 1.1;
/// Load that a relay may always have, as a share of its capacity: a mean of hardly anything says nothing.
const SLACK: f64 = 0.005;
/// How often two relays of a class are looked at before it counts as full.
const LOOKS: usize = 4;

/// A place with relays, as a server sees it.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The measured round trip to a relay there.
    pub rtt: Duration,
    /// The load of each relay there that lives, as a share of its capacity: 0 is idle, 1 is all that it may
    /// carry.
    pub loads: &'a [f64],
}

/// A relay that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The place, by its position among the sites.
    pub site: usize,
    /// The relay, by its position among those of the place.
    pub relay: usize,
}

/// Whether a relay with this load takes no more servers, while the group's mean load is `mean`. Servers judge
/// so by what they last heard; a relay by its own count, when a server asks it, which then chooses again.
pub fn is_full(load: f64, mean: f64) -> bool {
    load > mean * FULL + SLACK
}

/// Chooses up to `count` relays, each in another place, the nearest first. `mean` is the mean load of the
/// group's relays; `draw` gives a random number below the one that it is given. Fewer are chosen if there are
/// fewer places with relays.
pub fn choose(
    sites: &[Site<'_>],
    mean: f64,
    count: usize,
    draw: &mut impl FnMut(usize) -> usize,
) -> Vec<Pick> {
    let mut open: Vec<usize> = (0..sites.len()).filter(|site| !sites[*site].loads.is_empty()).collect();
    order::by_key(&mut open, |site| sites[*site].rtt);
    let mut picks = Vec::new();
    while picks.len() < count
        && let Some(pick) = one(sites, &open, mean, draw)
    {
        open.retain(|site| *site != pick.site);
        picks.push(pick);
    }
    order::by_key(&mut picks, |pick| sites[pick.site].rtt);
    picks
}

/// Chooses one relay of the places that are `open`, which are in the order of their distance.
fn one(sites: &[Site<'_>], open: &[usize], mean: f64, draw: &mut impl FnMut(usize) -> usize) -> Option<Pick> {
    let nearest = sites[*open.first()?].rtt;
    let load = |pick: Pick| sites[pick.site].loads[pick.relay];
    let mut least: Option<Pick> = None;
    let mut rest = open;
    for class in CLASSES {
        // Infinitely far is farther than any duration can say.
        let bound = Duration::try_from_secs_f64(nearest.as_secs_f64() * class).unwrap_or(Duration::MAX);
        let bound = bound.saturating_add(INDISTINCT);
        let (near, farther) = rest.split_at(rest.partition_point(|site| sites[*site].rtt <= bound));
        rest = farther;
        let relays: usize = near.iter().map(|site| sites[*site].loads.len()).sum();
        if relays == 0 {
            continue;
        }
        for _ in 0..LOOKS {
            let two = [(); 2].map(|()| nth(sites, near, draw(relays) % relays));
            let [Some(a), Some(b)] = two else { continue };
            let better = if load(b) < load(a) { b } else { a };
            if !is_full(load(better), mean) {
                return Some(better);
            }
            if least.is_none_or(|least| load(better) < load(least)) {
                least = Some(better);
            }
        }
    }
    least
}

/// One of all relays of some places, by its number.
fn nth(sites: &[Site<'_>], places: &[usize], mut number: usize) -> Option<Pick> {
    for site in places {
        let here = sites[*site].loads.len();
        if number < here {
            return Some(Pick { site: *site, relay: number });
        }
        number -= here;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same each time.
    fn draws() -> impl FnMut(usize) -> usize {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_nearest_place_is_taken_and_each_further_relay_is_elsewhere() {
        let loads = [0.1; 5];
        let sites = [30, 10, 90, 20].map(|rtt| Site { rtt: ms(rtt), loads: &loads });
        let mut draw = draws();
        for _ in 0..100 {
            let places: Vec<usize> = choose(&sites, 0.1, 3, &mut draw).iter().map(|pick| pick.site).collect();
            assert_eq!(places, [1, 3, 0]);
        }
        assert_eq!(choose(&sites, 0.1, 9, &mut draw).len(), 4, "there are four places");
        assert!(choose(&[], 0.1, 2, &mut draw).is_empty());
        assert!(choose(&[Site { rtt: ms(1), loads: &[] }], 0.0, 2, &mut draw).is_empty());
    }

    #[test]
    fn a_full_place_is_passed_over_unless_all_are_full() {
        let (full, free) = ([0.9; 8], [0.3; 8]);
        let sites = [Site { rtt: ms(10), loads: &full }, Site { rtt: ms(100), loads: &free }];
        let mut draw = draws();
        assert_eq!(choose(&sites, 0.4, 1, &mut draw)[0].site, 1);
        // Near it counts as full by the mean alone.
        assert_eq!(choose(&sites, 0.9, 1, &mut draw)[0].site, 0);
        let all = [Site { rtt: ms(10), loads: &full }, Site { rtt: ms(100), loads: &[0.95] }];
        assert_eq!(choose(&all, 0.1, 1, &mut draw).len(), 1, "somebody has to carry it");
    }

    #[test]
    fn places_that_are_hardly_farther_than_the_nearest_share_the_load() {
        let loads = [0.2; 4];
        let sites = [Site { rtt: ms(50), loads: &loads }, Site { rtt: ms(54), loads: &loads }];
        let mut draw = draws();
        let second = (0..1000).filter(|_| choose(&sites, 0.2, 1, &mut draw)[0].site == 1).count();
        assert!((400..600).contains(&second), "{second} of 1000");
    }

    /// The promise of two choices: the highest load stays near the mean.
    #[test]
    fn ten_thousand_servers_on_a_hundred_relays_are_even() {
        let (mut loads, mut draw) = (vec![0.0; 100], draws());
        for taken in 0..10_000 {
            let mean = f64::from(taken) / 100.0 / 1000.0;
            let pick = choose(&[Site { rtt: ms(20), loads: &loads }], mean, 1, &mut draw)[0];
            loads[pick.relay] += 0.001;
        }
        let highest = loads.iter().copied().fold(0.0, f64::max);
        assert!(highest <= 0.1 * 1.1, "{highest}");
    }
}
