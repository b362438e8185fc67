//! How late messages are over links that lose packets, alone and beside bulk, in simulated time. Datagrams of
//! a path share its link with the carrier's own packets, and are lost like them.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::simulation::tcp::Link;
use crate::simulation::{Air, Options, Sim, ms, secs};
use whimbrel_proto::{
    Class, Config, FlowId, FlowOptions, HandoverMode, MESSAGE_WINDOW, SendOptions, Side, StreamId, Urgency,
};

const EVERY: Duration = Duration::from_micros(16_667);
const SIZE: usize = 1024;
const RTT: u64 = 50;

fn config() -> Config {
    let mut config = Config { handover: HandoverMode::Full, ..Config::default() };
    config.params.messages = MESSAGE_WINDOW;
    config
}

fn link(mbit: u64, loss: u64) -> Link {
    Link { loss, queue: ms(100), ..Link::new(mbit, RTT) }
}

/// Messages at a steady pace, and how late those are that came.
struct Run {
    sim: Sim,
    flow: FlowId,
    bulk: Option<StreamId>,
    sent: Vec<Instant>,
    late: Vec<Duration>,
    streamed: u64,
}

impl Run {
    /// `alone`: nothing goes beside them.
    fn new(links: &[Link], options: FlowOptions, alone: bool) -> Self {
        let config = config();
        let mut sim = Sim::over(
            Options {
                client: config.clone(),
                server: config,
                capacity: 16 << 10,
                datagrams: Some(Air { room: 1150, loss: 0, jitter: Duration::ZERO }),
                ..Options::default()
            },
            links,
        );
        let flow = sim.client.open_flow(FlowOptions { urgency: Urgency::FIRST, ..options }).unwrap();
        let bulk = (!alone).then(|| sim.open(Side::Client).unwrap());
        Self { sim, flow, bulk, sent: Vec::new(), late: Vec::new(), streamed: 0 }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.sim.now + time;
        while self.sim.now < end {
            if let Some(stream) = self.bulk {
                self.sim.write(Side::Client, stream, 16 << 10);
            }
            self.sim.advance(ms(1).min(end - self.sim.now));
            self.streamed += self.sim.read_all(Side::Server);
            while let Some(message) = self.sim.server().recv_message() {
                let number = u32::from_be_bytes(message.data[..4].try_into().unwrap());
                self.late.push(self.sim.now - self.sent[number as usize]);
            }
        }
    }

    /// Sends `count` messages, and tells how late those were that came, the least late first.
    fn run(mut self, name: &str, count: u32) -> Delays {
        self.pass(secs(3));
        let streamed = self.streamed;
        let began = self.sim.now;
        for number in 0..count {
            let mut data = vec![7; SIZE];
            data[..4].copy_from_slice(&number.to_be_bytes());
            self.sent.push(self.sim.now);
            let now = self.sim.now;
            self.sim.client.send_message(now, self.flow, data, SendOptions::default()).unwrap();
            self.pass(EVERY);
        }
        let rate = (self.streamed - streamed) as f64 * 8.0 / 1e6 / (self.sim.now - began).as_secs_f64();
        self.pass(secs(3));
        self.late.sort_unstable();
        let stats = self.sim.client.message_stats();
        let delays = Delays { late: self.late, sent: count as usize };
        let at = |q| delays.at(q).as_secs_f64() * 1e3;
        println!(
            "{name:40} p50 {:6.1} ms p90 {:6.1} p99 {:6.1} most {:6.1} arrived {:4} again {:3} bulk {rate:4.1} Mbit/s",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
            delays.late.len(),
            stats.retransmitted,
        );
        delays
    }
}

struct Delays {
    late: Vec<Duration>,
    sent: usize,
}

impl Delays {
    fn at(&self, quantile: f64) -> Duration {
        self.late[((self.late.len() - 1) as f64 * quantile) as usize]
    }

    fn assert_all_came(&self) {
        assert_eq!(self.late.len(), self.sent);
    }
}

const COUNT: u32 = 1000;
/// Beside bulk, which takes the machine longer.
const FEWER: u32 = 300;

#[test]
fn a_lost_packet_delays_one_reliable_message_by_hardly_more_than_a_round_trip() {
    for (loss, most) in [(10, ms(95)), (30, ms(95)), (100, ms(150))] {
        for class in [Class::RELIABLE, Class::RELIABLE_SEQUENCED] {
            let name = format!("one link, {} %, {class:?}", loss / 10);
            let delays = Run::new(&[link(20, loss)], FlowOptions::new(class), true).run(&name, COUNT);
            delays.assert_all_came();
            assert!(delays.at(0.99) <= most, "{loss} of 1000: {:?}", delays.at(0.99));
            // A reader without order sees no other message late.
            let late = delays.late.iter().filter(|late| **late > ms(RTT)).count();
            let lost = COUNT as usize * loss as usize / 1000;
            assert!(class.sequenced || late <= lost * 3 / 2, "{late} late, {lost} lost");
        }
    }
}

#[test]
fn bulk_is_not_before_messages_in_the_carrier_and_its_losses_hold_none_up() {
    for loss in [0, 10, 30, 100] {
        for class in Class::ALL {
            let name = format!("one link beside bulk, {} %, {class:?}", loss / 10);
            let late = Run::new(&[link(20, loss)], FlowOptions::new(class), false).run(&name, FEWER);
            // The queue of the link, a packet's own time, and what a loss costs.
            let queue = ms(RTT / 2 + 100 + 2);
            let repeated = if class.reliable { ms(2 * RTT + 100) } else { Duration::ZERO };
            assert!(late.at(0.99) <= queue + repeated, "{:?}", late.at(0.99));
        }
    }
}

#[test]
fn with_a_lossy_link_beside_a_good_one_messages_are_as_quick_as_on_the_good_one() {
    let links = [link(20, 0), link(10, 30)];
    let redundant = FlowOptions { redundant: true, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flows = Class::ALL.map(FlowOptions::new);
    for options in flows.into_iter().chain([redundant]) {
        let name = format!("two links, {:?} {}", options.class, options.redundant);
        let late = Run::new(&links, options, true).run(&name, COUNT);
        assert!(late.at(0.99) <= ms(RTT / 2 + 2), "{:?}", late.at(0.99));
        if options.class.reliable {
            late.assert_all_came();
        }
    }
}

#[test]
fn beside_bulk_on_two_links_messages_do_not_wait_for_the_worse_one() {
    let links = [link(20, 0), link(10, 30)];
    let redundant = FlowOptions { redundant: true, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flows = Class::ALL.map(FlowOptions::new);
    for options in flows.into_iter().chain([redundant]) {
        let name = format!("two links beside bulk, {:?} {}", options.class, options.redundant);
        let two = Run::new(&links, options, false).run(&name, FEWER);
        let alone = Run::new(&links[..1], FlowOptions { redundant: false, ..options }, false)
            .run("  the better one alone", FEWER);
        assert!(two.at(0.99) <= alone.at(0.99) * 21 / 20, "{:?}, {:?}", two.at(0.99), alone.at(0.99));
    }
}
