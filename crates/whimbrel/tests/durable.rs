//! Durable messages between endpoints: restarts, limits, peers that do not keep to the rules. What happens to
//! the file is tested beside the store, with power cuts; processes that are killed in `durable_kills.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::transport::JournalChannel;
use whimbrel::{
    Allow, Class, CloseCode, Connection, DurableMessage, Endpoint, EndpointAddr, FlowOptions, ListenOptions,
    ManualMonitor, SecretKey, SendOptions, State, StateError, StateLimits, transport,
};

const LIMIT: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(5);

fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 0, net, host])
}

async fn endpoint(key: &SecretKey, net: u8, host: u8, port: u16) -> Endpoint {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let at = ManualMonitor::new([ip(net, host)]);
    Endpoint::builder().identity(key.clone()).monitor(at).port(port).bind().await.unwrap()
}

/// Takes connections, has them carry durable messages, and keeps them.
async fn serve(endpoint: &Endpoint, state: &State) {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let state = state.clone();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(connection) = listener.accept().await {
            // It is refused once the state is closed.
            let _ = state.attach(&connection).await;
            kept.push(connection);
        }
    });
}

async fn recv(state: &State) -> DurableMessage {
    tokio::time::timeout(LIMIT, state.recv()).await.expect("a message in time").unwrap()
}

