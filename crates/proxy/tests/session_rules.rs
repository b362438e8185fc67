//! Whose sessions are, for how long, and how much is kept for them: between real endpoints.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::sessions_support::{Device, On, Program, Server, Stage, random, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, Endpoint, EndpointId, ListenOptions, ManualMonitor};
use whimbrel_proxy::{
    Answer, Gateway, GatewayServer, Guard, May, Outcome, Quota, Rules, SessionError, SessionSettings,
    Standing, Status, Takers, Upstream as _,
};

const MIB: usize = 1024 * 1024;

fn settings(set: impl FnOnce(&mut SessionSettings)) -> SessionSettings {
    let mut settings = SessionSettings::default();
    set(&mut settings);
    settings
}

/// The user's list of devices has changed.
async fn lets(device: &Device, others: &[EndpointId]) {
    let told = device.gateway.set_rule(Takers::new(others.iter().copied()));
    within("the gateway is told", told).await.unwrap();
}

async fn is_refused(device: &Device, program: &Program, moves: u32) {
    let asked = device.sessions.take(program.id, moves, Takers::default());
    let answer = within("an answer comes", asked).await;
    assert!(matches!(answer, Err(SessionError::None(_))), "{:?}", answer.map(|it| it.id()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_removed_takes_neither_open_sessions_nor_later_ones_and_a_new_one_does() {
    let stage = Stage::new(140).await;
    let [thief, desk] = [stage.device(3, &[]).await, stage.device(4, &[]).await];
    let phone = stage.device(2, &[thief.id()]).await;
    let server = Server::up_to(random(1, MIB), 1000).await;
    let open = phone.open(server.address).await;
    assert_eq!(thief.listed(open.id).await.map(|it| it.may), Some(May::Rule));
    assert!(desk.listed(open.id).await.is_none());
    lets(&phone, &[desk.id()]).await;
    let later = phone.open(server.address).await;
    for session in [&open, &later] {
        assert!(thief.listed(session.id).await.is_none());
        is_refused(&thief, session, 0).await;
        assert_eq!(desk.listed(session.id).await.map(|it| it.may), Some(May::Rule));
    }
    let mut taken = desk.take(open.id).await;
    server.open.send_replace(MIB);
    within("it goes on", taken.socket.read_exact(&mut [0; 1000])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_removed_device_took_comes_back_and_its_own_rule_locks_nobody_out() {
    let stage = Stage::new(141).await;
    let other = stage.device(4, &[]).await;
    let thief = stage.device(3, &[other.id()]).await;
    let phone = stage.device(2, &[thief.id()]).await;
    let file = random(2, 2 * MIB);
    let server = Server::up_to(file.clone(), 1000).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(1000).await;
    let mut stolen = thief.take(old.id).await;
    server.open.send_replace(MIB);
    let second = stolen.read(MIB - 1000).await;
    phone.wait_for(old.id, "its count comes", |it| it.is_some_and(|it| it.kept == 0)).await;
    // The thief's rule has the other one, and that of the phone does not.
    is_refused(&other, &old, 1).await;
    assert_eq!(phone.listed(old.id).await.map(|it| (it.may, it.moves)), Some((May::Rule, 1)));
    lets(&phone, &[]).await;
    phone.wait_for(old.id, "it is back", |it| it.is_some_and(|it| it.standing == Standing::Held)).await;
    assert_eq!(phone.listed(old.id).await.map(|it| (it.may, it.holder)), Some((May::Own, phone.id())));
    assert!(!stolen.rest().await.1, "the thief's program sees a break");
    assert!(thief.listed(old.id).await.is_none());
    is_refused(&thief, &old, 1).await;
    let mut back = phone.take(old.id).await;
    server.open.send_replace(file.len());
    let (third, is_whole) = back.rest().await;
    assert!(is_whole && [first, second, third].concat() == *file, "bytes were lost, or came twice");
    assert_eq!(back.outcome().await, Outcome::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_that_comes_late_lets_nobody_take_a_session_that_is_back() {
    let stage = Stage::new(142).await;
    let [phone, desk] = [stage.device(2, &[]).await, stage.device(3, &[]).await];
    let server = Server::up_to(random(3, MIB), 1000).await;
    let old = phone.open(server.address).await;
    phone.hand_off(old.id, &desk).await;
    let _new = desk.take(old.id).await;
    desk.hand_off(old.id, &phone).await;
    let _back = phone.take(old.id).await;
    for moves in [0, 1, 3] {
        let late = phone.sessions.hand_off((old.id, moves), desk.id(), Duration::from_secs(60));
        let heard = within("an answer comes", late).await;
        assert!(matches!(heard, Err(SessionError::None(_))), "{moves}: {heard:?}");
    }
    assert!(desk.listed(old.id).await.is_none());
    is_refused(&desk, &old, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_too_late_is_not_taken_for_one_of_another_version() {
    let stage = Stage::new(143).await;
    let phone = stage.device(2, &[]).await;
    let mut slow = phone.connection.open_stream().await.unwrap();
    slow.write_all(&[2]).await.unwrap();
    let mut said = Vec::new();
    within("it is told that it was late", slow.read_to_end(&mut said)).await.unwrap();
    assert_eq!(Answer::decode(&said).unwrap().status, Status::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_did_not_hear_a_request_in_time_is_asked_for_sessions_again() {
    let at = |host| ManualMonitor::new([[127, 0, 144, host].into()]);
    let gate = Endpoint::builder().monitor(at(1)).bind().await.unwrap();
    let device = Endpoint::builder().monitor(at(2)).bind().await.unwrap();
    let mut listener = gate.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let rules = Rules::new(vec!["127.0.0.0/8".parse().unwrap()], false);
    let server = GatewayServer::new(Guard::new(rules), Quota::new(8, 8));
    tokio::spawn(async move {
        let connection = listener.accept().await.unwrap();
        let mut late = connection.accept_stream().await.unwrap();
        late.write_all(&Answer::new(Status::TimedOut, "too late").encode()).await.unwrap();
        // The client may have read the answer already, and be gone.
        let _ = late.finish();
        while let Ok(stream) = connection.accept_stream().await {
            tokio::spawn({
                let server = server.clone();
                async move { server.serve(stream).await.map(drop) }
            });
        }
    });
    let connection = within("it connects", device.connect(gate.ticket(None))).await.unwrap();
    let gateway = Gateway::new(Arc::new(On(connection))).with_sessions(Takers::default());
    let ordinary = Server::up_to(random(4, 1000), 10).await;
    let to = ordinary.address.to_string().parse().unwrap();
    let failed = within("it is told", gateway.session(&to).unwrap()).await;
    assert!(failed.is_err(), "nothing is taken for an older gateway");
    let opened = within("a session opens", gateway.session(&to).unwrap()).await.unwrap();
    assert_eq!(*opened.unwrap().0.to(), to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_held_has_its_place_until_it_ends() {
    let settings = settings(|it| it.hold = Duration::from_secs(3));
    let stage = Stage::with_quota(145, settings, Quota::new(1, 1)).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let server = Server::up_to(random(5, MIB), 1000).await;
    let to = server.address.to_string().parse().unwrap();
    let old = phone.open(server.address).await;
    within("it closes", phone.endpoint.close(Duration::from_secs(1))).await;
    let is_held = |it: Option<&whimbrel_proxy::Listed>| it.is_none_or(|it| it.standing == Standing::Held);
    desk.wait_for(old.id, "it is held", is_held).await;
    let mut refused = 0;
    loop {
        let was_there = desk.listed(old.id).await.is_some();
        let opened = within("an answer comes", desk.gateway.session(&to).unwrap()).await;
        let Err(error) = opened else { break };
        assert!(error.to_string().contains("connections are open"), "{error}");
        assert!(!was_there || server.connections() == 1);
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(refused < 3000, "its place is not free again");
    }
    assert!(desk.listed(old.id).await.is_none(), "a second one although the first was there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_one_device_keep_no_more_than_it_may_and_each_goes_on() {
    let settings = settings(|it| (it.most_kept, it.most_bytes_each) = (300_000, 600_000));
    let stage = Stage::with(146, settings).await;
    let [phone, desk] = [stage.device(2, &[]).await, stage.device(3, &[]).await];
    let file = random(6, 4 * MIB);
    let server = Server::new(file.clone()).await;
    let mut open = Vec::new();
    for most in [300_000, 300_000, 32_768] {
        let program = phone.open(server.address).await;
        phone.wait_for(program.id, "it is full", |it| it.is_some_and(|it| it.kept == most)).await;
        open.push(program);
    }
    let other = desk.open(server.address).await;
    desk.wait_for(other.id, "another one has its own", |it| it.is_some_and(|it| it.kept == 300_000)).await;
    let kept: u32 = phone.sessions.list().await.unwrap().iter().map(|it| it.kept).sum();
    assert_eq!(kept, 600_000 + 32_768);
    let mut third = open.pop().unwrap();
    let (all, is_whole) = third.rest().await;
    assert!(is_whole && all == *file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sessions_together_keep_no_more_than_may_be() {
    let settings = settings(|it| (it.most_kept, it.most_bytes) = (300_000, 300_000));
    let stage = Stage::with(147, settings).await;
    let [phone, desk] = [stage.device(2, &[]).await, stage.device(3, &[]).await];
    let server = Server::new(random(7, 4 * MIB)).await;
    let first = phone.open(server.address).await;
    phone.wait_for(first.id, "it is full", |it| it.is_some_and(|it| it.kept == 300_000)).await;
    let second = desk.open(server.address).await;
    desk.wait_for(second.id, "it has the least", |it| it.is_some_and(|it| it.kept == 32_768)).await;
    phone.endpoint.close(Duration::from_secs(1)).await;
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_shown_to_its_device_alone_and_is_not_held() {
    // Held, it would outlast the test.
    let stage = Stage::with(148, settings(|it| it.hold = Duration::from_secs(3600))).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let server = Server::up_to(random(8, MIB), 10).await;
    let mut old = phone.open(server.address).await;
    old.socket.write_all(&[22, 3, 1, 0, 5, 1]).await.unwrap();
    server.wait_for(6).await;
    phone.wait_for(old.id, "it is known", |it| it.is_some_and(|it| it.standing == Standing::Fixed)).await;
    assert!(desk.listed(old.id).await.is_none());
    within("it closes", phone.endpoint.close(Duration::from_secs(1))).await;
    assert!(!server.end().await, "it must not look whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_no_program_wants_is_over_at_once() {
    let stage = Stage::with(149, settings(|it| it.hold = Duration::from_secs(3600))).await;
    let phone = stage.device(2, &[]).await;
    let server = Server::up_to(random(9, MIB), 10).await;
    let to = server.address.to_string().parse().unwrap();
    let opened = within("a session opens", phone.gateway.session(&to).unwrap()).await.unwrap();
    let id = opened.unwrap().0.id();
    phone.wait_for(id, "it is over", |it| it.is_none()).await;
    assert!(!server.end().await, "it must not look whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_all_the_connections_that_it_may_have_takes_its_own_session_back() {
    let settings = settings(|it| it.hold = Duration::from_secs(3600));
    let stage = Stage::with_quota(163, settings, Quota::new(1, 4)).await;
    let thief = stage.device(3, &[]).await;
    let phone = stage.device(2, &[thief.id()]).await;
    let file = random(10, MIB);
    let server = Server::up_to(file.clone(), 1000).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(1000).await;
    phone.wait_for(old.id, "its count comes", |it| it.is_some_and(|it| it.kept == 0)).await;
    // The proxy is gone, and the device is there.
    old.carrying.abort();
    let is_held = |it: Option<&whimbrel_proxy::Listed>| it.is_some_and(|it| it.standing == Standing::Held);
    phone.wait_for(old.id, "it is held", is_held).await;
    let back = phone.take(old.id).await;

    // It is lent, and another connection takes its place.
    let stolen = thief.take(old.id).await;
    let to = server.address.to_string().parse().unwrap();
    let mut tries = 0;
    let _other = loop {
        let opened = within("an answer comes", phone.gateway.session(&to).unwrap()).await;
        match opened {
            Ok(opened) => break opened,
            Err(error) => assert!(error.to_string().contains("connections are open"), "{error}"),
        }
        tries += 1;
        assert!(tries < 3000, "its place is not free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(thief.gateway.session(&to).unwrap().await.is_err(), "the thief has one");
    lets(&phone, &[]).await;
    phone.wait_for(old.id, "it is held", is_held).await;
    let mut again = phone.take(old.id).await;
    server.open.send_replace(file.len());
    let (rest, is_whole) = again.rest().await;
    assert!(is_whole && [first, rest].concat() == *file, "bytes were lost, or came twice");
    drop((back, stolen));
}
