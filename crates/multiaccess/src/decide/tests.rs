//! Decisions computed by hand.

use super::*;
use crate::paths::tests::interface;
use crate::paths::{Numbers, Paths};
use crate::protocol::{OpenConnection, UnderWay, Wifi};
use crate::{AccessPath, Settings};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use whimbrel_access::{BytesPerSecond, Granularity, PolicySpec};

/// Near and slow: 20 ms, 1 Mbyte/s. Far, fast and metered: 100 ms, 10 Mbyte/s.
fn two() -> Paths {
    let known = |millis: f64, rate: f64| PathEstimate::known(Seconds(millis / 1000.0), BytesPerSecond(rate));
    let wlan = interface(3, "wlan0", [192, 168, 1, 10], known(20.0, 1e6));
    let usb = interface(7, "usb0", [100, 64, 3, 10], known(100.0, 1e7));
    of(vec![wlan, usb])
}

fn of(list: Vec<AccessPath>) -> Paths {
    let settings = Settings::from_toml("metered = [\"usb0\"]").unwrap();
    Paths::of(list, &settings, &mut Numbers::new(&settings))
}

fn decider(policy: &str) -> Decider {
    Decider::new(PolicySpec::named(policy).build().unwrap())
}

fn ask(intents: &str) -> Ask {
    Ask { intents: intents.parse().unwrap(), to: Some("192.0.2.1:443".to_owned()), ..Ask::default() }
}

const THERE: [Candidate; 1] =
    [Candidate { address: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443), interface: None }];

fn decided(decider: &mut Decider, paths: &Paths, ask: &Ask) -> Verdict {
    decider.decide(Duration::from_secs(5), 1, paths, ask, &THERE, None).unwrap()
}

#[test]
fn a_decision_says_which_way_when_it_would_be_complete_and_why() {
    let verdict = decided(&mut decider("eaf"), &two(), &ask("size-received=1000000"));
    // Two round trips and the bytes: 200 ms + 100 ms beside 40 ms + 1 s.
    let best = &verdict.ways[0];
    assert_eq!((best.interface.as_str(), best.completes_ms), ("usb0", Some(300.0)));
    assert_eq!(best.source, Some(IpAddr::from([100, 64, 3, 10])));
    assert_eq!(best.destination, Some(THERE[0].address));
    assert_eq!(best.options.bind_to_device.as_deref(), Some("usb0"));
    assert_eq!(best.why, "completes first; size-received=1000000; usb0: at most 80.00 Mbit/s lately");
    assert_eq!(verdict.ways[1].interface, "wlan0");
    let small = decided(&mut decider("eaf"), &two(), &ask("size-received=1000"));
    assert_eq!((small.ways[0].interface.as_str(), small.ways[0].completes_ms), ("wlan0", Some(41.0)));
}

#[test]
fn what_must_not_wait_leaves_wifi_whose_signal_goes_and_says_so() {
    let mut paths = two();
    let hears =
        |signal| Arc::new(BTreeMap::from([(3, Wifi { signal_dbm: Some(signal), ..Wifi::default() })]));
    let interactive = ask("size-received=1000 timeliness=interactive cost=ignore");
    for (signal, interface) in [(-80, "wlan0"), (-81, "usb0")] {
        paths.set_wifi(hears(signal));
        let verdict = decided(&mut decider("whimbrel"), &paths, &interactive);
        assert_eq!(verdict.ways[0].interface, interface, "{signal} dBm: {verdict:?}");
    }
    let verdict = decided(&mut decider("whimbrel"), &paths, &interactive);
    let why = "is not about to go; timeliness=interactive; usb0: has no signal that could go";
    assert_eq!(verdict.ways[0].why, why);
    let others = decided(&mut decider("whimbrel"), &paths, &ask("size-received=1000"));
    assert_eq!(others.ways[0].interface, "wlan0");
}

