//! A decision: what is asked and what is known, put before the policy, and its answer in words that a program
//! can act on. No sockets and no clock.

mod checks;
mod moving;

pub(crate) use checks::{AskError, check};

use crate::failures::Failures;
use crate::load::Load;
use crate::paths::round;
use crate::protocol::{
    Ask, Chosen, Decided, Deciding, OpenOn, PartWay, Protocol, SocketOptions, Verdict, Way,
};
use crate::{Paths, words};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use whimbrel_access::{
    Analytic, Choice, Connection, ConnectionId, Decision, Destination, Intents, MAX_PATHS, PathEstimate,
    PathId, PathList, Policy, Rule, Seconds, Sharing, Situation, Timeliness,
};
use whimbrel_base::order;

/// What counts as received where nobody says how much it is: the median of a page's objects, roughly.
const UNKNOWN_SIZE: u64 = 100_000;
/// The most ways to connect that are considered: policies compare no more than 64.
const MOST_DESTINATIONS: usize = 32;
/// The DSCP of what goes in the background: lower effort (RFC 8622).
const LOWER_EFFORT: u8 = 1;
/// Stands for "anywhere" where a question has no destination.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// A destination to which no path leads. A situation without destinations means that all paths lead there.
const NOWHERE: Destination = Destination { address: ANYWHERE, path: PathId(u8::MAX) };

/// An address to which a unit could go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) address: SocketAddr,
    /// The kernel's number of the interface whose DNS answered with it. `None`: any interface may go there.
    pub(crate) interface: Option<u32>,
}

/// What is kept of another program's reason, in characters.
const LONGEST_WHY: usize = 300;

/// Decides, one unit after the other.
pub(crate) struct Decider {
    policy: Box<dyn Policy>,
    pub(crate) load: Load,
    pub(crate) failures: Failures,
    /// What its clients measured counts for them alone, and is not in the paths.
    adds_measured: bool,
    // Kept for their memory.
    decision: Decision,
    destinations: Vec<Destination>,
    connections: Vec<Connection>,
}

/// What is decided about.
#[derive(Clone, Copy)]
struct About<'a> {
    now: Duration,
    paths: &'a Paths,
    estimates: &'a [PathEstimate],
    ask: &'a Ask,
    candidates: &'a [Candidate],
    /// What another program chose, and its name.
    chosen: Option<(&'a str, &'a Chosen)>,
}

/// What stays the same while the policy is asked once.
struct Case<'a> {
    ask: &'a Ask,
    paths: &'a Paths,
    estimates: &'a [PathEstimate],
    destinations: &'a [Destination],
    failures: &'a Failures,
    now: Duration,
    stated: Intents,
}

