//! Limits of what this process sends, set from outside: by `whimbrel limit`, by a file that is watched, or by
//! another program on the command's socket.
//!
//! A rule says which connections share a rate. The engine paces each connection ([`RateLimit`]); what is here
//! gives each its share, again and again, by what it used of the last one.

mod file;
mod rate;
mod share;

use futures_util::FutureExt;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use whimbrel::Endpoint;
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_transport::{ConnectionInfo, EndpointEvent, EndpointEvents, RateLimit, Side, Urgency};

#[cfg(feature = "fuzzing")]
pub(crate) use self::file::read_anything;
pub(crate) use self::rate::{Rate, Setting};

/// Between two looks at how connections use their shares.
const LOOK: Duration = Duration::from_millis(500);
/// More rules are not kept.
const MAX_RULES: usize = 256;
const LEVELS: usize = 8;

/// Which connections of a process: those that fit all that is said. Without anything, all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Who {
    /// The name that was dialled, or is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<EndpointId>,
    /// The beginning of a connection's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<String>,
    /// What is this urgent, in each of the connections; 0 goes first, 7 last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) urgency: Option<u8>,
}

/// What connections may send together; with an urgency, what each may send of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) rate: Rate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<EndpointId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    urgency: Option<u8>,
}

impl Rule {
    pub(crate) fn new(rate: Rate, who: Who) -> Self {
        let Who { name, peer, connection, urgency } = who;
        Self { rate, name, peer, connection, urgency }
    }

    pub(crate) fn who(&self) -> Who {
        let (name, peer, connection) = (self.name.clone(), self.peer, self.connection.clone());
        Who { name, peer, connection, urgency: self.urgency }
    }

    fn check(&self) -> Result<(), String> {
        match self.urgency {
            Some(level) if Urgency::new(level).is_none() => {
                Err(format!("an urgency is 0 (first) to 7 (last), not {level}"))
            }
            _ => Ok(()),
        }
    }

    fn covers(&self, id: ConnectionId, peer: EndpointId, name: Option<&str>) -> bool {
        self.name.as_deref().is_none_or(|wanted| name == Some(wanted))
            && self.peer.is_none_or(|wanted| wanted == peer)
            && self.connection.as_deref().is_none_or(|begin| id.to_string().starts_with(begin))
    }
}

/// In words: `2 Mbit/s for alice@example.org`.
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.rate)?;
        if let Some(level) = self.urgency {
            write!(f, " of urgency {level}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " for {name}")?;
        }
        if let Some(peer) = &self.peer {
            write!(f, " for peer {}", peer.short())?;
        }
        if let Some(connection) = &self.connection {
            write!(f, " for connection {connection}")?;
        }
        Ok(())
    }
}

/// Fails if the file has a mistake.
///
/// # Errors
/// What is wrong, and where.
pub(crate) fn check(file: &Path) -> Result<()> {
    file::read(file).map(drop)
}

/// The rules in force for this process's connections. Cheap to clone; clones share everything.
#[derive(Clone)]
pub(crate) struct Limits {
    inner: Arc<Inner>,
}

struct Inner {
    rules: Mutex<Rules>,
    changed: Notify,
    endpoint: Endpoint,
    /// The name service's connection is never held back: moves depend on it.
    service: Option<EndpointId>,
    /// What the connections of this process are for.
    name: Option<String>,
}

#[derive(Default)]
struct Rules {
    by_file: Vec<Rule>,
    by_hand: Vec<Rule>,
}

