//! The end of a connection: in order or at once, agreed or waited out.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs, small_config};
use whimbrel_proto::{CloseCode, ClosedBy, Read, Side, StreamError};

/// `close` delivers first, whatever moves meanwhile, and both sides agree.
#[test]
fn closing_survives_a_move_at_any_moment() {
    for at in 0..120 {
        for closer in [Side::Client, Side::Server] {
            let mut sim = Sim::established(Options::default());
            let id = sim.open(Side::Client).unwrap();
            sim.advance(ms(50));
            sim.server_accepts();
            sim.write(closer, id, 30_000);
            sim.connection(closer).unwrap().close(CloseCode::application(1), "done");
            sim.advance(ms(at));
            sim.cut_and_heal(Cut::Both);
            let done = sim.run_until(secs(30), |sim| sim.client.is_over() && sim.server_was_over);
            assert!(done, "at {at}: {}", sim.report());
            let closed = sim.connection(closer).unwrap();
            let code = closed.close_reason().map(|reason| reason.1);
            assert_eq!(code, Some(CloseCode::application(1)));
            let peer = sim.connection(closer.peer()).unwrap();
            let (by, code, reason) = peer.close_reason().unwrap();
            assert_eq!((by, code, reason), (ClosedBy::Peer, CloseCode::application(1), "done"));
            sim.read_all(closer.peer());
            let app = match closer {
                Side::Client => &sim.server_app,
                Side::Server => &sim.client_app,
            };
            assert_eq!(app.streams[&id].read, 30_000);
        }
    }
}

/// Both close at the same moment.
#[test]
fn both_sides_may_close_at_once() {
    let mut sim = Sim::established(Options::default());
    sim.client.close(CloseCode::application(1), "");
    sim.server().close(CloseCode::application(2), "");
    sim.advance(secs(1));
    assert!(sim.client.is_over() && sim.server().is_over());
}

/// A peer that never reads holds up an orderly end as long as it is there, no longer; an abort
/// is never held up.
#[test]
fn a_peer_that_never_reads_cannot_hold_a_close_for_ever() {
    let options = Options { client: small_config(), server: small_config(), ..Options::default() };
    for abort in [false, true] {
        let mut sim = Sim::established(options.clone());
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 80_000);
        sim.advance(secs(1));
        sim.client.close(CloseCode::NONE, "");
        sim.advance(secs(3600));
        assert!(!sim.client.is_closed(), "there is data to deliver, and the peer is alive");
        if abort {
            sim.client.abort(CloseCode::NONE, "");
            sim.advance(secs(1));
        } else {
            sim.cut_all(Cut::Both);
            sim.advance(secs(601));
        }
        assert!(sim.client.is_over());
    }
}

/// Closing while the peer is away: there is time to come back, counted from the close.
#[test]
fn closing_while_detached_leaves_time_to_come_back() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(secs(7200));
    sim.write(Side::Client, id, 1000);
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(500));
    assert!(!sim.client.is_closed(), "the close was only asked for now");
    sim.heal();
    assert!(sim.run_until(secs(10), |sim| sim.client.is_over()));
    assert_eq!(sim.client.close_reason().map(|r| r.1), Some(CloseCode::NONE));
    assert_eq!(sim.server_app.streams[&id].read, 1000);

    let mut sim = Sim::established(Options::default());
    sim.cut_all(Cut::Both);
    sim.advance(secs(7200));
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(602));
    assert!(sim.client.is_over());
}

/// A connection that is closed before any path was answered ends when its last path does.
#[test]
fn closing_before_anybody_answered_does_not_linger() {
    let mut sim = Sim::new(Options::default());
    let index = sim.dial().unwrap();
    sim.stall(index, true);
    sim.advance(secs(1));
    sim.client.abort(CloseCode::application(3), "changed my mind");
    sim.cut(index, Cut::Both);
    sim.advance(secs(1));
    let (by, code, _) = sim.client.close_reason().unwrap();
    assert_eq!((by, code), (ClosedBy::Local, CloseCode::application(3)));
}

/// A peer that acknowledges CLOSE's segment but never answers CLOSE cannot keep us.
#[test]
fn an_unanswered_close_ends_by_itself() {
    use whimbrel_proto::fuzzing::frame::{Frame, PathReport};
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let path = whimbrel_proto::PathId(0);
    sim.client.abort(CloseCode::NONE, "");
    let mut wire = Vec::new();
    while sim.client.poll_transmit(now, path, &mut wire) {}
    let mut spins = 0;
    let mut at = now;
    let received = sim.carriers[0].up.boundaries.len() as u64 + 1;
    while !sim.client.is_closed() {
        let mut body = Vec::new();
        Frame::Ack(vec![(PathReport { path, received }, 0)].into()).encode(&mut body);
        sim.client.handle_segment(at, path, &body).unwrap();
        at = sim.client.poll_timeout().unwrap().max(at);
        sim.client.handle_timeout(at);
        while sim.client.poll_transmit(at, path, &mut wire) {}
        spins += 1;
        assert!(spins < 100_000);
    }
    assert!(at - now <= secs(601));
}

/// What arrived before the end can be read after it.
#[test]
fn what_arrived_before_the_close_is_readable_after_it() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 5000);
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(1));
    assert!(sim.server().is_over());
    assert_eq!(sim.read_all(Side::Server), 5000);
    let mut buf = [0; 1];
    let after = sim.server().read(id, &mut buf);
    assert_eq!(after, Err(StreamError::ConnectionClosed(CloseCode::NONE)));
}

