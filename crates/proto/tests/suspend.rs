//! A connection is written down while it has no path, read again, and goes on where it was.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use crate::simulation::rng::Rng;
use crate::simulation::{Cut, Options, Sim, ms, secs, small_config, wide_config};
use whimbrel_proto::{
    CloseCode, Config, Connection, DecodeError, Event, HandoverMode, SchedulerKind, Side, StreamId,
};

const BOTH: [Side; 2] = [Side::Client, Side::Server];

/// Data under way in both directions, some of it read, and no path.
fn cut_off(config: &Config) -> Sim {
    let options = Options { client: config.clone(), server: config.clone(), ..Options::default() };
    let mut sim = Sim::established(options);
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 60_000);
    sim.advance(ms(70));
    sim.server_accepts();
    sim.read(Side::Server, stream, 10_000);
    sim.send(Side::Server, stream, 60_000);
    sim.finish(Side::Client, stream);
    sim.advance(ms(25));
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    sim
}

#[test]
fn every_byte_arrives_after_both_sides_were_written_down_and_read_again() {
    for config in [Config::default(), small_config()] {
        let mut sim = cut_off(&config);
        BOTH.into_iter().for_each(|side| sim.resume(side));
        sim.dial();
        let done = sim.run_until(secs(20), |sim| {
            for side in BOTH {
                sim.read_all(side);
            }
            sim.client_app.bytes_missing_at(&sim.server_app).is_none()
                && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
        });
        assert!(done, "{}", sim.report());
    }
}

#[test]
fn what_both_sides_agreed_on_is_still_agreed() {
    let mut sim = cut_off(&Config::default());
    let (mode, target) = (sim.client.handover(), sim.client.target().map(str::to_owned));
    assert!(sim.client.hear_notice(7));
    let key = sim.client.notice_key().unwrap();
    sim.resume(Side::Client);
    assert_eq!((sim.client.handover(), sim.client.target().map(str::to_owned)), (mode, target));
    assert!(!sim.client.hear_notice(7) && sim.client.hear_notice(8));
    assert_eq!(sim.client.notice_key().unwrap().tag(), key.tag());
}

/// What one side has to say until `done`, with everything read.
fn run(sim: &mut Sim, done: impl Fn(&Sim) -> bool) {
    let done = sim.run_until(secs(20), |sim| {
        for side in BOTH {
            sim.read_all(side);
        }
        done(sim)
    });
    assert!(done, "{}", sim.report());
}

fn all_is_here(sim: &Sim) -> bool {
    sim.client_app.bytes_missing_at(&sim.server_app).is_none()
        && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
}

#[test]
fn a_peer_that_leaves_says_so_and_is_waited_for() {
    for leaves in BOTH {
        let stays = if leaves == Side::Client { Side::Server } else { Side::Client };
        let mut sim = Sim::established(Options::default());
        let stream = sim.open(Side::Client).unwrap();
        sim.advance(ms(100));
        sim.server_accepts();
        sim.send(leaves, stream, 30_000);
        sim.connection(leaves).unwrap().suspend();
        assert!(!sim.connection(leaves).unwrap().may_detach());
        run(&mut sim, |sim| sim.events(leaves).contains(&Event::SuspendHeard));
        assert!(sim.events(stays).contains(&Event::PeerSuspended));
        assert!(sim.connection(leaves).unwrap().may_detach());
        let now = sim.now;
        sim.connection(leaves).unwrap().detach(now);
        sim.advance(ms(200));
        assert!(sim.connection(stays).unwrap().is_peer_suspended());
        sim.send(stays, stream, 30_000);
        sim.resume(leaves);
        assert!(sim.connection(leaves).unwrap().is_claiming());
        sim.dial();
        run(&mut sim, all_is_here);
        assert!(sim.events(stays).contains(&Event::PeerResumed));
        assert!(!sim.connection(stays).unwrap().is_peer_suspended());
        assert!(!sim.connection(leaves).unwrap().is_claiming());
    }
}

