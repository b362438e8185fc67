//! From a decision of the manager to what a connection's paths are to be: pure functions.

use whimbrel_access::{Category, Cost, Granularity, Intents, Resilience, Timeliness};
use whimbrel_multiaccess::protocol::{PathReport, Verdict};
use whimbrel_transport::{HandoverMode, InterfaceRule, PathPolicy, Policy, Selector};

/// Where this host reaches itself, which the manager does not list.
const LOOPBACK: &str = "lo";

/// How a connection uses this host's networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Which networks may be used, best first.
    pub policy: PathPolicy,
    /// Whether all of them carry data, or the best one while the others stand by.
    pub mode: HandoverMode,
}

impl Usage {
    /// What a decision means for a connection with these intents. `known` are the paths that the manager
    /// sees, `own` is what the connection does without a manager.
    ///
    /// - The networks of a decision in parts, and those of a multipath connection, carry data together; and,
    ///   of traffic of the category `bulk`, all networks of the decision that cost nothing. Others stand by.
    /// - Else the network of the first way carries, and all others stand by in the order of the decision.
    /// - With `no-expense` only networks that cost nothing may be used; if there is none, the connection
    ///   waits.
    /// - Where nothing is decided, or the peer is on this host, the connection's own policy holds.
    #[must_use]
    pub fn of(verdict: &Verdict, intents: &Intents, known: &[PathReport], own: &Self) -> Self {
        let is_free_only = intents.cost() == Cost::NoExpense;
        if verdict.local || (verdict.ways.is_empty() && !is_free_only) {
            return own.clone();
        }
        let together = together(verdict, intents, known);
        let mut names = together.clone();
        let decided = verdict.ways.iter().map(|way| way.interface.as_str());
        let others = known.iter().filter(|path| !(is_free_only && path.metered));
        for name in decided.chain(others.map(|path| path.interface.as_str())) {
            add(&mut names, name);
        }
        let are_several = together.len() > 1;
        // With `cheapest`, what is said to be metered stands by where all others carry.
        let metered = |name: &str| are_several.then(|| !together.contains(&name) && name != LOOPBACK);
        add(&mut names, LOOPBACK);
        let interfaces = names.iter().map(|name| rule(name, metered(name))).collect();
        let (policy, mode) = match are_several {
            true => (Policy::Cheapest, HandoverMode::Full),
            false => (Policy::Aggregate, HandoverMode::Backup),
        };
        Self { policy: PathPolicy { policy, interfaces, ..own.policy.clone() }, mode }
    }

    /// What holds while no manager answers: the connection's own policy. Where nothing may cost money, the
    /// networks of the last decision; if there was none, those that the system does not know to cost any.
    #[must_use]
    pub fn without_manager(intents: &Intents, last: Option<&Self>, own: &Self) -> Self {
        if intents.cost() != Cost::NoExpense {
            return own.clone();
        }
        let mut usage = last.unwrap_or(own).clone();
        if usage.policy.interfaces.is_empty() {
            let unmetered = InterfaceRule { selector: Selector::Metered(false), kind: None, metered: None };
            usage.policy.interfaces.push(unmetered);
        }
        usage
    }
}

/// What the manager is asked about. What receives so and so many bytes may come in parts, as a message may;
/// all else is a stream, for which all intents count.
pub(crate) fn granularity(intents: &Intents) -> Granularity {
    let is_message = intents.size_received.is_some() && intents.at(Granularity::Message) == *intents;
    if is_message { Granularity::Message } else { Granularity::Stream }
}