#[test]
fn intents_set_options_of_the_socket() {
    let options = |intents| decided(&mut decider("eaf"), &two(), &ask(intents)).ways[0].options.clone();
    assert!(options("timeliness=interactive").tcp_nodelay);
    assert_eq!(options("timeliness=background").dscp, Some(1));
    let plain = options("size-received=5");
    assert!(!plain.tcp_nodelay && plain.dscp.is_none());
}

#[test]
fn an_open_connection_is_used_again_where_that_is_earlier() {
    let open = |id, source: [u8; 4]| OpenConnection { id, source: IpAddr::from(source), scheduled: 0 };
    let mut question = ask("size-received=1000");
    question.connections =
        vec![open(9, [100, 64, 3, 10]), open(4, [192, 168, 1, 10]), open(5, [10, 9, 9, 9])];
    let verdict = decided(&mut decider("eaf"), &two(), &question);
    assert_eq!((verdict.ways[0].reuse, verdict.ways[0].completes_ms), (Some(4), Some(21.0)));
    assert_eq!(verdict.problems, ["connection 5 is from 10.9.9.9, which no interface has any more"]);
    // So much comes in 20 ms; the other network costs money, and who asks for much there must say so.
    assert_eq!((verdict.ways[0].round_trip, verdict.ways[0].holds), (Some(20_000), Some(100_000)));
    let large = Ask { connections: question.connections.clone(), ..ask("size-received=1000000") };
    let large = decided(&mut decider("eaf"), &two(), &large);
    assert_eq!((large.ways[0].reuse, large.ways[0].round_trip), (Some(9), None));
    question.connections.push(open(4, [192, 168, 1, 10]));
    let again = decider("eaf").decide(Duration::ZERO, 1, &two(), &question, &THERE, None);
    assert_eq!(again, Err(AskError::Twice(4)));
}

#[test]
fn what_is_scheduled_makes_the_next_unit_go_elsewhere() {
    let (mut decider, paths) = (decider("eaf"), two());
    let question = Ask { track: true, ..ask("size-received=1000000") };
    let interfaces: Vec<String> =
        (0..8).map(|_| decided(&mut decider, &paths, &question).ways[0].interface.clone()).collect();
    // Over usb0 the n-th takes 200 ms + n × 100 ms, over wlan0 40 ms + n × 1 s: nine fit before.
    assert!(interfaces.iter().all(|interface| interface == "usb0"), "{interfaces:?}");
    let last = decided(&mut decider, &paths, &question);
    assert_eq!((last.ways[0].interface.as_str(), last.unit), ("wlan0", Some(9)));
    for unit in 1..=8 {
        assert!(decider.load.done(1, unit));
    }
    assert_eq!(decided(&mut decider, &paths, &question).ways[0].interface, "usb0");
}

/// As a mobile network does that stands still for a moment: its round trip and rate are as before.
#[test]
fn a_network_over_which_units_are_late_gets_none_that_come_sooner_elsewhere() {
    let known = |millis: f64| PathEstimate::known(Seconds(millis / 1000.0), BytesPerSecond(1e6));
    let paths = of(vec![
        interface(3, "lte", [100, 64, 3, 10], known(30.0)),
        interface(7, "wlan", [192, 168, 1, 10], known(50.0)),
    ]);
    let mut decider = decider("whimbrel");
    let question = Ask { track: true, ..ask("size-received=20000") };
    let at = Duration::from_millis;
    let ask = |decider: &mut Decider, millis| {
        let verdict = decider.decide(at(millis), 1, &paths, &question, &THERE, None).unwrap();
        (verdict.ways[0].interface.clone(), verdict.ways[0].completes_ms, verdict.unit.unwrap())
    };
    // Two round trips, and 20 ms for the bytes.
    let (network, completes, unit) = ask(&mut decider, 0);
    assert_eq!((&network[..], completes), ("lte", Some(80.0)));
    // It comes 400 ms later. The other one may be as late because of the server: it has told nothing yet.
    assert!(decider.load.came(1, unit, at(480)));
    let (network, _, unit) = ask(&mut decider, 500);
    assert_eq!(network, "lte");
    assert!(decider.load.came(1, unit, at(980)));
    let other = decider.load.schedule(1, vec![(PathId(1), 20_000)], at(980), Some(at(20))).unwrap();
    assert!(decider.load.came(1, other, at(1000)));
    let (network, completes, _) = ask(&mut decider, 1000);
    assert_eq!((&network[..], completes), ("wlan", Some(120.0)));
}

