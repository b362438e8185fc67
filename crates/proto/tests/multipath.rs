//! Several paths at once: what they bring together, over carriers that behave like TCP, in simulated time.
#![allow(clippy::unwrap_used)]

mod simulation;

use std::time::Duration;

use simulation::tcp::Link;
use simulation::{Options, Sim, ms, secs};
use whimbrel_proto::{Config, Event, HandoverMode, SchedulerKind, Side};

fn full() -> Options {
    with(HandoverMode::Full, SchedulerKind::EarliestArrival)
}

fn with(handover: HandoverMode, scheduler: SchedulerKind) -> Options {
    let config = Config { handover, scheduler, ..Config::default() };
    Options { client: config.clone(), server: config, ..Options::default() }
}

/// Has `from` write `bytes` as fast as it can, the other side reading at once. What was read by each of `marks`, and
/// when everything was.
fn transfer(sim: &mut Sim, from: Side, bytes: usize, marks: &[Duration]) -> (Vec<u64>, Duration) {
    let id = sim.open(Side::Client).unwrap();
    sim.advance(ms(200));
    sim.server_accepts();
    let start = sim.now;
    let (mut left, mut read) = (bytes, 0);
    let (mut may_write, mut at_marks) = (true, Vec::new());
    let end = start + secs(600);
    while (read as usize) < bytes {
        may_write |= take_events(sim, from).contains(&Event::Writable(id));
        while may_write && left > 0 {
            let taken = sim.write(from, id, left.min(64 * 1024));
            left -= taken;
            may_write = taken > 0;
        }
        sim.pump();
        let next = sim.next_event().unwrap_or(end);
        if marks.get(at_marks.len()).is_some_and(|mark| next > start + *mark) {
            at_marks.push(read);
        }
        assert!(next < end, "the transfer hangs at {read} of {bytes}\n{}", sim.report());
        sim.step_to(next.max(sim.now));
        if take_events(sim, from.peer()).contains(&Event::Readable(id)) {
            read += sim.read_all(from.peer());
        }
    }
    at_marks.resize(marks.len(), read);
    (at_marks, sim.now - start)
}

fn take_events(sim: &mut Sim, side: Side) -> Vec<Event> {
    match side {
        Side::Client => std::mem::take(&mut sim.client_events),
        Side::Server => std::mem::take(&mut sim.server_events),
    }
}

/// Megabits a second.
fn goodput(bytes: usize, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
}

const MARKS: [Duration; 3] = [secs(1), secs(2), secs(4)];

const PAIRS: [[(u64, u64); 2]; 7] = [
    [(10, 20), (10, 20)],
    [(10, 1), (10, 50)],
    [(30, 20), (10, 20)],
    [(30, 1), (10, 50)],
    [(30, 50), (10, 1)],
    [(20, 20), (2, 60)],
    [(100, 20), (5, 40)],
];

#[test]
fn two_paths_bring_the_sum_of_both_and_never_less_than_the_better() {
    const BYTES: usize = 16 << 20;
    for pair in PAIRS {
        for from in [Side::Client, Side::Server] {
            let links = pair.map(|(rate, rtt)| Link::new(rate, rtt));
            let alone = links.map(|link| transfer(&mut Sim::over(full(), &[link]), from, BYTES, &MARKS));
            let sum: f64 = alone.iter().map(|(_, time)| goodput(BYTES, *time)).sum();
            let mut sim = Sim::over(full(), &links);
            let (marks, time) = transfer(&mut sim, from, BYTES, &MARKS);
            let share = goodput(BYTES, time) / sum;
            let best = |i: usize| alone.iter().map(|(marks, _)| marks[i]).max().unwrap_or(1);
            let start: Vec<f64> = (0..3).map(|i| marks[i] as f64 / best(i) as f64).collect();
            let stats = sim.connection(from).unwrap().stats();
            let twice = stats.stream_bytes_resent as f64 / BYTES as f64;
            println!(
                "{pair:?} from {from:?}: {:.1} Mbit/s, {share:.3} of the sum, start-up {start:.2?}, twice {:.2} %",
                goodput(BYTES, time),
                twice * 100.0
            );
            assert!(share >= 0.97, "{pair:?} from {from:?}: {share:.3} of the sum");
            assert!(start.iter().all(|s| *s >= 0.95), "{pair:?} from {from:?}: start-up {start:?}");
            assert!(twice <= 0.05, "{pair:?} from {from:?}: {twice} of the bytes went twice");
        }
    }
}
