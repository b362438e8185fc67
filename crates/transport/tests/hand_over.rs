//! Connections that go over to other keys, at rest and live, over real sockets on loopback addresses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use whimbrel_base::SecretKey;
use whimbrel_transport::{
    Allow, Class, CloseCode, Connection, ConnectionEvent, DownCause, Endpoint, Events, Flow, FlowOptions,
    HandOverError, ListenOptions, Listener, ManualMonitor, RateLimit, ResumeError, SendOptions, Stream,
    SuspendError, Suspended,
};

const PATIENCE: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(5);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 79, last])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
async fn endpoint(last: u8) -> Endpoint {
    with_key(&SecretKey::generate(), last).await
}

async fn with_key(key: &SecretKey, last: u8) -> Endpoint {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let monitor = ManualMonitor::new([ip(last)]);
    Endpoint::builder().secret_key(key.clone()).monitor(monitor).bind().await.unwrap()
}

async fn listen(endpoint: &Endpoint, allow: Allow) -> Listener {
    endpoint.listen(ListenOptions::unnamed().allow(allow)).await.unwrap()
}

/// A server that answers each number with the next one, and counts its connections.
async fn counting(server: &Endpoint, allow: Allow) -> Arc<AtomicUsize> {
    let (mut listener, accepted) = (listen(server, allow).await, Arc::new(AtomicUsize::new(0)));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut stream = connection.accept_stream().await.unwrap();
                while let Ok(number) = stream.read_u64().await {
                    stream.write_u64(number + 1).await.unwrap();
                }
            });
        }
    });
    accepted
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

async fn next_number(stream: &mut Stream, number: u64) -> u64 {
    within(async {
        stream.write_u64(number).await.unwrap();
        stream.read_u64().await.unwrap()
    })
    .await
}

fn only_stream(connection: &Connection) -> Stream {
    let mut streams = connection.streams();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams.remove(0)
}

async fn told(events: &mut Events, wanted: &ConnectionEvent) {
    within(async { while events.next().await.expect("an open connection") != *wanted {} }).await;
}

/// A connection between two endpoints, to hand others over.
async fn between(from: &Endpoint, to: &Endpoint) -> (Connection, Connection) {
    let mut listener = listen(to, Allow::Any).await;
    let dialled = from.connect(to.addr()).await.unwrap();
    (dialled, within(listener.accept()).await.unwrap())
}

/// The side that dialled hops through endpoints with different keys; the peer counts on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_hops_through_four_endpoints_with_a_key_each() {
    let server = endpoint(1).await;
    let accepted = counting(&server, Allow::Any).await;
    let mut heard = server.events();
    let mut at = endpoint(11).await;
    let mut connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let (id, mut number, mut keys) = (connection.id(), 1, vec![at.id()]);
    for hop in 12..15 {
        for _ in 0..10 {
            number = next_number(&mut stream, number).await;
        }
        // Under way when it sleeps: perhaps not sent, perhaps answered and not read.
        stream.write_u64(number).await.unwrap();
        let next = endpoint(hop).await;
        let asleep = connection.suspend_for(next.id(), LIMIT).await.unwrap();
        let gone = stream.read_u64().await.unwrap_err();
        assert!(gone.to_string().contains("suspended"), "{gone}");
        at.close(LIMIT).await;

        at = next;
        keys.push(at.id());
        connection = at.resume(&Suspended::from_bytes(asleep.into_bytes())).await.unwrap();
        assert_eq!(connection.id(), id);
        stream = only_stream(&connection);
        number = within(stream.read_u64()).await.unwrap();
        // That one may have been here before; the next one is not.
        number = next_number(&mut stream, number).await;
        assert_eq!(server.connection(id).unwrap().peer, at.id());
    }
    assert_eq!(number, 37);
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
    // What the server was told, in order.
    for pair in keys.windows(2) {
        let wanted = ConnectionEvent::PeerHandedOver { from: pair[0], to: pair[1] };
        within(async {
            loop {
                match heard.next().await.unwrap() {
                    whimbrel_transport::EndpointEvent::Connection { event, .. } if event == wanted => return,
                    _ => {}
                }
            }
        })
        .await;
    }
}