impl Decider {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            load: Load::default(),
            failures: Failures::default(),
            adds_measured: false,
            decision: Decision::default(),
            destinations: Vec::new(),
            connections: Vec::new(),
        }
    }

    /// One that decides for a single user of several.
    pub(crate) fn of_user(policy: Box<dyn Policy>) -> Self {
        Self { adds_measured: true, ..Self::new(policy) }
    }

    /// Decides for a client at this time. What another program chose goes first, as far as it is possible; of
    /// what is under way none is asked.
    ///
    /// # Errors
    /// When a connection is listed twice.
    pub(crate) fn decide(
        &mut self,
        now: Duration,
        client: u64,
        paths: &Paths,
        ask: &Ask,
        candidates: &[Candidate],
        chosen: Option<(&str, &Chosen)>,
    ) -> Result<Verdict, AskError> {
        let mut estimates = [PathEstimate::default(); MAX_PATHS];
        let estimates = &mut estimates[..paths.len().min(MAX_PATHS)];
        estimates.copy_from_slice(&paths.estimates()[..estimates.len()]);
        if self.adds_measured {
            for (path, known) in paths.present() {
                if let Some(estimate) = estimates.get_mut(path.index()) {
                    self.load.add_measured(known.index, estimate, now);
                }
            }
        }
        self.load.add_scheduled(estimates, now);
        if let Some(unit) = ask.left_of {
            self.load.leave_out(client, unit, estimates);
        }
        let mut verdict = Verdict::default();
        self.list_connections(paths, ask, &mut verdict)?;
        let about = About { now, paths, estimates, ask, candidates, chosen };
        let (problems, avoids) = (verdict.problems.clone(), !self.failures.is_empty());
        let left_out = self.put_before_policy(&about, avoids, &mut verdict);
        // What may go over one network alone is not refused because that failed a moment ago. What is under
        // way stays where it is.
        if left_out && verdict.ways.is_empty() && ask.under_way.is_none() {
            verdict.problems = problems;
            self.put_before_policy(&about, false, &mut verdict);
        }
        if ask.track {
            let counts_late = self.policy.sharing() == Sharing::ObjectsOrBytes;
            let takes = takes(estimates, paths, ask, &verdict, counts_late);
            verdict.unit = self.load.schedule(client, shares(paths, ask, &verdict), now, takes);
        }
        Ok(verdict)
    }

    /// Has the policy decide, or takes over what another program chose. Where it `avoids`, ways that failed
    /// lately are left out, unless there is no other. Returns whether any was.
    fn put_before_policy(&mut self, about: &About<'_>, avoids: bool, verdict: &mut Verdict) -> bool {
        let About { now, paths, estimates, ask, candidates, chosen } = *about;
        let left_out = self.list_destinations(about, avoids);
        let situation = Situation {
            now: Seconds(now.as_secs_f64()),
            granularity: ask.granularity,
            intents: &ask.intents,
            paths: estimates,
            destinations: &self.destinations,
            connections: &self.connections,
        };
        let (destinations, failures, stated) = (&self.destinations[..], &self.failures, situation.stated());
        let case = Case { ask, paths, estimates, destinations, failures, now, stated };
        if let Some((name, chosen)) = chosen {
            case.take_over(&situation, name, chosen, verdict);
        }
        if verdict.ways.is_empty() {
            verdict.policy = self.policy.name().to_owned();
            let (policy, decision) = (&mut *self.policy, &mut self.decision);
            decision.clear();
            match &ask.under_way {
                Some(under_way) => moving::reconsider(policy, &situation, under_way, decision),
                None => {
                    let mut forecast = Analytic::new(situation, policy.sharing(), UNKNOWN_SIZE);
                    policy.decide(&situation, &mut forecast, decision);
                }
            }
            case.fill(decision, verdict);
        }
        if verdict.ways.is_empty() && ask.under_way.is_none() {
            let is_here = |candidate: &Candidate| paths.are_at(candidate.address.ip());
            verdict.local = !candidates.is_empty() && candidates.iter().all(is_here);
            verdict.problems.push(match verdict.local {
                true => "this is an address of this host; the system leads there by itself".to_owned(),
                false => case.nothing(),
            });
        }
        left_out
    }

    /// The question to another program.
    pub(crate) fn question(
        &self,
        now: Duration,
        n: u64,
        paths: &Paths,
        ask: &Ask,
        candidates: &[Candidate],
    ) -> Deciding {
        let leads = |path: PathId| {
            let known = paths.get(path);
            let fits = |candidate: &Candidate| known.is_some_and(|known| leads(paths, known, candidate));
            has_no_destination(ask) || candidates.iter().any(fits)
        };
        let mut with_load = paths.clone();
        self.load.add_scheduled(with_load.estimates_mut(), now);
        let numbers = paths.present().map(|(id, _)| id).filter(|id| leads(*id));
        let connections = ask.connections.iter().filter_map(|connection| {
            let path = paths.get(paths.with_address(connection.source)?)?;
            let interface = path.interface.to_string();
            Some(OpenOn { id: connection.id, interface, scheduled: connection.scheduled })
        });
        Deciding {
            n,
            intents: ask.intents,
            granularity: ask.granularity,
            to: ask.to.clone(),
            paths: numbers.filter_map(|id| with_load.report_of(id)).collect(),
            connections: connections.collect(),
        }
    }

    /// Each way from a path to an address of it. Where it `avoids`, those that failed lately only if there is
    /// no other. Returns whether any of these was left out.
    fn list_destinations(&mut self, about: &About<'_>, avoids: bool) -> bool {
        let About { now, paths, ask, candidates, .. } = *about;
        self.destinations.clear();
        if has_no_destination(ask) {
            let anywhere = paths.present().map(|(path, _)| Destination { address: ANYWHERE, path });
            self.destinations.extend(anywhere);
        }
        let mut left_out = false;
        for avoiding in [avoids, false] {
            if !self.destinations.is_empty() {
                break;
            }
            left_out = false;
            for candidate in candidates {
                for (path, known) in paths.present() {
                    if self.destinations.len() == MOST_DESTINATIONS {
                        return left_out;
                    }
                    let address = candidate.address;
                    if !leads(paths, known, candidate) {
                        continue;
                    }
                    let heard = paths.heard(path, now);
                    if avoiding && self.failures.avoids(now, known.index, address.ip(), heard) {
                        left_out = true;
                    } else {
                        self.destinations.push(Destination { address, path });
                    }
                }
            }
        }
        if self.destinations.is_empty() {
            self.destinations.push(NOWHERE);
        }
        left_out
    }

    /// The connections whose paths are there.
    fn list_connections(&mut self, paths: &Paths, ask: &Ask, verdict: &mut Verdict) -> Result<(), AskError> {
        self.connections.clear();
        for open in &ask.connections {
            match paths.with_address(open.source) {
                Some(path) => self.connections.push(Connection {
                    id: ConnectionId(open.id),
                    paths: PathList::one(path),
                    scheduled: open.scheduled,
                }),
                None => verdict.problems.push(format!(
                    "connection {} is from {}, which no interface has any more",
                    open.id, open.source
                )),
            }
        }
        order::by_key(&mut self.connections, |connection| connection.id);
        match self.connections.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(AskError::Twice(pair[0].id.0)),
            None => Ok(()),
        }
    }
}