impl Limits {
    /// Reads the file, if there is one, and follows it and the connections until the tasks are dropped.
    ///
    /// # Errors
    /// What is wrong in the file.
    pub(crate) fn start(
        endpoint: &Endpoint,
        service: Option<EndpointId>,
        name: Option<String>,
        file: Option<PathBuf>,
    ) -> Result<(Self, JoinSet<()>)> {
        let by_file = file.as_deref().map(file::read).transpose()?.unwrap_or_default();
        let rules = Mutex::new(Rules { by_file, by_hand: Vec::new() });
        let inner = Inner { rules, changed: Notify::new(), endpoint: endpoint.clone(), service, name };
        let limits = Self { inner: Arc::new(inner) };
        let mut tasks = JoinSet::new();
        if let Some(file) = file {
            tasks.spawn(FutureExt::boxed(file::watch(limits.clone(), file)));
        }
        tasks.spawn(FutureExt::boxed(limits.clone().keep()));
        Ok((limits, tasks))
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All rules in force.
    pub(crate) fn all(&self) -> Vec<Rule> {
        let rules = self.rules();
        rules.by_file.iter().chain(&rules.by_hand).cloned().collect()
    }

    /// Puts a rule in force, in the place of one that was set by hand for the same connections.
    pub(crate) fn set(&self, rule: Rule) -> Result<(), String> {
        rule.check()?;
        let mut rules = self.rules();
        rules.by_hand.retain(|known| known.who() != rule.who());
        if rules.by_hand.len() >= MAX_RULES {
            return Err(format!("{MAX_RULES} limits are in force; lift some first"));
        }
        rules.by_hand.push(rule);
        drop(rules);
        self.inner.changed.notify_one();
        Ok(())
    }

    /// Lifts a limit that was set by hand.
    pub(crate) fn lift(&self, who: &Who) -> Result<(), String> {
        let mut rules = self.rules();
        let before = rules.by_hand.len();
        rules.by_hand.retain(|known| known.who() != *who);
        if rules.by_hand.len() == before {
            return Err(match rules.by_file.iter().any(|known| known.who() == *who) {
                true => "the limit comes from the command's --limits file; change it there".to_owned(),
                false => "there is no such limit to lift; see `whimbrel limit`".to_owned(),
            });
        }
        drop(rules);
        self.inner.changed.notify_one();
        Ok(())
    }

    fn put_from_file(&self, by_file: Vec<Rule>) {
        self.rules().by_file = by_file;
        self.inner.changed.notify_one();
    }

    /// Gives connections their shares, whenever rules or connections change, and twice a second.
    async fn keep(self) {
        let mut applied = Applied::default();
        let mut events: Option<EndpointEvents> = None;
        loop {
            let rules = self.all();
            if rules.is_empty() {
                applied.lift_all(&self.inner.endpoint);
                events = None;
                self.inner.changed.notified().await;
                continue;
            }
            // Asked for before the connections are looked at: none is missed.
            let events = events.get_or_insert_with(|| self.inner.endpoint.events());
            self.apply(&rules, &mut applied);
            tokio::select! {
                () = self.inner.changed.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = established(events) => {}
            }
        }
    }

    fn apply(&self, rules: &[Rule], applied: &mut Applied) {
        let inner = &self.inner;
        let mut connections = inner.endpoint.connections();
        connections.retain(|one| !(one.side == Side::Client && inner.service == Some(one.peer)));
        let used = applied.used(&connections);
        let mut wanted: Vec<Given> = connections.iter().map(|_| Given::default()).collect();
        for rule in rules {
            let covered: Vec<usize> = (0..connections.len())
                .filter(|at| rule.covers(connections[*at].id, connections[*at].peer, inner.name.as_deref()))
                .collect();
            if let Some(level) = rule.urgency {
                for at in covered {
                    let limit = &mut wanted[at].levels[usize::from(level)];
                    *limit = Some(limit.map_or(rule.rate.limit(), |known| known.min(rule.rate.limit())));
                }
                continue;
            }
            let uses: Vec<share::Use> = covered.iter().map(|at| used[*at]).collect();
            for (at, share) in covered.into_iter().zip(share::shares(rule.rate.bytes(), &uses)) {
                let limit = &mut wanted[at].all;
                let share = RateLimit::new(share).unwrap_or(RateLimit::LEAST);
                *limit = Some(limit.map_or(share, |known| known.min(share)));
            }
        }
        for (connection, given) in connections.iter().zip(wanted) {
            applied.give(&inner.endpoint, connection.id, given);
        }
    }
}

/// Waits for a connection that begins. Cancel-safe.
async fn established(events: &mut EndpointEvents) {
    loop {
        match events.next().await {
            Some(EndpointEvent::Established { .. } | EndpointEvent::Missed(_)) => return,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// The limits of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Given {
    all: Option<RateLimit>,
    levels: [Option<RateLimit>; LEVELS],
}

/// What connections were given, and how much they have sent since.
#[derive(Default)]
struct Applied {
    known: HashMap<ConnectionId, (Given, u64)>,
    at: Option<Instant>,
}

impl Applied {
    /// What each has used of its share since the last call.
    fn used(&mut self, connections: &[ConnectionInfo]) -> Vec<share::Use> {
        let now = Instant::now();
        let passed = self.at.replace(now).map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let all: Vec<(ConnectionId, u64)> = connections.iter().map(|one| (one.id, sent(one))).collect();
        let used = all.iter().map(|(id, sent)| {
            let known = self.known.get(id)?;
            let share = known.0.all?.bytes_per_second();
            // So soon after the last look, it says nothing.
            let used = (passed > 0.1).then(|| ((sent.saturating_sub(known.1)) as f64 / passed) as u64);
            Some((share, used.unwrap_or(share)))
        });
        let used = used.collect();
        let known =
            all.iter().map(|(id, sent)| (*id, (self.known.get(id).map_or(Given::default(), |k| k.0), *sent)));
        self.known = known.collect();
        used
    }

    fn give(&mut self, endpoint: &Endpoint, id: ConnectionId, given: Given) {
        let Some((known, _)) = self.known.get_mut(&id) else { return };
        let before = std::mem::replace(known, given);
        if before == given {
            return;
        }
        let Some(control) = endpoint.rate_control(id) else { return };
        if before.all != given.all {
            control.set_rate_limit(given.all);
        }
        for (level, (before, now)) in (0..).zip(before.levels.iter().zip(given.levels)) {
            if let Some(urgency) = Urgency::new(level).filter(|_| *before != now) {
                control.set_urgency_limit(urgency, now);
            }
        }
    }

    fn lift_all(&mut self, endpoint: &Endpoint) {
        let ids: Vec<ConnectionId> = self.known.keys().copied().collect();
        for id in ids {
            self.give(endpoint, id, Given::default());
        }
        *self = Self::default();
    }
}

fn sent(connection: &ConnectionInfo) -> u64 {
    let stats = &connection.stats;
    let messages = &stats.messages;
    stats.bytes_sent + stats.bytes_resent + messages.bytes_sent + messages.bytes_resent
}
