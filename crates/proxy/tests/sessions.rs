//! Sessions move between real endpoints, through a gateway, from an ordinary server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::sessions_support::{self, Device, Program, Server, Stage, patient, program, random, within};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_proxy::{Outcome, SessionError, SessionSettings, Standing};

const MIB: usize = 1024 * 1024;

#[track_caller]
fn are_the_file(parts: &[&[u8]], file: &[u8]) {
    let joined: usize = parts.iter().map(|part| part.len()).sum();
    assert_eq!(joined, file.len(), "bytes were lost, or came twice");
    assert_eq!(Sha256::digest(parts.concat()), Sha256::digest(file));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_moves_to_another_device_and_no_byte_is_lost_or_doubled() {
    let stage = Stage::new(150).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let file = random(1, 12 * MIB);
    // It is not over before it moves.
    let server = Server::up_to(file.clone(), 6 * MIB).await;
    let mut old = phone.open(server.address).await;
    let mut first = old.read(3 * MIB).await;
    phone.hand_off(old.id, &desk).await;
    // It reads on while the session moves, as fast as it can.
    let reading = tokio::spawn(async move {
        let (rest, is_whole) = old.rest().await;
        (old, rest, is_whole)
    });
    let id = desk.sessions.list().await.unwrap()[0].id;
    let mut new = desk.take(id).await;
    server.open.send_replace(file.len());
    let (second, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    let (old, rest, looks_whole) = reading.await.unwrap();
    assert!(!looks_whole, "half a file must not look like a whole one");
    first.extend_from_slice(&rest);
    assert_eq!(new.offset, first.len() as u64);
    are_the_file(&[&first, &second], &file);
    assert_eq!((old.outcome().await, new.outcome().await), (Outcome::Moved, Outcome::Ended));
    assert_eq!(server.connections(), 1);
    assert!(server.end().await);
    desk.wait_for(id, "a session that is over is listed", |listed| listed.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_program_that_stopped_reading_did_not_take_goes_to_the_next_one() {
    let stage = Stage::new(151).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let file = random(2, 8 * MIB);
    let server = Server::new(file.clone()).await;
    let mut old = phone.open(server.address).await;
    let mut first = old.read(MIB).await;
    // Everything is full: the program's kernel, the phone, the gateway.
    phone.wait_for(old.id, "the gateway keeps little", |it| it.is_some_and(|it| it.kept > 900_000)).await;
    let mut new = desk.take(old.id).await;
    let (second, _) = new.rest().await;
    // What its kernel had, and not a byte more.
    first.extend_from_slice(&old.rest().await.0);
    are_the_file(&[&first, &second], &file);
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_takes_in_a_row_lose_and_double_nothing_in_either_direction() {
    let stage = Stage::new(152).await;
    // Each lets the other take it: ids are known once both are there.
    let [one, other] = [stage.device(2, &[]).await, stage.device(3, &[]).await];
    let (first, second) = (one.id(), other.id());
    let [one, other] = [allowing(one, second), allowing(other, first)];
    let (file, words) = (random(3, 11 * MIB), random(4, 11 * 100_000));
    let server = Server::up_to(file.clone(), MIB).await;
    let mut now = one.open(server.address).await;
    let (mut parts, mut moved) = (Vec::new(), Vec::new());
    for turn in 0..=10 {
        server.open.send_replace((turn + 1) * MIB);
        now.socket.write_all(&words[turn * 100_000..(turn + 1) * 100_000]).await.unwrap();
        // Sometimes all, sometimes only some, of what may come until now.
        let size = [MIB / 2, MIB / 3, 10][turn % 3];
        parts.push(now.read(size).await);
        if turn == 10 {
            break;
        }
        let taker = if turn % 2 == 0 { &other } else { &one };
        let mut next = taker.take(now.id).await;
        std::mem::swap(&mut now, &mut next);
        parts.push(next.rest().await.0);
        moved.push(next);
    }
    parts.push(now.rest().await.0);
    are_the_file(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &file);
    now.socket.shutdown().await.unwrap();
    assert!(server.end().await);
    are_the_file(&[&server.heard()], &words);
    for program in moved {
        assert_eq!(program.outcome().await, Outcome::Moved);
    }
    assert_eq!(now.outcome().await, Outcome::Ended);
    assert_eq!(server.connections(), 1);
}

/// A device that lets another one take its sessions.
fn allowing(device: Device, other: whimbrel::EndpointId) -> Device {
    let takers = whimbrel_proxy::Takers::new([other]);
    let streams = Arc::new(sessions_support::On(device.connection.clone()));
    let gateway = whimbrel_proxy::Gateway::new(streams).with_sessions(takers.clone());
    Device { gateway, takers, ..device }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_gone_without_a_word_is_not_waited_for_and_its_last_count_holds() {
    let stage = Stage::with(153, settings(|it| it.pause = Duration::from_millis(500))).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let file = random(5, 4 * MIB);
    let server = Server::up_to(file.clone(), MIB).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(MIB).await;
    phone.wait_for(old.id, "its count comes", |it| it.is_some_and(|it| it.kept == 0)).await;
    // It loses its network, and has noticed it: what it is asked before, it answers.
    phone.monitor.set([]);
    phone.is_unreachable().await;
    let taken = desk.sessions.take(old.id, 0, desk.takers.clone());
    let attached = within("a session is taken", taken).await.unwrap();
    assert!(attached.warning().is_some_and(|it| it.contains("may be missing")), "{:?}", attached.warning());
    let mut new = program(attached).await;
    // Only now: until it has noticed, its program would get some of this.
    server.open.send_replace(file.len());
    let (second, is_whole) = new.rest().await;
    assert!(is_whole);
    are_the_file(&[&first, &second], &file);
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_dies_half_way_leaves_a_session_that_is_held_and_taken_again() {
    let stage = Stage::new(154).await;
    let phone = stage.device(2, &[]).await;
    let desk = allowing(stage.device(3, &[]).await, phone.id());
    let file = random(6, 4 * MIB);
    let server = Server::up_to(file.clone(), MIB).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(MIB).await;
    phone.hand_off(old.id, &desk).await;
    let mut new = desk.take(old.id).await;
    server.open.send_replace(2 * MIB);
    let second = new.read(MIB).await;
    phone.wait_for(old.id, "the count comes", |it| it.is_some_and(|it| it.kept == 0)).await;
    // All of it is gone, as with a machine that has no power.
    new.carrying.abort();
    within("it closes", desk.endpoint.close(Duration::from_secs(1))).await;
    phone.wait_for(old.id, "it is held", |it| it.is_some_and(|it| it.standing == Standing::Held)).await;
    server.open.send_replace(file.len());
    let mut again = phone.take(old.id).await;
    assert_eq!(again.offset, 2 * MIB as u64);
    let (third, is_whole) = again.rest().await;
    assert!(is_whole);
    are_the_file(&[&first, &second, &third], &file);
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_leaves_before_its_program_is_there_gives_the_session_back() {
    let stage = Stage::new(155).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let file = random(7, 6 * MIB);
    let server = Server::new(file.clone()).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(MIB).await;
    for _ in 0..2 {
        let moves = desk.listed(old.id).await.unwrap().moves;
        let attached = desk.sessions.take(old.id, moves, desk.takers.clone());
        drop(within("it is taken", attached).await.unwrap());
        phone.wait_for(old.id, "it is back", |it| it.is_some_and(|it| it.standing == Standing::Live)).await;
    }
    let (rest, is_whole) = old.rest().await;
    assert!(is_whole);
    are_the_file(&[&first, &rest], &file);
    assert_eq!(old.outcome().await, Outcome::Ended);
}

/// Whether a device is told that there is no such session.
async fn is_told_none(device: &Device, program: &Program, moves: u32) -> String {
    let asked = device.sessions.take(program.id, moves, device.takers.clone());
    match within("an answer comes", asked).await {
        Err(error @ SessionError::None(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was given"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_forgers_and_replayers_get_one_and_the_same_answer() {
    let stage = Stage::new(156).await;
    let [phone, desk, eve] =
        [stage.device(2, &[]).await, stage.device(3, &[]).await, stage.device(4, &[]).await];
    let server = Server::up_to(random(8, 2 * MIB), MIB).await;
    let mut old = phone.open(server.address).await;
    let mut said = vec![is_told_none(&eve, &old, 0).await];
    // A forged word: the session is not hers.
    let forged = eve.sessions.hand_off((old.id, 0), eve.id(), Duration::from_secs(60)).await;
    said.push(forged.unwrap_err().to_string());
    said.push(is_told_none(&eve, &old, 0).await);
    // A word for another device.
    phone.hand_off(old.id, &desk).await;
    said.push(is_told_none(&eve, &old, 0).await);
    assert!(eve.sessions.list().await.unwrap().is_empty(), "she sees nothing");
    // One that has ended.
    phone.sessions.hand_off((old.id, 0), desk.id(), Duration::from_secs(1)).await.unwrap();
    desk.wait_for(old.id, "it lasts", |it| it.is_none()).await;
    said.push(is_told_none(&desk, &old, 0).await);
    // One that was used is said again, after the session came back.
    phone.hand_off(old.id, &desk).await;
    let new = desk.take(old.id).await;
    desk.wait_for(old.id, "it is the desk's", |it| it.is_some_and(|it| it.moves == 1)).await;
    said.push(is_told_none(&phone, &old, 1).await);
    desk.hand_off(old.id, &phone).await;
    let _back = phone.take(old.id).await;
    phone.wait_for(old.id, "it is the phone's", |it| it.is_some_and(|it| it.moves == 2)).await;
    for moves in 0..4 {
        said.push(is_told_none(&desk, &new, moves).await);
    }
    // One that is not there.
    old.id = whimbrel_proxy::SessionId::fresh();
    said.push(is_told_none(&phone, &old, 0).await);
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_devices_that_take_a_session_at_once_one_gets_it() {
    let stage = Stage::new(157).await;
    let [desk, pad] = [stage.device(3, &[]).await, stage.device(4, &[]).await];
    let phone = stage.device(2, &[desk.id(), pad.id()]).await;
    let file = random(9, 2 * MIB);
    let server = Server::up_to(file.clone(), MIB).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(1000).await;
    let take = |device: &Device| {
        let (sessions, takers, id) = (device.sessions.clone(), device.takers.clone(), old.id);
        async move { sessions.take(id, 0, takers).await }
    };
    let both = within("both are answered", async { tokio::join!(take(&desk), take(&pad)) }).await;
    let won = match both {
        (Ok(won), Err(SessionError::None(_))) | (Err(SessionError::None(_)), Ok(won)) => won,
        (one, other) => panic!("{:?}, {:?}", one.map(|it| it.id()), other.map(|it| it.id())),
    };
    let mut new = program(won).await;
    server.open.send_replace(file.len());
    let (second, rest) = (new.rest().await.0, old.rest().await.0);
    are_the_file(&[&first, &rest, &second], &file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_waits_for_a_program_that_does_not_read_and_nothing_grows() {
    let settings = settings(|it| it.most_kept = 300_000);
    let stage = Stage::with(158, settings).await;
    let phone = stage.device(2, &[]).await;
    let file = random(10, 24 * MIB);
    let server = Server::new(file.clone()).await;
    let mut old = phone.open(server.address).await;
    phone.wait_for(old.id, "it is full", |it| it.is_some_and(|it| it.kept == 300_000)).await;
    let kept = phone.listed(old.id).await.unwrap();
    assert_eq!((kept.kept, kept.down), (300_000, 300_000));
    assert!(server.sent() < file.len(), "the server does not wait");
    let (all, is_whole) = old.rest().await;
    assert!(is_whole);
    are_the_file(&[&all], &file);
}

fn settings(set: impl FnOnce(&mut SessionSettings)) -> SessionSettings {
    let mut settings = patient();
    set(&mut settings);
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_takes_again_ends_and_the_server_learns_that_bytes_are_missing() {
    let stage = Stage::with(159, settings(|it| it.hold = Duration::from_secs(1))).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let server = Server::up_to(random(11, 2 * MIB), MIB).await;
    let old = phone.open(server.address).await;
    within("it closes", phone.endpoint.close(Duration::from_secs(1))).await;
    desk.wait_for(old.id, "it ends", |it| it.is_none()).await;
    assert!(!server.end().await, "it must not look whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_program_breaks_it_is_over_and_so_is_one_whose_server_does() {
    let stage = Stage::new(160).await;
    let phone = stage.device(2, &[]).await;
    let server = Server::up_to(random(12, 2 * MIB), MIB).await;
    let mut old = phone.open(server.address).await;
    old.read(1000).await;
    socket2::SockRef::from(&old.socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(old.socket);
    assert!(!server.end().await, "it must not look whole");
    assert!(within("carrying ends", old.carrying).await.unwrap().is_err());
    phone.wait_for(old.id, "it is over", |it| it.is_none()).await;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut other = phone.open(listener.local_addr().unwrap()).await;
    let accepted = listener.accept().await.unwrap().0;
    socket2::SockRef::from(&accepted).set_linger(Some(Duration::ZERO)).unwrap();
    drop(accepted);
    assert!(!other.rest().await.1, "it must not look whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_are_passed_on_in_order() {
    let stage = Stage::new(161).await;
    let phone = stage.device(2, &[]).await;
    let file = random(13, MIB);
    let server = Server::up_to(file.clone(), 10).await;
    let mut old = phone.open(server.address).await;
    old.socket.write_all(b"a question").await.unwrap();
    old.socket.shutdown().await.unwrap();
    assert!(server.end().await);
    assert_eq!(server.heard(), b"a question");
    // The other direction goes on.
    server.open.send_replace(file.len());
    let (all, is_whole) = old.rest().await;
    assert!(is_whole);
    are_the_file(&[&all], &file);
    assert_eq!(old.outcome().await, Outcome::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_that_ends_in_the_program_is_refused_and_stays_where_it_is() {
    let stage = Stage::new(162).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let file = random(14, MIB);
    let server = Server::up_to(file.clone(), 10).await;
    let mut old = phone.open(server.address).await;
    old.socket.write_all(&[22, 3, 1, 0, 5, 1]).await.unwrap();
    server.wait_for(6).await;
    let asked = within("an answer comes", desk.sessions.take(old.id, 0, desk.takers.clone())).await;
    let refused = asked.err().unwrap().to_string();
    assert!(refused.contains("TLS ends in the program"), "{refused}");
    server.open.send_replace(file.len());
    let mut all = vec![0; file.len()];
    within("it goes on", old.socket.read_exact(&mut all)).await.unwrap();
    are_the_file(&[&all], &file);
}