#[test]
fn how_late_a_unit_is_does_not_depend_on_how_late_it_was_foreseen_to_be() {
    let known = PathEstimate::known(Seconds(0.03), BytesPerSecond(1e6));
    let late = PathEstimate { late: Seconds(0.4), ..known };
    let paths = of(vec![interface(3, "lte", [100, 64, 3, 10], late)]);
    let way = Way { interface: "lte".to_owned(), completes_ms: Some(480.0), ..Way::default() };
    let verdict = Verdict { ways: vec![way], ..Verdict::default() };
    let expected = |intents, counts_late| takes(&[late], &paths, &ask(intents), &verdict, counts_late);
    let millis = |millis| Some(Duration::from_millis(millis));
    assert_eq!(expected("size-received=20000", true), millis(80));
    assert_eq!(expected("size-received=20000", false), millis(480), "by the paper's forecast");
    assert_eq!(expected("size-received=10000", true), millis(480), "what is small is not late");
    assert_eq!(expected("size-sent=20000", true), None, "nobody said how much comes");
}

/// Strongly asymmetric, as in the testbed: 10 ms and 2 Mbit/s beside 100 ms and 20 Mbit/s.
fn asymmetric() -> Paths {
    let known = |millis: f64, rate: f64| PathEstimate::known(Seconds(millis / 1000.0), BytesPerSecond(rate));
    of(vec![
        interface(3, "near", [192, 168, 1, 10], known(10.0, 250e3)),
        interface(7, "far", [100, 64, 3, 10], known(100.0, 2.5e6)),
    ])
}

#[test]
fn each_part_of_a_message_is_scheduled_on_its_own_path() {
    let (mut decider, paths) = (decider("whimbrel"), asymmetric());
    // Its first part came over the near path, where a connection is open.
    let open = OpenConnection { id: 1, source: IpAddr::from([192, 168, 1, 10]), scheduled: 0 };
    let question =
        |bytes: u64| Ask { track: true, connections: vec![open], ..ask(&format!("size-received={bytes}")) };
    let scheduled = |decider: &Decider| {
        let mut estimates = paths.estimates().to_vec();
        decider.load.add_scheduled(&mut estimates, Duration::ZERO);
        [3, 7].map(|index| {
            let (path, _) = paths.present().find(|(_, known)| known.index == index).unwrap();
            estimates[path.index()].scheduled
        })
    };
    // Alone 8.6 MB take 200 + 3440 ms over the far path; 200 + 3225 with a sixteenth over the near one, where
    // that takes 10 + 2150.
    let large = decided(&mut decider, &paths, &question(8_600_000));
    let parts: Vec<_> = large.parts.iter().map(|part| (part.way.interface.as_str(), part.bytes)).collect();
    assert_eq!(parts, [("far", 8_062_500), ("near", 537_500)]);
    assert_eq!(large.ways[0].completes_ms, Some(3640.0));
    assert_eq!(scheduled(&decider), [537_500, 8_062_500]);
    // Nothing is put before what is under way on the near path.
    let next = decided(&mut decider, &paths, &question(8_600_000));
    assert_eq!((next.parts.len(), next.ways[0].interface.as_str()), (0, "far"));
    assert_eq!(scheduled(&decider), [537_500, 16_662_500]);
    // In two parts 86 KB would be there 17 ms earlier: what a lost packet of the second costs is more.
    for unit in [large.unit, next.unit] {
        assert!(decider.load.done(1, unit.unwrap()));
    }
    assert_eq!(decided(&mut decider, &paths, &question(86_000)).parts, []);
    assert!(decider.load.done(1, 3));
    assert_eq!(decided(&mut decider, &paths, &question(8_600_000)).parts, large.parts);
}

