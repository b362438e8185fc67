//! Random histories of messages over all classes, with moves, losses, replacement, expiry, cancelling, ends
//! that are written down and read back, and ends that go over to another key and back. What comes out, and
//! what is put on the carriers, is held against a model of what the classes mean.
//!
//! `WHIMBREL_MESSAGE_OPS` sets how many operations are done in all; without it, 200 000, which take seconds.
//! `make eval-messages` does five million.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::simulation::log::Logged;
use crate::simulation::rng::Rng;
use crate::simulation::{Air, Cut, Options, Sim, ms, secs, small_config};
use whimbrel_base::SecretKey;
use whimbrel_proto::{
    Class, Config, Event, FlowId, FlowOptions, HandoverMode, Message, MessageId, Outcome, SchedulerKind,
    SendOptions, Side, Tag, Urgency,
};

/// One that was sent.
struct Sent {
    flow: FlowId,
    class: Class,
    group: Option<u8>,
    tag: Option<Tag>,
    /// It may end without being delivered although its class is reliable.
    mortal: bool,
    outcome: Option<Outcome>,
    /// Some of it was put on a carrier.
    left: bool,
    /// It was cancelled or replaced: nothing of it may leave any more.
    dropped: bool,
    /// It ended before any of it had left: it cannot arrive.
    unborn: bool,
}

/// What the classes mean: what was sent, in what order, and what has come out.
#[derive(Default)]
struct Model {
    /// Messages by what is written in them.
    sent: BTreeMap<u64, Sent>,
    delivered: BTreeSet<u64>,
    /// The last one delivered of each flow, and of each group.
    last: BTreeMap<(Option<u8>, FlowId), u64>,
}

impl Model {
    /// A piece of it leaves.
    fn leave(&mut self, stamp: u64) {
        let sent = self.sent.get_mut(&stamp).unwrap();
        assert!(!sent.dropped, "{stamp} leaves after it was cancelled or replaced");
        assert_eq!(sent.outcome, None, "{stamp} leaves after its end");
        sent.left = true;
    }

    /// Messages of a flow with a tag are cancelled or replaced.
    fn give_up(&mut self, flow: FlowId, tag: Tag) {
        let tagged = |sent: &&mut Sent| (sent.flow, sent.tag) == (flow, Some(tag));
        self.sent.values_mut().filter(tagged).for_each(|sent| sent.dropped = true);
    }

    fn end(&mut self, stamp: u64, outcome: Outcome) {
        let sent = self.sent.get_mut(&stamp).unwrap();
        assert_eq!(sent.outcome.replace(outcome), None, "{stamp} ended twice");
        sent.unborn = !sent.left;
        assert!(!sent.unborn || outcome != Outcome::Delivered, "{stamp} is there and never left");
    }

    fn deliver(&mut self, stamp: u64, message: &Message) {
        let Sent { flow, class, group, tag, unborn, .. } = self.sent[&stamp];
        assert_eq!((flow, class, tag), (message.flow, message.class, message.tag));
        assert!(!unborn, "{stamp} ended before it left, and came");
        assert!(self.delivered.insert(stamp), "{stamp} came twice");
        let order = (group, if group.is_some() { FlowId(0) } else { flow });
        let last = self.last.insert(order, stamp);
        assert!(!class.sequenced || last.is_none_or(|last| last < stamp), "{stamp} behind {last:?}");
    }

    /// Everything has come to its end.
    fn check(&self) {
        for (stamp, sent) in &self.sent {
            let outcome = sent.outcome.unwrap_or_else(|| panic!("{stamp} has no outcome"));
            let told = outcome == Outcome::Delivered;
            assert!(told || sent.mortal || !sent.class.reliable, "{stamp} did not arrive: {outcome:?}");
            let here = self.delivered.contains(stamp) || sent.class == Class::UNRELIABLE_SEQUENCED;
            assert!(here || !told, "{stamp} is said to be there");
        }
    }
}

