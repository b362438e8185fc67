//! A relay as a member of a group: what it says of itself, and that it lets the others watch it.

use futures_util::FutureExt;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use whimbrel_base::{EndpointId, Name, RelayPlace, RelayState};
use whimbrel_transport::{Allow, Endpoint, Listener, Watch};

use crate::directory::{Listed, Roster};
use crate::limits::Limits;
use crate::pool::list;
use crate::reservations::RelayStats;
use crate::service::Relay;
use crate::watchdog::Watchdog;

/// How often it is looked how much this relay has to do.
const LOOK: Duration = Duration::from_secs(1);
/// A load that is this share of the capacity more or less is worth telling...
const WORTH_TELLING: f64 = 0.03;
/// ... so often. Each time is a record for the name service to store.
const OFTEN: Duration = Duration::from_secs(5);
/// Any other change is told so often.
const SELDOM: Duration = Duration::from_secs(60);
/// Those who belong to the group are looked up again for a peer that is not known, so often.
const AGAIN: Duration = Duration::from_secs(2);
/// And that takes no longer.
const LOOKUP: Duration = Duration::from_secs(3);
/// Members that watch this relay at once.
const WATCHERS: usize = 256;

/// Makes a relay a member of a group, until it is dropped.
pub struct Membership {
    endpoint: Endpoint,
    place: RelayPlace,
    limits: Limits,
    roster: Arc<dyn Roster>,
    own: Name,
    tasks: JoinSet<()>,
}

impl Membership {
    /// Says of `relay` that it stands at `place`: in the records of its endpoint from now on. `own` is the
    /// name that it has in the group.
    pub fn new(relay: &Relay, place: RelayPlace, own: Name, roster: Arc<dyn Roster>) -> Self {
        let (endpoint, limits) = (relay.endpoint().clone(), relay.limits());
        endpoint.set_relay_state(Some(state(&place, &limits, &relay.stats(), &[])));
        Self { endpoint, place, limits, roster, own, tasks: JoinSet::new() }
    }

    /// Those who may watch this relay, by a connection to its name: the members of the group.
    pub fn allow(&self) -> Allow {
        let asked = tokio::sync::Mutex::default();
        let known = Arc::new(Known { roster: self.roster.clone(), ids: Mutex::default(), asked });
        Allow::check(move |peer| {
            let known = known.clone();
            async move { known.is_member(peer).await }
        })
    }

    /// Begins to watch the others, and to be watched by those who come to `listener`, which is that of its
    /// name. Must run inside a tokio runtime.
    pub fn start(&mut self, relay: &Relay, listener: Listener) {
        let watchdog = Watchdog::start(self.endpoint.clone(), self.roster.clone(), self.own.clone());
        let unreachable = watchdog.news();
        let saying = Saying {
            endpoint: self.endpoint.clone(),
            place: self.place.clone(),
            limits: self.limits.clone(),
            unreachable,
        };
        let stats = relay.stats_reader();
        self.tasks.spawn(FutureExt::boxed(async move {
            // It watches for as long as what it finds is told.
            let _watchdog = watchdog;
            saying.run(stats).await;
        }));
        self.tasks.spawn(FutureExt::boxed(be_watched(listener)));
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("own", &self.own).finish_non_exhaustive()
    }
}

/// What a relay says of itself. Its load is that of what is nearest to its limit.
fn state(place: &RelayPlace, limits: &Limits, stats: &RelayStats, unreachable: &[EndpointId]) -> RelayState {
    let share = |count: u64, limit: usize| count as f64 / limit.max(1) as f64;
    let shares = [
        share(stats.splices, limits.splices),
        share(stats.flows, limits.flows),
        share(stats.reservations, limits.reservations),
    ];
    let highest = shares.into_iter().fold(0.0, f64::max);
    let capacity = u32::try_from(limits.splices).unwrap_or(u32::MAX).max(1);
    let load = (f64::from(capacity) * highest).round() as u32;
    RelayState { place: place.clone(), capacity, load, unreachable: unreachable.to_vec() }
}

