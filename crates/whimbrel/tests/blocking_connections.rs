//! Whole connections in programs without an async runtime: what the async face can do, in threads.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{endpoint, ip};
use whimbrel::blocking::{Connection, Connections, Endpoint};
use whimbrel::{
    Allow, Class, CloseCode, ConnectionError, ConnectionEvent, FlowOptions, ListenOptions, ManualMonitor,
    Outcome, SecretKey, SendError, SendOptions, Tag,
};

const LIMIT: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(100);

struct Both {
    client: Connection,
    server: Connection,
    dialling: Endpoint,
    accepting: Endpoint,
    calls: Connections,
    client_at: ManualMonitor,
}

fn both(net: u8) -> Both {
    let ((accepting, _), (dialling, client_at)) = (endpoint(net, 1), endpoint(net, 2));
    let calls = accepting.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let client = dialling.connect_to(accepting.ticket()).unwrap();
    let server = calls.accept().unwrap();
    assert_eq!((client.id(), client.peer_id()), (server.id(), accepting.id()));
    Both { client, server, dialling, accepting, calls, client_at }
}

fn with_key(key: &SecretKey, net: u8, host: u8) -> Endpoint {
    let at = ManualMonitor::new([ip(net, host)]);
    Endpoint::bind(whimbrel::Endpoint::builder().identity(key.clone()).monitor(at)).unwrap()
}

#[test]
fn streams_of_both_and_of_one_direction_are_there_in_threads() {
    let Both { client, server, .. } = both(211);
    let serving = thread::spawn(move || {
        let mut text = String::new();
        server.accept_uni().unwrap().read_to_string(&mut text).unwrap();
        let mut answer = server.open_uni().unwrap();
        answer.write_all(text.to_uppercase().as_bytes()).unwrap();
        answer.close(LIMIT).unwrap();
        let mut echo = server.accept_stream().unwrap();
        let mut three = [0; 3];
        echo.read_exact(&mut three).unwrap();
        echo.write_all(&three).unwrap();
        server
    });
    let mut out = client.open_uni().unwrap();
    out.write_all(b"one way").unwrap();
    // Dropped, it has ended, and the peer has it all.
    drop(out);
    let mut answer = String::new();
    client.accept_uni().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ONE WAY");
    let mut stream = client.open_stream().unwrap();
    stream.write_all(b"abc").unwrap();
    let mut three = [0; 3];
    stream.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"abc");
    // The connection goes on when its stream ends.
    drop(stream);
    assert!(client.close_reason().is_none());
    let server = serving.join().unwrap();
    client.close(CloseCode::NONE, "enough", LIMIT).unwrap();
    assert_eq!(server.closed().reason, "enough");
    assert!(matches!(client.accept_stream(), Err(ConnectionError::Closed { .. })));
}

#[test]
fn messages_are_sent_replaced_received_and_waited_for_no_longer_than_the_limit() {
    let Both { client, server, client_at, .. } = both(212);
    let begin = Instant::now();
    assert!(server.recv_message_timeout(MOMENT).unwrap().is_none());
    assert!((MOMENT..LIMIT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let flow = client.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).unwrap();
    let told = flow.send("first", SendOptions::default()).unwrap().outcome();
    assert_eq!(told, Outcome::Delivered);
    assert_eq!(server.recv_message().unwrap().data, b"first");
    // Out of reach, the older one is not sent any more.
    client_at.set([]);
    while client.inner().stats().unreachable.is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    let tagged = SendOptions { tag: Some(Tag(7)), ..SendOptions::default() };
    let old = flow.send("old", tagged).unwrap();
    let old = old.outcome_timeout(MOMENT).expect_err("nobody has it yet");
    let new = flow.replace("new", tagged).unwrap();
    assert_eq!(old.outcome(), Outcome::Replaced);
    client_at.set([ip(212, 3)]);
    assert_eq!(server.recv_message_timeout(LIMIT).unwrap().unwrap().data, b"new");
    assert_eq!(new.outcome(), Outcome::Delivered);
    assert_eq!(flow.replace("no tag", SendOptions::default()).unwrap_err(), SendError::NoTag);
    client.abort(CloseCode::NONE, "");
    assert!(server.recv_message().is_err());
}

#[test]
fn events_come_until_the_end() {
    let Both { client, server, .. } = both(213);
    let events = client.events();
    server.close(CloseCode::NONE, "done", LIMIT).unwrap();
    let last = events.last();
    assert!(matches!(last, Some(ConnectionEvent::Closed { ref reason, .. }) if reason == "done"), "{last:?}");
}

#[test]
fn a_connection_sleeps_and_wakes_in_another_process_with_its_streams_and_flows() {
    let (key, net) = (SecretKey::generate(), 214);
    let (accepting, _) = endpoint(net, 1);
    let calls = accepting.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let at = with_key(&key, net, 2);
    let client = at.connect_to(accepting.ticket()).unwrap();
    let server = calls.accept().unwrap();
    let mut stream = client.open_stream().unwrap();
    stream.write_all(b"before").unwrap();
    let flow = client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
    let asleep = client.suspend(LIMIT).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    stream.set_linger(None).unwrap();
    drop((stream, client));
    at.close(LIMIT);

    let awake = with_key(&key, net, 3).resume(&asleep).unwrap();
    let mut stream = awake.streams().remove(0);
    stream.write_all(b" and after").unwrap();
    assert_eq!(awake.flows()[0].id(), flow.id());
    let mut its_stream = server.accept_stream().unwrap();
    let mut text = [0; 16];
    its_stream.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"before and after");
}

