//! A film that is under way goes on in a player on another device, which asks for it anew.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use crate::sessions_support::hand::{COUNT, END, ENDED, Hand, PAUSE, WHOLE};
use crate::sessions_support::{Device, Program, Server, Stage, random, within};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use whimbrel_proxy::{Attached, NoRest, Outcome, SessionId, Standing};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
/// What is before the first cluster of a film: the heads of EBML and of a segment of unknown length.
const BEGINNING: &[u8] = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff";
const CLUSTER: usize = 100_000;
const CLUSTERS: usize = 40;

/// A film in a container of Matroska, as a server sends it, and where its clusters are in that.
fn film() -> (Arc<Vec<u8>>, Vec<usize>) {
    film_of(CLUSTERS, CLUSTER)
}

/// The same, of so many clusters of this size.
fn film_of(clusters: usize, size: usize) -> (Arc<Vec<u8>>, Vec<usize>) {
    // A cluster of unknown length with a block that stands alone, and something to pass over.
    let begin = b"\x1f\x43\xb6\x75\xff\xa3\x84\x81\0\0\x80\xec".to_vec();
    let filler = size - begin.len() - 4;
    let length = BEGINNING.len() + clusters * size;
    let size = (1 << 28 | u32::try_from(filler).unwrap()).to_be_bytes().to_vec();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: video/webm\r\nContent-Length: {length}\r\n\r\n");
    let (mut all, mut places) = ([head.as_bytes(), BEGINNING].concat(), Vec::new());
    for seed in 0..clusters {
        places.push(all.len());
        all.extend([&begin[..], &size, &random(seed as u64, filler)[..]].concat());
    }
    (Arc::new(all), places)
}

/// A player that has asked on a device, and gets what is left of a film.
async fn player(attached: Attached) -> Program {
    let rest = attached.rest_by_time(GET).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let accepted = listener.accept().await.unwrap().0;
    let (id, offset) = (attached.id(), attached.offset());
    let carrying = tokio::spawn(attached.carry_rest(accepted, rest));
    Program { id, offset, socket, carrying }
}

/// A device takes a session for a player.
async fn take_by_time(device: &Device, id: SessionId) -> Attached {
    let moves = device.listed(id).await.expect("it may be taken").moves;
    let taken = device.sessions.take_by_time(id, moves, device.takers.clone());
    within("a session is taken", taken).await.unwrap()
}

/// A program that reads on while its session moves, as fast as it can, behind what it has.
fn reads_on(mut program: Program, mut begin: Vec<u8>) -> JoinHandle<(Vec<u8>, bool, Program)> {
    tokio::spawn(async move {
        let (rest, is_whole) = program.rest().await;
        begin.extend_from_slice(&rest);
        (begin, is_whole, program)
    })
}

/// What a player is given behind its head, and what that head says of it.
fn answered(said: &[u8]) -> (String, Vec<u8>) {
    let end = said.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    (String::from_utf8(said[..end].to_vec()).unwrap(), said[end..].to_vec())
}

