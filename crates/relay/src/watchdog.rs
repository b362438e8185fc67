//! Relays of a group check each other: each keeps a connection to the next few of them, and says which do not
//! answer.
//!
//! The members stand in a ring, in an order that none of them can choose by itself. A relay watches the three
//! behind it that answer, and those between that do not. So each is watched by others while any three are
//! left, and the work of each stays the same however many there are.

use futures_util::FutureExt;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use whimbrel_base::{EndpointId, MAX_UNREACHABLE, Name, Ticket};
use whimbrel_transport::{CloseCode, ConnectError, Connection, Endpoint, Timeouts, Watch, Watched};

use crate::directory::Roster;
use whimbrel_base::order;

/// Members that answer which each relay watches.
const WATCHED: usize = 3;
/// Members that are watched at all: beyond it are others that do not answer.
const MOST_WATCHED: usize = WATCHED + 16;
/// A watched relay is asked for a sign of life so often.
const HEARTBEAT: Duration = Duration::from_millis(800);
/// One that has not answered for so long cannot be reached.
const SILENCE: Duration = Duration::from_millis(1500);
/// How often it is looked whether one answers.
const LOOK: Duration = Duration::from_millis(200);
/// Between attempts to reach one that does not answer.
const PAUSE: Duration = Duration::from_millis(500);
/// To look a member up takes no longer.
const LOOKUP: Duration = Duration::from_secs(2);

/// Watches until it is dropped.
pub(crate) struct Watchdog {
    news: Watch<Arc<[EndpointId]>>,
    _task: JoinSet<()>,
}

impl Watchdog {
    /// Watches the members behind `own`, from `endpoint`. Must run inside a tokio runtime.
    pub(crate) fn start(endpoint: Endpoint, roster: Arc<dyn Roster>, own: Name) -> Self {
        let unreachable = Watched::new(Arc::from([]));
        let news = unreachable.watch();
        let mut task = JoinSet::new();
        let (report, reports) = mpsc::channel(WATCHED);
        let checks = BTreeMap::new();
        let watch = Rounds { endpoint, roster, own, checks, unreachable, report, running: JoinSet::new() };
        task.spawn(FutureExt::boxed(watch.run(reports)));
        Self { news, _task: task }
    }

    /// Members that do not answer, ascending, at most [`MAX_UNREACHABLE`]: now and as they change.
    pub(crate) fn news(&self) -> Watch<Arc<[EndpointId]>> {
        self.news.clone()
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("unreachable", &self.news.current()).finish_non_exhaustive()
    }
}

/// Where a member stands in the ring.
fn place_of(name: &Name) -> [u8; 32] {
    let input = [b"whimbrel relay ring v1\0", name.as_str().as_bytes()].concat();
    let mut place = [0; 32];
    place.copy_from_slice(digest(&SHA256, &input).as_ref());
    place
}

/// Which members `own` watches: those behind it in the ring, until [`WATCHED`] of them answer. A pure
/// function.
fn watched(own: &Name, members: &[Name], is_silent: impl Fn(&Name) -> bool) -> Vec<Name> {
    let mut others: Vec<&Name> = members.iter().filter(|name| *name != own).collect();
    order::by_key(&mut others, |name| place_of(name));
    others.dedup();
    let behind = others.partition_point(|name| place_of(name) < place_of(own));
    others.rotate_left(behind);
    let mut answering = 0;
    let mut taken = Vec::new();
    for name in others.into_iter().take(MOST_WATCHED) {
        if answering == WATCHED {
            break;
        }
        answering += usize::from(!is_silent(name));
        taken.push(name.clone());
    }
    taken
}

/// What a check found out.
struct Report {
    name: Name,
    id: EndpointId,
    answers: bool,
}

/// A member that is watched.
struct Check {
    task: AbortHandle,
    /// Who it is, once it does not answer.
    silent: Option<EndpointId>,
}

struct Rounds {
    endpoint: Endpoint,
    roster: Arc<dyn Roster>,
    own: Name,
    checks: BTreeMap<Name, Check>,
    unreachable: Watched<Arc<[EndpointId]>>,
    report: mpsc::Sender<Report>,
    running: JoinSet<()>,
}

impl Rounds {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        let mut members = self.roster.members();
        let mut names = members.current().unwrap_or_default();
        loop {
            self.watch(&names);
            tokio::select! {
                changed = members.changed() => match changed {
                    Some(changed) => names = changed.unwrap_or(names),
                    None => return,
                },
                Some(report) = reports.recv() => self.note(report),
                Some(_) = self.running.join_next() => {}
            }
        }
    }

    /// Begins and ends checks, so that the right ones are watched.
    fn watch(&mut self, names: &[Name]) {
        let is_silent = |name: &Name| self.checks.get(name).is_some_and(|check| check.silent.is_some());
        let wanted = watched(&self.own, names, is_silent);
        self.checks.retain(|name, check| {
            let stays = wanted.contains(name);
            if !stays {
                check.task.abort();
            }
            stays
        });
        for name in wanted {
            if !self.checks.contains_key(&name) {
                let (endpoint, roster, report) =
                    (self.endpoint.clone(), self.roster.clone(), self.report.clone());
                let task =
                    self.running.spawn(FutureExt::boxed(check(endpoint, roster, name.clone(), report)));
                self.checks.insert(name, Check { task, silent: None });
            }
        }
        self.tell();
    }

    fn note(&mut self, Report { name, id, answers }: Report) {
        let Some(check) = self.checks.get_mut(&name) else { return };
        let silent = (!answers).then_some(id);
        if std::mem::replace(&mut check.silent, silent) != silent {
            tracing::info!(%name, answers, "a relay of the group");
        }
    }

    fn tell(&self) {
        let mut silent: Vec<EndpointId> = self.checks.values().filter_map(|check| check.silent).collect();
        order::by(&mut silent, Ord::cmp);
        silent.dedup();
        silent.truncate(MAX_UNREACHABLE);
        if *self.unreachable.current() != silent[..] {
            self.unreachable.set(silent.into());
        }
    }
}

