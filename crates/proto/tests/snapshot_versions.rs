//! What a program of the version before wrote down is read, as when today's takes over from an older instance.
#![allow(clippy::unwrap_used)]

mod simulation;

use std::time::Instant;

use simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{Config, Connection, Side};

/// What version 5 has at its end for a connection without flows takes no more.
const LONGEST_END: usize = 64;

/// The bytes of a connection as version 4 has them: version 5 without what that has at its end.
fn of_version_four(bytes: &[u8], now: Instant) -> Vec<u8> {
    assert_eq!(bytes[0], 5, "another version is written: test what is read of that one here too");
    let mut older = bytes.to_vec();
    older[0] = 4;
    assert!(Connection::restore(Config::default(), &older, [0; 32], now).is_err(), "it has a longer end");
    let is_read =
        |length: &usize| Connection::restore(Config::default(), &older[..*length], [0; 32], now).is_ok();
    let lengths: Vec<usize> = (bytes.len() - LONGEST_END..bytes.len()).filter(is_read).collect();
    assert_eq!(lengths.len(), 1, "it ends at one place: {lengths:?} of {}", bytes.len());
    older.truncate(lengths[0]);
    older
}

#[test]
fn what_the_version_before_wrote_down_is_read_and_every_byte_arrives() {
    let mut sim = Sim::established(Options::default());
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
    for (side, nonce) in [(Side::Client, 201), (Side::Server, 202)] {
        let now = sim.now;
        let connection = sim.connection(side).unwrap();
        let older = of_version_four(&connection.snapshot().unwrap(), now);
        *connection = Connection::restore(Config::default(), &older, [nonce; 32], now).unwrap();
    }
    sim.dial();
    let done = sim.run_until(secs(20), |sim| {
        for side in [Side::Client, Side::Server] {
            sim.read_all(side);
        }
        sim.client_app.bytes_missing_at(&sim.server_app).is_none()
            && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
    });
    assert!(done, "{}", sim.report());
}
