//! The server's side of a group: each of its relays is chosen when it is needed, by what the group says and
//! by round trips that are measured then.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use whimbrel_base::{EndpointAddr, EndpointId, Name, random_bytes};
use whimbrel_transport::{BoxFuture, Endpoint, Locator};

use crate::directory::{Directory, Listed, Roster};
use crate::group::{Measured, Taken, absent, level, pick};

/// The name service says within this which members there are, and what they say.
const LISTING: Duration = Duration::from_secs(1);
/// The first time it may take longer.
const FIRST_LISTING: Duration = Duration::from_secs(10);
/// Members that are looked up at once.
const LOOKUPS: usize = 16;
/// Relays that answer later than this are too far, if there are others.
const NEAR: Duration = Duration::from_millis(600);
/// Those that answer later than this are not there.
const FAR: Duration = Duration::from_secs(3);
/// What was found out is good for so long: all of a server's relays are chosen by it.
const FRESH: Duration = Duration::from_secs(2);
/// A relay that was of no use is asked last for so long.
const AVOIDED: Duration = Duration::from_secs(10);
/// How often it is looked for a relay beside those that are taken, if there was none.
const LOOK: Duration = Duration::from_secs(30);
/// Addresses of a relay that are tried.
const ADDRESSES: usize = 4;

/// `count` relays of a group for one server, each another one. Must be used inside a tokio runtime.
pub fn seats(endpoint: Endpoint, roster: Arc<dyn Roster>, count: usize) -> Vec<Arc<dyn Directory>> {
    let seats = Mutex::new(Seats { taken: vec![None; count], failed: HashMap::new() });
    let view = tokio::sync::Mutex::default();
    let pool = Arc::new(Pool { endpoint, roster, seats, view, vacated: Notify::new() });
    let seat = |number| Arc::new(Seat { pool: pool.clone(), number }) as Arc<dyn Directory>;
    (0..count).map(seat).collect()
}

/// The members that answer, each with its round trip. One that has not answered after 600 ms is left out if
/// others have.
pub async fn measure(endpoint: &Endpoint, members: &[Listed]) -> HashMap<EndpointId, Duration> {
    let mut asked = JoinSet::new();
    for member in members {
        let (endpoint, addr) = (endpoint.clone(), member.addr.clone());
        asked.spawn(FutureExt::boxed(async move { (addr.id, round_trip(&endpoint, &addr).await) }));
    }
    let mut measured = HashMap::new();
    let begun = Instant::now();
    for limit in [NEAR, FAR] {
        let answers = async {
            while let Some(answer) = asked.join_next().await {
                if let Ok((id, Some(rtt))) = answer {
                    measured.insert(id, rtt);
                    if begun.elapsed() >= NEAR {
                        return;
                    }
                }
            }
        };
        let _ = tokio::time::timeout_at(begun + limit, answers).await;
        if !measured.is_empty() {
            break;
        }
    }
    measured
}

/// A round trip of TCP to a relay, at the address that answers first: directly, or through the endpoint's
/// HTTP proxy where nothing else gets out.
async fn round_trip(endpoint: &Endpoint, addr: &EndpointAddr) -> Option<Duration> {
    let direct = Locator::list(&addr.addrs).into_iter().filter(|place| matches!(place, Locator::Direct(_)));
    let mut attempts = JoinSet::new();
    for place in direct.take(ADDRESSES) {
        let endpoint = endpoint.clone();
        let attempt = async move { endpoint.connect_tcp(place).await.map(|connected| connected.rtt) };
        attempts.spawn(FutureExt::boxed(attempt));
    }
    while let Some(attempt) = attempts.join_next().await {
        if let Ok(Ok(rtt)) = attempt {
            return Some(rtt);
        }
    }
    None
}

/// What the members say of themselves now. Of those that cannot be looked up in time, what they said
/// `before`.
pub async fn list(
    roster: &Arc<dyn Roster>,
    names: &[Name],
    before: &[Listed],
    limit: Duration,
) -> Vec<Listed> {
    let end = Instant::now() + limit;
    let mut waiting = names.iter().cloned();
    let mut asked = JoinSet::new();
    let mut found: HashMap<Name, Option<Listed>> = HashMap::new();
    loop {
        while asked.len() < LOOKUPS
            && let Some(name) = waiting.next()
        {
            let roster = roster.clone();
            asked.spawn(FutureExt::boxed(async move { (roster.member(&name).await, name) }));
        }
        let Ok(Some(answer)) = tokio::time::timeout_at(end, asked.join_next()).await else { break };
        match answer {
            Ok((Ok(listed), name)) => drop(found.insert(name, Some(listed))),
            Ok((Err(error), name)) if error.kind() == io::ErrorKind::NotFound => {
                drop(found.insert(name, None))
            }
            Ok((Err(error), name)) => tracing::debug!(%name, %error, "cannot look a relay up"),
            Err(_) => {}
        }
    }
    let known = |name: &Name| match found.remove(name) {
        Some(answer) => answer,
        None => before.iter().find(|listed| listed.name == *name).cloned(),
    };
    names.iter().filter_map(known).collect()
}