/// Two copies of a client: the second that comes is told, and the first goes on.
#[test]
fn of_two_copies_the_first_has_the_connection_and_the_other_is_told() {
    let mut sim = cut_off(&Config::default());
    let bytes = sim.client.snapshot().unwrap();
    let read = |nonce: u8, now| Connection::restore(Config::default(), &bytes, [nonce; 32], now).unwrap();
    let app = sim.client_app.clone();
    sim.client = read(1, sim.now);
    sim.dial();
    sim.advance(secs(1));
    let first = std::mem::replace(&mut sim.client, read(2, sim.now));
    let first_app = std::mem::replace(&mut sim.client_app, app);
    sim.cut_all(Cut::Both);
    for _ in 0..2 {
        sim.dial();
        sim.advance(secs(1));
    }
    let reason = sim.client.close_reason().map(|reason| reason.1);
    assert_eq!(reason, Some(CloseCode::SUPERSEDED), "{}", sim.report());
    // The other one goes on.
    (sim.client, sim.client_app) = (first, first_app);
    sim.cut_all(Cut::Both);
    sim.dial();
    run(&mut sim, all_is_here);
}

/// The copy that was written down goes on as if nothing had happened, and has nothing to say any more.
#[test]
fn the_copy_that_was_written_down_is_superseded_too() {
    let mut sim = cut_off(&Config::default());
    let bytes = sim.client.snapshot().unwrap();
    let copy = Connection::restore(Config::default(), &bytes, [1; 32], sim.now).unwrap();
    let old = std::mem::replace(&mut sim.client, copy);
    sim.dial();
    sim.advance(secs(1));
    sim.cut_all(Cut::Both);
    sim.client = old;
    for _ in 0..3 {
        // Path ids that the copy has used are refused for that alone.
        sim.dial();
        sim.advance(secs(1));
    }
    assert_eq!(sim.client.close_reason().unwrap().1, CloseCode::SUPERSEDED, "{}", sim.report());
}

/// A server that does not know SUSPEND is not told, and goes on by JOIN.
#[test]
fn a_peer_that_does_not_know_suspend_is_joined_as_ever() {
    let mut server = Config::default();
    server.params.suspend = false;
    let mut sim = Sim::established(Options { server, ..Options::default() });
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 30_000);
    sim.client.suspend();
    assert!(sim.client.may_detach());
    sim.client.detach(sim.now);
    sim.resume(Side::Client);
    assert!(!sim.client.is_claiming());
    sim.dial();
    run(&mut sim, all_is_here);
    assert!(!sim.events(Side::Server).contains(&Event::PeerSuspended));
}

#[test]
fn a_connection_with_a_path_or_without_an_answer_is_not_written_down() {
    let sim = Sim::established(Options::default());
    assert!(sim.client.snapshot().is_none());
    assert!(Sim::new(Options::default()).client.snapshot().is_none());
}

#[test]
fn a_damaged_snapshot_is_one_clear_error() {
    let sim = cut_off(&Config::default());
    let bytes = sim.client.snapshot().unwrap();
    let restore = |bytes: &[u8]| Connection::restore(Config::default(), bytes, [0; 32], sim.now).err();
    for length in 0..bytes.len() {
        assert!(restore(&bytes[..length]).is_some(), "{length} of {} bytes", bytes.len());
    }
    let mut later = bytes.clone();
    later[0] += 1;
    assert_eq!(restore(&later), Some(DecodeError::Invalid("version of a snapshot")));
}

/// The fuzzer begins with what programs wrote that left nothing out.
#[test]
fn snapshots_of_the_version_before_are_read_with_their_streams_and_written_anew() {
    const BEFORE: u8 = 5;
    let mut config = Config::default();
    config.params.messages = 1 << 20;
    let restore = |bytes: &[u8]| Connection::restore(config.clone(), bytes, [9; 32], Instant::now());
    let mut streams = 0;
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/snapshot");
    for seed in std::fs::read_dir(seeds).unwrap() {
        let bytes = std::fs::read(seed.unwrap().path()).unwrap();
        // The first byte is the length of what stands behind the snapshot.
        let written = &bytes[1..bytes.len() - usize::from(bytes[0])];
        if written[0] != BEFORE {
            continue;
        }
        let Ok(connection) = restore(written) else { continue };
        let Some(anew) = connection.snapshot() else { continue };
        assert_ne!(anew[0], BEFORE);
        let again = restore(&anew).unwrap();
        assert_eq!(again.known_streams(), connection.known_streams());
        assert_eq!(again.stats().stream_bytes_sent, connection.stats().stream_bytes_sent);
        streams += again.known_streams().len();
    }
    assert!(streams > 0, "no stream was read back");
}