struct World {
    sim: Sim,
    rng: Rng,
    flows: [Vec<(FlowId, Class, Option<u8>)>; 2],
    models: [Model; 2],
    ids: [BTreeMap<MessageId, u64>; 2],
    /// How messages begin, by their flow and number on the wire, as far as that was put on a carrier.
    begun: [BTreeMap<(FlowId, u64), Vec<u8>>; 2],
    next: u64,
    /// Ends go over to other keys.
    hops: bool,
    /// The key that each side had before.
    former: [Option<SecretKey>; 2],
}

const SIDES: [Side; 2] = [Side::Client, Side::Server];

fn config(rng: &mut Rng) -> Config {
    let mut config = if rng.below(2) == 0 { Config::default() } else { small_config() };
    config.params.messages = [64 << 10, 300 << 10, 4 << 20][rng.below(3) as usize];
    config.handover = [HandoverMode::Single, HandoverMode::Full][rng.below(2) as usize];
    config.scheduler = SchedulerKind::ALL[rng.below(5) as usize];
    config
}

/// The stamp of a message is in its bytes, which depend on nothing else.
fn content(stamp: u64, size: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..size as u64).map(|at| (at.wrapping_mul(stamp + 7) >> 3) as u8).collect();
    let n = size.min(8);
    data[..n].copy_from_slice(&stamp.to_be_bytes()[..n]);
    data
}

impl World {
    fn new(seed: u64, datagrams: Option<Air>, hops: bool) -> Self {
        let mut rng = Rng::new(seed);
        let options = Options {
            client: config(&mut rng),
            server: config(&mut rng),
            delay: ms(rng.below(120)),
            capacity: [16 * 1024, 100_000][rng.below(2) as usize],
            fragment: rng.below(2) == 0,
            redial: true,
            datagrams,
            seed,
            ..Options::default()
        };
        let mut sim = Sim::established(options);
        sim.keep_server = true;
        sim.log = Some(Vec::new());
        let mut flows = [Vec::new(), Vec::new()];
        for (at, side) in SIDES.into_iter().enumerate() {
            for n in 0..6 {
                let class = Class::ALL[(n % 4) as usize];
                let options = FlowOptions {
                    class,
                    urgency: Urgency::new(rng.below(8) as u8).unwrap(),
                    weight: 1 + rng.below(200) as u8,
                    buffering: ms([0, 0, 50][rng.below(3) as usize]),
                    group: (class.sequenced && rng.below(2) == 0).then_some(rng.below(2) as u8),
                    redundant: rng.below(4) == 0,
                    queue: 200_000,
                };
                let flow = sim.connection(side).unwrap().open_flow(options).unwrap();
                flows[at].push((flow, class, options.group));
            }
        }
        Self {
            sim,
            rng,
            flows,
            models: Default::default(),
            ids: Default::default(),
            begun: Default::default(),
            next: 0,
            hops,
            former: Default::default(),
        }
    }

    fn step(&mut self) {
        if self.hops && self.rng.below(50) == 0 {
            let at = self.rng.below(2) as usize;
            self.hand_over(at);
        }
        let dice = self.rng.below(100);
        let at = self.rng.below(2) as usize;
        match dice {
            0..=49 => self.send(at, dice < 12),
            50..=54 => {
                let (flow, tag) = self.pick(at);
                self.models[at].give_up(flow, tag);
                self.sim.connection(SIDES[at]).unwrap().cancel_messages(flow, tag);
            }
            55..=66 => self.take(at),
            67..=69 => self.take_some(at),
            70..=89 => {
                let time = [3, 30, 300, 2000][self.rng.below(4) as usize];
                let time = ms(self.rng.below(time));
                self.sim.advance(time);
            }
            90..=91 => drop(self.sim.dial()),
            92..=94 => {
                let how = [Cut::Both, Cut::Silent, Cut::First(SIDES[at])][self.rng.below(3) as usize];
                let index = self.rng.below(self.sim.carriers.len() as u64) as usize;
                self.sim.cut(index, how);
            }
            95 => self.sim.cut_all(Cut::Both),
            96 => {
                let index = self.rng.below(self.sim.carriers.len() as u64) as usize;
                self.sim.stall(index, true);
            }
            97 => (0..self.sim.carriers.len()).for_each(|index| self.sim.stall(index, false)),
            98 => {
                let paths = self.sim.connection(SIDES[at]).unwrap().paths();
                let takes = self.rng.below(3) > 0;
                for path in paths {
                    self.sim.connection(SIDES[at]).unwrap().set_takes_now(path.id, takes);
                }
            }
            _ if self.hops && self.rng.below(2) == 0 => SIDES.iter().for_each(|at| self.sim.resume(*at)),
            _ => self.sim.resume(SIDES[at]),
        }
        self.sim.pump();
        self.note();
    }