fn has_no_destination(ask: &Ask) -> bool {
    ask.to.is_none() && ask.addresses.is_empty()
}

fn leads(paths: &Paths, path: &crate::paths::KnownPath, candidate: &Candidate) -> bool {
    candidate.interface.is_none_or(|index| index == path.index)
        && path.leads_to(candidate.address.ip())
        && !paths.are_at(candidate.address.ip())
}

/// How long a unit takes whose size was stated, if it comes as soon as a path can bring it. How late its path
/// is by what came before is no part of that, though the forecast `counts_late`: else half of it would be
/// learnt.
fn takes(
    estimates: &[PathEstimate],
    paths: &Paths,
    ask: &Ask,
    verdict: &Verdict,
    counts_late: bool,
) -> Option<Duration> {
    let way = verdict.ways.first()?;
    let bytes = ask.intents.at(ask.granularity).received()?;
    let late = estimates.get(paths.named(&way.interface)?.index())?.late_for(bytes);
    let counted = if counts_late { late.0 } else { 0.0 };
    Duration::try_from_secs_f64(way.completes_ms? / 1000.0 - counted).ok()
}

/// How many bytes are to come over each path.
fn shares(paths: &Paths, ask: &Ask, verdict: &Verdict) -> Vec<(PathId, u64)> {
    let path = |way: &Way| paths.named(&way.interface);
    if verdict.parts.is_empty() {
        let bytes = ask.intents.at(ask.granularity).received().unwrap_or(UNKNOWN_SIZE);
        return verdict.ways.first().and_then(path).map(|path| (path, bytes)).into_iter().collect();
    }
    verdict.parts.iter().filter_map(|part| Some((path(&part.way)?, part.bytes))).collect()
}

