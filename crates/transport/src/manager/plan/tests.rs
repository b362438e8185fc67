#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use super::*;
use crate::monitor::InterfaceKind;
use crate::policy::Policy;

/// Interfaces w (Wi-Fi), c (cellular) and e (Ethernet), at 10.N.0.2; the peer's interfaces at 192.0.2.N.
fn situation(mode: HandoverMode, locals: &str, remotes: u8) -> Situation {
    let locals: Vec<Local> = locals
        .chars()
        .map(|name| {
            let (kind, net) = match name {
                'w' => (InterfaceKind::Wifi, 1),
                'c' => (InterfaceKind::Cellular, 2),
                _ => (InterfaceKind::Ethernet, 3),
            };
            let name = name.to_string().into();
            let interface = Interface { name, kind, metered: kind.is_metered() };
            Local { interface, ips: vec![IpAddr::from([10, net, 0, 2])] }
        })
        .collect();
    let remotes: Vec<Remote> =
        (0..remotes).map(|slot| Remote { slot, places: vec![remote(slot)], reserve: false }).collect();
    let pair =
        |local: &Local, remote: &Remote| Pair { interface: local.interface.name.clone(), slot: remote.slot };
    let ways = locals.iter().flat_map(|l| remotes.iter().map(move |r| (pair(l, r), Vec::new()))).collect();
    Situation { mode, locals, remotes, ways, doubtful: Vec::new(), paths: Vec::new() }
}

fn remote(slot: u8) -> Locator {
    Locator::Direct(SocketAddr::from(([192, 0, 2, slot], 4480)))
}

impl Situation {
    fn with(mut self, id: u64, local: char, state: PathState, priority: Priority) -> Self {
        let net = match local {
            'w' => 1,
            'c' => 2,
            _ => 3,
        };
        self.paths.push(View {
            id: PathId(id),
            local: IpAddr::from([10, net, 0, 2]),
            remote: remote(0),
            state,
            priority,
            pinned: false,
            forbidden: false,
            srtt: Duration::from_millis(50),
        });
        self
    }

    fn active(self, id: u64, local: char, priority: Priority) -> Self {
        self.with(id, local, PathState::Active, priority)
    }
}

use HandoverMode::{Backup, Full, Single};
use PathState::{Active, Suspect};
use Priority::Normal;

fn joins(plan: &Plan) -> Vec<String> {
    plan.join.iter().map(|wanted| format!("{}{}", wanted.pair.interface, wanted.pair.slot)).collect()
}

#[test]
fn each_interface_of_either_side_gets_a_path() {
    let all = PathPolicy::default();
    assert_eq!(joins(&plan(&situation(Full, "wc", 1), &all)), ["w0", "c0"]);
    assert_eq!(joins(&plan(&situation(Full, "w", 2), &all)), ["w0", "w1"]);
    assert_eq!(joins(&plan(&situation(Full, "wce", 2), &all)), ["w0", "c1", "e0"]);
    let mesh = PathPolicy { mesh: true, ..PathPolicy::default() };
    assert_eq!(joins(&plan(&situation(Full, "wc", 2), &mesh)), ["w0", "c1", "w1", "c0"]);
    let few = PathPolicy { max_paths: 1, ..PathPolicy::default() };
    assert_eq!(joins(&plan(&situation(Full, "wc", 2), &few)), ["w0"]);
}

#[test]
fn what_cannot_reach_each_other_is_paired_otherwise() {
    let mut unlike = situation(Full, "wc", 2);
    unlike.ways.retain(|(pair, _)| (&*pair.interface == "w") != (pair.slot == 0));
    assert_eq!(joins(&plan(&unlike, &PathPolicy::default())), ["w1", "c0"]);
}

/// The peer announces an address of a virtual network that exists on its own host only.
#[test]
fn an_interface_is_not_left_unused_because_its_pair_leads_nowhere() {
    let doubt = |situation: &mut Situation, name: &str, slot| {
        situation.doubtful.push(Pair { interface: name.into(), slot });
    };
    let all = PathPolicy::default();
    let mut two = situation(Full, "wc", 2);
    assert_eq!(joins(&plan(&two, &all)), ["w0", "c1"]);
    doubt(&mut two, "c", 1);
    assert_eq!(joins(&plan(&two, &all)), ["w0", "c0", "w1", "c1"]);
    doubt(&mut two, "w", 1);
    assert_eq!(joins(&plan(&two, &all)), ["w0", "c0", "c1"], "what was doubted is still tried");
    let few = PathPolicy { max_paths: 2, ..PathPolicy::default() };
    assert_eq!(joins(&plan(&two, &few)), ["w0", "c0"]);
    let mut lone = situation(Single, "wc", 1);
    doubt(&mut lone, "w", 0);
    assert_eq!(joins(&plan(&lone, &all)), ["w0"], "there is one choice only, and it is tried again");
}

#[test]
fn no_more_paths_are_wanted_than_a_server_keeps() {
    let many = PathPolicy { max_paths: 1000, mesh: true, ..PathPolicy::default() };
    assert_eq!(plan(&situation(Full, "wce", 16), &many).join.len(), MAX_PATHS);
}

#[test]
fn a_path_over_an_interface_that_is_not_allowed_any_more_is_given_up() {
    let mut some = situation(Full, "wc", 1).active(0, 'w', Normal).active(1, 'c', Normal);
    some.paths[1].forbidden = true;
    assert_eq!(plan(&some, &PathPolicy::default()).retire, [PathId(1)]);
}

