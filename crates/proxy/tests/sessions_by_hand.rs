//! A gateway keeps to the bytes of a session whatever a device does: here the device's frames are said by
//! hand.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::sessions_support::hand::{
    BROKEN, COUNT, DATA, END, ENDED, Hand, MOVED, PAUSE, PAUSED, RESUME, WHOLE,
};
use crate::sessions_support::hand::{fill, session, take, taken};
use crate::sessions_support::{Device, Program, Server, Stage, patient, program, random, within};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_proxy::{SessionError, SessionId, Standing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_answers_is_not_given_up_and_what_it_sends_slowly_is_not_cut_out() {
    let mut settings = patient();
    settings.pause = Duration::from_secs(10);
    let stage = Stage::with(170, settings).await;
    let (_phone, desk, server, mut old) = session(&stage, random(1, 20), 10).await;
    old.say(DATA, b"abc").await;
    old.have(10).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    // Seven more are on a line that stands still.
    old.say_paused(10, 10, WHOLE).await;
    let refused = taken(taking).await.err().expect("bytes are missing").to_string();
    assert!(refused.contains("try again"), "{refused}");
    old.wait_for(RESUME).await;
    old.say(DATA, b"defghij").await;
    server.wait_for(10).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    old.say_paused(10, 10, WHOLE).await;
    let mut new = program(taken(taking).await.unwrap()).await;
    old.wait_for(MOVED).await;
    assert_eq!(new.offset, 10);
    new.socket.write_all(b"klm").await.unwrap();
    server.wait_for(13).await;
    assert_eq!(server.heard(), b"abcdefghijklm");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_the_end_that_come_behind_the_answer_are_waited_for() {
    let stage = Stage::new(176).await;
    let file = random(2, 100_000);
    let (_phone, desk, server, mut old) = session(&stage, file.clone(), 10).await;
    old.say(DATA, b"abc").await;
    old.have(10).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    // As on a second stream: the end is announced, and its frame never comes.
    old.say_paused(10, 6, WHOLE | ENDED).await;
    for piece in [b"d", b"e", b"f"] {
        assert!(!taking.is_finished(), "it must wait for what was sent");
        old.say(DATA, piece).await;
    }
    let mut new = program(taken(taking).await.unwrap()).await;
    assert!(server.end().await, "the server hears the end");
    assert_eq!(server.heard(), b"abcdef");
    // What the new program says has nowhere to go, and breaks nothing.
    new.socket.write_all(b"more").await.unwrap();
    server.open.send_replace(file.len());
    let mut rest = vec![0; file.len() - 10];
    within("the rest comes", new.socket.read_exact(&mut rest)).await.unwrap();
    assert!(rest == file[10..], "not the rest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_take_that_failed_the_next_one_begins_where_the_program_was() {
    let stage = Stage::new(172).await;
    let file = random(3, 50_000);
    let (_phone, desk, server, mut old) = session(&stage, file.clone(), 1000).await;
    old.have(1000).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    // It has never said a count before.
    old.say_paused(1000, 0, WHOLE).await;
    let attached = taken(taking).await.unwrap();
    let id = attached.id();
    drop(attached);
    old.wait_for(RESUME).await;
    drop(old);
    desk.wait_for(id, "it is held", |it| it.is_some_and(|it| it.standing == Standing::Held)).await;
    let mut new = program(taken(take(&desk).await).await.unwrap()).await;
    assert_eq!(new.offset, 1000, "these would come twice");
    server.open.send_replace(file.len());
    let (rest, is_whole) = new.rest().await;
    assert!(is_whole && rest == file[1000..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_gone_with_bytes_that_it_announced_ends_the_session_for_all_to_see() {
    let stage = Stage::new(173).await;
    let (_phone, desk, server, mut old) = session(&stage, random(4, 20), 10).await;
    old.say(DATA, b"abc").await;
    old.have(10).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    old.say_paused(10, 10, WHOLE).await;
    drop(old);
    assert!(matches!(taken(taking).await, Err(SessionError::None(_))));
    assert!(!server.end().await, "the server must not take it for whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_closed_while_its_session_moves_does_not_end_it() {
    let stage = Stage::new(174).await;
    let file = random(5, 50_000);
    let (_phone, desk, server, mut old) = session(&stage, file.clone(), 1000).await;
    old.have(1000).await;
    old.say(COUNT, &1000_u64.to_be_bytes()).await;
    let taking = take(&desk).await;
    old.wait_for(PAUSE).await;
    old.say(BROKEN, &[]).await;
    let mut new = program(taken(taking).await.unwrap()).await;
    assert_eq!(new.offset, 1000);
    server.open.send_replace(file.len());
    let (rest, is_whole) = new.rest().await;
    assert!(is_whole && rest == file[1000..]);
    assert_eq!(server.connections(), 1);
}

/// When the device that has a session dies, without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    BeforeAnotherTakes,
    WhenItIsAsked,
    HavingAnswered,
    WhileTheOtherBegins,
    OnceTheOtherHasIt,
}

/// What the device before did until it died, and what the other one has then.
async fn taken_from(mut old: Hand, dies: Dies, desk: &Device, id: SessionId) -> Program {
    if dies == Dies::BeforeAnotherTakes {
        drop(old);
        desk.wait_for(id, "it is held", |it| it.is_some_and(|it| it.standing == Standing::Held)).await;
        return program(taken(take(desk).await).await.unwrap()).await;
    }
    let taking = take(desk).await;
    old.wait_for(PAUSE).await;
    if dies == Dies::WhenItIsAsked {
        drop(old);
        return program(taken(taking).await.unwrap()).await;
    }
    old.say_paused(1000, 3, WHOLE).await;
    if dies == Dies::HavingAnswered {
        drop(old);
        return program(taken(taking).await.unwrap()).await;
    }
    let attached = taken(taking).await.unwrap();
    if dies == Dies::WhileTheOtherBegins {
        drop(old);
        return program(attached).await;
    }
    let new = program(attached).await;
    old.wait_for(MOVED).await;
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_whatever_step_the_old_device_dies_the_new_one_has_every_byte_and_the_server_one_connection() {
    let stage = Stage::new(179).await;
    for dies in [
        Dies::BeforeAnotherTakes,
        Dies::WhenItIsAsked,
        Dies::HavingAnswered,
        Dies::WhileTheOtherBegins,
        Dies::OnceTheOtherHasIt,
    ] {
        let file = random(7, 50_000);
        let (_phone, desk, server, mut old) = session(&stage, file.clone(), 1000).await;
        old.say(DATA, b"abc").await;
        old.have(1000).await;
        old.say(COUNT, &1000_u64.to_be_bytes()).await;
        server.wait_for(3).await;
        let id = within("a list comes", desk.sessions.list()).await.unwrap().remove(0).id;
        desk.wait_for(id, "its count comes", |it| it.is_some_and(|it| it.kept == 0)).await;
        let mut new = taken_from(old, dies, &desk, id).await;
        assert_eq!(new.offset, 1000, "{dies:?}");
        within("it is written", new.socket.write_all(b"def")).await.unwrap();
        server.wait_for(6).await;
        server.open.send_replace(file.len());
        let (rest, is_whole) = new.rest().await;
        assert!(is_whole && rest == file[1000..], "{dies:?}: {} bytes", rest.len());
        assert_eq!((server.heard().as_slice(), server.connections()), (&b"abcdef"[..], 1), "{dies:?}");
    }
}

/// What a device does that takes a session, in place of saying that its program is there.
#[derive(Clone, Copy)]
enum Fails {
    SaysNothing,
    SaysBytes,
    CountsWhatNeverCame,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_device_that_falls_silent_or_breaks_the_rules_leaves_the_session_where_it_was() {
    stays_where_it_was(171, Duration::from_secs(2), &[Fails::SaysNothing, Fails::SaysNothing]).await;
    // Not only because the time to confirm is over.
    let broken = [Fails::SaysBytes, Fails::CountsWhatNeverCame];
    stays_where_it_was(180, Duration::from_secs(3600), &broken).await;
}

async fn stays_where_it_was(net: u8, confirm: Duration, fails: &[Fails]) {
    let mut settings = patient();
    settings.confirm = confirm;
    let stage = Stage::with(net, settings).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let file = random(16, 50_000);
    let server = Server::up_to(file.clone(), 1000).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(1000).await;
    for fails in fails {
        let mut new = Hand::begin(&desk, old.id).await;
        match fails {
            Fails::SaysNothing => {}
            Fails::SaysBytes => new.say(DATA, b"forged").await,
            Fails::CountsWhatNeverCame => new.say(COUNT, &40_000_u64.to_be_bytes()).await,
        }
        // However the gateway ends its stream.
        let _ = within("it is let go", new.stream.read_to_end(&mut Vec::new())).await;
        let is_back = |it: &whimbrel_proxy::Listed| (it.standing, it.moves) == (Standing::Live, 0);
        phone.wait_for(old.id, "it is back", |it| it.is_some_and(is_back)).await;
        // What comes late says nothing any more.
        let late = [&[COUNT, 0, 8][..], &1000_u64.to_be_bytes()].concat();
        let _ = within("it is said", new.stream.write_all(&late)).await;
    }
    within("it is written", old.socket.write_all(b"abc")).await.unwrap();
    server.open.send_replace(file.len());
    let (rest, is_whole) = old.rest().await;
    assert!(is_whole && [first, rest].concat() == *file);
    server.wait_for(3).await;
    assert_eq!((server.heard().as_slice(), server.connections()), (&b"abc"[..], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_said_before_it_broke_the_connection_reaches_the_program() {
    let stage = Stage::new(175).await;
    let phone = stage.device(2, &[]).await;
    let file = random(6, 32 * 1024 * 1024);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut old = phone.open(listener.local_addr().unwrap()).await;
    let mut accepted = listener.accept().await.unwrap().0;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let bytes = file.clone();
    let serving = tokio::spawn(async move {
        tokio::select! {
            _ = accepted.write_all(&bytes) => panic!("nothing is full"),
            _ = stopped => {}
        }
        socket2::SockRef::from(&accepted).set_linger(Some(Duration::ZERO)).unwrap();
    });
    // Everything is full: the program's kernel, the phone, the gateway.
    phone.wait_for(old.id, "the gateway keeps much", |it| it.is_some_and(|it| it.kept > 900_000)).await;
    let least = usize::try_from(phone.listed(old.id).await.unwrap().down).unwrap();
    stop.send(()).unwrap();
    within("it breaks", serving).await.unwrap();
    let mut all = Vec::new();
    let ended = within("an end comes", old.socket.read_to_end(&mut all)).await;
    assert!(ended.is_err(), "it must not look whole");
    assert!(all.len() >= least, "{} of {least} bytes came", all.len());
    assert!(all == file[..all.len()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_reaches_a_slow_server_also_when_no_device_is_left() {
    let mut settings = patient();
    settings.hold = Duration::ZERO;
    let stage = Stage::with(177, settings).await;
    let phone = stage.device(2, &[]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut old = Hand::open(&phone, listener.local_addr().unwrap(), phone.id()).await;
    let mut server = within("it connects", listener.accept()).await.unwrap().0;
    // It has nothing to say, and does not read.
    server.shutdown().await.unwrap();
    old.wait_for(END).await;
    let words = random(7, 64 * 1024 * 1024);
    let sent = fill(&mut old, &words, 1_000_000).await;
    old.say(END, &[]).await;
    let id = phone.sessions.list().await.unwrap().remove(0).id;
    let sent_all = u64::try_from(sent).unwrap();
    phone.wait_for(id, "all is there", |it| it.is_some_and(|it| it.up == sent_all)).await;
    // It was not asked for: the gateway cuts the stream off, behind the end.
    old.say(PAUSED, &[0; 17]).await;
    let _ = within("it is cut off", old.stream.read_to_end(&mut Vec::new())).await;
    let mut heard = Vec::new();
    within("an end comes", server.read_to_end(&mut heard)).await.expect("it ends in order");
    assert!(heard == words[..sent], "{} of {sent} bytes came", heard.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_has_taken_is_told_for_whole_frames_and_not_for_each_piece_of_one() {
    let stage = Stage::new(178).await;
    let (_phone, _desk, server, mut hand) = session(&stage, random(8, 20), 10).await;
    hand.have(10).await;
    // One frame of ten bytes, of which the server takes one piece after the other.
    for (piece, taken) in [(&b"\0\0\x0aabc"[..], 3), (&b"def"[..], 6), (&b"ghij"[..], 10)] {
        within("a piece is said", hand.stream.write_all(piece)).await.unwrap();
        server.wait_for(taken).await;
    }
    hand.wait_for(COUNT).await;
    assert_eq!(hand.counted, 10);
}
