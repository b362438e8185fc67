//! Which subflows a connection of Multipath TCP is to have by a decision, and what has to be done for that.
//! Pure.

use crate::Paths;
use crate::mptcp::{Action, Subflow};
use crate::protocol::{Verdict, Way};
use std::net::{IpAddr, SocketAddr};
use whimbrel_access::{Category, Cost, Intents, PathId, Resilience, Timeliness};

/// A subflow that a connection is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) path: PathId,
    pub(crate) interface: String,
    /// The kernel's number of the interface.
    pub(crate) index: u32,
    pub(crate) source: IpAddr,
    /// Data flows over it only while no other works.
    pub(crate) is_backup: bool,
}

/// The subflows that a connection with these intents to this place is to have, best first.
///
/// - The networks of a decision in parts, and those of a multipath connection, carry together; and, of
///   traffic of the category `bulk`, all networks of the decision that cost nothing. Else the first one
///   carries.
/// - The other networks of the decision stand by.
/// - With `no-expense` none is over a network that costs money.
pub(crate) fn wanted(verdict: &Verdict, intents: &Intents, paths: &Paths, to: IpAddr) -> Vec<Wanted> {
    let is_metered = |name: &str| {
        let path = paths.named(name);
        path.and_then(|path| paths.estimates().get(path.index())).is_none_or(|known| known.metered)
    };
    let carrying = together(verdict, intents, is_metered);
    let mut names = carrying.clone();
    verdict.ways.iter().for_each(|way| add(&mut names, &way.interface));
    let is_free_only = intents.cost() == Cost::NoExpense;
    let allowed = names.into_iter().filter(|name| !(is_free_only && is_metered(name)));
    let found = allowed.filter_map(|name| {
        let path = paths.named(name)?;
        let known = paths.get(path)?;
        let source = known.source_for(to)?;
        let is_backup = !carrying.contains(&name);
        Some(Wanted { path, interface: name.to_owned(), index: known.index, source, is_backup })
    });
    let mut found: Vec<Wanted> = found.collect();
    // What carried may not be there any more.
    if let Some(first) = found.first_mut() {
        first.is_backup = false;
    }
    found
}

/// The networks that carry data at the same time; the first one alone, if it is not several.
fn together<'a>(verdict: &'a Verdict, intents: &Intents, is_metered: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut names = Vec::new();
    verdict.parts.iter().for_each(|part| add(&mut names, &part.way.interface));
    if let Some(first) = verdict.ways.first() {
        if names.is_empty() {
            add(&mut names, &first.interface);
        }
        first.also.iter().for_each(|other| add(&mut names, other));
    }
    if names.len() < 2 && takes_what_it_gets(intents) {
        let pays = intents.cost() == Cost::Ignore;
        let works = |way: &&Way| !way.failed_lately && (pays || !is_metered(&way.interface));
        verdict.ways.iter().filter(works).for_each(|way| add(&mut names, &way.interface));
    }
    names
}

/// Whether every network is welcome: nobody waits for a single byte of it.
fn takes_what_it_gets(intents: &Intents) -> bool {
    intents.category() == Category::Bulk
        && intents.timeliness() == Timeliness::Transfer
        && intents.resilience() != Resilience::Sensitive
}

fn add<'a>(names: &mut Vec<&'a str>, name: &'a str) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// The path that a subflow is on.
pub(crate) fn path_of(subflow: &Subflow, paths: &Paths) -> Option<PathId> {
    paths.with_address(subflow.ends.local.ip())
}

/// What has to be done so that a connection with these subflows to this place has the wanted ones.
///
/// A subflow that is not wanted is closed when one that is wanted works, and not before: the last one is the
/// connection. Where nothing is wanted, everything stays.
pub(crate) fn plan(present: &[Subflow], wanted: &[Wanted], paths: &Paths, remote: SocketAddr) -> Vec<Action> {
    let is_on = |subflow: &Subflow, want: &Wanted| path_of(subflow, paths) == Some(want.path);
    let mut actions = Vec::new();
    for want in wanted {
        let mut is_there = false;
        for subflow in present.iter().filter(|subflow| is_on(subflow, want)) {
            is_there = true;
            if subflow.is_established && subflow.is_backup != want.is_backup {
                let (local, remote) = (subflow.ends.local, subflow.ends.remote);
                actions.push(Action::SetBackup { local, remote, is_backup: want.is_backup });
            }
        }
        if !is_there {
            actions.push(Action::Create {
                source: want.source,
                interface: want.index,
                number: number(want.path),
                is_backup: want.is_backup,
                remote,
            });
        }
    }
    let is_wanted = |subflow: &Subflow| wanted.iter().any(|want| is_on(subflow, want));
    if present.iter().any(|subflow| subflow.is_established && is_wanted(subflow)) {
        let others = present.iter().filter(|subflow| !is_wanted(subflow));
        actions.extend(others.map(|subflow| {
            let (local, remote) = (subflow.ends.local, subflow.ends.remote);
            Action::Destroy { local, remote }
        }));
    }
    actions
}

