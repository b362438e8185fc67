//! One end of a connection goes over to another key.
#![allow(clippy::unwrap_used)]

use crate::simulation::{self, Cut, Options, Sim, identity, ms, secs, small_config};
use whimbrel_base::{ConnectionId, SecretKey};
use whimbrel_proto::{
    Assignment, CloseCode, Config, Connection, Event, FirstFlight, JoinError, Side, TakeOver, segment,
};

const BOTH: [Side; 2] = [Side::Client, Side::Server];

/// Data under way in both directions, some of it read.
fn busy(config: &Config) -> Sim {
    let options = Options { client: config.clone(), server: config.clone(), ..Options::default() };
    let mut sim = Sim::established(options);
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 60_000);
    sim.advance(ms(70));
    sim.server_accepts();
    sim.read(Side::Server, stream, 10_000);
    sim.send(Side::Server, stream, 60_000);
    sim.advance(ms(25));
    sim
}

fn run(sim: &mut Sim, done: impl Fn(&Sim) -> bool) {
    let done = sim.run_until(secs(20), |sim| done(sim));
    assert!(done, "{}", sim.report());
}

fn all_is_here(sim: &Sim) -> bool {
    sim.client_app.bytes_missing_at(&sim.server_app).is_none()
        && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
}

#[test]
fn an_end_hops_through_four_keys_and_every_byte_arrives() {
    for config in [Config::default(), small_config()] {
        for hops in BOTH {
            let stays = hops.peer();
            let mut sim = busy(&config);
            let mut keys = vec![identity(hops)];
            for hop in 0..3 {
                sim.hand_over(hops).unwrap();
                keys.push(sim.key(hops).id());
                assert!(sim.connection(hops).unwrap().is_claiming());
                let stream = sim.open(stays).unwrap();
                sim.send(stays, stream, 5_000 + hop);
                sim.advance(ms(50));
                sim.dial();
                run(&mut sim, all_is_here);
                // The answer to the answer.
                sim.advance(secs(1));
                assert!(!sim.connection(hops).unwrap().is_claiming());
                assert_eq!(sim.connection(stays).unwrap().peer(), keys[keys.len() - 1]);
            }
            let told: Vec<_> = keys.windows(2).map(|pair| (pair[0], pair[1])).collect();
            let heard = sim.events(stays).iter().filter_map(|event| match event {
                Event::PeerHandedOver { from, to } => Some((*from, *to)),
                _ => None,
            });
            assert_eq!(heard.collect::<Vec<_>>(), told);
        }
    }
}

/// Both ends go over while neither knows, and each answer may be lost.
#[test]
fn both_ends_go_over_at_once_whatever_answers_are_lost() {
    for losses in 0..8u32 {
        let mut sim = busy(&Config::default());
        sim.hand_over(Side::Client).unwrap();
        sim.hand_over(Side::Server).unwrap();
        for attempt in 0..3 {
            let carrier = sim.dial().unwrap();
            if losses >> attempt & 1 == 1 {
                // The request arrives, its answer does not.
                sim.advance(ms(25));
                sim.cut(carrier, Cut::Both);
            }
            sim.advance(secs(1));
        }
        sim.cut_all(Cut::Both);
        sim.dial();
        run(&mut sim, all_is_here);
        sim.advance(secs(1));
        assert_eq!(sim.client.peer(), sim.key(Side::Server).id(), "losses {losses:b}");
        assert_eq!(sim.server().peer(), sim.key(Side::Client).id());
        let key = sim.client.notice_key().unwrap();
        assert_eq!(key.tag(), sim.server().notice_key().unwrap().tag());
    }
}