/// An object of which so much is left, which comes over the near path until then.
fn under_way(left: u64, completes_ms: f64) -> Ask {
    let open = OpenConnection { id: 1, source: IpAddr::from([192, 168, 1, 10]), scheduled: left };
    let under_way = Some(UnderWay { connection: 1, completes_ms, stands: false });
    Ask { connections: vec![open], under_way, track: true, ..ask(&format!("size-received={left}")) }
}

#[test]
fn the_end_of_what_is_under_way_moves_as_far_as_all_of_it_is_there_sooner() {
    let (mut decider, paths) = (decider("whimbrel"), asymmetric());
    // At 250 kB/s it takes eight seconds. Fifteen sixteenths of it take 200 + 750 ms over the far path, and
    // what stays takes 500 ms; with seven eighths what stays would take a second.
    let verdict = decided(&mut decider, &paths, &under_way(2_000_000, 8000.0));
    let [part] = &verdict.parts[..] else { panic!("{verdict:?}") };
    assert_eq!((part.bytes, part.way.interface.as_str(), part.way.reuse), (1_875_000, "far", None));
    assert_eq!((verdict.ways[0].completes_ms, verdict.unit), (Some(950.0), Some(1)));
    // It counts where it goes: beside it the least share of another, 62 500 bytes, takes 200 + 50 ms.
    let verdict = decided(&mut decider, &paths, &under_way(2_000_000, 210.0));
    assert_eq!((verdict.ways.len(), verdict.parts.len(), verdict.unit), (0, 0, None));
    assert!(verdict.problems.is_empty() && !verdict.local, "that is no problem: {verdict:?}");
}

#[test]
fn what_is_under_way_stays_where_that_is_soonest_and_with_policies_that_have_no_such_step() {
    // The first byte would be there after two round trips, of 200 ms.
    let soon = decided(&mut decider("whimbrel"), &asymmetric(), &under_way(100_000, 150.0));
    assert!(soon.parts.is_empty(), "{soon:?}");
    let late = under_way(2_000_000, 8000.0);
    assert!(decided(&mut decider("eaf"), &asymmetric(), &late).ways.is_empty());
}

#[test]
fn what_stands_still_is_asked_for_over_another_network_where_that_is_sooner_however_small_it_is() {
    let stands = |left, completes_ms| {
        let ask = under_way(left, completes_ms);
        let under_way = ask.under_way.map(|under_way| UnderWay { stands: true, ..under_way });
        let verdict = decided(&mut decider("whimbrel"), &asymmetric(), &Ask { under_way, ..ask });
        verdict.parts.iter().map(|part| (part.bytes, part.way.interface.clone())).collect::<Vec<_>>()
    };
    // Over the far path it takes 200 + 10 ms, and all of it is asked for.
    assert_eq!(stands(25_000, 240.0), [(25_000, "far".to_owned())]);
    assert_eq!(stands(25_000, 210.0), []);
    // The near path carries that in eight seconds, and is slower by as much: it has no more to give.
    assert_eq!(stands(2_000_000, 60_000.0), [(2_000_000, "far".to_owned())]);
}

#[test]
fn what_is_slow_on_a_path_that_nobody_else_uses_moves_to_another_connection_there() {
    let near = PathEstimate::known(Seconds(0.01), BytesPerSecond(1e7));
    let alone = of(vec![interface(3, "near", [192, 168, 1, 10], near)]);
    let mut decider = decider("whimbrel");
    // The path carries it in 200 ms. By 400 it comes as fast as it may be expected to.
    assert!(decided(&mut decider, &alone, &under_way(2_000_000, 390.0)).parts.is_empty());
    let scheduled = Ask { track: true, ..ask("size-received=5000") };
    let scheduled = decided(&mut decider, &alone, &scheduled).unit;
    let moves = |decider: &mut Decider, left_of| {
        decided(decider, &alone, &Ask { left_of, ..under_way(2_000_000, 8000.0) }).parts.len()
    };
    assert_eq!(moves(&mut decider, None), 0, "something else comes there");
    assert_eq!(moves(&mut decider, scheduled), 1, "that is the unit itself");
}