    /// To a fresh key, or back to the one before.
    fn hand_over(&mut self, at: usize) {
        let (side, before) = (SIDES[at], self.sim.key(SIDES[at]).clone());
        let back = self.former[at].clone().filter(|_| self.rng.below(2) == 0);
        let went = match back {
            Some(key) => self.sim.hand_over_to(side, key),
            None => self.sim.hand_over(side),
        };
        if went.is_some() {
            self.former[at] = Some(before);
        }
        self.note();
    }

    fn pick(&mut self, at: usize) -> (FlowId, Tag) {
        let flow = self.flows[at][self.rng.below(6) as usize].0;
        (flow, Tag(self.rng.below(3)))
    }

    fn send(&mut self, at: usize, replace: bool) {
        let (flow, tag) = self.pick(at);
        let (_, class, group) = self.flows[at][flow.0 as usize];
        let most = [100, 3000, 25_000][self.rng.below(3) as usize];
        let size = 8 + self.rng.below(most) as usize;
        let options = SendOptions {
            tag: (replace || self.rng.below(2) == 0).then_some(tag),
            lifetime: (self.rng.below(3) == 0).then_some(ms(self.rng.below(3000))),
            retransmissions: (self.rng.below(6) == 0).then_some(self.rng.below(3) as u32),
            silent: false,
        };
        let (now, stamp) = (self.sim.now, self.next);
        let (also, data) = (self.pick(at), content(stamp, size));
        let connection = self.sim.connection(SIDES[at]).unwrap();
        let sent = match replace {
            true => connection.replace_messages(now, &[also], flow, data, options),
            false => connection.send_message(now, flow, data, options),
        };
        if let Ok(id) = sent {
            self.next += 1;
            if replace {
                let own = options.tag.map(|tag| (flow, tag));
                own.into_iter().chain([also]).for_each(|(flow, tag)| self.models[at].give_up(flow, tag));
            }
            let mortal = (options.tag, options.lifetime, options.retransmissions) != (None, None, None);
            let (tag, outcome) = (options.tag, None);
            let (left, dropped, unborn) = (false, false, false);
            let sent = Sent { flow, class, group, tag, mortal, outcome, left, dropped, unborn };
            self.models[at].sent.insert(stamp, sent);
            self.ids[at].insert(id, stamp);
        }
    }

    fn take(&mut self, at: usize) {
        while let Some(message) = self.sim.connection(SIDES[at]).unwrap().recv_message() {
            self.came(at, &message);
        }
    }

    /// Takes some at once, and puts back those that the application does not want yet.
    fn take_some(&mut self, at: usize) {
        let connection = self.sim.connection(SIDES[at]).unwrap();
        let mut taken = VecDeque::new();
        connection.take_messages(6, 20_000, &mut taken);
        let left = taken.split_off(taken.len().div_ceil(2));
        connection.put_messages_back(left.into_iter());
        taken.iter().for_each(|message| self.came(at, message));
    }

    fn came(&mut self, at: usize, message: &Message) {
        let stamp = u64::from_be_bytes(message.data[..8].try_into().unwrap());
        assert!(message.data == content(stamp, message.data.len()), "{stamp} is damaged");
        self.models[1 - at].deliver(stamp, message);
    }