/// Whether what is to be said now differs enough from what was `said` so long ago. A pure function.
fn is_due(said: &RelayState, now: &RelayState, ago: Duration) -> bool {
    let differs = (said.share() - now.share()).abs();
    said.unreachable != now.unreachable
        || (differs >= WORTH_TELLING && ago >= OFTEN)
        || (said != now && ago >= SELDOM)
}

struct Saying {
    endpoint: Endpoint,
    place: RelayPlace,
    limits: Limits,
    unreachable: Watch<Arc<[EndpointId]>>,
}

impl Saying {
    async fn run(mut self, stats: impl Fn() -> RelayStats) {
        let mut look = tokio::time::interval(LOOK);
        let (mut said, mut at) = (None, Instant::now());
        loop {
            let now = state(&self.place, &self.limits, &stats(), &self.unreachable.current());
            if said.as_ref().is_none_or(|said| is_due(said, &now, at.elapsed())) {
                self.endpoint.set_relay_state(Some(now.clone()));
                (said, at) = (Some(now), Instant::now());
            }
            tokio::select! {
                _ = look.tick() => {}
                changed = self.unreachable.changed() => if changed.is_none() { return },
            }
        }
    }
}

/// Keeps the connections of those who watch this relay: that they live is all that they are for.
async fn be_watched(mut listener: Listener) {
    let mut watchers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if watchers.len() < WATCHERS => match accepted {
                Some(connection) => drop(watchers.spawn(FutureExt::boxed(async move {
                    connection.closed().await;
                }))),
                None => return,
            },
            Some(_) = watchers.join_next() => {}
        }
    }
}

/// Who belongs to the group, by key.
struct Known {
    roster: Arc<dyn Roster>,
    ids: Mutex<HashSet<EndpointId>>,
    /// When they were looked up last. Held meanwhile.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl Known {
    fn ids(&self) -> MutexGuard<'_, HashSet<EndpointId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the owner of the group has taken in a name that this peer has.
    async fn is_member(&self, peer: EndpointId) -> bool {
        let mut asked = self.asked.lock().await;
        let limit = if self.ids().contains(&peer) { SELDOM } else { AGAIN };
        if asked.is_none_or(|at| at.elapsed() >= limit) {
            let names = self.roster.members().current().unwrap_or_default();
            let listed = list(&self.roster, &names, &[], LOOKUP).await;
            *self.ids() = listed.iter().map(Listed::id).collect();
            *asked = Some(Instant::now());
        }
        self.ids().contains(&peer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    fn said(load: u32) -> RelayState {
        RelayState { place: "fra".parse().unwrap(), capacity: 1000, load, unreachable: Vec::new() }
    }

    #[test]
    fn a_load_is_told_when_it_has_changed_and_not_too_often() {
        let seconds = Duration::from_secs;
        assert!(!is_due(&said(100), &said(100), seconds(3600)));
        assert!(!is_due(&said(100), &said(101), seconds(59)));
        assert!(is_due(&said(100), &said(101), seconds(60)));
        assert!(!is_due(&said(100), &said(900), seconds(4)));
        assert!(is_due(&said(100), &said(900), seconds(5)));
        let lost = RelayState { unreachable: vec![SecretKey::from_bytes(&[1; 32]).id()], ..said(100) };
        assert!(is_due(&said(100), &lost, Duration::ZERO), "that is told at once");
    }

    #[test]
    fn the_load_is_that_of_what_is_nearest_to_its_limit() {
        let limits = Limits { splices: 1000, flows: 1000, reservations: 10, ..Limits::default() };
        let of = |stats: RelayStats| state(&"fra".parse().unwrap(), &limits, &stats, &[]).load;
        assert_eq!(of(RelayStats::default()), 0);
        assert_eq!(of(RelayStats { splices: 70, flows: 20, ..RelayStats::default() }), 70);
        assert_eq!(of(RelayStats { splices: 70, reservations: 5, ..RelayStats::default() }), 500);
    }
}