/// A client that goes over tells what it had on paths that were lost: an answer of before, whose
/// acknowledgement was lost too. That says nothing of the answer that it gets now, so the server does not go
/// over itself before that one is known to have arrived.
#[test]
fn a_late_acknowledgement_of_an_answer_says_nothing_of_the_next_one() {
    for read_back in [false, true] {
        let mut sim = busy(&Config::default());
        if read_back {
            sim.cut_all(Cut::Both);
            sim.advance(ms(1));
            sim.resume(Side::Server);
        } else {
            sim.hand_over(Side::Client).unwrap();
        }
        // The client has the answer; that it has it does not arrive.
        sim.dial();
        sim.advance(ms(45));
        assert!(!sim.client.is_claiming() && sim.server().is_claiming(), "{}", sim.report());
        sim.cut_all(Cut::Both);
        sim.advance(ms(1));
        sim.hand_over(Side::Client).unwrap();
        // The request arrives, with what the client had of the path before; its answer does not.
        sim.dial();
        sim.advance(ms(25));
        let to = sim.key(Side::Client).id();
        assert_eq!(sim.server().peer(), to);
        sim.cut_all(Cut::Both);
        sim.advance(ms(1));
        assert!(sim.server().is_claiming(), "the client may not have heard");
        assert!(sim.hand_over(Side::Server).is_none());
        sim.dial();
        run(&mut sim, all_is_here);
        sim.advance(secs(1));
        assert_eq!(sim.client.close_reason(), None);
        assert!(!sim.server().is_claiming());
        sim.hand_over(Side::Server).unwrap();
        sim.dial();
        sim.advance(secs(1));
        assert_eq!(sim.client.peer(), sim.key(Side::Server).id());
    }
}

/// The one may be read back under its own key meanwhile.
#[test]
fn an_end_goes_over_while_the_other_one_is_read_back() {
    for hops in BOTH {
        for lost in [false, true] {
            let mut sim = busy(&Config::default());
            sim.hand_over(hops).unwrap();
            sim.advance(ms(100));
            if lost {
                let carrier = sim.dial().unwrap();
                sim.advance(ms(25));
                sim.cut(carrier, Cut::Both);
                sim.advance(ms(25));
            }
            sim.resume(hops.peer());
            sim.dial();
            run(&mut sim, all_is_here);
            sim.advance(secs(1));
            sim.cut_all(Cut::Both);
            sim.advance(ms(50));
            sim.resume(hops);
            sim.dial();
            let id = sim.open(Side::Client).unwrap();
            sim.send(Side::Client, id, 10_000);
            run(&mut sim, all_is_here);
        }
    }
}

#[test]
fn a_client_that_is_told_on_a_living_path_goes_to_the_new_owner() {
    let mut sim = busy(&Config::default());
    let to = SecretKey::from_bytes(&[77; 32]);
    let key = sim.key(Side::Server).clone();
    let assignment = sim.server().assign(&key, to.id()).unwrap();
    let places = vec![([192, 0, 2, 1], 7).into()];
    assert!(!sim.server().is_announcing());
    sim.server().announce_owner(assignment, places.clone());
    assert!(sim.server().is_announcing());
    run(&mut sim, |sim| sim.events(Side::Server).contains(&Event::AssignHeard));
    assert!(!sim.server().is_announcing());
    let told = Event::PeerAssigned { to: to.id(), addresses: places };
    assert!(sim.events(Side::Client).contains(&told));
    // Until then everything goes on, and so it does if the new owner never comes.
    run(&mut sim, all_is_here);
    assert_eq!(sim.client.expected_peer(), None);
    sim.client.expect_peer(to.id(), [1; 32]);
    sim.cut_all(Cut::Both);
    sim.advance(ms(50));
    let early_limit = sim.options.early_limit;
    let key = sim.key(Side::Server).id();
    assert!(sim.client.open_path_to(sim.now, identity(Side::Client), None, early_limit).is_none());
    let path = sim.client.open_path_to(sim.now, key, None, early_limit).unwrap();
    sim.client.path_lost(sim.now, path);
}