#[test]
fn what_is_under_way_is_on_a_connection_that_is_listed_and_ends_some_time() {
    assert_eq!(check(&under_way(5, 0.0)), Ok(()));
    assert_eq!(check(&Ask { connections: Vec::new(), ..under_way(5, 0.0) }), Err(AskError::Unlisted(1)));
    for never in [-1.0, f64::INFINITY, f64::NAN, 1e9] {
        assert_eq!(check(&under_way(5, never)), Err(AskError::Never), "{never}");
    }
}

#[test]
fn a_way_that_failed_is_tried_last_and_all_the_same_if_there_is_no_other() {
    let (mut decider, paths) = (decider("eaf"), two());
    let now = Duration::from_secs(5);
    decider.failures.failed(now, 7, THERE[0].address);
    let verdict = decided(&mut decider, &paths, &ask("size-received=1000000"));
    assert_eq!(verdict.ways[0].interface, "wlan0");
    decider.failures.failed(now, 3, THERE[0].address);
    assert_eq!(decided(&mut decider, &paths, &ask("size-received=1000000")).ways.len(), 2);
}

#[test]
fn what_may_go_over_one_network_alone_is_not_refused_because_that_failed_lately() {
    let (mut decider, paths) = (decider("eaf"), two());
    decider.failures.failed(Duration::from_secs(5), 3, THERE[0].address);
    let verdict = decided(&mut decider, &paths, &ask("size-received=1000 cost=no-expense"));
    let ways: Vec<_> = verdict.ways.iter().map(|way| (way.interface.as_str(), way.failed_lately)).collect();
    assert_eq!((ways, verdict.problems), (vec![("wlan0", true)], vec![]));
}

#[test]
fn dead_servers_do_not_make_a_network_avoided_on_which_others_answer() {
    let heard = |ago: f64| {
        let near = PathEstimate {
            age: Some(Seconds(ago)),
            ..PathEstimate::known(Seconds(0.01), BytesPerSecond(1e6))
        };
        let far = PathEstimate::known(Seconds(0.1), BytesPerSecond(1e6));
        of(vec![interface(3, "near", [192, 168, 1, 10], near), interface(7, "far", [10, 0, 0, 1], far)])
    };
    let mut decider = decider("eaf");
    for host in 11..=13 {
        decider.failures.failed(Duration::from_secs(4), 3, SocketAddr::from(([192, 0, 2, host], 80)));
    }
    let mut taken = |ago| decided(&mut decider, &heard(ago), &ask("size-received=1000")).ways[0].clone();
    // It is five seconds past: nothing was heard for two, or something one second ago.
    assert_eq!(taken(2.0).interface, "far");
    let way = taken(1.0);
    assert_eq!((way.interface.as_str(), way.failed_lately), ("near", false));
}

#[test]
fn an_answer_of_one_interfaces_dns_is_used_on_that_interface_alone() {
    let mut decider = decider("eaf");
    let candidates = [(1, 3), (2, 7)].map(|(host, index)| Candidate {
        address: SocketAddr::from(([192, 0, 2, host], 443)),
        interface: Some(index),
    });
    let verdict =
        decider.decide(Duration::ZERO, 1, &two(), &ask("size-received=1000000"), &candidates, None).unwrap();
    let told: Vec<(String, String)> = verdict
        .ways
        .iter()
        .map(|way| (way.interface.clone(), way.destination.unwrap().to_string()))
        .collect();
    let expected = [("usb0", "192.0.2.2:443"), ("wlan0", "192.0.2.1:443")];
    assert_eq!(told, expected.map(|(interface, to)| (interface.to_owned(), to.to_owned())));
}

