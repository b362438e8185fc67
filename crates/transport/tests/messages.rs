//! Messages between two endpoints on loopback: classes, replacement, back-pressure, moves, and what is told.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Class, CloseCode, Config, Connection, ConnectionError, Endpoint, Flow,
    FlowError, FlowOptions, ListenOptions, Listener, MAX_MESSAGE, ManualMonitor, Message, Outcome, SendError,
    SendOptions, Tag, Urgency,
};

const LIMIT: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 78, last])
}

struct Pair {
    client: Connection,
    server: Connection,
    at: ManualMonitor,
    _endpoints: [Endpoint; 2],
    _listener: Listener,
}

async fn endpoint(at: &ManualMonitor, config: &Config) -> Endpoint {
    Endpoint::builder().monitor(at.clone()).config(config.clone()).bind().await.unwrap()
}

/// The client's address has the number `first`, the server's the next.
async fn pair_with(first: u8, client: &Config, server: &Config) -> Pair {
    let (at, other) = (ManualMonitor::new([ip(first)]), ManualMonitor::new([ip(first + 1)]));
    let (caller, called) = (endpoint(&at, client).await, endpoint(&other, server).await);
    let mut listener = called.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = caller.connect(called.addr()).await.unwrap();
    let server = listener.accept().await.unwrap();
    Pair { client, server, at, _endpoints: [caller, called], _listener: listener }
}

async fn pair(first: u8) -> Pair {
    pair_with(first, &Config::default(), &Config::default()).await
}

async fn flow(connection: &Connection, class: Class) -> Flow {
    connection.open_flow(FlowOptions::new(class)).await.unwrap()
}

async fn next(connection: &Connection) -> Message {
    timeout(LIMIT, connection.recv_message()).await.expect("no message").unwrap()
}

async fn next_text(connection: &Connection) -> String {
    String::from_utf8(next(connection).await.data).unwrap()
}

fn tagged(tag: u64) -> SendOptions {
    SendOptions { tag: Some(Tag(tag)), ..SendOptions::default() }
}

