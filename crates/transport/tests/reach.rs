//! What an application is told of a peer that is out of reach, and how long it waits for one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use whimbrel_transport::{
    Allow, Class, CloseCode, Config, Connection, ConnectionError, ConnectionEvent, Endpoint, Events,
    FlowOptions, ListenOptions, ManualMonitor, Outcome, SendOptions, Timeouts,
};

const LIMIT: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 80, last])
}

/// A connection whose client is at `first`, with both endpoints.
async fn pair(first: u8, config: Config) -> (Connection, Connection, ManualMonitor, [Endpoint; 2]) {
    let at = ManualMonitor::new([ip(first)]);
    let caller = Endpoint::builder().monitor(at.clone()).config(config.clone()).bind().await.unwrap();
    let other = ManualMonitor::new([ip(first + 1)]);
    let called = Endpoint::builder().monitor(other).config(config).bind().await.unwrap();
    let mut listener = called.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = caller.connect(called.addr()).await.unwrap();
    let server = listener.accept().await.unwrap();
    (client, server, at, [caller, called])
}

async fn next(events: &mut Events, wanted: impl Fn(&ConnectionEvent) -> Option<Duration>) -> Duration {
    let found = async {
        loop {
            if let Some(time) = wanted(&events.next().await.expect("the connection ended")) {
                return time;
            }
        }
    };
    timeout(LIMIT, found).await.expect("not told")
}

fn unreachable(event: &ConnectionEvent) -> Option<Duration> {
    match event {
        ConnectionEvent::Unreachable { lasts } => Some(*lasts),
        _ => None,
    }
}

fn reachable(event: &ConnectionEvent) -> Option<Duration> {
    match event {
        ConnectionEvent::Reachable { after } => Some(*after),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_told_as_often_as_was_asked_for_and_its_end_with_its_length() {
    let every = Duration::from_millis(300);
    let config = Config::default();
    let (client, server, at, _endpoints) = pair(1, config).await;
    client.set_timeouts(Timeouts { unreachable_every: every, ..client.timeouts() }).unwrap();
    let (mut here, mut there) = (client.events(), server.events());
    at.set([]);
    let begin = Instant::now();
    let first = next(&mut here, unreachable).await;
    assert!(first < every, "as soon as no path works: {first:?}");
    for number in 1..=3 {
        let lasts = next(&mut here, unreachable).await;
        assert!(lasts >= every * number && lasts <= begin.elapsed() + every, "{lasts:?}");
    }
    next(&mut there, unreachable).await;
    let second = next(&mut there, unreachable).await;
    assert!(second >= Duration::from_secs(1), "the other side has the default: {second:?}");
    at.set([ip(3)]);
    for events in [&mut here, &mut there] {
        let after = next(events, reachable).await;
        assert!(after >= every * 3 && after <= begin.elapsed(), "{after:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_outside_of_its_range_is_refused_and_in_a_configuration_brought_within() {
    let config = Config {
        timeouts: Timeouts { heartbeat: Duration::ZERO, ..Timeouts::default() },
        ..Config::default()
    };
    let (client, _server, _at, _endpoints) = pair(5, config).await;
    let shortest = Duration::from_millis(100);
    assert_eq!(client.timeouts().heartbeat, shortest);
    let wrong = Timeouts { heartbeat: Duration::from_millis(99), ..client.timeouts() };
    let refused = client.set_timeouts(wrong).unwrap_err();
    assert_eq!((refused.name, refused.least), ("heartbeat", shortest));
    assert_eq!(client.timeouts().heartbeat, shortest);
}

/// What the peer does not take, or cannot be told of, holds a close up no longer than its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_waits_for_messages_no_longer_than_its_limit() {
    for cut in [false, true] {
        let config = Config { message_window: 128 * 1024, ..Config::default() };
        let (client, server, at, _endpoints) = pair(7 + 2 * u8::from(cut), config).await;
        let flow = client.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
        if cut {
            at.set([]);
        }
        let mut told = Vec::new();
        for number in 0..100_u8 {
            told.push(flow.send(vec![number; 10_000], SendOptions::default()).await.unwrap());
        }
        let (limit, begin) = (Duration::from_millis(400), Instant::now());
        let closed = client.close(CloseCode::NONE, "", limit).await;
        assert!(matches!(closed, Err(ConnectionError::TimedOut)), "{closed:?}");
        assert!((limit..limit * 3).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        // It goes on in the background, until the application has had enough.
        assert!(client.close_reason().is_none());
        if cut {
            client.abort(CloseCode::NONE, "enough");
        } else {
            for number in 0..100_u8 {
                let message = timeout(LIMIT, server.recv_message()).await.unwrap().unwrap();
                assert_eq!(message.data, vec![number; 10_000]);
            }
            timeout(LIMIT, client.closed()).await.expect("all was taken");
        }
        let wanted = if cut { Outcome::Lost } else { Outcome::Delivered };
        for sent in told {
            assert_eq!(timeout(LIMIT, sent).await.unwrap(), wanted);
        }
    }
}