/// A connection without streams and messages has its timeouts and limits last; those of version 5 and 6 are
/// all there, whatever they are, and version 4 ends before them.
#[test]
fn timeouts_and_limits_are_read_from_each_version_that_holds_them() {
    const WITHOUT_LIMITS: [u8; 9] = [0; 9];
    let mut sim = Sim::established(Options::default());
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let usual = sim.client.snapshot().unwrap();
    let head = usual.strip_suffix(&[&[0u8][..], &WITHOUT_LIMITS[..]].concat()[..]).unwrap();
    let of =
        |version: u8, timeouts: &[u8], limits: &[u8]| [&[version][..], &head[1..], timeouts, limits].concat();
    let read = |bytes: &[u8]| Connection::restore(Config::default(), bytes, [9; 32], sim.now);
    let heartbeat = |bytes: &[u8]| read(bytes).unwrap().timeouts().heartbeat;
    // Times in microseconds, each as 8 bytes: 7 s, 100 ms, 10 s, 0, 1 s, 600 s.
    let six = [7_000_000, 100_000, 10_000_000, 0, 1_000_000, 600_000_000u64];
    let six: Vec<u8> = six.into_iter().flat_map(|time| (3u64 << 62 | time).to_be_bytes()).collect();
    for version in [5, 6] {
        let bytes = of(version, &six, &WITHOUT_LIMITS);
        assert_eq!(heartbeat(&bytes), secs(7), "version {version}");
        assert_eq!(read(&bytes).unwrap().snapshot().unwrap()[0], usual[0]);
        assert!(read(&of(version, &[0], &WITHOUT_LIMITS)).is_err(), "version {version}");
    }
    assert_eq!(heartbeat(&of(4, &[], &[])), secs(60));
    assert_eq!(heartbeat(&usual), secs(60));
    assert!(read(&of(3, &[], &[])).is_err() && read(&of(7, &six, &WITHOUT_LIMITS)).is_err());
}

#[test]
fn a_snapshot_is_hardly_larger_than_what_was_not_delivered_or_read() {
    let sim = cut_off(&Config::default());
    let size = sim.client.snapshot().unwrap().len() as u64;
    let data = sim.client.buffered();
    assert!(size <= data + 1024, "{size} bytes for {data}");
}

/// Streams of both sides, every other segment of which came by another path, and none by the second.
fn full_of_gaps(streams: u64) -> Sim {
    let config =
        Config { handover: HandoverMode::Full, scheduler: SchedulerKind::RoundRobin, ..wide_config() };
    let mut sim = Sim::established(Options { client: config.clone(), server: config, ..Options::default() });
    let second = sim.dial().unwrap();
    sim.advance(ms(200));
    assert_eq!(sim.client.paths().len(), 2, "{}", sim.report());
    let ids: Vec<StreamId> = (0..streams).map(|_| sim.open(Side::Client).unwrap()).collect();
    ids.iter().for_each(|id| sim.send(Side::Client, *id, 1));
    sim.advance(ms(200));
    sim.server_accepts();
    sim.stall(second, true);
    let mut rng = Rng::new(3);
    for _ in 0..20 {
        for id in &ids {
            for side in BOTH.into_iter().filter(|_| rng.below(2) == 0).collect::<Vec<_>>() {
                sim.write(side, *id, 50 + rng.below(600) as usize);
            }
        }
        sim.advance(ms(1));
    }
    sim.advance(ms(25));
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    sim
}

/// What was not delivered or read is at most what [`Connection::buffered`] tells, which counts what the peer
/// has behind a gap too.
#[test]
fn a_snapshot_of_many_streams_with_gaps_costs_64_bytes_a_stream_and_32_a_gap() {
    const STREAMS: u64 = 100;
    let mut sim = full_of_gaps(STREAMS);
    for side in BOTH {
        let connection = sim.connection(side).unwrap();
        let size = connection.snapshot().unwrap().len() as u64;
        let (footprint, data) = (connection.footprint(), connection.buffered());
        // Each piece that waits has one before it.
        let gaps = footprint.pieces as u64;
        assert_eq!(footprint.streams as u64, STREAMS);
        assert!(gaps >= STREAMS, "{gaps} gaps");
        let most = data + 4096 + 64 * STREAMS + 32 * gaps;
        assert!(size <= most, "{side:?}: {size} bytes for {data} and {gaps} gaps, {most} allowed");
        println!("{side:?}: {size} bytes, {data} of data, {gaps} gaps");
    }
    BOTH.into_iter().for_each(|side| sim.resume(side));
    sim.dial().unwrap();
    run(&mut sim, all_is_here);
}