#[test]
fn where_no_path_leads_it_is_said_why() {
    let question = ask("size-received=5");
    let none = decided(&mut decider("eaf"), &of(Vec::new()), &question);
    assert_eq!((none.ways.len(), &none.problems[0][..]), (0, "no interface is up and has an address"));
    let v6 = [Candidate { address: "[2001:db8::1]:443".parse().unwrap(), interface: None }];
    let verdict = decider("eaf").decide(Duration::ZERO, 1, &two(), &question, &v6, None).unwrap();
    assert!(verdict.problems[0].contains("no interface has a route"), "{verdict:?}");
    let free = ask("cost=no-expense");
    let usb = of(vec![interface(7, "usb0", [100, 64, 3, 10], PathEstimate::default())]);
    let verdict = decided(&mut decider("whimbrel"), &usb, &free);
    assert!(verdict.ways.is_empty() && verdict.problems[0].contains("has to wait"), "{verdict:?}");
}

#[test]
fn without_a_destination_a_decision_is_about_the_interface() {
    let question = Ask { to: None, ..ask("size-received=1000000") };
    let verdict = decider("eaf").decide(Duration::ZERO, 1, &two(), &question, &[], None).unwrap();
    assert_eq!((verdict.ways[0].interface.as_str(), verdict.ways[0].destination), ("usb0", None));
    assert_eq!(verdict.ways[0].source, Some(IpAddr::from([100, 64, 3, 10])));
}

#[test]
fn what_another_program_chose_counts_as_far_as_the_question_allows_it() {
    let paths = two();
    let chosen = Chosen { open: vec!["usb0".into(), "eth9".into()], ..Chosen::default() };
    let decide = |intents| {
        let question = ask(intents);
        decider("eaf").decide(Duration::ZERO, 1, &paths, &question, &THERE, Some(("mine", &chosen))).unwrap()
    };
    let verdict = decide("size-received=10");
    assert_eq!((verdict.policy.as_str(), verdict.ways.len()), ("mine", 1));
    assert_eq!((verdict.ways[0].interface.as_str(), &verdict.ways[0].why[..]), ("usb0", "mine chose it"));
    let verdict = decide("cost=no-expense");
    assert_eq!((verdict.policy.as_str(), verdict.ways[0].interface.as_str()), ("eaf", "wlan0"));
    assert_eq!(verdict.problems, ["mine chose nothing that is possible; the policy decided"]);
}

#[test]
fn several_paths_at_once_are_a_connection_of_mptcp() {
    let verdict = decided(&mut decider("mptcp"), &two(), &ask("size-received=10"));
    let best = &verdict.ways[0];
    assert_eq!((best.protocol, best.interface.as_str()), (Protocol::Mptcp, "wlan0"));
    assert_eq!(best.also, ["usb0"]);
}

#[test]
fn a_connection_over_several_interfaces_is_bound_to_none_of_them_and_begins_at_the_firsts_address() {
    let verdict = decided(&mut decider("mptcp"), &two(), &ask("timeliness=interactive"));
    let best = &verdict.ways[0];
    assert_eq!((best.protocol, best.options.bind_to_device.as_deref()), (Protocol::Mptcp, None));
    assert_eq!(best.source, Some(IpAddr::from([192, 168, 1, 10])));
    assert!(best.options.tcp_nodelay, "the other options stay");
    // Those that stand behind it for when it fails are of one interface each.
    for way in verdict.ways.iter().filter(|way| way.protocol == Protocol::Tcp) {
        assert_eq!(way.options.bind_to_device.as_deref(), Some(way.interface.as_str()));
    }
}

/// Any estimate, unmeasured ones included.
fn estimates() -> impl Strategy<Value = PathEstimate> {
    let known = (0.0..2.0f64, 0.0..1e8f64)
        .prop_map(|(rtt, rate)| PathEstimate::known(Seconds(rtt), BytesPerSecond(rate)));
    prop_oneof![Just(PathEstimate::default()), known]
}

