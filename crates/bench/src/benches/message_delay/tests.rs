#![allow(clippy::unwrap_used)]

use whimbrel_lab::require;

use super::*;

#[test]
fn every_target_names_systems_that_are_measured() {
    let known: Vec<String> = [ORDERED, RELIABLE, NEWER, UNRELIABLE, REDUNDANT]
        .iter()
        .chain(&PEERS)
        .map(ToString::to_string)
        .chain([BEST.to_owned(), BEST_UNRELIABLE.to_owned()])
        .collect();
    for target in SPEC.targets.iter().chain(TWO.targets) {
        for label in [Some(target.of), target.against].into_iter().flatten() {
            assert!(known.iter().any(|system| system == label), "{label}");
        }
    }
}

#[test]
fn each_class_is_held_against_each_peer_that_promises_as_much() {
    for subject in [ORDERED, RELIABLE, NEWER, UNRELIABLE] {
        for peer in PEERS.into_iter().filter(|peer| peer.is_reliable() == subject.is_reliable()) {
            let (of, against) = (subject.to_string(), peer.to_string());
            let found = |target: &Target| target.of == of && target.against == Some(against.as_str());
            assert!(SPEC.targets.iter().any(found), "{of} against {against}");
        }
    }
}

#[test]
fn on_two_links_a_message_that_is_late_or_does_not_come_counts() {
    let trial = |system, bulk| {
        let job = Job { way: Way::Two, bulk, system, round: 0 };
        job.trial(Delays { late: vec![25.0, 29.9, 30.1, 36.0], missing: 2, bulk: 0.0 }, 32.0).unwrap()
    };
    assert_eq!(trial(REDUNDANT, false).values["late"], 4.0);
    assert_eq!(trial(UNRELIABLE, false).values["late"], 4.0);
    assert_eq!(trial(UNRELIABLE, true).values["late"], 2.0);
}

#[test]
fn the_best_peer_of_a_round_is_of_its_kind() {
    let trial = |system: &str, p99| Trial::new(system, 0).in_case("alone").with("p99", p99);
    let trials = [trial("tcp-bbr", 30.0), trial("enet", 28.0), trial("quinn-datagrams", 26.0)];
    for (name, reliable, p99) in [(BEST, true, 28.0), (BEST_UNRELIABLE, false, 26.0)] {
        let best = best_peers(&trials, name, reliable);
        assert_eq!(best.len(), 1);
        assert_eq!((best[0].system.as_str(), best[0].values["p99"]), (name, p99));
    }
}

#[test]
fn a_message_takes_half_a_round_trip_where_nothing_is_lost() {
    if !require!() {
        return;
    }
    for system in [UNRELIABLE, Messenger::FramedTcp("cubic")] {
        let job = Job { way: Way::One(0), bulk: false, system, round: 0 };
        let trial = job.run(30).unwrap();
        assert_eq!(trial.values["arrived"], 100.0, "{system}");
        assert!(trial.values["p50"] >= 25.0, "{system}: {trial:?}");
    }
}