async fn nothing_comes(state: &State) {
    let more = tokio::time::timeout(Duration::from_millis(300), state.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("in time")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("durable.redb"), to.join("durable.redb")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_to_a_peer_that_was_never_there_arrives_once_both_have_been_restarted() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 181);
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let (key, peer) = (SecretKey::generate(), SecretKey::generate());
    let port = endpoint(&peer, net, 1, 0).await.port();
    let address = EndpointAddr::new(peer.id(), [(ip(net, 1), port).into()]);

    let sender = endpoint(&key, net, 2, 0).await;
    let state = sender.open_state(&ours).await.unwrap();
    let flow = state.dial(&address).await.unwrap().flow("readings").await.unwrap();
    let receipt = flow.send("one").await.unwrap();
    assert_eq!((receipt.number(), receipt.is_acked()), (1, false));
    drop((flow, receipt));
    state.close().await;
    sender.close(PATIENCE).await;

    let sender = endpoint(&key, net, 2, 0).await;
    // Nothing is dialled by hand: the state knows whom.
    let state = sender.open_state(&ours).await.unwrap();
    let receiver = endpoint(&peer, net, 1, port).await;
    let its_state = receiver.open_state(&theirs).await.unwrap();
    serve(&receiver, &its_state).await;
    let message = recv(&its_state).await;
    assert_eq!((message.peer(), message.label(), message.number()), (key.id(), "readings", 1));
    assert_eq!(message.data(), b"one");
    let known = state.dial(&address).await.unwrap();
    let flow = known.flow("readings").await.unwrap();
    assert_eq!(known.owed().messages, 1);
    message.ack().await.unwrap();
    in_time(flow.acked()).await.unwrap();
    assert_eq!((known.owed().messages, known.owed().bytes), (0, 0));
    assert_eq!(flow.send("two").await.unwrap().number(), 2);
    assert_eq!(recv(&its_state).await.data(), b"two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_acknowledged_comes_again_after_a_restart_and_nothing_else() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 182);
    let (key, peer) = (SecretKey::generate(), SecretKey::generate());
    let receiver = endpoint(&peer, net, 1, 0).await;
    let port = receiver.port();
    let its_state = receiver.open_state(folder.path().join("theirs")).await.unwrap();
    serve(&receiver, &its_state).await;
    let sender = endpoint(&key, net, 2, 0).await;
    let state = sender.open_state(folder.path().join("ours")).await.unwrap();
    let flow = state.dial(receiver.addr()).await.unwrap().flow("jobs").await.unwrap();
    for number in 0..6 {
        flow.send(vec![number]).await.unwrap();
    }
    let mut messages = Vec::new();
    for _ in 0..6 {
        messages.push(recv(&its_state).await);
    }
    // In any order.
    for at in [4, 0, 1] {
        messages[at].ack().await.unwrap();
    }
    drop(messages);
    its_state.close().await;
    receiver.close(PATIENCE).await;

    let receiver = endpoint(&peer, net, 1, port).await;
    let its_state = receiver.open_state(folder.path().join("theirs")).await.unwrap();
    serve(&receiver, &its_state).await;
    for expected in [2, 3, 5] {
        let message = recv(&its_state).await;
        assert_eq!(message.data(), [expected]);
        message.ack().await.unwrap();
    }
    in_time(flow.acked()).await.unwrap();
    nothing_comes(&its_state).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_side_that_listens_sends_too_and_its_client_comes_back_by_itself_to_get_it() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 183);
    let (key, client_key) = (SecretKey::generate(), SecretKey::generate());
    let server = endpoint(&key, net, 1, 0).await;
    let state = server.open_state(folder.path().join("ours")).await.unwrap();
    serve(&server, &state).await;
    let flow = state.expect(client_key.id()).await.unwrap().flow("orders").await.unwrap();
    flow.send("before it came").await.unwrap();
    let client = endpoint(&client_key, net, 2, 0).await;
    let its_state = client.open_state(folder.path().join("theirs")).await.unwrap();
    its_state.dial(server.addr()).await.unwrap();
    let message = recv(&its_state).await;
    assert_eq!(message.data(), b"before it came");
    message.ack().await.unwrap();
    its_state.close().await;
    client.close(PATIENCE).await;

    flow.send("while it was away").await.unwrap();
    let client = endpoint(&client_key, net, 2, 0).await;
    let its_state = client.open_state(folder.path().join("theirs")).await.unwrap();
    let message = recv(&its_state).await;
    assert_eq!(message.data(), b"while it was away");
    message.ack().await.unwrap();
    in_time(flow.acked()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_messages_are_apart_from_the_applications_streams_and_messages() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 184);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let its_state = server.open_state(folder.path().join("theirs")).await.unwrap();
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = endpoint(&SecretKey::generate(), net, 2, 0).await;
    let state = client.open_state(folder.path().join("ours")).await.unwrap();
    let connection = client.connect(server.addr()).await.unwrap();
    let accepted = in_time(listener.accept()).await.unwrap();
    its_state.attach(&accepted).await.unwrap();
    state.attach(&connection).await.unwrap();
    state.attach(&connection).await.unwrap();
    let durable = state.expect(server.id()).await.unwrap().flow("notes").await.unwrap();
    let flow = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
    for number in 0..20 {
        durable.send(vec![number, 1]).await.unwrap();
        flow.send(vec![number, 2], SendOptions::default()).await.unwrap();
    }
    for number in 0..20 {
        assert_eq!(in_time(accepted.recv_message()).await.unwrap().data, [number, 2]);
        let message = recv(&its_state).await;
        assert_eq!(message.data(), [number, 1]);
        message.ack().await.unwrap();
    }
    in_time(durable.acked()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_acknowledges_gets_no_more_than_a_window_and_then_the_store_is_full() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 185);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let its_state = server.open_state(folder.path().join("theirs")).await.unwrap();
    serve(&server, &its_state).await;
    let client = endpoint(&SecretKey::generate(), net, 2, 0).await;
    let limits = StateLimits { messages: 1100, bytes: 8 << 20 };
    let state = client.open_state_with(folder.path().join("ours"), limits).await.unwrap();
    let peer = state.dial(server.addr()).await.unwrap();
    let (small, large) = (peer.flow("small").await.unwrap(), peer.flow("large").await.unwrap());
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..1100 {
        let small = small.clone();
        sending.spawn(async move { small.send("x").await.map(drop) });
    }
    assert!(sending.join_all().await.iter().all(Result::is_ok));
    let error = small.send("one more").await.unwrap_err();
    assert!(matches!(error, StateError::Full { messages: 1100, .. }), "{error:?}");
    assert!(error.to_string().contains("1100 messages"), "{error}");
    let soon = Some(Duration::from_millis(200));
    let error = small.send_when_room("one more", soon).await.unwrap_err();
    assert!(matches!(error, StateError::Full { messages: 1100, .. }), "{error:?}");
    let waiting = tokio::spawn({
        let small = small.clone();
        async move { small.send_when_room("one more", None).await.map(drop) }
    });
    let mut messages = Vec::new();
    for _ in 0..1024 {
        messages.push(recv(&its_state).await);
    }
    nothing_comes(&its_state).await;
    for message in messages.drain(..) {
        message.ack().await.unwrap();
    }
    in_time(waiting).await.unwrap().unwrap();
    for _ in 0..77 {
        recv(&its_state).await.ack().await.unwrap();
    }
    in_time(small.acked()).await.unwrap();
    // By bytes: a mebibyte at a time.
    for _ in 0..7 {
        large.send(vec![0; 1 << 20]).await.unwrap();
    }
    let error = large.send(vec![0; 1 << 20]).await.unwrap_err();
    assert!(matches!(error, StateError::Full { messages: 7, .. }), "{error:?}");
    let error = large.send(vec![0; (1 << 20) + 1]).await.unwrap_err();
    assert_eq!(error, StateError::TooLarge { size: (1 << 20) + 1 });
    let first = recv(&its_state).await;
    nothing_comes(&its_state).await;
    first.ack().await.unwrap();
    assert_eq!(recv(&its_state).await.number(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_state_is_named_and_so_is_a_directory_in_use() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 186);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let _listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = endpoint(&SecretKey::generate(), net, 2, 0).await;
    let state = client.open_state(folder.path()).await.unwrap();
    let connection = client.connect(server.addr()).await.unwrap();
    assert_eq!(state.attach(&connection).await, Err(StateError::Unsupported));
    connection.close(CloseCode::NONE, "", PATIENCE).await.unwrap();
    assert_eq!(state.attach(&connection).await, Err(StateError::Closed));
    let error = client.open_state(folder.path()).await.unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }), "{error:?}");
    let peer = state.expect(server.id()).await.unwrap();
    for label in ["", "a\nb", &"x".repeat(65)] {
        assert!(matches!(peer.flow(label).await, Err(StateError::Label(_))));
    }
    for number in 0..16 {
        peer.flow(&format!("flow {number}")).await.unwrap();
    }
    assert!(matches!(peer.flow("one more").await, Err(StateError::TooManyFlows { .. })));
    let flow = peer.flow("flow 3").await.unwrap();
    let receipt = flow.send("never to arrive").await.unwrap();
    let waits = tokio::spawn(receipt.acked());
    peer.forget().await.unwrap();
    assert_eq!(in_time(waits).await.unwrap(), Err(StateError::Forgotten));
    assert!(matches!(flow.send("x").await, Err(StateError::Forgotten)));
    state.close().await;
    assert!(matches!(flow.send("x").await, Err(StateError::Forgotten | StateError::Stopped)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_an_older_copy_is_told_and_loses_nothing_silently() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 187);
    let (ours, backup) = (folder.path().join("ours"), folder.path().join("backup"));
    let key = SecretKey::generate();
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let its_state = server.open_state(folder.path().join("theirs")).await.unwrap();
    serve(&server, &its_state).await;
    for part in 0..2 {
        let client = endpoint(&key, net, 2, 0).await;
        let state = client.open_state(&ours).await.unwrap();
        let flow = state.dial(server.addr()).await.unwrap().flow("jobs").await.unwrap();
        flow.send("job").await.unwrap();
        recv(&its_state).await.ack().await.unwrap();
        in_time(flow.acked()).await.unwrap();
        drop(flow);
        state.close().await;
        client.close(PATIENCE).await;
        if part == 0 {
            copy(&ours, &backup);
        }
    }
    let client = endpoint(&key, net, 2, 0).await;
    let state = client.open_state(&backup).await.unwrap();
    let peer = state.dial(server.addr()).await.unwrap();
    let flow = peer.flow("jobs").await.unwrap();
    let told = in_time(async {
        loop {
            match flow.send("another job").await {
                Ok(receipt) => match receipt.acked().await {
                    Ok(()) => {}
                    Err(error) => return error,
                },
                Err(error) => return error,
            }
        }
    });
    let told = told.await;
    assert!(matches!(&told, StateError::OlderCopy { label, .. } if label == "jobs"), "{told:?}");
    // Another flow is not touched by it.
    peer.flow("anew").await.unwrap().send("fresh").await.unwrap();
    let message = recv(&its_state).await;
    assert_eq!((message.label(), message.data()), ("anew", &b"fresh"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_known_by_name_alone_gets_what_was_sent_before_it_had_one() {
    const NAME: &str = "collector.ada@example.org";
    let (folder, net) = (tempfile::tempdir().unwrap(), 192);
    let at = |host| ManualMonitor::new([ip(net, host)]);
    let own = transport::Endpoint::builder().monitor(at(200)).bind().await.unwrap();
    let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap();
    let client = Endpoint::builder().names(service.addr()).monitor(at(2)).bind().await.unwrap();
    let state = client.open_state(folder.path().join("ours")).await.unwrap();
    let peer = state.dial(NAME).await.unwrap();
    let flow = peer.flow("readings").await.unwrap();
    flow.send("early").await.unwrap();
    while peer.problem().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let key = SecretKey::generate();
    let server = Endpoint::builder().identity(key).names(service.addr()).monitor(at(1)).bind().await.unwrap();
    server.register_user("ada@example.org").await.unwrap();
    let its_state = server.open_state(folder.path().join("theirs")).await.unwrap();
    let mut listener = server.listen(ListenOptions::named(NAME).allow(Allow::Any)).await.unwrap();
    let connection = in_time(listener.accept()).await.unwrap();
    its_state.attach(&connection).await.unwrap();
    let message = recv(&its_state).await;
    assert_eq!(message.data(), b"early");
    message.ack().await.unwrap();
    in_time(flow.acked()).await.unwrap();
    assert_eq!(peer.problem(), None);
}

/// A peer that speaks for itself, over a connection that was accepted.
struct Stranger {
    endpoint: transport::Endpoint,
    connection: Connection,
    channel: JournalChannel,
}

async fn stranger(net: u8, state: &State, of: &Endpoint) -> Stranger {
    let mut listener = of.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let monitor = ManualMonitor::new([ip(net, 9)]);
    let endpoint = transport::Endpoint::builder().monitor(monitor).bind().await.unwrap();
    endpoint.carry_journals();
    let connection = endpoint.connect(of.addr()).await.unwrap();
    state.attach(&in_time(listener.accept()).await.unwrap()).await.unwrap();
    let channel = connection.journal_channel().await.unwrap();
    Stranger { endpoint, connection, channel }
}

impl Stranger {
    async fn offers(&self, journal: u128, first: u64, label: &str) {
        let hello = [&[0][..], &1u128.to_be_bytes(), &1u64.to_be_bytes()].concat();
        self.channel.note(hello).await.unwrap();
        let offer = [&[1, 0][..], &journal.to_be_bytes(), &first.to_be_bytes(), label.as_bytes()].concat();
        self.channel.note(offer).await.unwrap();
    }

    async fn sends(&self, number: u64, data: &[u8]) {
        let message = [&[2, 0][..], &number.to_be_bytes(), b"stamped:", data].concat();
        // The connection may have been closed for what was sent before.
        let _ = self.channel.note(message).await;
    }

    /// Behind which message.
    async fn is_asked_to_start(&self) -> u64 {
        loop {
            let said = in_time(self.channel.recv()).await.unwrap();
            if said.flow.0 == 1 && said.data[0] == 0 {
                return u64::from_be_bytes(said.data[17..].try_into().unwrap());
            }
        }
    }

    async fn is_shut_out(&self) {
        let reason = in_time(self.connection.closed()).await;
        assert_eq!(reason.code, CloseCode::PROTOCOL, "{reason:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_acknowledges_what_was_never_sent_breaks_its_own_flow_alone() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 188);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let state = server.open_state(folder.path()).await.unwrap();
    let liar = stranger(net, &state, &server).await;
    let peer = state.expect(liar.endpoint.id()).await.unwrap();
    let flow = peer.flow("orders").await.unwrap();
    let receipt = flow.send("one").await.unwrap();
    let offer = loop {
        let note = in_time(liar.channel.recv()).await.unwrap().data;
        if note[0] == 1 {
            break note;
        }
    };
    let journal = offer[2..18].to_vec();
    liar.channel.answer([&[1][..], &journal, &7u64.to_be_bytes()].concat()).await.unwrap();
    let told = in_time(receipt.acked()).await.unwrap_err();
    assert!(matches!(told, StateError::OlderCopy { .. }), "{told:?}");
    assert!(matches!(flow.send("two").await, Err(StateError::OlderCopy { .. })));
    let honest = state.expect(SecretKey::generate().id()).await.unwrap().flow("orders").await.unwrap();
    honest.send("one").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_more_than_its_window_or_what_makes_no_sense_is_shut_out() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 189);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let state = server.open_state(folder.path()).await.unwrap();
    let flood = stranger(net, &state, &server).await;
    flood.offers(1, 1, "flood").await;
    for number in 1..=1025 {
        flood.sends(number, b"x").await;
    }
    flood.is_shut_out().await;
    let heavy = stranger(net, &state, &server).await;
    heavy.offers(2, 1, "heavy").await;
    for number in 1..=3 {
        heavy.sends(number, &vec![0; 700_000]).await;
    }
    heavy.is_shut_out().await;
    for nonsense in [&[][..], &[9], &[2, 77, 0, 0, 0, 0, 0, 0, 0, 1], &[1, 0, 1]] {
        let peer = stranger(net, &state, &server).await;
        peer.channel.note(nonsense.to_vec()).await.unwrap();
        peer.is_shut_out().await;
    }
    let many = stranger(net, &state, &server).await;
    for journal in 0..65 {
        many.offers(journal, 1, &format!("label {journal}")).await;
        many.sends(1, b"held").await;
    }
    many.is_shut_out().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_makes_the_reader_ask_again_and_messages_for_nobody_are_dropped() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 190);
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let state = server.open_state(folder.path()).await.unwrap();
    let peer = stranger(net, &state, &server).await;
    peer.sends(1, b"before it was offered").await;
    peer.offers(1, 5, "late").await;
    assert_eq!(peer.is_asked_to_start().await, 4);
    peer.sends(5, b"five").await;
    peer.sends(7, b"seven").await;
    assert_eq!(peer.is_asked_to_start().await, 4);
    assert_eq!(recv(&state).await.number(), 5);
    for number in 5..=7 {
        peer.sends(number, b"again").await;
    }
    assert_eq!((recv(&state).await.number(), recv(&state).await.number()), (6, 7));
    nothing_comes(&state).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_put_to_sleep_carries_durable_messages_again_when_it_is_attached() {
    let (folder, net) = (tempfile::tempdir().unwrap(), 191);
    let key = SecretKey::generate();
    let server = endpoint(&SecretKey::generate(), net, 1, 0).await;
    let its_state = server.open_state(folder.path().join("theirs")).await.unwrap();
    serve(&server, &its_state).await;
    let client = endpoint(&key, net, 2, 0).await;
    let state = client.open_state(folder.path().join("ours")).await.unwrap();
    let connection = client.connect(server.addr()).await.unwrap();
    state.attach(&connection).await.unwrap();
    let flow = state.expect(server.id()).await.unwrap().flow("steps").await.unwrap();
    let back = its_state.expect(key.id()).await.unwrap().flow("replies").await.unwrap();
    flow.send("one").await.unwrap();
    back.send("eins").await.unwrap();
    recv(&its_state).await.ack().await.unwrap();
    in_time(flow.acked()).await.unwrap();
    // Not acknowledged: it comes again.
    assert_eq!(recv(&state).await.data(), b"eins");
    let asleep = connection.suspend(PATIENCE).await.unwrap();
    flow.send("two").await.unwrap();
    back.send("zwei").await.unwrap();
    drop((flow, connection));
    state.close().await;
    client.close(PATIENCE).await;

    let client = endpoint(&key, net, 3, 0).await;
    let state = client.open_state(folder.path().join("ours")).await.unwrap();
    let connection = client.resume(&asleep).await.unwrap();
    state.attach(&connection).await.unwrap();
    let message = recv(&its_state).await;
    assert_eq!((message.number(), message.data()), (2, &b"two"[..]));
    assert_eq!(recv(&state).await.data(), b"eins");
    assert_eq!(recv(&state).await.data(), b"zwei");
}
