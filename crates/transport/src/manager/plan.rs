//! What to do about the paths of a connection: a pure function from how things are to what should change.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_proto::{HandoverMode, MAX_PATHS, PathId, PathState, Priority};

use crate::dial::Candidate;
use crate::locator::Locator;
use crate::policy::{Interface, PathPolicy, Policy, Rank};

/// A path must be quicker by a quarter and this much for the data to go over to it.
const CLEARLY: Duration = Duration::from_millis(5);

/// From one of our interfaces to one of the peer's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) interface: Arc<str>,
    /// The peer's interface, as a number that it chose.
    pub(crate) slot: u8,
}

/// One of our interfaces that may be used.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) interface: Interface,
    pub(crate) ips: Vec<IpAddr>,
}

/// One of the peer's interfaces.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) slot: u8,
    pub(crate) places: Vec<Locator>,
    /// The peer wants it to stand by.
    pub(crate) reserve: bool,
}

/// A path as it stands.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) id: PathId,
    pub(crate) local: IpAddr,
    pub(crate) remote: Locator,
    pub(crate) state: PathState,
    pub(crate) priority: Priority,
    /// Somebody set the priority by hand.
    pub(crate) pinned: bool,
    /// It uses an interface that the policy does not allow.
    pub(crate) forbidden: bool,
    pub(crate) srtt: Duration,
}

/// How things are.
#[derive(Debug, Clone)]
pub(crate) struct Situation {
    pub(crate) mode: HandoverMode,
    /// Best first.
    pub(crate) locals: Vec<Local>,
    /// Best first.
    pub(crate) remotes: Vec<Remote>,
    /// How each of ours reaches each of the peer's; pairs that cannot are missing.
    pub(crate) ways: Vec<(Pair, Vec<Candidate>)>,
    /// Pairs that failed lately, or take long: addresses that lead nowhere from here, as those of
    /// virtual networks on the peer's host do.
    pub(crate) doubtful: Vec<Pair>,
    pub(crate) paths: Vec<View>,
}

/// A path that should be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) pair: Pair,
    pub(crate) ways: Vec<Candidate>,
    /// It should carry nothing while others work, in any mode.
    pub(crate) stands_by: bool,
}

/// What should change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Where a path should be opened, the most wanted first.
    pub(crate) join: Vec<Wanted>,
    /// Paths to give up.
    pub(crate) retire: Vec<PathId>,
    pub(crate) priorities: Vec<(PathId, Priority)>,
}

/// What should change, given how things are.
pub(crate) fn plan(situation: &Situation, policy: &PathPolicy) -> Plan {
    let covered = |pair: &Pair| {
        let paths = situation.paths.iter().filter(|path| path.state == PathState::Active);
        paths.filter_map(|path| situation.pair_of(path)).any(|of| of == *pair)
    };
    let wanted = wanted(situation, policy).into_iter().filter(|pair| !covered(pair));
    let join = wanted.filter_map(|pair| {
        let ways = situation.ways(&pair)?.clone();
        Some(Wanted { stands_by: situation.reserves(&pair, policy), pair, ways })
    });
    let join = join.collect();
    Plan { join, retire: superfluous(situation), priorities: priorities(situation, policy) }
}

impl Situation {
    /// Which pair a path belongs to, if it is one that may be used.
    pub(crate) fn pair_of(&self, path: &View) -> Option<Pair> {
        let local = self.local_of(path)?;
        let remote = self.remotes.iter().find(|remote| remote.places.contains(&path.remote))?;
        Some(Pair { interface: local.interface.name.clone(), slot: remote.slot })
    }

    fn local_of(&self, path: &View) -> Option<&Local> {
        self.locals.iter().find(|local| local.ips.contains(&path.local))
    }

    pub(crate) fn ways(&self, pair: &Pair) -> Option<&Vec<Candidate>> {
        self.ways.iter().find(|(of, _)| of == pair).map(|(_, ways)| ways)
    }

    fn reserves(&self, pair: &Pair, policy: &PathPolicy) -> bool {
        let local =
            self.locals.iter().any(|l| l.interface.name == pair.interface && policy.reserves(&l.interface));
        local || self.remotes.iter().any(|r| r.slot == pair.slot && r.reserve)
    }

    fn doubts(&self, pair: &Pair) -> bool {
        self.doubtful.contains(pair)
    }

    pub(crate) fn has_active_path(&self) -> bool {
        self.paths.iter().any(|path| path.state == PathState::Active)
    }
}

/// The pairs that should have a path, best first. Where one is doubtful, its ends are paired otherwise too,
/// lest an interface of ours stays unused.
fn wanted(situation: &Situation, policy: &PathPolicy) -> Vec<Pair> {
    if situation.mode == HandoverMode::Single {
        let mut pairs = pairs(situation, policy, |_| true);
        pairs.truncate(1);
        return pairs;
    }
    let mut wanted = pairs(situation, policy, |pair| !situation.doubts(pair));
    let doubtful = pairs(situation, policy, |_| true).into_iter().filter(|pair| situation.doubts(pair));
    wanted.extend(doubtful);
    wanted.truncate(policy.max_paths.clamp(1, MAX_PATHS));
    wanted
}