/// The same in chunks without a copy.
#[test]
fn what_arrived_before_the_close_is_readable_in_chunks_after_it() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 5000);
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(1));
    assert!(sim.server().is_over());
    let mut read = 0;
    while read < 5000 {
        match sim.server().read_chunk(id) {
            Ok(Read::Data(chunk)) => read += chunk.as_ref().len(),
            other => panic!("{other:?} after {read} bytes"),
        }
    }
    let after = sim.server().read_chunk(id);
    assert_eq!(after.err(), Some(StreamError::ConnectionClosed(CloseCode::NONE)));
}

#[test]
fn nothing_is_read_any_more_once_this_side_aborts() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 5000);
    sim.advance(ms(200));
    sim.server().abort(CloseCode::NONE, "");
    let over = Some(StreamError::ConnectionClosed(CloseCode::NONE));
    assert_eq!(sim.server().read(id, &mut [0; 10]).err(), over);
    assert_eq!(sim.server().read_chunk(id).err(), over);
}

/// Whatever is called after the end of the connection, in whatever order, is an error at most.
#[test]
fn nothing_underflows_after_giving_up() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    let other = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 50_000);
    sim.advance(ms(25));
    sim.client.give_up(CloseCode::EVICTED, "room");
    assert_eq!(sim.client.buffered(), 0);
    let gone = Err(StreamError::ConnectionClosed(CloseCode::EVICTED));
    assert_eq!(sim.client.reset(id, CloseCode::NONE), gone);
    assert_eq!(sim.client.stop(other, CloseCode::NONE), gone);
    assert_eq!(sim.client.finish(other), gone);
    assert_eq!(sim.client.write(id, b"x").map(drop), gone);
    sim.client.close(CloseCode::NONE, "");
    sim.client.abort(CloseCode::NONE, "");
    sim.client.give_up(CloseCode::NONE, "");
    // Acknowledgements of what was under way arrive, and the path is lost.
    sim.keep_server = true;
    sim.advance(secs(1));
    let now = sim.now;
    sim.client.path_lost(now, whimbrel_proto::PathId(0));
    assert_eq!(sim.client.open_path(now, None, 0), None);
    assert_eq!(sim.client.open_stream(), None);
    assert_eq!(sim.client.poll_timeout(), None);
    assert_eq!(sim.client.buffered(), 0);
    let reason = sim.client.close_reason().map(|reason| reason.1);
    assert_eq!(reason, Some(CloseCode::EVICTED));
}

/// The last thing a client heard was ACCEPT, and nobody heard of the client again for an hour: the
/// server waits all the same, because the client may count on it.
#[test]
fn a_server_that_was_never_acknowledged_waits_like_any_other() {
    let mut sim = Sim::new(Options::default());
    let index = sim.dial().unwrap();
    sim.advance(ms(42));
    assert!(sim.client.is_established());
    sim.cut(index, Cut::Both);
    sim.advance(secs(3600));
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    sim.heal();
    sim.settle();
}

/// What was written before anybody answered is delivered all the same when the end is orderly.
#[test]
fn an_orderly_close_before_the_answer_delivers_early_data() {
    for at in 0..50 {
        let mut sim = Sim::new(Options::default());
        let index = sim.dial().unwrap();
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 20_000);
        sim.client.close(CloseCode::NONE, "");
        sim.advance(ms(at));
        sim.cut(index, Cut::Both);
        sim.heal();
        let done = sim.run_until(secs(30), |sim| sim.client.is_over() && sim.server_was_over);
        assert!(done, "{}", sim.report());
        assert_eq!(sim.server_app.streams[&id].read, 20_000);
    }
}

/// A server that closes cannot dial: a client whose CLOSE_ACK was lost comes back, however late, to say it
/// again; and it does not try for ever.
#[test]
fn a_lost_close_ack_is_said_again_over_a_new_path() {
    for away in [secs(1), secs(60), secs(500)] {
        let mut sim = Sim::established(Options::default());
        sim.server().close(CloseCode::application(4), "done");
        assert!(sim.run_until(secs(1), |sim| sim.client.is_closed()));
        sim.cut_all(Cut::Both);
        sim.advance(away);
        assert!(!sim.server().is_closed() && sim.client.may_open_path());
        sim.heal();
        let done = sim.run_until(secs(5), |sim| sim.client.is_over() && sim.server_was_over);
        assert!(done, "{}", sim.report());
        let (by, code, _) = sim.server().close_reason().unwrap();
        assert_eq!((by, code), (ClosedBy::Local, CloseCode::application(4)));
    }

    let mut sim = Sim::established(Options::default());
    sim.server().close(CloseCode::NONE, "");
    assert!(sim.run_until(secs(1), |sim| sim.client.is_closed()));
    sim.cut_all(Cut::Both);
    sim.advance(secs(601));
    assert!(sim.client.is_over() && !sim.client.may_open_path());
    assert_eq!(sim.client.poll_timeout(), None);
}

/// Where nothing is lost, nobody dials after the end.
#[test]
fn a_close_that_was_acknowledged_needs_no_further_path() {
    let mut sim = Sim::established(Options { redial: true, ..Options::default() });
    sim.server().close(CloseCode::NONE, "");
    assert!(sim.run_until(secs(1), |sim| sim.client.is_over() && sim.server_was_over));
    sim.advance(secs(30));
    assert_eq!(sim.carriers.len(), 1);
}
