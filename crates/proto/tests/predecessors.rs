//! What predecessors got wrong (`docs/lessons.md`), as far as the engine can show it.
#![allow(clippy::unwrap_used)]

use crate::simulation::{CONNECTION, Cut, Options, Sim, identity, ms, secs, small_config, wide_config};
use whimbrel_base::ConnectionId;
use whimbrel_proto::fuzzing::frame::Join;
use whimbrel_proto::{CloseCode, ClosedBy, Config, Event, JoinError, PathId, PathState, Read, Side};

/// Lesson 1: the reader sees the end once and for all, and nothing keeps asking for attention.
#[test]
fn the_end_is_told_once_and_nothing_spins_afterwards() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 10);
    sim.finish(Side::Client, id);
    sim.settle();
    assert!(sim.server_app.streams[&id].saw_fin);
    sim.advance(secs(1));
    sim.server_events.clear();
    assert_eq!(sim.server().read(id, &mut [0; 8]), Ok(Read::Fin));
    sim.advance(secs(50));
    assert_eq!(sim.server_events, [], "an idle connection says nothing");
}

/// Lesson 2: a blocked writer does not stop its reader.
#[test]
fn reads_progress_while_writes_are_blocked() {
    let options = Options { client: small_config(), server: small_config(), ..Options::default() };
    let mut sim = Sim::established(options);
    let id = sim.open(Side::Client).unwrap();
    // The client writes until nothing goes in any more; the server does not read.
    let mut written = 0;
    for _ in 0..100 {
        written += sim.write(Side::Client, id, 50_000);
        sim.advance(ms(50));
    }
    assert_eq!(sim.write(Side::Client, id, 1), 0);
    assert!(written >= 64 * 1024);
    // The other direction works all the same, again and again.
    sim.server().accept_stream();
    for _ in 0..20 {
        assert_eq!(sim.write(Side::Server, id, 30_000), 30_000);
        sim.advance(ms(200));
        assert_eq!(sim.read_all(Side::Client), 30_000);
    }
    assert_eq!(sim.write(Side::Client, id, 1), 0);
}

/// Lesson 4: a second path right behind the first is let in.
#[test]
fn a_path_may_join_as_soon_as_accept_arrived() {
    let mut sim = Sim::new(Options::default());
    sim.dial();
    sim.pump();
    while !sim.client.is_established() {
        let next = sim.next_event().unwrap();
        sim.step_to(next);
    }
    sim.dial();
    sim.advance(secs(1));
    let state = sim.path(Side::Client, PathId(1)).map(|p| p.state);
    assert_eq!(state, Some(PathState::Active));
}

/// Lesson 5: however long the peer is away, what was taken from the application is kept.
#[test]
fn buffer_full_never_drops_unacknowledged_data() {
    let options = Options { client: small_config(), ..Options::default() };
    let mut sim = Sim::established(options);
    let id = sim.open(Side::Client).unwrap();
    sim.cut_all(Cut::Silent);
    let mut written = 0;
    for _ in 0..50 {
        written += sim.write(Side::Client, id, 10_000);
        sim.advance(ms(100));
    }
    assert_eq!(written, 80 * 1024, "the buffer is full");
    assert_eq!(sim.client.buffered(), 80 * 1024);
    sim.cut_and_heal(Cut::Both);
    sim.send(Side::Client, id, 200_000);
    sim.finish(Side::Client, id);
    sim.settle();
    assert!(sim.server_app.streams[&id].saw_fin);
}

/// Lesson 7: both sides lose everything at the same time, at any moment of an exchange.
#[test]
fn simultaneous_moves_always_recover() {
    for at in 0..150 {
        let options = Options { seed: at, fragment: true, ..Options::default() };
        let mut sim = Sim::established(options);
        let up = sim.open(Side::Client).unwrap();
        let down = sim.open(Side::Server).unwrap();
        sim.write(Side::Client, up, 100_000);
        sim.write(Side::Server, down, 100_000);
        sim.finish(Side::Client, up);
        sim.finish(Side::Server, down);
        for move_number in 0..3 {
            sim.advance(ms(at * (move_number + 1) % 97));
            sim.cut_and_heal(Cut::Both);
        }
        sim.settle();
        assert!(sim.client.close_reason().is_none());
    }
}