#[test]
fn a_held_end_stands_still_and_goes_on_once_it_is_released() {
    for held in BOTH {
        let mut sim = busy(&Config::default());
        let stream = *sim.client_app.streams.keys().next().unwrap();
        let now = sim.now;
        assert!(!sim.connection(held).unwrap().is_held());
        let bytes = sim.connection(held).unwrap().hold(now).unwrap();
        assert!(!bytes.is_empty() && sim.connection(held).unwrap().is_held());
        sim.advance(ms(100));
        assert_eq!(sim.write(held, stream, 100), 0);
        assert_eq!(sim.open(held), None);
        assert_eq!(sim.read_all(held), 0);
        if held == Side::Client {
            assert_eq!(sim.dial(), None);
        } else {
            sim.dial().unwrap();
            sim.advance(secs(1));
            assert!(sim.client.paths().is_empty() && sim.client.close_reason().is_none());
        }
        sim.connection(held).unwrap().release([99; 32]);
        assert!(!sim.connection(held).unwrap().is_held());
        sim.dial().unwrap();
        sim.send(held, stream, 10_000);
        run(&mut sim, all_is_here);
    }
}

/// The first flight of a client that was handed over, as it would leave now.
fn first_flight(client: &mut Connection, sim: &Sim) -> TakeOver {
    let path = client.open_path(sim.now, None, 14_000).unwrap();
    let mut wire = Vec::new();
    assert!(client.poll_transmit(sim.now, path, &mut wire));
    let (body, _) = segment::split(&wire).unwrap().unwrap();
    let Ok(FirstFlight::TakeOver(take_over)) = FirstFlight::decode(body) else { panic!("no TAKE_OVER") };
    take_over
}

/// A client without a path, its bytes, and one that read them under another key.
fn handed_over() -> (Sim, Vec<u8>, SecretKey, Connection) {
    let mut sim = busy(&Config::default());
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let to = SecretKey::from_bytes(&[66; 32]);
    let assignment = sim.client.assign(sim.key(Side::Client), to.id()).unwrap();
    let bytes = sim.client.snapshot().unwrap();
    let new = Connection::restore_assigned(Config::default(), &bytes, assignment, [1; 32], sim.now).unwrap();
    (sim, bytes, to, new)
}

#[test]
fn only_the_owner_can_hand_over_and_only_to_somebody_else() {
    let (mut sim, bytes, to, _) = handed_over();
    let (client, server) = (identity(Side::Client), identity(Side::Server));
    let stranger = SecretKey::from_bytes(&[65; 32]);
    assert_eq!(sim.client.assign(&stranger, to.id()), None, "by another key");
    assert_eq!(sim.client.assign(sim.key(Side::Client), client), None, "to itself");
    assert_eq!(sim.client.assign(sim.key(Side::Client), server), None, "to the peer");
    let id = ConnectionId::from_bytes(&simulation::CONNECTION);
    let by_stranger = Assignment::sign(&stranger, id, Side::Client, to.id(), 0);
    let owner = sim.key(Side::Client).clone();
    let of_server = Assignment::sign(&owner, id, Side::Server, to.id(), 0);
    let of_later = Assignment::sign(&owner, id, Side::Client, to.id(), 1);
    let of_other = Assignment::sign(&owner, ConnectionId::from_bytes(&[9; 16]), Side::Client, to.id(), 0);
    for assignment in [by_stranger, of_server, of_later, of_other] {
        let read =
            Connection::restore_assigned(Config::default(), &bytes, assignment.clone(), [1; 32], sim.now);
        assert!(read.is_err(), "{assignment:?}");
    }
    assert_eq!(sim.server().peer(), client);
}