proptest! {
    #[test]
    fn whatever_is_asked_a_way_is_one_of_a_path_that_leads_there_and_costs_nothing_if_nothing_may(
        policy in prop::sample::select(whimbrel_access::NAMES),
        known in prop::collection::vec(estimates(), 0..10),
        metered in prop::collection::vec(any::<bool>(), 10),
        granularity in prop::sample::select(&[Granularity::Message, Granularity::Stream, Granularity::Connection][..]),
        size in prop::option::of(0..1_000_000_000u64),
        free in any::<bool>(),
        there in prop::collection::vec((0..4u8, prop::option::of(0..12u32)), 0..40),
        open in prop::collection::vec((0..6u32, 0..12u8, 0..1_000_000u64), 0..6),
        failed in prop::collection::vec((0..10u32, 0..4u8), 0..8),
        track in any::<bool>(),
    ) {
        let list: Vec<AccessPath> = known
            .into_iter()
            .enumerate()
            .map(|(n, estimate)| interface(n as u32, &format!("if{n}"), [10, 0, n as u8, 1], estimate))
            .collect();
        let names: Vec<String> = (0..10).filter(|n| metered[*n]).map(|n| format!("if{n}")).collect();
        let settings = Settings { metered: names, ..Settings::default() };
        let paths = Paths::of(list, &settings, &mut Numbers::new(&settings));
        let candidates: Vec<Candidate> = there
            .into_iter()
            .map(|(host, interface)| Candidate { address: SocketAddr::from(([192, 0, 2, host], 443)), interface })
            .collect();
        let intents = Intents {
            size_received: size,
            cost: free.then_some(whimbrel_access::Cost::NoExpense),
            ..Intents::default()
        };
        let connections = open
            .into_iter()
            .map(|(id, n, scheduled)| OpenConnection { id, source: IpAddr::from([10, 0, n, 1]), scheduled })
            .collect();
        let to = (!candidates.is_empty()).then(|| "example.org:443".to_owned());
        let question = Ask { intents, granularity, to, connections, track, ..Ask::default() };
        let mut decider = decider(policy);
        let now = Duration::from_secs(1);
        for (index, host) in failed {
            decider.failures.failed(now, index, SocketAddr::from(([192, 0, 2, host], 443)));
        }
        let Ok(verdict) = decider.decide(now, 1, &paths, &question, &candidates, None) else {
            // Only numbers that are used twice are refused.
            let mut ids: Vec<u32> = question.connections.iter().map(|open| open.id).collect();
            ids.sort_unstable();
            ids.dedup();
            prop_assert!(ids.len() < question.connections.len());
            return Ok(());
        };
        prop_assert_eq!(verdict.ways.is_empty(), verdict.problems.iter().any(|text| !text.starts_with("connection ")));
        let parts = verdict.parts.iter().map(|part| &part.way);
        for way in verdict.ways.iter().chain(parts).chain(&verdict.warm) {
            let path = paths.get(paths.named(&way.interface).unwrap()).unwrap();
            prop_assert!(path.addresses.contains(&way.source.unwrap()));
            prop_assert!(!(free && settings.is_metered(&way.interface)), "{:?}", way);
            match (way.reuse, way.destination) {
                (Some(id), _) => {
                    prop_assert!(granularity != Granularity::Connection);
                    prop_assert!(question.connections.iter().any(|open| open.id == id));
                }
                (None, Some(to)) => {
                    let fits = |one: &Candidate| one.address == to && one.interface.is_none_or(|own| own == path.index);
                    prop_assert!(candidates.iter().any(fits), "{:?}", way);
                }
                (None, None) => prop_assert!(candidates.is_empty()),
            }
        }
        prop_assert_eq!(verdict.unit.is_some(), track && !verdict.ways.is_empty());
    }
}
