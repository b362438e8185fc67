//! Streams on which one side writes and the other reads.
#![allow(clippy::unwrap_used)]

use crate::simulation::tcp::Link;
use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{CloseCode, Config, HandoverMode, Read, Side, StreamError, StreamId};

fn write(sim: &mut Sim, id: StreamId, text: &str) {
    assert_eq!(sim.client.write(id, text.as_bytes()).unwrap(), text.len());
    sim.client.finish(id).unwrap();
}

/// Reads a stream to its end at the server; what it says at the end, if that is an error.
fn read(sim: &mut Sim, id: StreamId) -> Result<String, StreamError> {
    let (mut text, mut buf) = (Vec::new(), [0; 100]);
    loop {
        match sim.server().read(id, &mut buf)? {
            Read::Data(n) => text.extend_from_slice(&buf[..n]),
            Read::Blocked => panic!("{id} is blocked"),
            Read::Fin => return Ok(String::from_utf8(text).unwrap()),
        }
    }
}

#[test]
fn a_one_way_stream_is_accepted_as_such_and_leaves_nothing_behind() {
    let mut sim = Sim::established(Options::default());
    let one_way = sim.client.open_one_way().unwrap();
    let both_ways = sim.client.open_stream().unwrap();
    let other = sim.client.open_one_way().unwrap();
    for (id, text) in [(one_way, "first"), (both_ways, "second"), (other, "third")] {
        write(&mut sim, id, text);
    }
    sim.advance(ms(200));
    // Neither kind waits for the other.
    assert_eq!((sim.server().accept_stream(), sim.server().accept_stream()), (Some(both_ways), None));
    assert_eq!((sim.server().accept_one_way(), sim.server().accept_one_way()), (Some(one_way), Some(other)));
    assert_eq!(sim.server().accept_one_way(), None);
    let refused = sim.server().write(one_way, b"no").unwrap_err();
    assert_eq!(refused, StreamError::Stopped(one_way, CloseCode::ONE_WAY));
    for (id, text) in [(one_way, "first"), (both_ways, "second"), (other, "third")] {
        assert_eq!(read(&mut sim, id).unwrap(), text);
    }
    sim.server().finish(both_ways).unwrap();
    sim.advance(ms(200));
    assert_eq!(sim.client.read(both_ways, &mut [0; 9]), Ok(Read::Fin));
    sim.advance(ms(200));
    assert_eq!((sim.client.footprint().streams, sim.server().footprint().streams), (0, 0));
}

#[test]
fn whichever_of_its_frames_comes_first_says_that_a_stream_goes_one_way() {
    for seed in 0..40 {
        let config = Config { handover: HandoverMode::Full, ..Config::default() };
        let options = Options { client: config.clone(), server: config, seed, ..Options::default() };
        let links = [Link::new(5, 10), Link::new(5, 10 + seed * 4)];
        let mut sim = Sim::over(options, &links);
        sim.options.redial = true;
        let mut open = Vec::new();
        for n in 0..20 {
            let one_way = (n + seed) % 3 > 0;
            let id = if one_way { sim.client.open_one_way() } else { sim.client.open_stream() }.unwrap();
            if n % 5 == 4 {
                sim.client.reset(id, CloseCode::application(n as u32)).unwrap();
            } else {
                let n = sim.client.write(id, &[7; 4000]).unwrap();
                assert_eq!(n, 4000);
                sim.client.finish(id).unwrap();
            }
            open.push((id, one_way));
            if n == 11 {
                sim.pump();
                sim.cut((seed % 2) as usize, [Cut::Both, Cut::Silent][(seed / 2 % 2) as usize]);
            }
            sim.advance(ms(seed % 4));
        }
        sim.advance(secs(20));
        let mut accepted = Vec::new();
        for one_way in [true, false] {
            let next = |sim: &mut Sim| match one_way {
                true => sim.server().accept_one_way(),
                false => sim.server().accept_stream(),
            };
            while let Some(id) = next(&mut sim) {
                accepted.push((id, one_way));
            }
        }
        accepted.sort_unstable();
        assert_eq!(accepted, open, "seed {seed}");
    }
}

#[test]
fn what_waits_to_be_accepted_keeps_its_kind_in_a_snapshot() {
    let mut sim = Sim::established(Options::default());
    let ids: Vec<StreamId> = (0..4)
        .map(|n| if n % 2 == 0 { sim.client.open_one_way() } else { sim.client.open_stream() }.unwrap())
        .collect();
    ids.iter().for_each(|id| write(&mut sim, *id, "kept"));
    sim.advance(ms(200));
    assert_eq!(sim.server().accept_one_way(), Some(ids[0]));
    sim.cut_all(Cut::Both);
    sim.advance(secs(3));
    sim.resume(Side::Server);
    assert_eq!((sim.server().accept_one_way(), sim.server().accept_one_way()), (Some(ids[2]), None));
    assert_eq!((sim.server().accept_stream(), sim.server().accept_stream()), (Some(ids[1]), Some(ids[3])));
    for id in ids {
        assert_eq!(read(&mut sim, id).unwrap(), "kept");
    }
}

/// Before the peer's parameters are known, and on a client that was written down before its stream was heard
/// of.
#[test]
fn a_one_way_stream_may_be_opened_before_the_first_answer() {
    let mut sim = Sim::new(Options::default());
    let id = sim.client.open_one_way().unwrap();
    sim.client.write(id, b"early").unwrap();
    sim.dial();
    sim.advance(ms(200));
    assert_eq!((sim.server().accept_stream(), sim.server().accept_one_way()), (None, Some(id)));
    sim.cut_all(Cut::Both);
    sim.advance(secs(3));
    let next = sim.client.open_one_way().unwrap();
    write(&mut sim, next, "later");
    sim.resume(Side::Client);
    sim.heal();
    sim.advance(secs(2));
    assert_eq!((sim.server().accept_stream(), sim.server().accept_one_way()), (None, Some(next)));
    assert_eq!(read(&mut sim, next).unwrap(), "later");
}