#[test]
fn a_forged_replayed_or_stolen_take_over_is_refused() {
    let (mut sim, bytes, to, mut new) = handed_over();
    let now = sim.now;
    let take_over = first_flight(&mut new, &sim);
    let thief = SecretKey::from_bytes(&[64; 32]);
    let owner = sim.key(Side::Client).clone();
    let id = ConnectionId::from_bytes(&simulation::CONNECTION);
    let server = sim.server();
    assert_eq!(server.weigh_take_over(to.id(), &take_over), Ok(true));
    let refused = |server: &Connection, key: &SecretKey, take_over: &TakeOver| {
        server.weigh_take_over(key.id(), take_over).unwrap_err()
    };
    // TLS shows another key than the assignment's.
    assert_eq!(refused(server, &thief, &take_over), JoinError::BadProof);
    assert_eq!(refused(server, &owner, &take_over), JoinError::BadProof);
    // Without one, and with one that the thief made.
    let without = TakeOver { assignment: None, ..take_over.clone() };
    assert_eq!(refused(server, &to, &without), JoinError::BadProof);
    let forged = Assignment::sign(&thief, id, Side::Client, to.id(), 0);
    let forged = TakeOver { assignment: Some(forged), ..take_over.clone() };
    assert_eq!(refused(server, &to, &forged), JoinError::BadProof);
    let to_thief = Assignment::sign(&thief, id, Side::Client, thief.id(), 0);
    let to_thief = TakeOver { assignment: Some(to_thief), ..take_over.clone() };
    assert_eq!(refused(server, &thief, &to_thief), JoinError::BadProof);
    // A changed nonce, a later generation, another path.
    for changed in [
        TakeOver { nonce: [9; 32], ..take_over.clone() },
        TakeOver { generation: 2, ..take_over.clone() },
        TakeOver { path: whimbrel_proto::PathId(77), ..take_over.clone() },
    ] {
        assert_eq!(refused(server, &to, &changed), JoinError::BadProof);
    }
    // Nothing of that has done anything.
    assert_eq!(server.take_over(now, to.id(), &take_over, [2; 32]), Ok(()));
    assert_eq!(server.peer(), to.id());
    // Played again it is the same claim, on a path that was used.
    assert_eq!(server.take_over(now, to.id(), &take_over, [3; 32]), Err(JoinError::PathIdReused));
    // The owner of before comes back in either way, and is told.
    let mut old = Connection::restore(Config::default(), &bytes, [4; 32], now).unwrap();
    let path = old.open_path(now, None, 14_000).unwrap();
    let mut wire = Vec::new();
    old.poll_transmit(now, path, &mut wire);
    let (body, _) = segment::split(&wire).unwrap().unwrap();
    let first = FirstFlight::decode(body).unwrap();
    assert_eq!(server.turn_away(owner.id(), &first), Some(JoinError::Superseded));
    assert_eq!(server.turn_away(thief.id(), &first), None, "it never had the connection");
    // So is somebody else to whom it was handed over too.
    let second = old_assigned(&bytes, &owner, &thief, &sim);
    assert_eq!(sim.server().weigh_take_over(thief.id(), &second), Err(JoinError::Superseded));
}

fn old_assigned(bytes: &[u8], owner: &SecretKey, to: &SecretKey, sim: &Sim) -> TakeOver {
    let id = ConnectionId::from_bytes(&simulation::CONNECTION);
    let assignment = Assignment::sign(owner, id, Side::Client, to.id(), 0);
    let mut copy =
        Connection::restore_assigned(Config::default(), bytes, assignment, [5; 32], sim.now).unwrap();
    first_flight(&mut copy, sim)
}

/// An owner that goes on itself before the new one comes: its word is void.
#[test]
fn the_owner_that_went_on_itself_has_taken_its_word_back() {
    let (mut sim, bytes, to, mut new) = handed_over();
    sim.client = Connection::restore(Config::default(), &bytes, [7; 32], sim.now).unwrap();
    sim.dial();
    sim.advance(secs(1));
    let take_over = first_flight(&mut new, &sim);
    assert_eq!(sim.server().weigh_take_over(to.id(), &take_over), Err(JoinError::Superseded));
    assert_eq!(sim.server().peer(), identity(Side::Client));
    assert_eq!(sim.client.close_reason().map(|reason| reason.1), None::<CloseCode>);
}