/// Lesson 8: acknowledgements of one path arrive although that path is dead in their direction.
#[test]
fn acks_travel_on_any_live_path() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 50_000);
    sim.pump();
    sim.cut_direction(0, Side::Server);
    sim.advance(ms(30));
    // The data has arrived; its acknowledgement cannot come back the same way.
    assert_eq!(sim.read_all(Side::Server), 50_000);
    assert!(!sim.client.is_drained(id));
    sim.dial();
    sim.advance(ms(150));
    assert!(sim.client.is_drained(id));
    assert_eq!(sim.server().stats().stream_bytes_duplicate, 0);
    assert_eq!(sim.client.stats().stream_bytes_resent, 0);
}

/// Lesson 9: an idle path is kept alive and is there when it is needed, hours later.
#[test]
fn idle_path_does_not_time_out() {
    let mut sim = Sim::established(Options::default());
    sim.advance(secs(6 * 3600));
    let state = sim.path(Side::Client, PathId(0)).map(|p| p.state);
    assert_eq!(state, Some(PathState::Active));
    assert!(!sim.client_events.contains(&Event::PathSuspect(PathId(0))));
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    sim.advance(ms(30));
    assert_eq!(sim.read_all(Side::Server), 100);
    // Keeping it alive costs one exchange a minute.
    let sent = sim.path(Side::Client, PathId(0)).map_or(0, |p| p.bytes_sent);
    assert!(sent < 6 * 60 * 40 + 1000, "{sent} bytes for six idle hours");
}

/// Lesson 10: the number of a connection gives no right to it.
#[test]
fn join_needs_the_secret() {
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let connection = ConnectionId::from_bytes(&CONNECTION);
    let guess = |path, proof| Join { connection, path: PathId(path), proof, lost: vec![] };
    for proof in [[0; 32], [0xff; 32], [7; 32]] {
        let verdict = sim.server().join(now, &guess(5, proof));
        assert_eq!(verdict, Err(JoinError::BadProof));
    }
    assert_eq!(sim.server().paths().len(), 1);
    // The honest client's JOIN, seen and played again, for the same and for another path.
    sim.dial();
    let mut wire = Vec::new();
    let path = sim.carriers[1].path;
    sim.client.poll_transmit(now, path, &mut wire);
    let (body, _) = whimbrel_proto::segment::split(&wire).unwrap().unwrap();
    let whimbrel_proto::FirstFlight::Join(join) = whimbrel_proto::FirstFlight::decode(body).unwrap() else {
        panic!("a JOIN")
    };
    assert_eq!(sim.server().join(now, &join), Ok(()));
    assert_eq!(sim.server().join(now, &join), Err(JoinError::PathIdReused));
    let moved = guess(join.path.0 + 1, join.proof);
    assert_eq!(sim.server().join(now, &moved), Err(JoinError::BadProof));
    let mut elsewhere = join.clone();
    elsewhere.connection = ConnectionId::from_bytes(&[2; 16]);
    assert_eq!(sim.server().join(now, &elsewhere), Err(JoinError::BadProof));
}

/// Lesson 11: a thousand one-byte messages leave in a handful of segments.
#[test]
fn one_byte_messages_share_segments() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..1000 {
        assert_eq!(sim.write(Side::Client, id, 1), 1);
    }
    let before = sim.path(Side::Client, PathId(0)).map_or(0, |p| p.bytes_sent);
    sim.advance(ms(30));
    let after = sim.path(Side::Client, PathId(0)).map_or(0, |p| p.bytes_sent);
    assert!(after - before < 1050, "{} bytes for 1000", after - before);
    assert_eq!(sim.read_all(Side::Server), 1000);
    // Over many streams they still share segments.
    let ids: Vec<_> = (0..100).map(|_| sim.open(Side::Client).unwrap()).collect();
    for id in ids {
        sim.write(Side::Client, id, 1);
    }
    let segments = sim.carriers[0].up.boundaries.len();
    sim.advance(ms(30));
    assert_eq!(sim.read_all(Side::Server), 100);
    assert!(sim.carriers[0].up.boundaries.len() - segments <= 2);
}