#[test]
fn a_connection_is_handed_over_to_another_endpoint_while_it_is_used() {
    let Both { client, server, dialling, .. } = both(215);
    let mut stream = client.open_stream().unwrap();
    stream.write_all(b"from the first").unwrap();
    let (next, _) = endpoint(215, 3);
    let heirs = next.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let over = dialling.connect_to(next.ticket()).unwrap();
    let taking = thread::spawn(move || {
        let over = heirs.accept().unwrap();
        let taken = next.accept_hand_over(&over, LIMIT).unwrap();
        taken.streams().remove(0).write_all(b", and the second").unwrap();
        (taken, next.id())
    });
    server.allow_hand_over(Allow::Any);
    client.hand_over(&over, LIMIT).unwrap();
    stream.set_linger(None).unwrap();
    let (taken, new_key) = taking.join().unwrap();
    let mut its_stream = server.accept_stream().unwrap();
    let mut text = [0; 30];
    its_stream.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"from the first, and the second");
    assert_eq!((server.peer_id(), taken.id()), (new_key, server.id()));
}

#[test]
fn every_member_of_a_group_gets_the_message_one_that_is_away_once_it_is_here() {
    let Both { client, server, dialling, accepting, calls, .. } = both(216);
    let group = accepting.new_group(FlowOptions::new(Class::RELIABLE_SEQUENCED));
    group.add(&server).unwrap();
    let (absent, _) = endpoint(216, 4);
    assert!(group.expect(absent.id()));
    let deliveries = group.send("to all", SendOptions::default());
    assert_eq!(client.recv_message_timeout(LIMIT).unwrap().unwrap().data, b"to all");
    let returned = absent.connect_to(accepting.ticket()).unwrap();
    group.add(&calls.accept().unwrap()).unwrap();
    assert_eq!(returned.recv_message_timeout(LIMIT).unwrap().unwrap().data, b"to all");
    for delivery in deliveries {
        assert_eq!(delivery.outcome(), Ok(Outcome::Delivered));
    }
    assert!(group.remove(dialling.id()));
    assert_eq!(group.members(), [absent.id()]);
}

#[test]
fn durable_messages_are_delivered_once_and_wait_for_a_peer_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let (accepting, _) = endpoint(217, 1);
    let state = accepting.open_state(folder.path().join("theirs")).unwrap();
    assert!(state.recv_timeout(MOMENT).unwrap().is_none());
    let (dialling, _) = endpoint(217, 2);
    let own = dialling.open_state(folder.path().join("ours")).unwrap();
    let peer = own.dial(accepting.ticket()).unwrap();
    let flow = peer.flow("readings").unwrap();
    let receipt = flow.send("20.5").unwrap();
    assert_eq!((receipt.number(), receipt.is_acked(), peer.owed().messages), (1, false, 1));
    let calls = accepting.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let connection = calls.accept().unwrap();
    state.attach(&connection).unwrap();
    let message = state.recv_timeout(LIMIT).unwrap().expect("a message");
    assert_eq!((message.data(), message.label(), message.peer()), (&b"20.5"[..], "readings", dialling.id()));
    message.ack().unwrap();
    receipt.acked().unwrap();
    flow.acked().unwrap();
    assert_eq!(peer.owed().messages, 0);
    own.close();
    state.close();
}