#[test]
fn a_peer_that_does_not_know_hand_overs_is_asked_for_none() {
    for without in BOTH {
        let mut options = Options::default();
        match without {
            Side::Client => options.client.params.hand_over = false,
            Side::Server => options.server.params.hand_over = false,
        }
        let mut sim = Sim::established(options);
        for side in BOTH {
            assert!(!sim.connection(side).unwrap().can_hand_over());
            assert!(sim.hand_over(side).is_none());
        }
    }
}

/// The secret before is known to the owner before: it must not give the one that follows.
#[test]
fn the_new_secret_needs_the_randoms_of_both_sides() {
    let tags: Vec<_> = [(1, 1), (1, 2), (2, 1)]
        .map(|(client, server)| {
            let (mut sim, bytes, to, _) = handed_over();
            let assignment = sim.client.assign(sim.key(Side::Client), to.id()).unwrap();
            let nonce = [client; 32];
            let mut new =
                Connection::restore_assigned(Config::default(), &bytes, assignment, nonce, sim.now).unwrap();
            let (take_over, now) = (first_flight(&mut new, &sim), sim.now);
            let before = sim.server().notice_key().unwrap().tag();
            sim.server().take_over(now, to.id(), &take_over, [server; 32]).unwrap();
            let after = sim.server().notice_key().unwrap().tag();
            assert_ne!(before, after);
            after
        })
        .to_vec();
    assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
}

/// A notice or the name service may name any key.
#[test]
fn nothing_is_sent_to_a_named_key_before_it_has_shown_the_owners_word() {
    let mut sim = busy(&Config::default());
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let (named, now) = (SecretKey::from_bytes(&[63; 32]).id(), sim.now);
    sim.client.expect_peer(named, [1; 32]);
    let path = sim.client.open_path_to(now, named, None, 1 << 20).unwrap();
    let mut wire = Vec::new();
    while sim.client.poll_transmit(now, path, &mut wire) {}
    let (body, taken) = segment::split(&wire).unwrap().unwrap();
    let Ok(FirstFlight::TakeOver(take_over)) = FirstFlight::decode(body) else { panic!("no TAKE_OVER") };
    assert_eq!(taken, wire.len(), "more than one segment");
    let mut alone = Vec::new();
    whimbrel_proto::fuzzing::frame::Frame::TakeOver(take_over).encode(&mut alone);
    assert_eq!(body, alone, "more than the frame");
    // Its answer without that word, however well proved, is none.
    let forged = whimbrel_proto::TakenOver {
        generation: 1,
        nonce: [2; 32],
        proof: [3; 32],
        lost: Vec::new(),
        assignment: None,
    };
    let mut answer = Vec::new();
    whimbrel_proto::fuzzing::frame::Frame::TakenOver(forged).encode(&mut answer);
    assert_eq!(sim.client.handle_segment(now, path, &answer), Ok(()));
    assert_eq!(sim.client.peer(), identity(Side::Server));
    assert!(sim.client.paths().is_empty());
}

/// The same copy may say the same again, until it is written down and read back: then it is one of before.
#[test]
fn a_take_over_of_an_older_copy_is_superseded() {
    let mut sim = busy(&Config::default());
    let (bytes, assignment) = sim.hand_over(Side::Client).unwrap();
    let owner = sim.key(Side::Client).clone();
    let copy = |now| {
        // The simulation makes the nonce of the key's bytes.
        let (assignment, nonce) = (assignment.clone(), owner.to_bytes());
        Connection::restore_assigned(Config::default(), &bytes, assignment, nonce, now).unwrap()
    };
    sim.advance(ms(50));
    sim.dial();
    sim.advance(secs(1));
    let again = first_flight(&mut copy(sim.now), &sim);
    assert_eq!(sim.server().weigh_take_over(owner.id(), &again), Ok(false), "its answer may have been lost");
    sim.cut_all(Cut::Both);
    sim.advance(ms(50));
    sim.resume(Side::Client);
    sim.dial();
    sim.advance(secs(1));
    let late = first_flight(&mut copy(sim.now), &sim);
    assert_eq!(sim.server().weigh_take_over(owner.id(), &late), Err(JoinError::Superseded));
}
