//! What a device that has a session cannot do to others, and what a gateway does for it: its frames are said
//! by hand.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::sessions_support::hand::{BROKEN, COUNT, DATA, Hand, MOVED, PAUSE, RESUME, WHOLE};
use crate::sessions_support::hand::{fill, press, session, take, taken};
use crate::sessions_support::{Device, LIMIT, Server, Stage, patient, program, random, within};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use whimbrel_proxy::{Attached, SessionError, SessionId, Standing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_that_fail_while_the_device_before_is_asked_are_counted() {
    let stage = Stage::new(164).await;
    let (_phone, desk, _server, mut old) = session(&stage, random(8, 20), 10).await;
    old.have(10).await;
    // Each time it must wait for twice as long: a test that is slow comes too early at last.
    for refused in 0..10 {
        let mut taking = take(&desk).await;
        tokio::select! {
            answer = &mut taking => {
                assert!(matches!(answer.unwrap(), Err(SessionError::None(_))));
                assert!(refused >= 3, "refused for the first time after {refused} takes");
                return;
            }
            () = old.wait_for(PAUSE) => {}
        }
        // Not all is here.
        old.say_paused(10, 0, 0).await;
        let refused = taken(taking).await.err().expect("it stays").to_string();
        assert!(refused.contains("try again"), "{refused}");
        old.wait_for(RESUME).await;
    }
    panic!("it may take the session again and again");
}

/// A session of a phone, with a program, that a desk has taken by the rule.
async fn lent(stage: &Stage, first: usize, file: Arc<Vec<u8>>) -> (Device, Device, Server, SessionId, Hand) {
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let server = Server::up_to(file, first).await;
    let mut own = phone.open(server.address).await;
    own.read(first).await;
    let mut hand = Hand::take(&desk, own.id).await;
    phone.wait_for(own.id, "the desk has it", |it| it.is_some_and(|it| it.moves == 1)).await;
    hand.came = first;
    (phone, desk, server, own.id, hand)
}

async fn take_back(phone: &Device, id: SessionId) -> JoinHandle<Result<Attached, SessionError>> {
    let (sessions, takers) = (phone.sessions.clone(), phone.takers.clone());
    tokio::spawn(async move { sessions.take(id, 1, takers).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_keeps_the_one_that_lent_it_a_session_from_taking_it_back_no_more_than_once() {
    let stage = Stage::new(165).await;
    let file = random(9, 50_000);
    let (phone, _desk, server, id, mut hand) = lent(&stage, 1000, file.clone()).await;
    hand.say(DATA, b"ab").await;
    server.wait_for(2).await;
    let taking = take_back(&phone, id).await;
    hand.wait_for(PAUSE).await;
    hand.say_paused(1000, 2, 0).await;
    let refused = taken(taking).await.err().expect("not all is here").to_string();
    assert!(refused.contains("try again later: it is yours then"), "{refused}");
    hand.wait_for(RESUME).await;
    let taking = take_back(&phone, id).await;
    hand.wait_for(PAUSE).await;
    hand.say_paused(1000, 2, 0).await;
    let attached = taken(taking).await.expect("it says so for the second time");
    assert!(attached.warning().is_some_and(|it| it.contains("may be missing")), "{:?}", attached.warning());
    let mut back = program(attached).await;
    assert_eq!(back.offset, 1000);
    server.open.send_replace(file.len());
    back.socket.write_all(b"c").await.unwrap();
    let (rest, is_whole) = back.rest().await;
    assert!(is_whole && rest == file[1000..]);
    server.wait_for(3).await;
    assert_eq!(server.heard(), b"abc");
    hand.wait_for(MOVED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_silence_nor_bytes_that_never_come_keep_a_lent_session_for_ever() {
    let mut settings = patient();
    (settings.pause, settings.most_pause) = (Duration::from_secs(3), Duration::from_secs(6));
    let stage = Stage::with(166, settings).await;
    let file = random(10, 50_000);
    let (phone, _desk, server, id, mut hand) = lent(&stage, 1000, file.clone()).await;
    let taking = take_back(&phone, id).await;
    hand.wait_for(PAUSE).await;
    let refused = taken(taking).await.err().expect("it is there, and says nothing").to_string();
    assert!(refused.contains("does not answer") && refused.contains("yours then"), "{refused}");
    hand.wait_for(RESUME).await;
    let taking = take_back(&phone, id).await;
    hand.wait_for(PAUSE).await;
    // The answer to the first question, which is late, and to the second.
    hand.say_paused(1000, 0, 0).await;
    hand.say_paused(1000, 5, WHOLE).await;
    let mut back = program(taken(taking).await.unwrap()).await;
    server.open.send_replace(file.len());
    let (rest, is_whole) = back.rest().await;
    assert!(is_whole && rest == file[1000..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_connected_and_says_nothing_is_not_given_up_and_loses_no_byte() {
    let mut settings = patient();
    (settings.pause, settings.most_pause) = (Duration::from_secs(3), Duration::from_secs(4));
    let stage = Stage::with(167, settings).await;
    let (_phone, desk, server, mut old) = session(&stage, random(11, 20), 10).await;
    old.say(DATA, b"abc").await;
    // What comes while it is asked is a sign of life.
    server.wait_for(3).await;
    old.have(10).await;
    let taking = take(&desk).await;
    let refused = taken(taking).await.err().expect("it is there").to_string();
    assert!(refused.contains("connected and does not answer; try again later"), "{refused}");
    // It wakes up.
    old.wait_for(RESUME).await;
    old.say_paused(0, 3, 0).await;
    old.say(DATA, b"defghij").await;
    server.wait_for(10).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    old.say_paused(10, 10, WHOLE).await;
    let attached = taken(taking).await.unwrap();
    assert_eq!((attached.offset(), attached.warning()), (10, None));
    assert_eq!(server.heard(), b"abcdefghij");
}

/// A server's connection of which nothing is left but what it says: it breaks behind that.
async fn breaking(phone: &Device, desk: &Device, words: &[u8]) -> Hand {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut hand = Hand::open(phone, listener.local_addr().unwrap(), desk.id()).await;
    let mut accepted = within("it connects", listener.accept()).await.unwrap().0;
    within("it speaks", accepted.write_all(words)).await.unwrap();
    hand.have(words.len()).await;
    socket2::SockRef::from(&accepted).set_linger(Some(Duration::ZERO)).unwrap();
    drop(accepted);
    hand.wait_for(BROKEN).await;
    hand
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_words_of_a_server_that_broke_are_held_for_the_next_device() {
    let stage = Stage::new(168).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let words = random(12, 100_000);
    let old = breaking(&phone, &desk, &words).await;
    let id = desk.sessions.list().await.unwrap().remove(0).id;
    drop(old);
    let is_kept = |it: &whimbrel_proxy::Listed| (it.standing, it.kept) == (Standing::Held, 100_000);
    desk.wait_for(id, "they are held", |it| it.is_some_and(is_kept)).await;
    let mut new = program(taken(take(&desk).await).await.unwrap()).await;
    let (all, is_whole) = new.rest().await;
    assert!(!is_whole, "it must not look whole");
    assert!(all == *words, "{} of {} bytes came", all.len(), words.len());
    desk.wait_for(id, "it is over", |it| it.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_words_of_servers_that_broke_are_in_the_budget_until_they_are_taken() {
    let mut settings = patient();
    // With some to spare: a session that may keep nothing more does not look whether its server broke it.
    (settings.most_kept, settings.most_bytes_each) = (300_000, 520_000);
    let stage = Stage::with(169, settings).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let words = random(13, 250_000);
    let [mut one, _other] = [breaking(&phone, &desk, &words).await, breaking(&phone, &desk, &words).await];
    let server = Server::new(random(14, 4 * 1024 * 1024)).await;
    let third = phone.open(server.address).await;
    phone.wait_for(third.id, "there is no room", |it| it.is_some_and(|it| it.kept == 32_768)).await;
    // The first program has it all.
    one.say(COUNT, &250_000_u64.to_be_bytes()).await;
    let begun = Instant::now();
    while phone.sessions.list().await.unwrap().len() > 2 {
        assert!(begun.elapsed() < LIMIT, "it is not over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let fourth = phone.open(server.address).await;
    // The third takes some of it if anything wakes it up.
    let most = 520_000 - 250_000;
    let begun = Instant::now();
    loop {
        let kept =
            [phone.listed(third.id).await, phone.listed(fourth.id).await].map(|it| it.map(|it| it.kept));
        if kept.iter().flatten().sum::<u32>() >= most {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "there is room again: {kept:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_to_move_is_not_ended_for_what_its_device_sends_on_and_another_one_is() {
    let mut settings = patient();
    settings.most_bytes_each = 100_000;
    let stage = Stage::with(185, settings).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let words = random(15, 64 * 1024 * 1024);
    let mut old = Hand::open(&phone, listener.local_addr().unwrap(), desk.id()).await;
    let mut server = within("it connects", listener.accept()).await.unwrap().0;
    // The server does not read: as much waits as a device may send before it is to stop.
    let sent = fill(&mut old, &words, 230_000).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    let sent = press(&mut old, &words, sent, 1_000_000).await;
    old.say_paused(0, sent as u64, WHOLE).await;
    let _new = program(taken(taking).await.expect("it goes on")).await;
    let mut heard = vec![0; sent];
    within("all comes", server.read_exact(&mut heard)).await.unwrap();
    assert!(heard == words[..sent], "bytes were lost, or came twice");

    let mut other = Hand::open(&phone, listener.local_addr().unwrap(), desk.id()).await;
    let mut server = within("it connects", listener.accept()).await.unwrap().0;
    let sent = fill(&mut other, &words, 230_000).await;
    press(&mut other, &words, sent, 1_000_000).await;
    other.wait_for(BROKEN).await;
    let ended = within("an end comes", server.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_err(), "it must not look whole");
}