/// Whoever hands over says by hand whom to dial, and then thinks better of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_owner_has_a_carrier_to_the_peer_before_it_is_handed_anything() {
    let (old, new) = (endpoint(201).await, endpoint(202).await);
    let (over, arriving) = between(&old, &new).await;
    let peer = TcpListener::bind((ip(203), 0)).await.unwrap();
    let (id, at) = (SecretKey::generate().id(), peer.local_addr().unwrap().to_string());
    let mut offer = [&b"WHL2"[..], &[7; 16], &[0], id.as_bytes()].concat();
    offer.extend((at.len() as u16).to_be_bytes());
    offer.extend(at.as_bytes());
    let mut stream = over.open_stream().await.unwrap();
    stream.write_all(&offer).await.unwrap();
    let taking = tokio::spawn(async move { new.accept_hand_over(&arriving, PATIENCE).await.map(drop) });
    let (mut carrier, _) = within(peer.accept()).await.unwrap();
    assert!(within(stream.read_u16()).await.unwrap() > 0, "it says where it is");
    stream.finish().unwrap();
    let failed = within(taking).await.unwrap().unwrap_err();
    assert!(matches!(failed, HandOverError::Broken(_)), "{failed}");
    // TLS was begun there with one record, nothing else was said, and now it hangs up.
    let mut said = Vec::new();
    within(carrier.read_to_end(&mut said)).await.unwrap();
    assert_eq!((said[0], usize::from(u16::from_be_bytes([said[3], said[4]]))), (22, said.len() - 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_does_not_say_whom_to_dial_is_answered_and_what_is_no_offer_is_refused() {
    let (old, new) = (endpoint(204).await, endpoint(205).await);
    let (over, arriving) = between(&old, &new).await;
    let offer = |hello: &[u8]| [hello, &[7; 16], &[0]].concat();
    let mut stream = over.open_stream().await.unwrap();
    stream.write_all(&offer(b"WHL1")).await.unwrap();
    let says_where = async {
        let length = stream.read_u16().await.unwrap();
        stream.finish().unwrap();
        length
    };
    let (taken, length) =
        within(async { tokio::join!(new.accept_hand_over(&arriving, PATIENCE), says_where) }).await;
    let failed = taken.map(drop).unwrap_err();
    assert!(matches!(failed, HandOverError::Broken(_)), "{failed}");
    assert!(length > 0, "it says where it is");
    let mut other = over.open_stream().await.unwrap();
    other.write_all(&offer(b"WHL0")).await.unwrap();
    let failed = new.accept_hand_over(&arriving, PATIENCE).await.map(drop).unwrap_err();
    assert!(matches!(failed, HandOverError::Other), "{failed}");
    assert_eq!(within(other.read_u8()).await.unwrap(), 0);
}

/// The side that listened hops; its client is told by whom it will be met, and dials that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_hops_through_four_keys_and_its_client_follows() {
    let mut server = endpoint(21).await;
    let mut listener = listen(&server, Allow::Any).await;
    let client = endpoint(31).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let mut events = connection.events();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let mut served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    for hop in 22..25 {
        let number = within(its_stream.read_u64()).await.unwrap();
        its_stream.write_u64(number + 1).await.unwrap();
        let next = endpoint(hop).await;
        let asleep = served.suspend_for(next.id(), LIMIT).await.unwrap();
        told(&mut events, &ConnectionEvent::PeerSuspended).await;
        // Written while nobody is there.
        stream.write_u64(number + 1).await.unwrap();
        drop(listener);
        server.close(LIMIT).await;

        let from = server.id();
        server = next;
        listener = listen(&server, Allow::Any).await;
        served = server.resume(&asleep).await.unwrap();
        its_stream = only_stream(&served);
        assert_eq!(within(stream.read_u64()).await.unwrap(), number + 1);
        told(&mut events, &ConnectionEvent::PeerHandedOver { from, to: server.id() }).await;
        assert_eq!(connection.peer_id(), server.id());
    }
    assert_eq!(within(its_stream.read_u64()).await.unwrap(), 4);
}

/// Live: the old owner holds still until the peer has taken the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_handed_over_live_while_it_counts() {
    let (server, old, new) = (endpoint(41).await, endpoint(42).await, endpoint(43).await);
    let accepted = counting(&server, Allow::Any).await;
    let (over, arriving) = between(&old, &new).await;
    let connection = old.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let number = next_number(&mut stream, 1).await;
    stream.write_u64(number).await.unwrap();
    let start = Instant::now();
    let (gone, here) =
        tokio::join!(connection.hand_over(&over, LIMIT), new.accept_hand_over(&arriving, LIMIT));
    gone.unwrap();
    let here = here.unwrap();
    let mut stream = only_stream(&here);
    assert_eq!(within(stream.read_u64()).await.unwrap(), number + 1);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let reason = within(connection.closed()).await;
    assert_eq!(reason.code, CloseCode::HANDED_OVER, "{reason}");
    // And back, over the same connection between the two.
    let (gone, here) = tokio::join!(here.hand_over(&arriving, LIMIT), old.accept_hand_over(&over, LIMIT));
    gone.unwrap();
    assert_eq!(next_number(&mut only_stream(&here.unwrap()), number + 1).await, number + 2);
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_handed_over_live_and_its_client_follows() {
    let (client, old, new) = (endpoint(51).await, endpoint(52).await, endpoint(53).await);
    let mut listener = listen(&old, Allow::Any).await;
    let connection = client.connect(old.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    let number = within(its_stream.read_u64()).await.unwrap();
    let (over, arriving) = between(&old, &new).await;
    let (gone, here) = tokio::join!(served.hand_over(&over, LIMIT), new.accept_hand_over(&arriving, LIMIT));
    gone.unwrap();
    let here = here.unwrap();
    only_stream(&here).write_u64(number + 1).await.unwrap();
    assert_eq!(within(stream.read_u64()).await.unwrap(), number + 1);
    assert_eq!(connection.peer_id(), new.id());
}

/// What the end has not read goes along, over a connection that takes its time for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_before_the_connection_does_waits_there_and_is_not_sent_away() {
    const UNREAD: usize = 256 * 1024;
    let (client, old, new) = (endpoint(56).await, endpoint(57).await, endpoint(58).await);
    let mut listener = listen(&old, Allow::Any).await;
    let connection = client.connect(old.addr()).await.unwrap();
    let mut events = connection.events();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_all(&[7; UNREAD]).await.unwrap();
    stream.flush().await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let _unread = within(served.accept_stream()).await.unwrap();
    let (over, arriving) = between(&old, &new).await;
    over.set_rate_limit(RateLimit::new(200_000));
    let (gone, here) =
        tokio::join!(served.hand_over(&over, PATIENCE), new.accept_hand_over(&arriving, PATIENCE));
    gone.unwrap();
    let here = here.unwrap();
    let mut read = vec![0; UNREAD];
    let mut its_stream = only_stream(&here);
    within(its_stream.read_exact(&mut read)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    its_stream.write_u64(8).await.unwrap();
    assert_eq!(within(stream.read_u64()).await.unwrap(), 8);
    assert_eq!(connection.peer_id(), new.id());
    while let Some(event) = events.try_next() {
        let is_refusal = matches!(event, ConnectionEvent::PathDown { cause: DownCause::Refused, .. });
        assert!(!is_refusal, "{event:?}");
    }
}

/// Whatever goes wrong at the new owner, the old one goes on, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_the_new_owner_fails_the_old_one_goes_on() {
    let (server, old, new) = (endpoint(61).await, endpoint(62).await, endpoint(63).await);
    // The peer does not want the new owner.
    counting(&server, Allow::only([old.id()])).await;
    let (over, arriving) = between(&old, &new).await;
    let connection = old.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    assert_eq!(next_number(&mut stream, 1).await, 2);
    stream.write_u64(2).await.unwrap();
    let (stays, refused) =
        tokio::join!(connection.hand_over(&over, LIMIT), new.accept_hand_over(&arriving, LIMIT));
    let refused = refused.unwrap_err();
    let reason = match &refused {
        HandOverError::NotTaken(reason) => reason,
        other => panic!("{other}"),
    };
    assert_eq!(reason.code, CloseCode::NOT_ALLOWED, "{reason}");
    assert!(matches!(stays.unwrap_err(), HandOverError::Refused(_)));
    // The same handles go on.
    assert_eq!(within(stream.read_u64()).await.unwrap(), 3);
    assert_eq!(next_number(&mut stream, 3).await, 4);
    // It takes the connection, and dies before it has dialled.
    let dies = async {
        let mut stream = arriving.accept_stream().await.unwrap();
        stream.read_exact(&mut [0; 21 + 32]).await.unwrap();
        let places = stream.read_u16().await.unwrap();
        stream.read_exact(&mut vec![0; places.into()]).await.unwrap();
        stream.write_u16(0).await.unwrap();
        let _ = stream.read_u32().await.unwrap();
    };
    let (stays, ()) = tokio::join!(connection.hand_over(&over, LIMIT), dies);
    assert!(matches!(stays.unwrap_err(), HandOverError::Broken(_)));
    assert_eq!(next_number(&mut stream, 4).await, 5);
    // There is no other owner to take it.
    let stays = connection.hand_over(&over, Duration::from_millis(200)).await;
    assert!(matches!(stays.unwrap_err(), HandOverError::TimedOut));
    assert_eq!(next_number(&mut stream, 5).await, 6);
}

/// A file that was handed over opens for its next owner only, once, and only if the peer lets it in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_a_refused_and_an_old_copy_end_with_the_reason() {
    let key = SecretKey::generate();
    let (server, at) = (endpoint(71).await, with_key(&key, 72).await);
    let (next, thief, unwelcome) = (endpoint(73).await, endpoint(74).await, endpoint(75).await);
    counting(&server, Allow::only([at.id(), next.id()])).await;
    let connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    assert_eq!(next_number(&mut stream, 1).await, 2);
    for not_a_key in [at.id(), server.id(), whimbrel_base::EndpointId::from_bytes(&[0; 32])] {
        let refused = connection.suspend_for(not_a_key, LIMIT).await.unwrap_err();
        assert!(matches!(refused, SuspendError::NotAKey(_)), "{refused}");
    }
    let own = connection.suspend(LIMIT).await.unwrap();
    let old = own.clone();
    let connection = at.resume(&own).await.unwrap();
    let asleep = connection.suspend_for(unwelcome.id(), LIMIT).await;
    // It was resumed and may not have been heard of: then it has to be first.
    let asleep = match asleep {
        Ok(asleep) => asleep,
        Err(error) => panic!("{error}"),
    };
    let refused = thief.resume(&asleep).await.unwrap_err();
    assert!(matches!(refused, ResumeError::OtherOwner { .. }), "{refused}");
    let refused = at.resume(&asleep).await.unwrap_err();
    assert!(matches!(refused, ResumeError::OtherOwner { .. }), "{refused}");
    let refused = unwelcome.resume(&asleep).await.unwrap();
    let reason = within(refused.closed()).await;
    assert_eq!(reason.code, CloseCode::NOT_ALLOWED, "{reason}");
    // The file of before is of an older copy.
    let stale = at.resume(&old).await.unwrap();
    let reason = within(stale.closed()).await;
    assert_eq!(reason.code, CloseCode::SUPERSEDED, "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_before_that_comes_back_is_told() {
    let key = SecretKey::generate();
    let (server, at, next) = (endpoint(81).await, with_key(&key, 82).await, endpoint(83).await);
    counting(&server, Allow::Any).await;
    let connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    assert_eq!(next_number(&mut stream, 1).await, 2);
    let kept = connection.suspend(LIMIT).await.unwrap();
    let connection = at.resume(&kept).await.unwrap();
    let mut stream = only_stream(&connection);
    assert_eq!(next_number(&mut stream, 2).await, 3);
    let asleep = connection.suspend_for(next.id(), LIMIT).await.unwrap();
    let here = next.resume(&asleep).await.unwrap();
    let mut stream = only_stream(&here);
    assert_eq!(next_number(&mut stream, 3).await, 4);
    let back = at.resume(&kept).await.unwrap();
    let reason = within(back.closed()).await;
    assert_eq!(reason.code, CloseCode::SUPERSEDED, "{reason}");
    assert_eq!(next_number(&mut stream, 4).await, 5);
}

/// The application has the last word, on either side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_is_asked_whether_the_peer_may_hand_over() {
    let (server, client) = (endpoint(91).await, endpoint(92).await);
    let (next_server, next_client) = (endpoint(93).await, endpoint(94).await);
    let mut listener = listen(&server, Allow::Any).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    assert_eq!(within(its_stream.read_u64()).await.unwrap(), 1);
    connection.allow_hand_over(Allow::Nobody);
    let (over, arriving) = between(&server, &next_server).await;
    let limit = Duration::from_secs(2);
    let (stays, _) =
        tokio::join!(served.hand_over(&over, limit), next_server.accept_hand_over(&arriving, limit));
    assert!(stays.is_err());
    its_stream.write_u64(2).await.unwrap();
    assert_eq!(within(stream.read_u64()).await.unwrap(), 2);
    assert_eq!(connection.peer_id(), server.id());
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, welcome) = (asked.clone(), next_client.id());
    served.allow_hand_over(Allow::check(move |peer| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { peer == welcome }
    }));
    let asleep = connection.suspend_for(next_client.id(), LIMIT).await.unwrap();
    let here = next_client.resume(&asleep).await.unwrap();
    only_stream(&here).write_u64(3).await.unwrap();
    assert_eq!(within(its_stream.read_u64()).await.unwrap(), 3);
    assert!(asked.load(Ordering::Relaxed) > 0);
    assert_eq!(served.peer_id(), next_client.id());
}

