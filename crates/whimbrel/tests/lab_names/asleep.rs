//! One side is asleep, or goes over to another key and host, while the other one moves: found again by name.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, Connection, ListenOptions, Listener, SecretKey, Side, Stream};
use whimbrel_lab::require;

use super::{Endpoint, NAME, Names};
use crate::lab_support::net::{Family, LIMIT, Node, Star};
use crate::lab_support::{ms, secs};

/// How long a side is asleep, in seconds; a minute in `make eval-messages`.
const SLEEP: &str = "WHIMBREL_SLEEP_SECONDS";
const TOLD: Duration = Duration::from_secs(10);

fn bind(node: &Node, key: &SecretKey, names: &Names) -> Endpoint {
    let builder = Endpoint::builder().identity(key.clone()).names(names.service.addr());
    node.wait(builder.bind()).unwrap()
}

fn listen(node: &Node, endpoint: &Endpoint) -> Listener {
    node.wait(endpoint.listen(ListenOptions::named(NAME).allow(Allow::Any))).unwrap()
}

fn say(node: &Node, stream: &mut Stream, number: u64) {
    node.wait(stream.write_u64(number)).unwrap();
}

fn hear(node: &Node, stream: &mut Stream) -> u64 {
    node.wait(stream.read_u64()).unwrap()
}

fn only_stream(connection: &Connection) -> Stream {
    let mut streams = connection.streams();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams.remove(0)
}

/// Both moved while one was asleep: the other one early, the one that slept before it woke.
fn asleep_while_the_peer_moves(sleeper: Side) {
    let asleep_for = secs(std::env::var(SLEEP).map_or(5, |text| text.parse().unwrap()));
    let net = Star::new(Family::V4, ["client", "server", "names"]);
    let names = Names::start(&net.nodes[2]);
    let (at_client, at_server) = (&net.nodes[0], &net.nodes[1]);
    let [own, its] = [SecretKey::generate(), SecretKey::generate()];
    let (mut client, mut server) = (bind(at_client, &own, &names), bind(at_server, &its, &names));
    let mut listener = listen(at_server, &server);
    let mut dialled = at_client.wait(client.connect(NAME)).unwrap();
    let mut asks = at_client.wait(dialled.open_stream()).unwrap();
    say(at_client, &mut asks, 1);
    let mut accepted = at_server.wait(listener.accept()).unwrap();
    let mut answers = at_server.wait(accepted.accept_stream()).unwrap();
    assert_eq!(hear(at_server, &mut answers), 1);
    // Each side says something before, or while the other one is not there.
    match sleeper {
        Side::Client => {
            say(at_client, &mut asks, 2);
            let asleep = at_client.wait(dialled.suspend(TOLD)).unwrap();
            at_client.wait(client.close(TOLD));
            at_server.move_on();
            say(at_server, &mut answers, 10);
            std::thread::sleep(asleep_for);
            at_client.move_on();
            client = bind(at_client, &own, &names);
            dialled = at_client.wait(client.resume(&asleep)).unwrap();
            asks = only_stream(&dialled);
        }
        Side::Server => {
            say(at_server, &mut answers, 10);
            let asleep = at_server.wait(accepted.suspend(TOLD)).unwrap();
            drop(listener);
            at_server.wait(server.close(TOLD));
            at_client.move_on();
            say(at_client, &mut asks, 2);
            std::thread::sleep(asleep_for);
            at_server.move_on();
            server = bind(at_server, &its, &names);
            accepted = at_server.wait(server.resume(&asleep)).unwrap();
            listener = listen(at_server, &server);
            answers = only_stream(&accepted);
        }
    }
    assert_eq!(hear(at_client, &mut asks), 10);
    assert_eq!(hear(at_server, &mut answers), 2);
    say(at_client, &mut asks, 3);
    assert_eq!(hear(at_server, &mut answers), 3);
    say(at_server, &mut answers, 11);
    assert_eq!(hear(at_client, &mut asks), 11);
    assert_eq!(dialled.peer_id(), its.id());
    assert_eq!(accepted.peer_id(), own.id());
    drop((listener, client, server));
}

#[test]
fn a_client_that_slept_while_its_server_moved_goes_on_where_it_was() {
    if require!() {
        asleep_while_the_peer_moves(Side::Client);
    }
}

#[test]
fn a_server_that_slept_while_its_client_moved_goes_on_where_it_was() {
    if require!() {
        asleep_while_the_peer_moves(Side::Server);
    }
}

/// Answers each number with the next one, as long as each is the one that follows.
async fn count(mut listener: Listener) {
    let connection = listener.accept().await.unwrap();
    let mut stream = connection.accept_stream().await.unwrap();
    let mut expected = 0;
    while let Ok(number) = stream.read_u64().await {
        assert_eq!(number, expected, "each number once, in order");
        expected += 1;
        stream.write_u64(expected).await.unwrap();
    }
}

/// The peer moves at another moment of each hand-over. One that fails leaves the connection where it was.
#[test]
fn a_connection_is_handed_over_live_while_its_peer_moves_and_every_number_counts_once() {
    if !require!() {
        return;
    }
    let net = Star::new(Family::V4, ["one", "other", "peer", "names"]);
    let names = Names::start(&net.nodes[3]);
    let (owners, peer) = ([&net.nodes[0], &net.nodes[1]], &net.nodes[2]);
    let serving = bind(peer, &SecretKey::generate(), &names);
    peer.runtime.spawn(count(listen(peer, &serving)));
    let endpoints = owners.map(|node| bind(node, &SecretKey::generate(), &names));
    let options = ListenOptions::unnamed().allow(Allow::Any);
    let mut listener = owners[1].wait(endpoints[1].listen(options)).unwrap();
    let over = owners[0].wait(endpoints[0].connect(endpoints[1].addr())).unwrap();
    let between = [over, owners[1].wait(listener.accept()).unwrap()];

    let mut connection = owners[0].wait(endpoints[0].connect(NAME)).unwrap();
    let mut stream = owners[0].wait(connection.open_stream()).unwrap();
    let (mut at, mut number, mut went) = (0, 0, 0);
    for after in [0, 10, 25, 50, 100, 200].map(ms) {
        for _ in 0..5 {
            say(owners[at], &mut stream, number);
            number += 1;
            assert_eq!(hear(owners[at], &mut stream), number);
        }
        // Under way while it goes over.
        say(owners[at], &mut stream, number);
        let to = 1 - at;
        let (gone, here) = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(after);
                peer.move_on();
            });
            let leaving =
                scope.spawn(|| owners[at].wait(connection.hand_over(&between[at], TOLD)).map_err(drop));
            // It waits for longer, so that it does not miss one that was slow to begin.
            let here = owners[to].wait(endpoints[to].accept_hand_over(&between[to], TOLD * 2));
            (leaving.join().unwrap(), here)
        });
        match here {
            Ok(taken) => {
                stream = only_stream(&taken);
                (connection, at, went) = (taken, to, went + 1);
            }
            Err(error) => {
                eprintln!("the peer moved {after:?} after the beginning: {error}");
                assert!(gone.is_err(), "it is with neither of the two");
            }
        }
        number += 1;
        assert_eq!(hear(owners[at], &mut stream), number);
    }
    eprintln!("{went} of 6 went over while the peer moved");
    assert!(went > 0, "none went over");
    assert!(owners[at].wait(connection.close(whimbrel::CloseCode::NONE, "", LIMIT)).is_ok());
}