#[test]
fn what_has_a_path_needs_no_other_unless_that_is_suspect() {
    let some = situation(Full, "wc", 1).active(0, 'w', Normal);
    assert_eq!(joins(&plan(&some, &PathPolicy::default())), ["c0"]);
    let suspect = situation(Full, "w", 1).with(0, 'w', Suspect, Normal);
    let plan = plan(&suspect, &PathPolicy::default());
    assert_eq!((joins(&plan), plan.retire), (vec!["w0".to_owned()], vec![]));
}

#[test]
fn a_suspect_path_goes_when_its_successor_works_and_no_sooner() {
    let other = situation(Full, "wc", 1).with(0, 'w', Suspect, Normal).active(1, 'c', Normal);
    assert_eq!(plan(&other, &PathPolicy::default()).retire, []);
    let opening =
        situation(Full, "wc", 1).with(0, 'w', Suspect, Normal).with(1, 'w', PathState::Opening, Normal);
    assert_eq!(plan(&opening, &PathPolicy::default()).retire, []);
    let succeeded = situation(Full, "wc", 1).with(0, 'w', Suspect, Normal).active(2, 'w', Normal);
    assert_eq!(plan(&succeeded, &PathPolicy::default()).retire, [PathId(0)]);
}

#[test]
fn a_path_that_came_back_before_its_successor_stays() {
    let both = situation(Full, "w", 1).active(0, 'w', Normal).active(1, 'w', Normal);
    assert_eq!(plan(&both, &PathPolicy::default()).retire, [PathId(1)]);
}

#[test]
fn in_mode_backup_the_preferred_network_carries_the_data() {
    let wifi = Policy::PreferWifi.into();
    let came = situation(Backup, "wc", 1).active(0, 'c', Normal).active(1, 'w', Priority::Backup);
    let changes = plan(&came, &wifi).priorities;
    assert_eq!(changes, [(PathId(0), Priority::Backup), (PathId(1), Normal)]);
    let fine = situation(Backup, "wc", 1).active(0, 'c', Priority::Backup).active(1, 'w', Normal);
    assert_eq!(plan(&fine, &wifi).priorities, []);
    // What is not known to work is not relied on.
    let shaky = situation(Backup, "wc", 1).active(0, 'c', Normal).with(1, 'w', Suspect, Priority::Backup);
    assert_eq!(plan(&shaky, &wifi).priorities, []);
}

#[test]
fn in_mode_backup_equals_do_not_take_turns() {
    let all = PathPolicy::default();
    let mut equals = situation(Backup, "w", 2).active(0, 'w', Priority::Backup).active(1, 'w', Normal);
    equals.paths[1].remote = remote(1);
    assert_eq!(plan(&equals, &all).priorities, []);
}

#[test]
fn what_was_set_by_hand_stays() {
    let wifi = Policy::PreferWifi.into();
    let mut pinned = situation(Backup, "wc", 1).active(0, 'c', Normal).active(1, 'w', Priority::Backup);
    pinned.paths[1].pinned = true;
    assert_eq!(plan(&pinned, &wifi).priorities, []);
    let mut alone =
        situation(Backup, "wc", 1).active(0, 'c', Priority::Backup).active(1, 'w', Priority::Backup);
    alone.paths[1].pinned = true;
    assert_eq!(plan(&alone, &wifi).priorities, [(PathId(0), Normal)]);
}

#[test]
fn metered_networks_stand_by_where_that_is_wanted() {
    let cheap = Policy::Cheapest.into();
    let both = situation(Full, "wc", 1).active(0, 'c', Normal).active(1, 'w', Normal);
    assert_eq!(plan(&both, &cheap).priorities, [(PathId(0), Priority::Backup)]);
    assert_eq!(plan(&both, &PathPolicy::default()).priorities, []);
    let none = plan(&situation(Full, "wc", 1), &cheap).join;
    assert_eq!(none.iter().map(|wanted| wanted.stands_by).collect::<Vec<_>>(), [false, true]);
    let mut said = both;
    said.remotes[0].reserve = true;
    assert_eq!(plan(&said, &PathPolicy::default()).priorities.len(), 2, "the peer may say so too");
}

#[test]
fn the_shortest_round_trip_carries_the_data_if_it_is_clearly_shorter() {
    let quick = Policy::LowestLatency.into();
    let of = |carrying: u64, other: u64| {
        let mut both = situation(Backup, "wc", 1).active(0, 'w', Normal).active(1, 'c', Priority::Backup);
        both.paths[0].srtt = Duration::from_millis(carrying);
        both.paths[1].srtt = Duration::from_millis(other);
        plan(&both, &quick).priorities.len()
    };
    assert_eq!(of(100, 95), 0);
    assert_eq!(of(100, 60), 2);
    assert_eq!(of(8, 2), 0, "some milliseconds are nothing");
}

#[test]
fn in_mode_single_one_path_is_wanted_on_the_best_interface() {
    let wifi = Policy::PreferWifi.into();
    let mut there = situation(Single, "wc", 1).active(0, 'c', Normal);
    assert_eq!(joins(&plan(&there, &wifi)), ["w0"]);
    there = there.with(1, 'w', Active, Normal);
    assert_eq!(plan(&there, &wifi), Plan::default());
}