impl Case<'_> {
    /// Writes down what the policy decided.
    fn fill(&self, decision: &Decision, verdict: &mut Verdict) {
        for ranked in decision.ranked() {
            let why = words::why(&ranked.reason, &self.ask.intents, self.paths, self.estimates);
            if let Some(mut way) = self.way(ranked.choice, why) {
                way.completes_ms = ranked.completes.and_then(|at| self.millis(at));
                verdict.ways.push(way);
            }
        }
        for part in decision.parts() {
            let why = whimbrel_access::Reason::rule(Rule::Split).to_string();
            if let Some(way) = self.way(part.choice, why) {
                verdict.parts.push(PartWay { bytes: part.bytes, way });
            }
        }
        let warm = "for what comes next".to_owned();
        verdict.warm = decision.warm().and_then(|choice| self.way(choice, warm));
    }

    /// Writes down what another program chose, as far as the question allows it.
    fn take_over(&self, situation: &Situation<'_>, name: &str, chosen: &Chosen, verdict: &mut Verdict) {
        let why = || match chosen.why.is_empty() {
            true => format!("{name} chose it"),
            // It stands beside each way.
            false => chosen.why.chars().take(LONGEST_WHY).collect(),
        };
        if let Some(id) = chosen.reuse
            && situation.reusable().any(|connection| connection.id.0 == id)
        {
            verdict.ways.extend(self.way(Choice::Reuse(ConnectionId(id)), why()));
        }
        for interface in chosen.open.iter().take(MAX_PATHS) {
            let Some(path) = self.paths.named(interface) else { continue };
            let listed = verdict.ways.iter().any(|way| way.reuse.is_none() && way.interface == *interface);
            if !listed && situation.usable().any(|usable| usable == path) {
                let openings = situation.openings(PathList::one(path));
                verdict.ways.extend(openings.filter_map(|choice| self.way(choice, why())));
            }
        }
        if verdict.ways.is_empty() {
            verdict.problems.push(format!("{name} chose nothing that is possible; the policy decided"));
        } else {
            verdict.policy = name.to_owned();
        }
    }

    fn way(&self, choice: Choice, why: String) -> Option<Way> {
        match choice {
            Choice::Reuse(ConnectionId(id)) => {
                let open = self.ask.connections.iter().find(|open| open.id == id)?;
                let number = self.paths.with_address(open.source)?;
                let interface = self.paths.get(number)?.interface.to_string();
                // What was decided for a few bytes is not to spend money on many.
                let known = self.estimates.get(number.index());
                let round_trip = known.filter(|known| !known.metered).and_then(PathEstimate::in_a_round_trip);
                let holds = known.and_then(PathEstimate::holds);
                let (reuse, source) = (Some(id), Some(open.source));
                Some(Way { reuse, interface, source, round_trip, holds, why, ..Way::default() })
            }
            Choice::Open { paths, destination } => {
                let path = self.paths.get(paths.first())?;
                let heard = self.paths.heard(paths.first(), self.now);
                let to = destination.and_then(|at| self.destinations.get(usize::from(at.0)));
                let to = to.map(|to| to.address).filter(|to| *to != ANYWHERE);
                let source = match to {
                    Some(to) => path.source_for(to.ip()),
                    None => path.addresses.first().copied(),
                };
                let others = paths.as_slice().iter().skip(1).filter_map(|other| self.paths.get(*other));
                let protocol = if paths.is_multipath() { Protocol::Mptcp } else { Protocol::Tcp };
                Some(Way {
                    reuse: None,
                    interface: path.interface.to_string(),
                    source,
                    destination: to,
                    protocol,
                    also: others.map(|other| other.interface.to_string()).collect(),
                    options: self.options(&path.interface, protocol),
                    // Its window has to grow first.
                    round_trip: None,
                    holds: self.estimates.get(paths.first().index()).and_then(PathEstimate::holds),
                    completes_ms: None,
                    why,
                    failed_lately: to
                        .is_some_and(|to| self.failures.avoids(self.now, path.index, to.ip(), heard)),
                })
            }
        }
    }

    /// A connection over several interfaces must not be bound to one of them: its subflows could not leave by
    /// the others.
    fn options(&self, interface: &str, protocol: Protocol) -> SocketOptions {
        let timeliness = self.stated.timeliness();
        SocketOptions {
            bind_to_device: (protocol == Protocol::Tcp).then(|| interface.to_owned()),
            tcp_nodelay: timeliness == Timeliness::Interactive,
            dscp: (timeliness == Timeliness::Background).then_some(LOWER_EFFORT),
        }
    }

    fn millis(&self, at: Seconds) -> Option<f64> {
        let left = (at.0 - self.now.as_secs_f64()).max(0.0) * 1000.0;
        left.is_finite().then(|| round(left))
    }

    /// Why there is no way.
    fn nothing(&self) -> String {
        if self.paths.present().next().is_none() {
            return "no interface is up and has an address".to_owned();
        }
        let leads = self.destinations.iter().any(|destination| *destination != NOWHERE);
        match (&self.ask.to, leads) {
            (_, true) => "the policy leaves no path that leads there; it has to wait".to_owned(),
            (Some(to), false) => format!("no interface has a route and an address for {to}"),
            (None, false) => "no interface has a route to these addresses".to_owned(),
        }
    }
}

/// What is told to those who watch.
pub(crate) fn told(ask: &Ask, verdict: &Verdict) -> Decided {
    Decided {
        intents: ask.intents.to_string(),
        to: ask.to.clone(),
        policy: verdict.policy.clone(),
        way: verdict.ways.first().cloned(),
        whimbrel: verdict.whimbrel.clone(),
        parts: verdict.parts.len(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