/// Which relays a server has, of one group.
struct Pool {
    endpoint: Endpoint,
    roster: Arc<dyn Roster>,
    seats: Mutex<Seats>,
    /// Held while a relay is chosen: one after the other.
    view: tokio::sync::Mutex<View>,
    /// A relay was given back.
    vacated: Notify,
}

struct Seats {
    taken: Vec<Option<Taken>>,
    /// When each was found to be of no use.
    failed: HashMap<EndpointId, Instant>,
}

/// The group, as it was seen last.
#[derive(Default)]
struct View {
    at: Option<Instant>,
    members: Vec<Listed>,
    rtts: HashMap<EndpointId, Duration>,
}

impl Pool {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn choose(&self, seat: usize) -> io::Result<EndpointAddr> {
        let mut names = self.roster.members();
        self.seats().taken[seat] = None;
        self.vacated.notify_waiters();
        loop {
            let vacated = self.vacated.notified();
            tokio::pin!(vacated);
            vacated.as_mut().enable();
            let known = tokio::time::timeout(FIRST_LISTING, names.wait_for(Option::is_some)).await;
            let Ok(Some(Some(members))) = known else {
                let why = "the name service has not said which relays these are";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            };
            // A name may stand for a single relay.
            let others = self.seats().taken.iter().flatten().count();
            if members.len() > others
                && let Some(addr) = self.take(seat, &members).await
            {
                return Ok(addr);
            }
            if self.seats().taken.iter().all(Option::is_none) {
                return Err(io::Error::new(io::ErrorKind::NotFound, "no relay of the group can be reached"));
            }
            tokio::select! {
                Some(_) = names.changed() => {}
                () = vacated => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Takes a relay for a seat, if there is one.
    async fn take(&self, seat: usize, names: &[Name]) -> Option<EndpointAddr> {
        let mut view = self.view.lock().await;
        view.refresh(self, names).await;
        let mut seats = self.seats();
        seats.failed.retain(|_, at| at.elapsed() < AVOIDED);
        let absent = absent(&view.members);
        let level = level(&view.members, &absent);
        let measured: Vec<Measured<'_>> = view
            .members
            .iter()
            .filter(|member| member.id() != self.endpoint.id())
            .filter_map(|member| Some(Measured { member, rtt: *view.rtts.get(&member.id())? }))
            .collect();
        // Those that the others cannot reach come last but one, and those that were of no use last: they have
        // answered just now.
        let (failed, others): (Vec<_>, Vec<_>) =
            measured.into_iter().partition(|relay| seats.failed.contains_key(&relay.member.id()));
        let (absent, present): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|relay| absent.contains(&relay.member.id()));
        let taken: Vec<Taken> = seats.taken.iter().flatten().cloned().collect();
        let mut draw = |below: usize| (u64::from_be_bytes(random_bytes()) % below.max(1) as u64) as usize;
        let member = [&present, &absent, &failed]
            .into_iter()
            .find_map(|relays| pick(relays, &taken, level, &mut draw).map(|at| relays[at].member))?;
        seats.taken[seat] = Some(Taken { id: member.id(), place: member.place().cloned() });
        tracing::debug!(name = %member.name, place = ?member.place(), "relay chosen");
        Some(member.addr.clone())
    }
}

impl View {
    async fn refresh(&mut self, pool: &Pool, names: &[Name]) {
        let is_same = self.members.iter().all(|member| names.contains(&member.name));
        if is_same && self.at.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let limit = if self.at.is_some() { LISTING } else { FIRST_LISTING };
        self.members = list(&pool.roster, names, &self.members, limit).await;
        self.rtts = measure(&pool.endpoint, &self.members).await;
        self.at = Some(Instant::now());
    }
}

/// One of a server's relays.
struct Seat {
    pool: Arc<Pool>,
    number: usize,
}

impl Directory for Seat {
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>> {
        Box::pin(self.pool.choose(self.number))
    }

    fn failed(&self, relay: EndpointId) {
        let mut seats = self.pool.seats();
        seats.failed.insert(relay, Instant::now());
        seats.taken[self.number] = None;
        drop(seats);
        self.pool.vacated.notify_waiters();
    }

    fn has_others(&self) -> bool {
        self.pool.roster.members().current().is_some_and(|members| members.len() > 1)
    }
}
