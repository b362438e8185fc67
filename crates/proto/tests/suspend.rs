//! A connection is written down while it has no path, read again, and goes on where it was.
#![allow(clippy::unwrap_used)]

mod simulation;

use simulation::{Cut, Options, Sim, ms, secs, small_config};
use whimbrel_proto::{Config, Connection, DecodeError, Side};

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
    let restore = |bytes: &[u8]| Connection::restore(Config::default(), bytes, sim.now).err();
    for length in 0..bytes.len() {
        assert!(restore(&bytes[..length]).is_some(), "{length} of {} bytes", bytes.len());
    }
    let mut later = bytes.clone();
    later[0] += 1;
    assert_eq!(restore(&later), Some(DecodeError::Invalid("version of a snapshot")));
}

#[test]
fn a_snapshot_is_hardly_larger_than_what_was_not_delivered_or_read() {
    let sim = cut_off(&Config::default());
    let size = sim.client.snapshot().unwrap().len() as u64;
    let data = sim.client.buffered();
    assert!(size <= data + 1024, "{size} bytes for {data}");
}