/// The number by which both sides know an address of this path. 0 is that of the first subflow.
pub(crate) fn number(path: PathId) -> u8 {
    path.0.saturating_add(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::mptcp::Ends;
    use crate::paths::Numbers;
    use crate::paths::tests::interface;
    use crate::protocol::PartWay;
    use whimbrel_access::PathEstimate;

    const TO: &str = "192.0.2.1:443";

    fn to() -> SocketAddr {
        TO.parse().unwrap()
    }

    /// Three networks, of which the last one costs money.
    fn paths() -> Paths {
        let settings = Settings::from_toml("metered = [\"usb0\"]").unwrap();
        let all = [(2u32, "eth0"), (3, "wlan0"), (4, "usb0")];
        let all =
            all.map(|(index, name)| interface(index, name, [10, 0, index as u8, 1], PathEstimate::default()));
        Paths::of(all.to_vec(), &settings, &mut Numbers::new(&settings))
    }

    fn way(interface: &str) -> Way {
        Way { interface: interface.to_owned(), ..Way::default() }
    }

    fn verdict(ways: &[&str]) -> Verdict {
        Verdict { ways: ways.iter().map(|name| way(name)).collect(), ..Verdict::default() }
    }

    fn names(verdict: &Verdict, intents: &str) -> Vec<(String, bool)> {
        let found = wanted(verdict, &intents.parse().unwrap(), &paths(), to().ip());
        found.into_iter().map(|want| (want.interface, want.is_backup)).collect()
    }

    fn listed(all: &[(&str, bool)]) -> Vec<(String, bool)> {
        all.iter().map(|(name, is_backup)| ((*name).to_owned(), *is_backup)).collect()
    }

    #[test]
    fn the_first_network_carries_and_the_others_of_the_decision_stand_by() {
        let decided = verdict(&["wlan0", "eth0", "usb0"]);
        let expected = listed(&[("wlan0", false), ("eth0", true), ("usb0", true)]);
        assert_eq!(names(&decided, "category=query"), expected);
        assert_eq!(names(&verdict(&["wlan0"]), "category=query"), listed(&[("wlan0", false)]));
        assert_eq!(names(&verdict(&[]), "category=query"), []);
        assert_eq!(names(&verdict(&["eth9"]), "category=query"), []);
    }

    #[test]
    fn where_nothing_may_cost_money_no_subflow_does_whatever_was_decided() {
        let decided = verdict(&["usb0", "eth0"]);
        assert_eq!(names(&decided, "cost=no-expense"), listed(&[("eth0", false)]));
        let mut several = verdict(&["eth0"]);
        several.ways[0].also = vec!["usb0".to_owned(), "wlan0".to_owned()];
        let expected = listed(&[("eth0", false), ("wlan0", false)]);
        assert_eq!(names(&several, "cost=no-expense"), expected);
        assert_eq!(names(&verdict(&["usb0"]), "cost=no-expense"), []);
    }

    #[test]
    fn what_is_decided_together_carries_together() {
        let mut several = verdict(&["eth0", "usb0"]);
        several.ways[0].also = vec!["wlan0".to_owned()];
        let expected = listed(&[("eth0", false), ("wlan0", false), ("usb0", true)]);
        assert_eq!(names(&several, "category=query"), expected);
        let mut parts = verdict(&["eth0", "usb0", "wlan0"]);
        parts.parts = ["usb0", "wlan0"].map(|name| PartWay { bytes: 1, way: way(name) }).to_vec();
        let expected = listed(&[("usb0", false), ("wlan0", false), ("eth0", true)]);
        assert_eq!(names(&parts, "category=query"), expected);
        let bulk = verdict(&["wlan0", "usb0", "eth0"]);
        let expected = listed(&[("wlan0", false), ("eth0", false), ("usb0", true)]);
        assert_eq!(names(&bulk, "category=bulk"), expected);
        let expected = listed(&[("wlan0", false), ("usb0", false), ("eth0", false)]);
        assert_eq!(names(&bulk, "category=bulk cost=ignore"), expected);
    }

    /// A subflow from the address of this interface.
    fn subflow(index: u8, is_established: bool, is_backup: bool) -> Subflow {
        let local = SocketAddr::from(([10, 0, index, 1], 4000));
        Subflow { ends: Ends { local, remote: to() }, token: 7, is_established, is_backup }
    }

    fn planned(present: &[Subflow], ways: &[&str]) -> Vec<Action> {
        let paths = paths();
        let wanted = wanted(&verdict(ways), &Intents::default(), &paths, to().ip());
        plan(present, &wanted, &paths, to())
    }

    fn created(index: u8, number: u8, is_backup: bool) -> Action {
        let source = IpAddr::from([10, 0, index, 1]);
        Action::Create { source, interface: index.into(), number, is_backup, remote: to() }
    }

    #[test]
    fn what_is_missing_is_opened_and_what_is_there_gets_its_priority() {
        assert_eq!(planned(&[subflow(2, true, false)], &["eth0", "wlan0"]), [created(3, 2, true)]);
        let local = subflow(2, true, false).ends.local;
        assert_eq!(
            planned(&[subflow(2, true, false)], &["wlan0", "eth0"]),
            [created(3, 2, false), Action::SetBackup { local, remote: to(), is_backup: true }]
        );
        let both = [subflow(2, true, false), subflow(3, true, true)];
        assert_eq!(planned(&both, &["eth0", "wlan0"]), []);
        // One that is being opened is not opened again.
        assert_eq!(planned(&[subflow(2, true, false), subflow(3, false, true)], &["eth0", "wlan0"]), []);
    }

    #[test]
    fn what_is_not_wanted_goes_when_something_wanted_works_and_not_before() {
        let destroy = |index| Action::Destroy { local: subflow(index, true, false).ends.local, remote: to() };
        let both = [subflow(2, true, false), subflow(4, true, false)];
        assert_eq!(planned(&both, &["eth0"]), [destroy(4)]);
        assert_eq!(planned(&[subflow(4, true, false)], &["eth0"]), [created(2, 1, false)]);
        let opening = [subflow(4, true, false), subflow(2, false, false)];
        assert_eq!(planned(&opening, &["eth0"]), []);
        // An address that no interface has any more.
        let lost = [subflow(2, true, false), subflow(99, true, false)];
        assert_eq!(planned(&lost, &["eth0"]), [destroy(99)]);
        assert_eq!(planned(&both, &[]), []);
    }
}