#[track_caller]
fn is_the_rest(said: &[u8], film: &[u8], place: usize) {
    let (head, body) = answered(said);
    let expected = [BEGINNING, &film[place..]].concat();
    let length = expected.len();
    assert_eq!(
        head,
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nContent-Type: video/webm\r\n\
             Accept-Ranges: none\r\nConnection: close\r\n\r\n"
        )
    );
    assert_eq!(body.len(), length, "bytes were lost, or came twice");
    assert!(body == expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_player_on_another_device_gets_a_films_beginning_and_the_rest_from_the_last_place_on() {
    let stage = Stage::new(194).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let (film, places) = film();
    // It is not over before it moves.
    let server = Server::up_to(film.clone(), 20 * CLUSTER).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(10 * CLUSTER + 5000).await;
    let id = old.id;
    phone.hand_off(id, &desk).await;
    let reading = reads_on(old, first);
    let mut new = player(take_by_time(&desk, id).await).await;
    desk.wait_for(id, "it is confirmed", |it| it.is_some_and(|it| it.moves == 1)).await;
    server.open.send_replace(film.len());
    let (said, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    let (first, looks_whole, old) = reading.await.unwrap();
    assert!(!looks_whole && film.starts_with(&first));
    // The last cluster of which the first player has something.
    let place = *places.iter().rfind(|place| **place <= first.len()).unwrap();
    assert_eq!(new.offset, place as u64);
    is_the_rest(&said, &film, place);
    assert_eq!((old.outcome().await, new.outcome().await), (Outcome::Moved, Outcome::Ended));
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_film_that_was_entered_moves_on_and_no_byte_of_it_is_lost_or_doubled() {
    let stage = Stage::new(195).await;
    let phone = stage.device(2, &[]).await;
    let (desk, tablet) = (stage.device(3, &[]).await, stage.device(4, &[]).await);
    let (film, places) = film();
    let server = Server::up_to(film.clone(), 20 * CLUSTER).await;
    let mut old = phone.open(server.address).await;
    let first = old.read(10 * CLUSTER).await;
    let id = old.id;
    phone.hand_off(id, &desk).await;
    let reading = reads_on(old, first);
    let second = player(take_by_time(&desk, id).await).await;
    desk.wait_for(id, "it is confirmed", |it| it.is_some_and(|it| it.moves == 1)).await;
    let place = second.offset;
    assert!(places.contains(&usize::try_from(place).unwrap()));
    // It goes on before it has read what the first one had.
    desk.hand_off(id, &tablet).await;
    let mut third = tablet.take(id).await;
    let second = reads_on(second, Vec::new());
    server.open.send_replace(film.len());
    let (rest, is_whole) = third.rest().await;
    assert!(is_whole, "the server ended in order");
    let (said, looks_whole, second) = within("it ends", second).await.unwrap();
    assert!(!looks_whole);
    is_the_rest(&[said, rest].concat(), &film, usize::try_from(place).unwrap());
    assert!(!within("it ends", reading).await.unwrap().1);
    assert_eq!((second.outcome().await, third.outcome().await), (Outcome::Moved, Outcome::Ended));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_player_that_leaves_changes_nothing_for_those_that_take_the_bytes_as_they_are() {
    let stage = Stage::new(196).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let (film, _) = film();
    let server = Server::up_to(film.clone(), 20 * CLUSTER).await;
    let mut old = phone.open(server.address).await;
    // All that came: it goes on where it was.
    let first = old.read(20 * CLUSTER).await;
    let id = old.id;
    let reading = reads_on(old, first);
    drop(take_by_time(&desk, id).await);
    phone.wait_for(id, "it is back", |it| it.is_some_and(|it| it.standing == Standing::Live)).await;
    let mut new = desk.take(id).await;
    server.open.send_replace(film.len());
    let (rest, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    let (first, ..) = within("it ends", reading).await.unwrap();
    assert_eq!((new.offset, first.len() + rest.len()), (first.len() as u64, film.len()));
    assert!([first, rest].concat() == *film);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_film_stays_where_it_was_and_goes_on_there() {
    let stage = Stage::new(197).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: video/webm\r\nContent-Length: 3000000\r\n\r\n";
    let file = Arc::new([&head[..], b"not", &random(1, 2_999_997)[..]].concat());
    let server = Server::up_to(file.clone(), 2_000_000).await;
    let mut old = phone.open(server.address).await;
    // All that came: it goes on where it was.
    let first = old.read(2_000_000).await;
    let id = old.id;
    phone.hand_off(id, &desk).await;
    let reading = reads_on(old, first);
    let attached = take_by_time(&desk, id).await;
    assert_eq!(attached.rest_by_time(GET), Err(NoRest::NoEntry));
    assert!(attached.rest(GET).is_ok(), "it has a rest all the same");
    drop(attached);
    server.open.send_replace(file.len());
    let (all, is_whole, _) = within("it ends", reading).await.unwrap();
    assert!(is_whole && all == *file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_film_that_was_taken_whole_is_entered_all_the_same_as_long_as_its_program_is_there() {
    let stage = Stage::new(198).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let (film, places) = film_of(1, 900_000);
    let server = Server::new(film.clone()).await;
    let mut old = Hand::open(&phone, server.address, desk.id()).await;
    old.wait_for(END).await;
    let all = film.len() as u64;
    assert_eq!(old.came as u64, all);
    old.say(COUNT, &all.to_be_bytes()).await;
    let id = desk.sessions.list().await.unwrap()[0].id;
    // Both directions end as it moves: without a player it would be over.
    let pausing = async {
        old.wait_for(PAUSE).await;
        old.say_paused(all, 0, WHOLE | ENDED).await;
    };
    let (taken, ()) = tokio::join!(take_by_time(&desk, id), pausing);
    let mut new = player(taken).await;
    assert_eq!(new.offset, places[0] as u64);
    let (said, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    is_the_rest(&said, &film, places[0]);
    assert_eq!(new.outcome().await, Outcome::Ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_player_has_taken_by_its_first_count_does_not_come_again_if_it_says_no_more() {
    let stage = Stage::new(199).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let (film, places) = film();
    let server = Server::up_to(film.clone(), 5 * CLUSTER).await;
    let mut old = Hand::open(&phone, server.address, desk.id()).await;
    let place = *places.iter().rfind(|place| **place < 5 * CLUSTER).unwrap();
    old.have(5 * CLUSTER).await;
    let id = desk.sessions.list().await.unwrap()[0].id;
    let pausing = async {
        old.wait_for(PAUSE).await;
        old.say_paused(5 * CLUSTER as u64, 0, WHOLE).await;
    };
    let (mut player, ()) = tokio::join!(Hand::enter(&desk, id), pausing);
    assert_eq!(player.came, place);
    player.have(place + 30_000).await;
    let taken = place as u64 + 20_000;
    player.say(COUNT, &taken.to_be_bytes()).await;
    desk.wait_for(id, "it is confirmed", |it| it.is_some_and(|it| it.moves == 1)).await;
    drop(player);
    let mut new = desk.take(id).await;
    server.open.send_replace(film.len());
    let (rest, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    assert_eq!(new.offset, taken);
    assert!(rest == film[place + 20_000..]);
}
