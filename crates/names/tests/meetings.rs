//! Two peers that do not know each other's ids meet at the service.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use tokio::io::AsyncReadExt as _;
use whimbrel_names::introduction::MAX_MESSAGE;
use whimbrel_names::protocol::{MAX_MEETING_FRAME, MEETING_FRAMES, MEETING_SLOTS, Request, Response};
use whimbrel_names::{
    AskError, Code, ErrorCode, IntroductionError, Limits, Meeting, MeetingError, MemoryStore, Role, introduce,
};
use whimbrel_transport::{Allow, CloseCode, ListenOptions};

/// Far longer than anything here takes, and far shorter than a meeting.
const SOON: Duration = Duration::from_secs(20);

async fn recv(meeting: &mut Meeting) -> Result<Vec<u8>, MeetingError> {
    tokio::time::timeout(SOON, meeting.recv()).await.expect("nothing comes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_meet_by_the_slots_number_alone() {
    let net = Net(131);
    let service = service(net, MemoryStore::new()).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    let mut opened = annas.open_meeting().await.unwrap();
    assert!(opened.slot() < MEETING_SLOTS);
    // Waits at the service for the other side.
    for n in 0..MEETING_FRAMES {
        opened.send(&[n as u8; MAX_MEETING_FRAME]).await.unwrap();
    }
    let mut joined = bens.join_meeting(opened.slot()).await.unwrap();
    assert_eq!(joined.slot(), opened.slot());
    for n in 0..MEETING_FRAMES {
        assert_eq!(recv(&mut joined).await.unwrap(), [n as u8; MAX_MEETING_FRAME]);
    }
    joined.send(b"good evening").await.unwrap();
    assert_eq!(recv(&mut opened).await.unwrap(), b"good evening");
    // Names are served beside it, over the same connection.
    let nobody = annas.lookup_record(&name("nobody@example.org")).await.unwrap_err();
    assert_eq!(nobody.code(), Some(ErrorCode::NotFound));
    assert_eq!(service.stats().connections, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_the_service_nothing_else_waits_for_the_other_side_as_long_as_a_meeting_lasts() {
    let net = Net(169);
    let service = service(net, MemoryStore::new()).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    let mut opened = annas.open_meeting().await.unwrap();
    // A connection on which nothing at all was answered for 20 seconds would be given up.
    tokio::time::sleep(Duration::from_secs(23)).await;
    let mut joined = bens.join_meeting(opened.slot()).await.unwrap();
    joined.send(b"good evening").await.unwrap();
    assert_eq!(recv(&mut opened).await.unwrap(), b"good evening");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_side_ends_the_meeting_the_other_gets_the_rest_and_then_hears_of_it() {
    let net = Net(132);
    let service = service(net, MemoryStore::new()).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    for the_opener_ends in [true, false] {
        let opened = annas.open_meeting().await.unwrap();
        let joined = bens.join_meeting(opened.slot()).await.unwrap();
        let slot = opened.slot();
        let (mut ending, mut other) = if the_opener_ends { (opened, joined) } else { (joined, opened) };
        ending.send(b"that is all").await.unwrap();
        ending.close().await.unwrap();
        assert_eq!(recv(&mut other).await.unwrap(), b"that is all");
        assert_eq!(recv(&mut other).await.unwrap_err(), MeetingError::Ended);
        let refused = async {
            loop {
                match other.send(b"?").await {
                    Ok(()) => tokio::time::sleep(Duration::from_millis(10)).await,
                    Err(error) => return error,
                }
            }
        };
        assert_eq!(tokio::time::timeout(SOON, refused).await.unwrap(), MeetingError::Ended);
        until("the slot is free", || service.stats().meetings == 0).await;
        let gone = bens.join_meeting(slot).await.unwrap_err();
        assert_eq!(gone.code(), Some(ErrorCode::NoMeeting));
    }
}

/// Guessing slots tells a stranger nothing, and the place of a joiner is given once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_joiner_is_refused_like_one_who_guesses() {
    let net = Net(133);
    let service = service(net, MemoryStore::new()).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    let eve = host(net, 3, 3).await;
    let mut opened = annas.open_meeting().await.unwrap();
    let mut joined = bens.join_meeting(opened.slot()).await.unwrap();
    let free = (opened.slot() + 1) % MEETING_SLOTS;
    let mut answers = Vec::new();
    for slot in [opened.slot(), free, MEETING_SLOTS, u16::MAX] {
        let mut raw = Raw::connect(&eve, &service).await;
        answers.push(raw.ask(Request::Meet { slot: Some(slot) }).await);
    }
    assert!(matches!(answers[0], Response::Error { code: 33, .. }), "{:?}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    // Neither side noticed.
    joined.send(b"still here").await.unwrap();
    assert_eq!(recv(&mut opened).await.unwrap(), b"still here");
    opened.send(b"so am I").await.unwrap();
    assert_eq!(recv(&mut joined).await.unwrap(), b"so am I");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_are_limited_and_a_key_has_four_meetings() {
    let net = Net(134);
    let service = service(net, MemoryStore::new()).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(annas.open_meeting().await.unwrap());
    }
    assert_eq!(annas.open_meeting().await.unwrap_err().code(), Some(ErrorCode::TooManyMeetings));
    drop(open.pop());
    until("a slot is free", || service.stats().meetings == 3).await;
    open.push(annas.open_meeting().await.unwrap());

    let (_eve, eves) = named_host(net, 3, 3, &service).await;
    let taken: Vec<u16> = open.iter().map(Meeting::slot).collect();
    let guesses = (0..MEETING_SLOTS).filter(|slot| !taken.contains(slot));
    for guess in guesses.take(10) {
        assert_eq!(eves.join_meeting(guess).await.unwrap_err().code(), Some(ErrorCode::NoMeeting));
    }
    assert_eq!(eves.join_meeting(taken[0]).await.unwrap_err().code(), Some(ErrorCode::TooOften));
}

/// Keys cost nothing; addresses do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_with_many_keys_from_one_address_are_limited() {
    let net = Net(139);
    let mut limits = Limits::default();
    limits.meetings.joins_per_address = 2;
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let opened = annas.open_meeting().await.unwrap();
    let guess = (opened.slot() + 1) % MEETING_SLOTS;
    for (seed, expected) in [(3, ErrorCode::NoMeeting), (4, ErrorCode::NoMeeting), (5, ErrorCode::TooOften)] {
        let (_eve, eves) = named_host(net, 3, seed, &service).await;
        assert_eq!(eves.join_meeting(guess).await.unwrap_err().code(), Some(expected));
    }
    // Others are not held up by that.
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    bens.join_meeting(opened.slot()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_meeting_ends_when_its_time_is_up() {
    let net = Net(135);
    let mut limits = Limits::default();
    limits.meetings.lifetime = Duration::from_secs(3);
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (_anna, annas) = named_host(net, 1, 1, &service).await;
    let (_ben, bens) = named_host(net, 2, 2, &service).await;
    let mut opened = annas.open_meeting().await.unwrap();
    let mut joined = bens.join_meeting(opened.slot()).await.unwrap();
    assert_eq!(recv(&mut joined).await.unwrap_err(), MeetingError::TimeUp);
    assert_eq!(recv(&mut opened).await.unwrap_err(), MeetingError::TimeUp);
    until("the slot is free", || service.stats().meetings == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_is_too_large_is_refused_here_and_ends_the_connection_there() {
    let net = Net(136);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let mut opened = annas.open_meeting().await.unwrap();
    for size in [0, MAX_MEETING_FRAME + 1] {
        let refused = opened.send(&vec![7; size]).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("{size} bytes")), "{refused}");
    }
    opened.send(b"fits").await.unwrap();

    let mut raw = Raw::connect(&anna, &service).await;
    let answer = raw.ask(Request::Meet { slot: None }).await;
    assert!(matches!(answer, Response::Meeting { seconds: 599..=600, .. }), "{answer:?}");
    raw.send_bytes(&(MAX_MEETING_FRAME as u16 + 1).to_be_bytes()).await;
    let reason = tokio::time::timeout(SOON, raw.connection().closed()).await.unwrap();
    assert_eq!(reason.code, CloseCode::PROTOCOL);
    assert!(reason.reason.contains("1025 bytes"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_meeting_needs_a_stream_of_its_own() {
    let net = Net(137);
    let service = service(net, MemoryStore::new()).await;
    let anna = host(net, 1, 1).await;
    let mut raw = Raw::connect(&anna, &service).await;
    raw.ask(Request::Lookup { name: name("nobody@example.org") }).await;
    let refused = raw.ask(Request::Meet { slot: None }).await;
    assert!(matches!(refused, Response::Error { code: 1, .. }), "{refused:?}");
    assert_eq!(service.stats().meetings, 0);
}

/// A service from before meetings ends the connection with PROTOCOL, as this one does for requests that it
/// does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_without_meetings_is_told_from_one_that_does_not_answer() {
    let net = Net(138);
    let old = host(net, 200, 200).await;
    let mut listener = old.endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(mut stream) = connection.accept_stream().await {
                    tokio::spawn(async move {
                        let mut request = [0; 8];
                        if stream.read_exact(&mut request).await.is_ok() {
                            stream.connection().abort(CloseCode::PROTOCOL, "a message is malformed");
                        }
                    });
                }
            });
        }
    });
    let anna = host(net, 1, 1).await;
    let names = whimbrel_names::NameResolver::new(anna.endpoint.clone(), old.endpoint.addr());
    let refused = tokio::time::timeout(SOON, names.open_meeting()).await.unwrap().unwrap_err();
    assert_eq!(refused, AskError::Unsupported("meetings"));
    assert!(refused.to_string().contains("update it"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_who_were_introduced_say_to_each_other_has_a_size_at_most() {
    let net = Net(170);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    let opened = annas.open_meeting().await.unwrap();
    let code = Code::new(opened.slot());
    let joined = bens.join_meeting(code.slot()).await.unwrap();
    let (mut opener, mut joiner) = tokio::try_join!(
        introduce(opened, Role::Opener, &code, anna.key.id()),
        introduce(joined, Role::Joiner, &code, ben.key.id()),
    )
    .unwrap();
    assert_eq!((opener.peer(), joiner.peer()), (ben.key.id(), anna.key.id()));
    let largest = vec![7; MAX_MESSAGE];
    opener.send(&largest).await.unwrap();
    assert_eq!(joiner.recv().await.unwrap(), largest);
    let beyond = opener.send(&[7; MAX_MESSAGE + 5]).await.unwrap_err();
    assert!(matches!(beyond, IntroductionError::TooLarge(_)), "{beyond}");
    // That is no end of it.
    joiner.send(b"and you?").await.unwrap();
    assert_eq!(opener.recv().await.unwrap(), b"and you?");
}