/// Each of ours and each of the peer's at least once, the best with the best, of the pairs that will do.
fn pairs(situation: &Situation, policy: &PathPolicy, will_do: impl Fn(&Pair) -> bool) -> Vec<Pair> {
    let Situation { locals, remotes, .. } = situation;
    let pair = |local: usize, remote: usize| {
        let pair = Pair { interface: locals[local].interface.name.clone(), slot: remotes[remote].slot };
        (situation.ways(&pair).is_some() && will_do(&pair)).then_some(pair)
    };
    let first_of = |local: usize| (0..remotes.len()).find_map(|remote| pair(local, remote));
    let first_to = |remote: usize| (0..locals.len()).find_map(|local| pair(local, remote));
    let mut pairs: Vec<Pair> = Vec::new();
    let mut add = |pair: Option<Pair>| {
        if let Some(pair) = pair
            && !pairs.contains(&pair)
        {
            pairs.push(pair);
        }
    };
    if locals.is_empty() || remotes.is_empty() {
        return pairs;
    }
    for turn in 0..locals.len().max(remotes.len()) {
        let (local, remote) = (turn % locals.len(), turn % remotes.len());
        match pair(local, remote) {
            Some(pair) => add(Some(pair)),
            None => {
                add(first_of(local));
                add(first_to(remote));
            }
        }
    }
    if policy.mesh {
        (0..locals.len()).for_each(|local| (0..remotes.len()).for_each(|remote| add(pair(local, remote))));
    }
    pairs
}

/// Paths that another one has replaced: a suspect one whose successor works, and one that came where
/// another works already. And those that the policy does not allow (any more).
fn superfluous(situation: &Situation) -> Vec<PathId> {
    let active = |path: &&View| path.state == PathState::Active;
    let replaced = |path: &View| {
        let pair = situation.pair_of(path);
        let same = |other: &&View| other.id != path.id && situation.pair_of(other) == pair;
        let mut others = situation.paths.iter().filter(active).filter(same);
        pair.is_some()
            && match path.state {
                PathState::Suspect => others.any(|other| other.id > path.id),
                PathState::Active => others.any(|other| other.id < path.id),
                _ => false,
            }
    };
    situation.paths.iter().filter(|path| path.forbidden || replaced(path)).map(|path| path.id).collect()
}

/// What each path's priority should become. What was set by hand stays.
fn priorities(situation: &Situation, policy: &PathPolicy) -> Vec<(PathId, Priority)> {
    let best = match situation.mode {
        HandoverMode::Single => return Vec::new(),
        HandoverMode::Full => None,
        HandoverMode::Backup => Some(best(situation, policy)),
    };
    let should = |path: &View| {
        let carries = match best {
            None => !stands_by(situation, policy, path),
            Some(best) => best == Some(path.id),
        };
        if carries { Priority::Normal } else { Priority::Backup }
    };
    // Without a path that works there is nothing to choose from.
    let settled = best != Some(None);
    let free = situation.paths.iter().filter(|path| !path.pinned && settled);
    free.filter(|path| path.state != PathState::Opening)
        .map(|path| (path.id, should(path)))
        .filter(|(id, priority)| situation.paths.iter().any(|p| p.id == *id && p.priority != *priority))
        .collect()
}

fn stands_by(situation: &Situation, policy: &PathPolicy, path: &View) -> bool {
    let local = situation.local_of(path).is_some_and(|local| policy.reserves(&local.interface));
    let remote = situation.remotes.iter().any(|r| r.reserve && r.places.contains(&path.remote));
    local || remote
}

/// Mode `backup`: the path that carries the data. It changes for a better one only.
fn best(situation: &Situation, policy: &PathPolicy) -> Option<PathId> {
    const UNKNOWN: Rank = (u8::MAX, usize::MAX, u8::MAX);
    let weight = |path: &View| {
        let carries = path.priority == Priority::Normal;
        let rank = situation.local_of(path).map_or(UNKNOWN, |local| policy.rank(&local.interface));
        let time = match policy.policy {
            Policy::LowestLatency if carries => (path.srtt * 3 / 4).saturating_sub(CLEARLY),
            Policy::LowestLatency => path.srtt,
            _ => Duration::ZERO,
        };
        let rank = if policy.policy == Policy::LowestLatency { (0, 0, 0) } else { rank };
        (stands_by(situation, policy, path), rank, time, !carries, path.id)
    };
    let active = situation.paths.iter().filter(|path| path.state == PathState::Active);
    // One that was made a backup path by hand is no candidate.
    let free = active.filter(|path| !path.pinned || path.priority == Priority::Normal);
    free.min_by_key(|path| weight(path)).map(|path| path.id)
}

#[cfg(test)]
mod tests;
