//! A device is told of each session that is handed over to it: between real endpoints.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::sessions_support::{On, Server, Stage, random, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, Endpoint, ListenOptions, ManualMonitor};
use whimbrel_proxy::{Answer, May, SessionError, SessionsAt, Status};

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_told_of_what_is_handed_over_to_it_and_no_other_is() {
    let stage = Stage::new(210).await;
    let [phone, desk, other] = [2, 3, 4].map(|host| stage.device(host, &[]));
    let (phone, desk, other) = (phone.await, desk.await, other.await);
    let mut hears = within("it waits", desk.sessions.hear()).await.unwrap();
    let mut also = within("it waits twice", desk.sessions.hear()).await.unwrap();
    let mut nothing = within("another one waits", other.sessions.hear()).await.unwrap();
    let server = Server::up_to(random(1, MIB), 1000).await;
    let program = phone.open(server.address).await;
    phone.hand_off(program.id, &desk).await;
    for hears in [&mut hears, &mut also] {
        let word = within("a word comes", hears.next()).await.unwrap();
        assert_eq!((word.id, word.moves), (program.id, 0));
    }
    assert_eq!(desk.listed(program.id).await.map(|it| it.may), Some(May::Consent));
    // What was no word of its holder tells nobody.
    let forged = other.sessions.hand_off((program.id, 0), desk.id(), Duration::from_secs(60));
    assert!(matches!(within("an answer comes", forged).await, Err(SessionError::None(_))));
    let _taken = desk.take(program.id).await;
    desk.hand_off(program.id, &other).await;
    let word = within("a word comes", nothing.next()).await.unwrap();
    assert_eq!((word.id, word.moves), (program.id, 1), "the first word for it");
    let second = phone.open(server.address).await;
    phone.hand_off(second.id, &desk).await;
    let word = within("a word comes", hears.next()).await.unwrap();
    assert_eq!(word.id, second.id, "nothing came in between");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_that_wait_take_no_place_of_a_connection_and_the_newest_four_are_told() {
    let stage = Stage::new(211).await;
    let [phone, desk] = [stage.device(2, &[]).await, stage.device(3, &[]).await];
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(within("it waits", desk.sessions.hear()).await.unwrap());
    }
    for old in &mut waiting[..2] {
        assert!(within("it ends", old.next()).await.is_err());
    }
    let server = Server::up_to(random(2, MIB), 1000).await;
    let program = phone.open(server.address).await;
    phone.hand_off(program.id, &desk).await;
    for new in &mut waiting[2..] {
        assert_eq!(within("a word comes", new.next()).await.unwrap().id, program.id);
    }
    // A word that is said again is told again.
    phone.hand_off(program.id, &desk).await;
    assert_eq!(within("a word comes", waiting[5].next()).await.unwrap().id, program.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_gateway_that_tells_nobody_says_so() {
    let at = |host| ManualMonitor::new([[127, 0, 212, host].into()]);
    let gate = Endpoint::builder().monitor(at(1)).bind().await.unwrap();
    let device = Endpoint::builder().monitor(at(2)).bind().await.unwrap();
    let mut listener = gate.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    // What a gateway of before says to a kind of request that it does not know.
    let older = tokio::spawn(async move {
        let connection = listener.accept().await.unwrap();
        let mut stream = connection.accept_stream().await.unwrap();
        let mut request = [0; 4];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(&Answer::new(Status::NotUnderstood, "kind 9").encode()).await.unwrap();
        // The device may have heard it, and listen no more.
        let _ = stream.finish();
        (request, connection, listener)
    });
    let connection = within("it connects", device.connect(gate.ticket(None))).await.unwrap();
    let heard = within("an answer comes", SessionsAt::new(Arc::new(On(connection))).hear()).await;
    assert!(matches!(heard.map(drop), Err(SessionError::Older)));
    assert_eq!(within("it was asked", older).await.unwrap().0, [2, 9, 0, 0]);
}
