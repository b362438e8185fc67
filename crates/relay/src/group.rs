//! Relays of a group: which of them are there, and which of these a server takes. Pure functions of what the
//! members say of themselves and of each other, and of round trips that the server measured.
//!
//! What a member says is believed so far: of its load, that [two choices](crate::choice) prefer it, which at
//! most doubles its share among those that are equally near; of its place, only as long as its round trip is
//! like those of the others there; of another one that it cannot reach, only if a second member says the
//! same.

use std::collections::HashSet;
use std::time::Duration;

use whimbrel_base::{EndpointId, RelayPlace};

use crate::choice::{Site, choose};
use crate::directory::Listed;
use whimbrel_base::order;

/// So many members have to say of another one that it cannot be reached; in a group of two, the other one.
const WORDS: usize = 2;
/// A relay this much farther than the nearest one of its place is somewhere else.
const SPREAD: f64 = 1.5;
/// Differences below this say nothing.
const INDISTINCT: Duration = Duration::from_millis(1);

/// The members that cannot be reached, as the others say. Those that are out themselves have no say.
pub fn absent(members: &[Listed]) -> HashSet<EndpointId> {
    let ids = order::set(members.iter().map(|member| *member.id().as_bytes()));
    let mut absent = HashSet::new();
    loop {
        let is_present = |id: &EndpointId| !absent.contains(id);
        let mut out = HashSet::new();
        for accused in ids.iter().map(EndpointId::from_bytes).filter(is_present) {
            let others = members.iter().filter(|other| other.id() != accused && is_present(&other.id()));
            let (mut others_by_id, mut words) = (HashSet::new(), HashSet::new());
            for other in others {
                others_by_id.insert(other.id());
                if other.state.as_ref().is_some_and(|state| state.unreachable.contains(&accused)) {
                    words.insert(other.id());
                }
            }
            let needed = others_by_id.len().min(WORDS);
            if needed > 0 && words.len() >= needed {
                out.insert(accused);
            }
        }
        if out.is_empty() {
            return absent;
        }
        absent.extend(out);
    }
}

/// The load that relays of the group have: the mean of those that are there, or the median if that is more,
/// so that a few that say too little do not make the others look full.
pub fn level(members: &[Listed], absent: &HashSet<EndpointId>) -> f64 {
    let present = members.iter().filter(|member| member.state.is_some() && !absent.contains(&member.id()));
    let mut shares: Vec<f64> = present.map(Listed::share).collect();
    if shares.is_empty() {
        return 0.0;
    }
    order::by(&mut shares, f64::total_cmp);
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    mean.max(shares[shares.len() / 2])
}

/// A member and its measured round trip.
#[derive(Clone, Debug)]
pub struct Measured<'a> {
    /// The member.
    pub member: &'a Listed,
    /// The round trip.
    pub rtt: Duration,
}

/// A relay that the server uses already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub id: EndpointId,
    /// Where it says that it stands.
    pub place: Option<RelayPlace>,
}

/// Chooses one more relay beside those that are taken, by its position: [near](crate::choice), little loaded,
/// and in another place if there is one. `level` is the group's [load](level); `draw` gives a random number
/// below the one that it is given.
pub fn pick(
    relays: &[Measured<'_>],
    taken: &[Taken],
    level: f64,
    draw: &mut impl FnMut(usize) -> usize,
) -> Option<usize> {
    let is_free = |relay: &Measured<'_>| !taken.iter().any(|taken| taken.id == relay.member.id());
    let is_elsewhere = |relay: &Measured<'_>| {
        relay
            .member
            .place()
            .is_none_or(|place| !taken.iter().any(|taken| taken.place.as_ref() == Some(place)))
    };
    let free: Vec<usize> = (0..relays.len()).filter(|at| is_free(&relays[*at])).collect();
    let elsewhere: Vec<usize> = free.iter().copied().filter(|at| is_elsewhere(&relays[*at])).collect();
    let places = by_place(relays, if elsewhere.is_empty() { free } else { elsewhere });
    let loads: Vec<Vec<f64>> =
        places.iter().map(|place| place.iter().map(|at| relays[*at].member.share()).collect()).collect();
    let sites: Vec<Site<'_>> =
        places.iter().zip(&loads).map(|(place, loads)| Site { rtt: relays[place[0]].rtt, loads }).collect();
    let pick = choose(&sites, level, 1, draw).pop()?;
    Some(places[pick.site][pick.relay])
}