/// Lesson 13: more than 4 GiB through one stream, with a move beyond the 32-bit edge.
#[test]
fn offsets_beyond_4_gib() {
    const TOTAL: u64 = (4 << 30) + (64 << 20);
    let mut sim = Sim::established(Options::default());
    let id = sim.client.open_stream().unwrap();
    // Not through the oracle, which looks at every byte: here only blocks' numbers are looked at.
    let mut block = vec![0; 1 << 20];
    let mut buf = vec![0; 1 << 20];
    let (mut written, mut read, mut moved) = (0, 0u64, false);
    while read < TOTAL {
        while written < TOTAL {
            let at = (written % (1 << 20)) as usize;
            if at == 0 {
                block[..8].copy_from_slice(&(written >> 20).to_be_bytes());
            }
            match sim.client.write(id, &block[at..]).unwrap() {
                0 => break,
                n => written += n as u64,
            }
        }
        sim.pump();
        let next = sim.next_event().unwrap();
        sim.step_to(next.max(sim.now));
        loop {
            let room = (1 << 20) - (read % (1 << 20)) as usize;
            let Ok(Read::Data(n)) = sim.server().read(id, &mut buf[..room]) else {
                break;
            };
            if read % (1 << 20) == 0 && n >= 8 {
                assert_eq!(buf[..8], (read >> 20).to_be_bytes());
            }
            read += n as u64;
        }
        if read > (4 << 30) + 1000 && !moved {
            moved = true;
            sim.cut_and_heal(Cut::Both);
        }
    }
    sim.client.finish(id).unwrap();
    sim.advance(ms(200));
    assert_eq!(sim.server().read(id, &mut buf), Ok(Read::Fin));
    assert_eq!(read, TOTAL);
    assert_eq!(sim.server().stats().stream_bytes_received, TOTAL);
}

/// Lesson 14: a connection without paths lives exactly as long as it was told to.
#[test]
fn state_expires_after_linger_not_before() {
    let mut config = wide_config();
    config.params.linger = secs(3600);
    let options = Options { client: config.clone(), server: config, ..Options::default() };
    let mut sim = Sim::established(options);
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100_000);
    sim.cut_all(Cut::Both);
    sim.advance(secs(3599));
    assert!(!sim.client.is_closed() && !sim.server().is_closed());
    // Contact in the last second starts the time anew.
    sim.dial();
    sim.advance(ms(500));
    assert_eq!(sim.read_all(Side::Server), 100_000);
    sim.cut_all(Cut::Both);
    sim.advance(secs(3599));
    assert!(!sim.client.is_closed() && !sim.server().is_closed());
    sim.advance(secs(2));
    for side in [Side::Client, Side::Server] {
        let connection = sim.connection(side).unwrap();
        let (by, code, _) = connection.close_reason().unwrap();
        assert_eq!((by, code), (ClosedBy::Local, CloseCode::LINGER_EXPIRED));
        assert!(connection.is_over());
    }
}

/// Lesson 14: dialling without an answer is no contact.
#[test]
fn dials_that_nobody_answers_do_not_prolong_the_linger_time() {
    let mut config = Config::default();
    config.params.linger = secs(600);
    let options = Options { client: config, ..Options::default() };
    let mut sim = Sim::established(options);
    sim.cut_all(Cut::Both);
    for _ in 0..9 {
        sim.advance(secs(30));
        let index = sim.dial().unwrap();
        sim.stall(index, true);
        sim.advance(secs(30));
        sim.cut(index, Cut::Both);
    }
    assert!(sim.client.close_reason().is_none());
    sim.advance(secs(61));
    assert!(sim.client.is_closed(), "ten minutes without contact");
    assert_eq!(identity(Side::Client), sim.server().peer());
}

/// A carrier may not tell that its peer is gone; its path is suspect then, and no contact either.
#[test]
fn a_path_that_is_silent_for_ever_does_not_prolong_the_linger_time() {
    let mut config = Config::default();
    config.params.linger = secs(600);
    let options = Options { client: config.clone(), server: config, ..Options::default() };
    let mut sim = Sim::established(options);
    let id = sim.open(Side::Client).unwrap();
    sim.dial();
    sim.settle();
    sim.stall(1, true);
    sim.cut(0, Cut::Both);
    sim.write(Side::Client, id, 1000);
    sim.advance(secs(595));
    assert!(!sim.client.is_closed());
    sim.advance(secs(10));
    assert!(sim.client.is_closed(), "ten minutes without contact");
}

/// Half of a path may work: what arrives is contact, however silent the other half.
#[test]
fn who_is_heard_is_not_given_up() {
    let mut config = Config::default();
    config.params.linger = secs(600);
    let options = Options { client: config.clone(), server: config, ..Options::default() };
    let mut sim = Sim::established(options);
    let now = sim.now;
    sim.server().suspect_path(now, PathId(0));
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..70 {
        sim.write(Side::Client, id, 10);
        sim.advance(secs(10));
        let now = sim.now;
        sim.server().suspect_path(now, PathId(0));
    }
    assert!(!sim.server().is_closed() && !sim.client.is_closed());
}
