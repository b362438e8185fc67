//! What an application is told of the Wi-Fi beneath its connections' paths.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, CloseCode, Config, Connection, ConnectionEvent, Endpoint, Events,
    ListenOptions, ManualMonitor, Timeouts,
};

const LIMIT: Duration = Duration::from_secs(30);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 158, last])
}

/// A path is not replaced because the machine is slow.
async fn endpoint(at: ManualMonitor) -> Endpoint {
    let patient = Duration::from_secs(10);
    let timeouts = Timeouts { suspect_least: patient, suspect_most: patient, ..Timeouts::default() };
    let builder = Endpoint::builder().monitor(at).config(Config { timeouts, ..Config::default() });
    builder.carriers(Carriers::Only(CarrierKind::Tcp)).bind().await.unwrap()
}

/// A client at `first`, a server, and their connection over one path.
async fn pair(first: u8) -> (Connection, Connection, ManualMonitor, [Endpoint; 2]) {
    let at = ManualMonitor::new([ip(first)]);
    let (caller, called) = (endpoint(at.clone()).await, endpoint(ManualMonitor::new([ip(first + 1)])).await);
    let mut listener = called.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = timeout(LIMIT, caller.connect(called.addr())).await.expect("not connected").unwrap();
    let server = timeout(LIMIT, listener.accept()).await.expect("not accepted").unwrap();
    let alone = async {
        while client.stats().paths.len() != 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, alone).await.expect("there should be one path");
    (client, server, at, [caller, called])
}

async fn next(events: &mut Events, wanted: impl Fn(&ConnectionEvent) -> bool) -> ConnectionEvent {
    let found = async {
        loop {
            let event = events.next().await.expect("the connection ended");
            if wanted(&event) {
                return event;
            }
        }
    };
    timeout(LIMIT, found).await.expect("not told")
}

/// Of which path something is heard, and whether its signal is weak.
fn signal_of(event: &ConnectionEvent) -> Option<(u64, bool)> {
    match event {
        ConnectionEvent::PathSignal { path, is_weak, .. } => Some((*path, *is_weak)),
        _ => None,
    }
}

fn is_signal(event: &ConnectionEvent) -> bool {
    signal_of(event).is_some()
}

/// Whether something is heard of this path.
fn is_of(wanted: u64) -> impl Fn(&ConnectionEvent) -> bool {
    move |event| signal_of(event).is_some_and(|(path, _)| path == wanted)
}

/// Which path came up, and where.
fn up_at(event: &ConnectionEvent) -> Option<(u64, IpAddr)> {
    match event {
        ConnectionEvent::PathUp { path, local, .. } => Some((*path, local.ip())),
        _ => None,
    }
}

/// How strong the signal of the connection's path is, and whether that is weak.
fn known(connection: &Connection) -> Option<(i8, bool)> {
    let signal = connection.stats().paths.first()?.signal?;
    Some((signal.dbm, signal.is_weak))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_whose_wifi_is_received_weakly_is_told_of_once_and_on_its_own_side_until_it_is_well_again() {
    let (client, server, _at, [caller, _called]) = pair(1).await;
    let (mut here, mut there) = (client.events(), server.events());
    // What another address has is not the path's.
    caller.set_signals([(ip(9), -90), (ip(1), -60)]);
    assert_eq!(known(&client), Some((-60, false)));
    for (dbm, is_weak) in [(-81, true), (-78, true), (-75, false), (-80, false), (-85, true)] {
        caller.set_signals([(ip(1), dbm)]);
        assert_eq!(known(&client), Some((dbm, is_weak)));
    }
    // Nobody tells any more.
    caller.set_signals([]);
    assert_eq!(known(&client), None);
    for expected in [(Some(-81), true), (Some(-75), false), (Some(-85), true), (None, false)] {
        let told = next(&mut here, is_signal).await;
        let ConnectionEvent::PathSignal { dbm, is_weak, .. } = told else { unreachable!() };
        assert_eq!((dbm, is_weak), expected);
    }
    assert_eq!(known(&server), None, "the peer has another radio, or none");
    server.abort(CloseCode::application(7), "enough");
    let is_next =
        |event: &ConnectionEvent| is_signal(event) || matches!(event, ConnectionEvent::Closed { .. });
    for events in [&mut here, &mut there] {
        let told = next(events, is_next).await;
        assert!(matches!(told, ConnectionEvent::Closed { .. }), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_comes_up_over_weak_wifi_is_told_of_without_another_word_on_both_sides() {
    let (client, server, at, [caller, called]) = pair(5).await;
    let (mut here, mut there) = (client.events(), server.events());
    let first = client.stats().paths.first().expect("a path").id;
    caller.set_signals([(ip(5), -60), (ip(7), -90)]);
    called.set_signals([(ip(6), -90)]);
    let weak = |path| ConnectionEvent::PathSignal { path, dbm: Some(-90), is_weak: true };
    assert_eq!(next(&mut there, is_of(first)).await, weak(first));
    at.set([ip(7)]);
    let is_first =
        |event: &ConnectionEvent| is_signal(event) || up_at(event).is_some_and(|(_, local)| local == ip(7));
    let up = next(&mut here, is_first).await;
    let (second, _) = up_at(&up).expect("a path is up before more is told of it");
    for events in [&mut here, &mut there] {
        assert_eq!(next(events, is_of(second)).await, weak(second));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_read_back_hears_of_weak_wifi_without_another_word() {
    let (client, _server, _at, [caller, _called]) = pair(9).await;
    caller.set_signals([(ip(9), -90)]);
    let asleep = client.suspend(LIMIT).await.unwrap();
    let awake = caller.resume(&asleep).await.unwrap();
    let heard = async {
        while known(&awake) != Some((-90, true)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, heard).await.expect("its path should have a signal");
}

/// As `set_at_risk` of the engine has it, whose times its own tests check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_path_over_weak_wifi_is_asked_for_signs_of_life() {
    let (weak, _weak_server, _at, [caller, _called]) = pair(11).await;
    let (well, _well_server, _well_at, [other, _other_called]) = pair(13).await;
    caller.set_signals([(ip(11), -90)]);
    other.set_signals([(ip(13), -60)]);
    let sent = || [&weak, &well].map(|it| it.stats().paths.first().map_or(0, |path| path.bytes_sent));
    let asked = async {
        let (mut seen, mut asked) = (sent(), [0; 2]);
        // Both say something when they begin, and then only the one that is asked.
        while asked[0] < asked[1] + 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let now = sent();
            for (asked, (now, seen)) in asked.iter_mut().zip(now.into_iter().zip(seen)) {
                *asked += u32::from(now != seen);
            }
            seen = now;
        }
    };
    timeout(LIMIT * 2, asked).await.expect("no more was asked there than where the signal is well");
}
