//! A scripted exchange whose carriers are cut after every single byte, in either direction.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{CloseCode, ClosedBy, Side, StreamId};

const UP: u64 = 300;
const DOWN: u64 = 400;

/// A direction of a carrier, and after how many bytes the carrier breaks.
#[derive(Debug, Clone, Copy)]
struct Break {
    carrier: usize,
    from: Side,
    after: u64,
}

/// The client opens, sends and finishes; the server answers and finishes; the client opens a
/// second stream which the server ends by resetting it; the client moves in the middle; the
/// server states addresses; the client closes in order. Returns the simulation at its end.
fn exchange(breaks: &[Break], style: Cut) -> Sim {
    let mut sim = Sim::new(Options { delay: ms(10), ..Options::default() });
    sim.cut_style = style;
    let arm = |sim: &mut Sim| {
        for b in breaks {
            if let Some(carrier) = sim.carriers.get_mut(b.carrier) {
                carrier.outgoing(b.from).cut_after = Some(b.after);
            }
        }
    };
    sim.dial();
    arm(&mut sim);
    sim.options.redial = true;
    let request = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, request, UP as usize);
    sim.finish(Side::Client, request);
    let mut replied = false;
    let mut moved = false;
    let mut second: Option<StreamId> = None;
    let mut closing = false;
    let done = sim.run_until(secs(700), |sim| {
        arm(sim);
        let request_read = sim.server_app.streams.get(&request).is_some_and(|h| h.saw_fin);
        if request_read && !replied {
            replied = true;
            sim.write(Side::Server, request, DOWN as usize);
            let addresses = vec![([192, 0, 2, 7], 4480).into()];
            sim.server().set_notice_addresses(addresses);
            sim.finish(Side::Server, request);
        }
        let read = sim.client_app.streams[&request].read;
        if read == DOWN && !moved {
            moved = true;
            sim.dial();
            arm(sim);
            second = sim.open(Side::Client);
            sim.write(Side::Client, second.unwrap(), 50);
        }
        if let Some(id) = second
            && sim.server_app.streams.get(&id).is_some_and(|h| h.read == 50 && !h.reset)
        {
            sim.reset(Side::Server, id);
        }
        let answered = second.is_some_and(|id| sim.client_app.streams[&id].saw_reset);
        if answered && !closing {
            closing = true;
            sim.client.close(CloseCode::application(5), "bye");
        }
        sim.client.is_over() && sim.server_was_over
    });
    assert!(done, "{breaks:?} {style:?}\n{}", sim.report());
    let (by, code, _) = sim.client.close_reason().unwrap();
    assert_eq!((by, code), (ClosedBy::Local, CloseCode::application(5)));
    assert_eq!(code.0, 0x105, "applications' own codes begin at 0x100");
    let (by, code, reason) = sim.server().close_reason().unwrap();
    assert_eq!((by, code, reason), (ClosedBy::Peer, CloseCode::application(5), "bye"));
    assert!(sim.client_app.streams[&request].saw_fin);
    sim
}

/// How many bytes each direction of each carrier moves when nothing breaks, and where its
/// segments end.
fn undisturbed() -> Vec<(usize, Side, Vec<u64>)> {
    let sim = exchange(&[], Cut::Both);
    let mut directions = Vec::new();
    for (index, carrier) in sim.carriers.iter().enumerate() {
        directions.push((index, Side::Client, carrier.up.boundaries.clone()));
        directions.push((index, Side::Server, carrier.down.boundaries.clone()));
    }
    assert_eq!(directions.len(), 4);
    directions
}

#[test]
fn a_carrier_may_break_after_any_byte() {
    let mut runs = 0;
    for (carrier, from, boundaries) in undisturbed() {
        for after in 0..=*boundaries.last().unwrap() {
            let styles = [Cut::Both, Cut::First(Side::Client), Cut::First(Side::Server), Cut::Silent];
            for style in styles {
                exchange(&[Break { carrier, from, after }], style);
                runs += 1;
            }
        }
    }
    assert!(runs > 4000, "{runs}");
}

/// Every pair: the first carrier breaks at the end of a segment (or one byte before), and so does
/// the one that replaces it.
#[test]
fn replacements_may_break_at_any_segment_too() {
    let directions = undisturbed();
    let ends = |side| {
        let boundaries = directions.iter().filter(move |d| d.1 == side);
        let mut all: Vec<u64> = boundaries.flat_map(|d| d.2.clone()).collect();
        all.extend(all.clone().iter().map(|at| at - 1));
        all.push(0);
        all.sort_unstable();
        all.dedup();
        all
    };
    for first_from in [Side::Client, Side::Server] {
        for second_from in [Side::Client, Side::Server] {
            for first in ends(first_from) {
                for second in ends(second_from) {
                    let breaks = [
                        Break { carrier: 0, from: first_from, after: first },
                        Break { carrier: 1, from: second_from, after: second },
                        Break { carrier: 2, from: second_from, after: second / 2 },
                    ];
                    exchange(&breaks, Cut::Both);
                }
            }
        }
    }
}