/// Tells the watchdog of one member.
struct Teller<'a> {
    name: &'a Name,
    id: EndpointId,
    report: &'a mpsc::Sender<Report>,
}

impl Teller<'_> {
    async fn say(&self, answers: bool) {
        // The watchdog outlives its checks.
        let _ = self.report.send(Report { name: self.name.clone(), id: self.id, answers }).await;
    }
}

/// Keeps a connection to a member, and says whether it answers.
async fn check(endpoint: Endpoint, roster: Arc<dyn Roster>, name: Name, report: mpsc::Sender<Report>) {
    let mut silent_since = HashMap::new();
    loop {
        // One that is not registered serves nobody: there is nothing to say of it.
        let Ok(Ok(listed)) = tokio::time::timeout(LOOKUP, roster.member(&name)).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let id = listed.id();
        let teller = Teller { name: &name, id, report: &report };
        let ticket = Ticket::new(id, listed.addr.addrs, Some(name.clone()));
        let since = *silent_since.entry(id).or_insert_with(Instant::now);
        let left = (since + SILENCE).saturating_duration_since(Instant::now()).max(PAUSE);
        match tokio::time::timeout(left, endpoint.connect(ticket)).await {
            Ok(Ok(connection)) => {
                silent_since.clear();
                teller.say(true).await;
                let connection = Ended(connection);
                attend(&connection.0, &teller).await;
                silent_since.insert(id, Instant::now());
            }
            // It answers, although it does not know yet that this relay belongs to the group.
            Ok(Err(ConnectError::Refused { .. })) => {
                silent_since.clear();
                teller.say(true).await;
            }
            Ok(Err(_)) | Err(_) if since.elapsed() >= SILENCE => teller.say(false).await,
            Ok(Err(_)) | Err(_) => {}
        }
        silent_since.retain(|known, _| *known == id);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Says whether the peer answers, until the connection ends or the peer has been silent for long: it may be
/// somebody else's name by then.
async fn attend(connection: &Connection, teller: &Teller<'_>) {
    // Within its range, so it is taken.
    let _ = connection.set_timeouts(Timeouts { heartbeat: HEARTBEAT, ..connection.timeouts() });
    let mut look = tokio::time::interval(LOOK);
    let mut answers = true;
    loop {
        tokio::select! {
            _ = connection.closed() => return,
            _ = look.tick() => {}
        }
        let silence = connection.stats().unreachable.unwrap_or_default();
        let now = silence < SILENCE;
        if now != answers {
            answers = now;
            teller.say(answers).await;
        }
        if silence > SILENCE * 4 {
            return;
        }
    }
}

/// A connection that ends with its check.
struct Ended(Connection);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort(CloseCode::NONE, "");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn names(count: usize) -> Vec<Name> {
        (0..count).map(|number| format!("r{number}.ops@example.org").parse().unwrap()).collect()
    }

    #[test]
    fn each_relay_watches_three_and_is_watched_by_three() {
        let all = names(50);
        let mut watchers: HashMap<Name, usize> = HashMap::new();
        for own in &all {
            let watched = watched(own, &all, |_| false);
            assert_eq!(watched.len(), WATCHED);
            assert!(!watched.contains(own));
            watched.into_iter().for_each(|name| *watchers.entry(name).or_default() += 1);
        }
        assert!(all.iter().all(|name| watchers.get(name) == Some(&WATCHED)), "{watchers:?}");
    }

    #[test]
    fn those_who_watch_a_silent_relay_look_beyond_it_too() {
        let all = names(20);
        let before = watched(&all[0], &all, |_| false);
        let after = watched(&all[0], &all, |name| *name == before[1]);
        assert_eq!((&after[..3], after.len()), (&before[..], 4));
        // The bound holds where none answers.
        assert_eq!(watched(&all[0], &all, |_| true).len(), MOST_WATCHED.min(19));
    }

    #[test]
    fn in_a_small_group_each_watches_all_others_and_a_relay_alone_nobody() {
        let all = names(3);
        let others: HashSet<_> = watched(&all[1], &all, |_| false).into_iter().collect();
        assert_eq!(others, HashSet::from([all[0].clone(), all[2].clone()]));
        assert!(watched(&all[0], &all[..1], |_| false).is_empty());
        // One that is not taken in yet watches as if it were.
        assert_eq!(watched(&"new.ops@example.org".parse().unwrap(), &all, |_| false).len(), 3);
    }
}
