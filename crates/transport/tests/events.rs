//! What an endpoint tells those who listen to all of its connections.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel_transport::{
    Allow, CloseCode, ConnectError, ConnectionEvent, Endpoint, EndpointEvent, EndpointEvents, ListenOptions,
    ManualMonitor, Side,
};

const LIMIT: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 79, last])
}

async fn endpoint(at: &ManualMonitor) -> Endpoint {
    Endpoint::builder().monitor(at.clone()).bind().await.unwrap()
}

async fn next(events: &mut EndpointEvents) -> EndpointEvent {
    timeout(LIMIT, events.next()).await.expect("no event").expect("no more events")
}

/// The next event of a connection that fits.
async fn until(events: &mut EndpointEvents, fits: impl Fn(&ConnectionEvent) -> bool) -> ConnectionEvent {
    loop {
        match next(events).await {
            EndpointEvent::Connection { event, .. } if fits(&event) => return event,
            EndpointEvent::Connection { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_tells_of_every_connection_from_its_beginning_through_moves_to_its_end() {
    let (at, other) = (ManualMonitor::new([ip(1)]), ManualMonitor::new([ip(2)]));
    let (caller, called) = (endpoint(&at).await, endpoint(&other).await);
    let (mut here, mut there) = (caller.events(), called.events());
    let mut listener = called.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let connection = caller.connect(called.addr()).await.unwrap();
    let accepted = listener.accept().await.unwrap();
    let (id, peer) = (connection.id(), called.id());
    assert_eq!(next(&mut here).await, EndpointEvent::Established { id, peer, side: Side::Client });
    let peer = caller.id();
    assert_eq!(next(&mut there).await, EndpointEvent::Established { id, peer, side: Side::Server });

    tokio::time::sleep(Duration::from_millis(1500)).await;
    at.set([]);
    // Said again and again to those who listen to the endpoint alone.
    for _ in 0..3 {
        until(&mut here, |event| matches!(event, ConnectionEvent::Unreachable { .. })).await;
    }
    at.set([ip(3)]);
    let back = |event: &ConnectionEvent| matches!(event, ConnectionEvent::PathUp { local, recovery: Some(_), .. } if local.ip() == ip(3));
    until(&mut here, |event| matches!(event, ConnectionEvent::Reachable { .. })).await;
    until(&mut here, back).await;
    let back = |event: &ConnectionEvent| matches!(event, ConnectionEvent::PathUp { remote, .. } if remote.ip() == ip(3));
    until(&mut there, back).await;

    accepted.abort(CloseCode::application(7), "enough");
    for events in [&mut here, &mut there] {
        let end = until(events, |event| matches!(event, ConnectionEvent::Closed { .. })).await;
        let ConnectionEvent::Closed { code, .. } = end else { unreachable!() };
        assert_eq!(code, CloseCode::application(7));
    }
}

#[tokio::test]
async fn an_attempt_that_fails_is_told_on_both_sides() {
    let (at, other) = (ManualMonitor::new([ip(5)]), ManualMonitor::new([ip(6)]));
    let (caller, called) = (endpoint(&at).await, endpoint(&other).await);
    let (mut here, mut there) = (caller.events(), called.events());
    let friend = whimbrel_base::SecretKey::generate().id();
    let allow = Allow::check(move |peer| std::future::ready(peer == friend));
    let _listener = called.listen(ListenOptions::unnamed().allow(allow)).await.unwrap();
    let refused = caller.connect(called.addr()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. }), "{refused}");
    for (events, of, on) in [(&mut here, called.id(), Side::Client), (&mut there, caller.id(), Side::Server)]
    {
        let EndpointEvent::Failed { peer, side, reason, .. } = next(events).await else { panic!() };
        assert_eq!((peer, side), (Some(of), on));
        assert!(reason.contains(&CloseCode::NOT_ALLOWED.to_string()), "{reason}");
    }
    let name: whimbrel_base::Name = "nobody@example.org".parse().unwrap();
    caller.connect(name.clone()).await.unwrap_err();
    let EndpointEvent::Failed { name: Some(told), peer: None, .. } = next(&mut here).await else { panic!() };
    assert_eq!(told, name);
}