async fn send_numbers(flow: &Flow, numbers: Range<u32>) {
    for number in numbers {
        let silent = SendOptions { silent: true, ..SendOptions::default() };
        within(flow.send(number.to_be_bytes().repeat(250), silent)).await.unwrap();
    }
}

async fn hears_numbers(connection: &Connection, numbers: Range<u32>) {
    for number in numbers {
        let message = within(connection.recv_message()).await.unwrap();
        assert!(message.data == number.to_be_bytes().repeat(250), "not {number}");
    }
}

fn only_flow(connection: &Connection) -> Flow {
    let mut flows = connection.flows();
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows.remove(0)
}

/// Most is read only at the end: until then some messages wait to be sent, some are under way, and some have
/// arrived at the end that goes over, where they are unread, or were taken from the engine with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_over_to_other_keys_live_and_at_rest_each_once_and_in_order() {
    let options = FlowOptions::new(Class::RELIABLE_SEQUENCED);
    let (server, first) = (endpoint(101).await, endpoint(102).await);
    let (second, third) = (endpoint(103).await, endpoint(104).await);
    let mut listener = listen(&server, Allow::Any).await;
    let connection = first.connect(server.addr()).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let there = connection.open_flow(options).await.unwrap();
    let back = served.open_flow(options).await.unwrap();
    let (over, arriving) = between(&first, &second).await;
    tokio::join!(send_numbers(&there, 0..200), send_numbers(&back, 0..200));
    hears_numbers(&connection, 0..20).await;
    let (gone, here) =
        tokio::join!(connection.hand_over(&over, LIMIT), second.accept_hand_over(&arriving, LIMIT));
    gone.unwrap();
    let here = here.unwrap();
    let there = only_flow(&here);
    tokio::join!(send_numbers(&there, 200..400), send_numbers(&back, 200..400));
    hears_numbers(&here, 20..40).await;
    let asleep = here.suspend_for(third.id(), LIMIT).await.unwrap();
    let here = third.resume(&asleep).await.unwrap();
    let there = only_flow(&here);
    tokio::join!(send_numbers(&there, 400..600), send_numbers(&back, 400..600));
    tokio::join!(hears_numbers(&served, 0..600), hears_numbers(&here, 40..600));
    assert_eq!(served.peer_id(), third.id());
}

/// Some were taken from the engine together and not read when the end was written down for the other owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_there_once_and_in_order_if_the_new_owner_dies() {
    let (server, old, new) = (endpoint(111).await, endpoint(112).await, endpoint(113).await);
    let mut listener = listen(&server, Allow::Any).await;
    let connection = old.connect(server.addr()).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let (over, arriving) = between(&old, &new).await;
    let flow = served.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
    send_numbers(&flow, 0..30).await;
    within(async {
        while connection.stats().messages.received < 30 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    hears_numbers(&connection, 0..5).await;
    let dies = async {
        let mut stream = arriving.accept_stream().await.unwrap();
        let mut hello = [0; 21];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_u16(0).await.unwrap();
        // It has the connection from here on.
        stream.read_u32().await.unwrap()
    };
    let (stays, _) = tokio::join!(connection.hand_over(&over, PATIENCE), dies);
    assert!(matches!(stays.unwrap_err(), HandOverError::Broken(_)));
    send_numbers(&flow, 30..60).await;
    hears_numbers(&connection, 5..60).await;
}