/// These relays by place, the nearest of each first. One that is farther than its place can be has a place of
/// its own, and so has one that does not say where it is.
fn by_place(relays: &[Measured<'_>], mut which: Vec<usize>) -> Vec<Vec<usize>> {
    order::by_key(&mut which, |at| (relays[*at].member.place(), relays[*at].rtt));
    let mut places: Vec<Vec<usize>> = Vec::new();
    for at in which {
        let (place, rtt) = (relays[at].member.place(), relays[at].rtt);
        let belongs = |first: &Measured<'_>| {
            place.is_some() && first.member.place() == place && rtt <= first.rtt.mul_f64(SPREAD) + INDISTINCT
        };
        match places.last_mut() {
            Some(last) if belongs(&relays[last[0]]) => last.push(at),
            _ => places.push(vec![at]),
        }
    }
    places
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::{EndpointAddr, RelayState, SecretKey};

    use super::*;

    fn id(number: u8) -> EndpointId {
        SecretKey::from_bytes(&[number; 32]).id()
    }

    fn member(number: u8, place: &str, load: u32, unreachable: &[u8]) -> Listed {
        let mut unreachable: Vec<EndpointId> = unreachable.iter().map(|number| id(*number)).collect();
        unreachable.sort_by_key(|id| *id.as_bytes());
        let state = RelayState { place: place.parse().unwrap(), capacity: 1000, load, unreachable };
        let name = format!("r{number}.ops@example.org").parse().unwrap();
        Listed { name, addr: EndpointAddr::new(id(number), []), state: Some(state) }
    }

    fn draws() -> impl FnMut(usize) -> usize {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        }
    }

    fn measured<'a>(members: &'a [Listed], rtts: &[u64]) -> Vec<Measured<'a>> {
        let rtt = |rtt: &u64| Duration::from_millis(*rtt);
        members.iter().zip(rtts).map(|(member, ms)| Measured { member, rtt: rtt(ms) }).collect()
    }

    #[test]
    fn a_relay_is_out_when_two_others_say_so_and_one_alone_is_not_believed() {
        let said = |first: &[u8], second: &[u8], third: &[u8]| {
            let members = [member(1, "a", 0, first), member(2, "b", 0, second), member(3, "c", 0, third)];
            let mut out: Vec<u8> = (1..=3).filter(|number| absent(&members).contains(&id(*number))).collect();
            out.sort_unstable();
            out
        };
        assert_eq!(said(&[], &[1], &[1]), [1]);
        assert_eq!(said(&[], &[1, 3], &[]), [], "one alone");
        // Of those that are there, one is left to say it of the second: that is all there are.
        assert_eq!(said(&[], &[1], &[1, 2]), [1, 2]);
        // What a dead one said before counts no more.
        assert_eq!(said(&[2, 3], &[1], &[1]), [1]);
        let two = [member(1, "a", 0, &[]), member(2, "b", 0, &[1])];
        assert_eq!(absent(&two), HashSet::from([id(1)]));
        assert!(absent(&two[..1]).is_empty());
    }

    #[test]
    fn a_member_with_several_names_has_one_word() {
        let mut twice = member(2, "b", 0, &[1]);
        twice.name = "again.ops@example.org".parse().unwrap();
        let members = [member(1, "a", 0, &[]), member(2, "b", 0, &[1]), twice, member(3, "c", 0, &[])];
        assert!(absent(&members).is_empty());
    }

    #[test]
    fn the_nearest_place_is_taken_first_and_the_next_relay_is_elsewhere() {
        let members = [
            member(1, "far", 0, &[]),
            member(2, "near", 10, &[]),
            member(3, "near", 10, &[]),
            member(4, "mid", 0, &[]),
        ];
        let relays = measured(&members, &[90, 10, 11, 30]);
        let mut taken = Vec::new();
        for expected in ["near", "mid", "far", "near"] {
            let at = pick(&relays, &taken, 0.01, &mut draws()).unwrap();
            let place = members[at].place().cloned();
            assert_eq!(place.as_ref().unwrap().as_str(), expected, "after {taken:?}");
            taken.push(Taken { id: members[at].id(), place });
        }
        assert_eq!(taken.iter().map(|taken| taken.id).collect::<HashSet<_>>().len(), 4, "each once");
        assert_eq!(pick(&relays, &taken, 0.01, &mut draws()), None);
    }

    #[test]
    fn of_two_that_are_equally_near_the_less_loaded_one_is_taken() {
        let members = [member(1, "a", 100, &[]), member(2, "a", 900, &[])];
        let relays = measured(&members, &[10, 10]);
        let mut draw = draws();
        let first = (0..1000).filter(|_| pick(&relays, &[], 0.9, &mut draw) == Some(0)).count();
        assert!(first > 700, "{first} of 1000: unless both looks fall on the other one");
    }

    #[test]
    fn a_member_that_says_it_is_idle_gets_at_most_twice_its_share() {
        for count in [2_u8, 3, 5, 20] {
            let members: Vec<_> =
                (0..count).map(|n| member(n, "a", if n == 0 { 0 } else { 500 }, &[])).collect();
            let relays = measured(&members, &vec![10; count.into()]);
            let (mut draw, level) = (draws(), level(&members, &HashSet::new()));
            let lured = (0..10_000).filter(|_| pick(&relays, &[], level, &mut draw) == Some(0)).count();
            let share = lured as f64 / 10_000.0 * f64::from(count);
            assert!(share <= 2.05, "{share} times its share among {count}");
        }
    }

    #[test]
    fn a_member_that_says_it_is_near_and_is_not_gets_nobody_for_it() {
        let members = [member(1, "near", 500, &[]), member(2, "near", 0, &[])];
        let relays = measured(&members, &[10, 200]);
        let mut draw = draws();
        assert!((0..1000).all(|_| pick(&relays, &[], 0.5, &mut draw) == Some(0)));
    }

    #[test]
    fn loads_that_are_absurd_count_as_full() {
        let members = [member(1, "a", u32::MAX, &[]), member(2, "a", 100, &[]), member(3, "a", 100, &[])];
        let level = level(&members, &HashSet::new());
        assert!((0.1..=0.5).contains(&level), "{level}");
    }
}