async fn each_class_arrives(first: u8, carrier: CarrierKind) {
    let config = Config { carriers: Carriers::Only(carrier), ..Config::default() };
    let pair = pair_with(first, &config, &Config::default()).await;
    for class in Class::ALL {
        let flow = flow(&pair.client, class).await;
        for number in 0..100_u8 {
            let told = flow.send([number; 1000], tagged(number.into())).await.unwrap();
            let message = next(&pair.server).await;
            assert_eq!(message.data, [number; 1000]);
            assert_eq!(
                (message.flow, message.class, message.tag),
                (flow.id(), class, Some(Tag(number.into())))
            );
            assert_eq!(timeout(LIMIT, told).await.unwrap(), Outcome::Delivered);
        }
    }
    assert_eq!(pair.client.stats().messages.delivered, 400);
    assert_eq!(pair.server.stats().messages.received, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_arrives_over_tcp() {
    each_class_arrives(1, CarrierKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_arrives_over_quic() {
    each_class_arrives(3, CarrierKind::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_both_ways_beside_streams() {
    let pair = pair(5).await;
    let there = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    let back = flow(&pair.server, Class::RELIABLE_SEQUENCED).await;
    let stream = pair.client.open_stream().await.unwrap();
    there.send("question", SendOptions::default()).await.unwrap();
    assert_eq!(next_text(&pair.server).await, "question");
    back.send("answer", SendOptions::default()).await.unwrap();
    assert_eq!(next_text(&pair.client).await, "answer");
    drop(stream);
    timeout(LIMIT, pair.server.accept_stream()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_message_arrives_whole_and_a_larger_one_is_refused() {
    let pair = pair(7).await;
    assert_eq!(pair.client.largest_message(), MAX_MESSAGE);
    let flow = flow(&pair.client, Class::RELIABLE).await;
    let large: Vec<u8> = (0..MAX_MESSAGE).map(|at| (at % 251) as u8).collect();
    let told = flow.send(large.clone(), SendOptions::default()).await.unwrap();
    assert!(next(&pair.server).await.data == large);
    assert_eq!(timeout(LIMIT, told).await.unwrap(), Outcome::Delivered);
    let refused = flow.send(vec![0; MAX_MESSAGE as usize + 1], SendOptions::default()).await.unwrap_err();
    assert_eq!(refused, SendError::TooLarge { size: MAX_MESSAGE + 1, most: MAX_MESSAGE });
}

/// The client has no address: what is sent waits, and some of it is not worth sending after a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_stale_in_an_outage_is_not_sent_after_it() {
    let pair = pair(9).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    flow.send("before", SendOptions::default()).await.unwrap();
    assert_eq!(next_text(&pair.server).await, "before");
    pair.at.set([]);
    while pair.client.stats().unreachable.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let short = SendOptions { lifetime: Some(Duration::from_millis(50)), ..SendOptions::default() };
    let expires = flow.send("soon stale", short).await.unwrap();
    let mut updates = Vec::new();
    for number in 0..100 {
        updates.push(flow.replace(format!("update {number}"), tagged(1)).await.unwrap());
    }
    let cancelled = flow.send("not needed", tagged(2)).await.unwrap();
    flow.cancel(Tag(2));
    assert_eq!(timeout(LIMIT, cancelled).await.unwrap(), Outcome::Cancelled);
    assert_eq!(timeout(LIMIT, expires).await.unwrap(), Outcome::Expired);
    let last = updates.pop().unwrap();
    for update in updates {
        assert_eq!(timeout(LIMIT, update).await.unwrap(), Outcome::Replaced);
    }
    pair.at.set([ip(11)]);
    assert_eq!(next_text(&pair.server).await, "update 99");
    assert_eq!(timeout(LIMIT, last).await.unwrap(), Outcome::Delivered);
    assert_eq!(pair.client.stats().messages.sent, 2, "nothing stale was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_frame_takes_the_place_of_all_delta_frames() {
    let pair = pair(13).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    pair.at.set([]);
    while pair.client.stats().unreachable.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (key, delta) = (Tag(1), Tag(2));
    flow.send("key 1", tagged(key.0)).await.unwrap();
    let stale = flow.send("delta 1", tagged(delta.0)).await.unwrap();
    flow.replace_all(&[(flow.id(), delta)], "key 2", tagged(key.0)).await.unwrap();
    flow.send("delta 2", tagged(delta.0)).await.unwrap();
    assert_eq!(timeout(LIMIT, stale).await.unwrap(), Outcome::Cancelled);
    assert_eq!(flow.replace("untagged", SendOptions::default()).await.unwrap_err(), SendError::NoTag);
    pair.at.set([ip(15)]);
    assert_eq!(next_text(&pair.server).await, "key 2");
    assert_eq!(next_text(&pair.server).await, "delta 2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_waits_for_a_reader_and_can_set_a_limit() {
    let window = Config { message_window: 256 << 10, ..Config::default() };
    let pair = pair_with(17, &Config::default(), &window).await;
    let options = FlowOptions { queue: 64 << 10, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flow = pair.client.open_flow(options).await.unwrap();
    let brief = Duration::from_millis(300);
    let mut taken = 0;
    while flow.send_timeout([7; 10_000], SendOptions::default(), brief).await.is_ok() {
        taken += 1;
        assert!(taken < 1000, "nobody reads, and nothing stops the sender");
    }
    assert!(taken >= 25, "{taken}");
    let refused = flow.try_send([8; 10_000], SendOptions::default()).unwrap_err();
    assert_eq!((refused.error, refused.data), (SendError::Full, vec![8; 10_000]));
    // A task that waits goes on as soon as there is room.
    let waiting = tokio::spawn({
        let flow = flow.clone();
        async move { flow.send([9; 10_000], SendOptions::default()).await.unwrap().await }
    });
    for _ in 0..taken {
        assert_eq!(next(&pair.server).await.data, [7; 10_000]);
    }
    assert_eq!(next(&pair.server).await.data, [9; 10_000]);
    assert_eq!(timeout(LIMIT, waiting).await.unwrap().unwrap(), Outcome::Delivered);
}

/// The path is idle meanwhile: nothing but the message's own time has the sender look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_expires_while_the_peer_takes_no_more_is_told_then() {
    let window = Config { message_window: 256 << 10, ..Config::default() };
    let pair = pair_with(57, &Config::default(), &window).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    for _ in 0..2 {
        let told = flow.send(vec![7; 90 << 10], SendOptions::default()).await.unwrap();
        assert_eq!(timeout(LIMIT, told).await.unwrap(), Outcome::Delivered);
    }
    // Nobody reads: there is no credit for a third.
    let brief = SendOptions { lifetime: Some(Duration::from_millis(500)), ..SendOptions::default() };
    let told = flow.send(vec![8; 90 << 10], brief).await.unwrap();
    assert_eq!(timeout(LIMIT, told).await.expect("nobody was told"), Outcome::Expired);
}

/// Two that arrived together are taken from the engine together, and nobody asks for a further one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_gives_its_credit_back_without_a_further_call() {
    let window = Config { message_window: 256 << 10, ..Config::default() };
    let pair = pair_with(53, &Config::default(), &window).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    for _ in 0..2 {
        let told = flow.send(vec![7; 90 << 10], SendOptions::default()).await.unwrap();
        assert_eq!(timeout(LIMIT, told).await.unwrap(), Outcome::Delivered);
    }
    for _ in 0..2 {
        assert_eq!(next(&pair.server).await.data, vec![7; 90 << 10]);
    }
    // There is room for it only if neither of them counts.
    let told = flow.send(vec![8; 120 << 10], SendOptions::default()).await.unwrap();
    assert_eq!(timeout(LIMIT, told).await.expect("no credit"), Outcome::Delivered);
    assert_eq!(next(&pair.server).await.data, vec![8; 120 << 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_receivers_each_has_messages_in_order_and_none_is_lost_or_doubled() {
    const TOTAL: u32 = 20_000;
    let pair = pair(55).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    let receivers: Vec<_> = (0..3)
        .map(|_| {
            let server = pair.server.clone();
            tokio::spawn(async move {
                let mut came = Vec::new();
                while let Ok(message) = timeout(LIMIT, server.recv_message()).await.expect("no end") {
                    came.push(u32::from_be_bytes(message.data[..4].try_into().unwrap()));
                }
                came
            })
        })
        .collect();
    for number in 0..TOTAL {
        flow.send(number.to_be_bytes().repeat(25), SendOptions::default()).await.unwrap();
    }
    pair.client.close(CloseCode::NONE, "", LIMIT).await.unwrap();
    let mut all = Vec::new();
    for receiver in receivers {
        let came = receiver.await.unwrap();
        assert!(came.is_sorted(), "out of order for one of them");
        all.extend(came);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..TOTAL), "not each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrived_before_the_end_can_be_taken_after_it() {
    let pair = pair(19).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    for number in 0..50 {
        flow.send(format!("{number}"), SendOptions::default()).await.unwrap();
    }
    drop(flow);
    pair.client.close(CloseCode::NONE, "that was all", LIMIT).await.unwrap();
    pair.server.closed().await;
    for number in 0..50 {
        assert_eq!(next_text(&pair.server).await, format!("{number}"));
    }
    let over = timeout(LIMIT, pair.server.recv_message()).await.unwrap();
    assert!(matches!(over, Err(ConnectionError::Closed(_))), "{over:?}");
    let closed = pair.server.open_flow(FlowOptions::new(Class::RELIABLE)).await.unwrap_err();
    assert!(matches!(closed, FlowError::ConnectionClosed(_)), "{closed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_of_the_end() {
    let pair = pair(21).await;
    let options = FlowOptions { queue: 1000, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flow = pair.client.open_flow(options).await.unwrap();
    pair.at.set([]);
    while pair.client.stats().unreachable.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = flow.send([1; 1000], SendOptions::default()).await.unwrap();
    let writer = tokio::spawn({
        let flow = flow.clone();
        async move { flow.send([2; 1000], SendOptions::default()).await.map(drop) }
    });
    let reader = tokio::spawn({
        let client = pair.client.clone();
        async move { client.recv_message().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    pair.client.abort(CloseCode::NONE, "enough");
    assert_eq!(timeout(LIMIT, told).await.unwrap(), Outcome::Lost);
    let written = timeout(LIMIT, writer).await.unwrap().unwrap();
    assert!(matches!(written, Err(SendError::ConnectionClosed(_))), "{written:?}");
    assert!(matches!(timeout(LIMIT, reader).await.unwrap().unwrap(), Err(ConnectionError::Closed(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_no_messages_is_named() {
    let none = Config { message_window: 0, ..Config::default() };
    let pair = pair_with(23, &Config::default(), &none).await;
    let refused = pair.client.open_flow(FlowOptions::new(Class::RELIABLE)).await.unwrap_err();
    assert_eq!(refused, FlowError::Unsupported);
    assert_eq!(pair.client.largest_message(), 0);
    // It can send some itself.
    let flow = flow(&pair.server, Class::RELIABLE).await;
    flow.send("the other way", SendOptions::default()).await.unwrap();
    assert_eq!(next_text(&pair.client).await, "the other way");
}

/// The least urgent gets its part while somebody floods with the most urgent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_urgent_messages_starves_nobody() {
    let pair = pair(25).await;
    let urgent = FlowOptions { urgency: Urgency::FIRST, ..FlowOptions::new(Class::RELIABLE) };
    let patient = FlowOptions { urgency: Urgency::LAST, ..FlowOptions::new(Class::RELIABLE) };
    let (urgent, patient) =
        (pair.client.open_flow(urgent).await.unwrap(), pair.client.open_flow(patient).await.unwrap());
    let id = patient.id();
    let flood =
        tokio::spawn(async move { while urgent.send([1; 4096], SendOptions::default()).await.is_ok() {} });
    let low =
        tokio::spawn(async move { while patient.send([2; 4096], SendOptions::default()).await.is_ok() {} });
    let mut patient = 0;
    for _ in 0..20_000 {
        patient += u32::from(next(&pair.server).await.flow == id);
    }
    flood.abort();
    low.abort();
    assert!(patient >= 400, "{patient} of 20 000 messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_on_through_moves_and_none_is_doubled() {
    let pair = pair(30).await;
    let flow = flow(&pair.client, Class::RELIABLE_SEQUENCED).await;
    let sender = tokio::spawn(async move {
        for number in 0..3000_u32 {
            flow.send(number.to_be_bytes(), SendOptions::default()).await.unwrap();
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        flow
    });
    for number in 0..3000_u32 {
        assert_eq!(next(&pair.server).await.data, number.to_be_bytes());
        if number % 500 == 250 {
            pair.at.set([ip(32 + (number / 500) as u8)]);
        }
    }
    sender.await.unwrap();
    assert!(pair.client.stats().moves >= 3, "{}", pair.client.stats().moves);
}

/// Many small ones as quickly as they go: over QUIC in datagrams and, beyond what those hold, in segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreliable_messages_over_quic_have_their_outcomes_and_give_their_credit_back() {
    let config = Config { carriers: Carriers::Only(CarrierKind::Quic), ..Config::default() };
    let pair = pair_with(50, &config, &Config::default()).await;
    let flow = flow(&pair.client, Class::UNRELIABLE_SEQUENCED).await;
    let reader = tokio::spawn({
        let server = pair.server.clone();
        async move {
            let (mut came, mut last) = (0_u64, None);
            while let Ok(Ok(message)) = timeout(Duration::from_secs(2), server.recv_message()).await {
                let number = u32::from_be_bytes(message.data[..4].try_into().unwrap());
                assert!(last.is_none_or(|last| last < number), "{number} behind {last:?}");
                (came, last) = (came + 1, Some(number));
            }
            came
        }
    });
    // Ten times the credit.
    let total = 400_000_u32;
    let mut told = Vec::new();
    for number in 0..total {
        let data = number.to_be_bytes().repeat(25);
        let sent = flow.send(data, SendOptions { silent: number % 1000 != 0, ..SendOptions::default() });
        told.push(sent.await.unwrap());
    }
    let mut outcomes = 0;
    for (_, sent) in (0_u32..).zip(told).filter(|(number, _)| number % 1000 == 0) {
        timeout(LIMIT, sent).await.expect("no outcome");
        outcomes += 1;
    }
    assert_eq!(outcomes, 400);
    let came = reader.await.unwrap();
    let (here, there) = (pair.client.stats().messages, pair.server.stats().messages);
    println!("{came} of {total} came; {here:?}; {there:?}");
    assert_eq!(here.delivered + here.lost + here.expired, u64::from(total));
    assert_eq!(came + there.discarded, there.received);
    // Those in datagrams must not overtake those in segments.
    assert!(there.discarded * 50 < u64::from(total) && came * 2 > u64::from(total), "{came}, {there:?}");
}