    /// Learns what left and what became of messages, in the order in which it happened.
    fn note(&mut self) {
        for logged in self.sim.log.as_mut().map(std::mem::take).unwrap_or_default() {
            match logged {
                Logged::Piece { side, flow, number, offset, start } => {
                    self.left(side as usize, (flow, number), offset, &start);
                }
                Logged::Told(side, Event::MessageDone(id, outcome)) => {
                    let stamp = self.ids[side as usize][&id];
                    self.models[side as usize].end(stamp, outcome);
                }
                Logged::Told(..) => {}
            }
        }
    }

    /// A piece of a message left. Which one it is of is known once its stamp has left.
    fn left(&mut self, at: usize, number: (FlowId, u64), offset: u64, start: &[u8]) {
        let begun = self.begun[at].entry(number).or_default();
        if begun.len() < 8 && offset == begun.len() as u64 {
            let more = start.len().min(8 - begun.len());
            begun.extend_from_slice(&start[..more]);
        }
        if let Ok(stamp) = <[u8; 8]>::try_from(&begun[..]) {
            self.models[at].leave(u64::from_be_bytes(stamp));
        }
    }

    fn finish(mut self) {
        self.sim.heal();
        for _ in 0..60 {
            for (at, side) in SIDES.into_iter().enumerate() {
                for path in self.sim.connection(side).unwrap().paths() {
                    self.sim.connection(side).unwrap().set_takes_now(path.id, true);
                }
                self.take(at);
            }
            self.sim.advance(secs(2));
        }
        for (at, side) in SIDES.into_iter().enumerate() {
            self.take(at);
            self.note();
            let report = self.sim.report();
            let connection = self.sim.connection(side).unwrap();
            assert!(connection.close_reason().is_none(), "{report}");
            let (footprint, buffered) = (connection.footprint(), connection.buffered());
            assert_eq!((footprint.messages, buffered), (0, 0), "{side:?} keeps something\n{report}");
            self.models[at].check();
        }
        let (client, server) = (self.sim.client.message_credit(), self.sim.server().message_credit());
        assert_eq!((client.0, client.1), (server.1, server.0), "credit is missing");
    }
}

/// Every second history has carriers with datagrams.
fn air(seed: u64) -> Option<Air> {
    let mut rng = Rng::new(seed ^ 0xa1a1);
    let room = [200, 1200][rng.below(2) as usize];
    let (loss, jitter) = ([0, 30, 300][rng.below(3) as usize], ms(rng.below(60)));
    (seed % 2 == 1).then_some(Air { room, loss, jitter })
}

fn run(seed: u64, datagrams: Option<Air>, hops: bool) {
    let guard = Seed(seed);
    let mut world = World::new(seed, datagrams, hops);
    (0..250).for_each(|_| world.step());
    world.finish();
    std::mem::forget(guard);
}

/// Tests that share the operations, so that they run beside each other.
const SHARES: u64 = 4;

fn run_share(share: u64) {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let rounds = number("WHIMBREL_MESSAGE_OPS").unwrap_or(200_000) / 250;
    match number("WHIMBREL_MESSAGE_SEED") {
        Some(seed) if seed % SHARES == share => run(seed, air(seed), true),
        Some(_) => {}
        None => (share..rounds).step_by(SHARES as usize).for_each(|seed| run(seed, air(seed), true)),
    }
}

#[test]
fn every_class_keeps_its_promise_whatever_happens() {
    run_share(0);
}

#[test]
fn every_class_keeps_its_promise_whatever_happens_with_datagrams() {
    run_share(1);
}

#[test]
fn every_class_keeps_its_promise_whatever_happens_in_other_histories() {
    run_share(2);
}

#[test]
fn every_class_keeps_its_promise_whatever_happens_in_other_histories_with_datagrams() {
    run_share(3);
}

/// A reliable message waited for one before it while its receiver was written down and read again.
#[test]
fn what_waits_for_its_turn_keeps_its_place_in_a_snapshot() {
    run(1116, None, false);
}

/// Says which history failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        eprintln!("the history that failed: WHIMBREL_MESSAGE_SEED={}", self.0);
    }
}