/// The networks that are to carry data at the same time; none, or one, if it is not several.
fn together<'a>(verdict: &'a Verdict, intents: &Intents, known: &[PathReport]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for part in &verdict.parts {
        add(&mut names, &part.way.interface);
    }
    if let Some(first) = verdict.ways.first()
        && !first.also.is_empty()
    {
        add(&mut names, &first.interface);
        first.also.iter().for_each(|other| add(&mut names, other));
    }
    if names.len() < 2 && takes_what_it_gets(intents) {
        names.clear();
        let is_metered = |name: &str| known.iter().any(|path| path.interface == name && path.metered);
        let pays = intents.cost() == Cost::Ignore;
        let working = verdict.ways.iter().filter(|way| !way.failed_lately);
        for way in working.filter(|way| pays || !is_metered(&way.interface)) {
            add(&mut names, &way.interface);
        }
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

fn rule(name: &str, metered: Option<bool>) -> InterfaceRule {
    InterfaceRule { selector: Selector::Name(name.to_owned()), kind: None, metered }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_multiaccess::protocol::{PartWay, Way};

    use super::*;

    fn own() -> Usage {
        let policy = PathPolicy { max_paths: 3, ..PathPolicy::default() };
        Usage { policy, mode: HandoverMode::Single }
    }

    fn way(interface: &str) -> Way {
        Way { interface: interface.to_owned(), ..Way::default() }
    }

    fn decided(interfaces: &[&str]) -> Verdict {
        Verdict { ways: interfaces.iter().map(|name| way(name)).collect(), ..Verdict::default() }
    }

    /// Those that begin with `$` cost money.
    fn known(interfaces: &[&str]) -> Vec<PathReport> {
        let path = |name: &&str| PathReport {
            interface: name.trim_start_matches('$').to_owned(),
            metered: name.starts_with('$'),
            ..PathReport::default()
        };
        interfaces.iter().map(path).collect()
    }

    fn usage(verdict: &Verdict, intents: &str, known_: &[&str]) -> Usage {
        Usage::of(verdict, &intents.parse().unwrap(), &known(known_), &own())
    }

    /// In order; those that stand by although all carry have a `-` before them.
    fn names(usage: &Usage) -> Vec<String> {
        let name = |rule: &InterfaceRule| match &rule.selector {
            Selector::Name(name) if rule.metered == Some(true) => format!("-{name}"),
            Selector::Name(name) => name.clone(),
            other => format!("{other:?}"),
        };
        usage.policy.interfaces.iter().map(name).collect()
    }

    #[test]
    fn the_first_way_carries_and_all_others_stand_by_in_their_order() {
        let usage = usage(&decided(&["wlan0", "usb0", "wlan0"]), "", &["eth0", "$usb0", "wlan0"]);
        assert_eq!(usage.mode, HandoverMode::Backup);
        assert_eq!(names(&usage), ["wlan0", "usb0", "eth0", "lo"]);
        assert_eq!(usage.policy.max_paths, 3, "what the manager does not speak of stays");
    }

    #[test]
    fn nothing_that_costs_is_used_where_nothing_may_and_it_waits_rather_than_pays() {
        let usage = |verdict: &Verdict, known: &[&str]| usage(verdict, "cost=no-expense", known);
        let free = usage(&decided(&["wlan0"]), &["$usb0", "wlan0", "eth0"]);
        assert_eq!(names(&free), ["wlan0", "eth0", "lo"]);
        // What failed lately is not listed, and may work again.
        assert_eq!(names(&usage(&decided(&[]), &["$usb0", "wlan0"])), ["wlan0", "lo"]);
        assert_eq!(names(&usage(&decided(&[]), &["$usb0"])), ["lo"]);
    }

    #[test]
    fn parts_and_multipath_connections_carry_together_and_others_stand_by() {
        let part = |interface| PartWay { bytes: 1, way: way(interface) };
        let parts = vec![part("wlan0"), part("usb0"), part("wlan0")];
        let split = Verdict { parts, ..decided(&["wlan0", "usb0", "eth0"]) };
        let split = usage(&split, "size-received=1000000", &["wlan0", "usb0", "eth0", "eth1"]);
        assert_eq!((split.mode, split.policy.policy), (HandoverMode::Full, Policy::Cheapest));
        assert_eq!(names(&split), ["wlan0", "usb0", "-eth0", "-eth1", "lo"]);
        let mut multipath = decided(&["wlan0"]);
        multipath.ways[0].also.push("usb0".to_owned());
        let multipath = usage(&multipath, "", &["wlan0", "usb0"]);
        assert_eq!(
            (multipath.mode, names(&multipath)),
            (HandoverMode::Full, vec!["wlan0".to_owned(), "usb0".into(), "lo".into()])
        );
    }

    #[test]
    fn bulk_takes_all_that_costs_nothing_and_what_costs_stands_by_unless_that_does_not_matter() {
        let both = decided(&["wlan0", "eth0", "usb0"]);
        let of = |intents: &str| usage(&both, intents, &["wlan0", "eth0", "$usb0"]);
        assert_eq!(names(&of("category=bulk")), ["wlan0", "eth0", "-usb0", "lo"]);
        assert_eq!(names(&of("category=bulk cost=ignore")), ["wlan0", "eth0", "usb0", "lo"]);
        assert_eq!(of("category=bulk cost=ignore").mode, HandoverMode::Full);
        for one in
            ["category=bulk resilience=sensitive", "category=bulk timeliness=background", "category=mixed"]
        {
            assert_eq!(of(one).mode, HandoverMode::Backup, "{one}");
        }
        let mut failed = both.clone();
        failed.ways[1].failed_lately = true;
        assert_eq!(usage(&failed, "category=bulk", &["wlan0", "eth0", "$usb0"]).mode, HandoverMode::Backup);
    }

    #[test]
    fn its_own_policy_holds_where_nothing_is_decided_and_on_this_host() {
        assert_eq!(usage(&decided(&[]), "", &["wlan0"]), own());
        let here = Verdict { local: true, ..decided(&[]) };
        assert_eq!(usage(&here, "cost=no-expense", &["wlan0"]), own());
    }

    #[test]
    fn without_a_manager_it_goes_on_by_itself_and_pays_nothing_that_it_may_not() {
        let (free, any) = ("cost=no-expense".parse().unwrap(), Intents::default());
        let last = usage(&decided(&["wlan0"]), "cost=no-expense", &["$usb0"]);
        assert_eq!(Usage::without_manager(&any, Some(&last), &own()), own());
        assert_eq!(Usage::without_manager(&free, Some(&last), &own()), last);
        let never = Usage::without_manager(&free, None, &own());
        assert_eq!(never.policy.interfaces[0].selector, Selector::Metered(false));
        let mut chosen = own();
        chosen.policy.interfaces = vec!["usb0".parse().unwrap()];
        assert_eq!(Usage::without_manager(&free, None, &chosen), chosen, "that was chosen by hand");
    }

    #[test]
    fn only_what_may_come_in_parts_is_asked_about_as_a_message() {
        let of = |intents: &str| granularity(&intents.parse().unwrap());
        assert_eq!(of("size-received=1000000 cost=ignore"), Granularity::Message);
        for stream in ["", "size-sent=1000000", "category=stream size-received=1000000", "bitrate-sent=5"] {
            assert_eq!(of(stream), Granularity::Stream, "{stream}");
        }
    }
}
