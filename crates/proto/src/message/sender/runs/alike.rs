//! Random histories: runs do what messages one by one do.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::content::Content;
use crate::event::Events;
use crate::flow::Urgency;
use crate::ids::PathId;
use crate::message::outgoing::Outgoing;
use crate::message::{FlowId, FlowOptions, SendOptions, Tag, cost};

const SIZES: [usize; 10] = [0, 0, 1, 40, 100, 100, 700, 1100, 4096, 20_000];

#[derive(Debug, Clone)]
enum Step {
    Send { flow: u64, size: usize, lifetime: Option<u64>, tag: Option<u64>, replaces: bool },
    Flood { flow: u64, size: usize, count: usize },
    Cancel { flow: u64, tag: u64 },
    Segment { limit: usize, takes_now: bool, datagram: u64, path: u64, second: bool },
    Datagram { room: u64, most: usize, path: u64, second: bool },
    Arrives(usize),
    Lost(usize),
    Wait(u64),
    Allow(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = || select(&SIZES[..]);
    let lifetime = prop::option::of(1u64..60);
    let tag = prop::option::weighted(0.3, 0u64..3);
    let room = prop_oneof![0u64..150, 100u64..1500];
    prop_oneof![
        6 => (0u64..4, size(), lifetime, tag, any::<bool>()).prop_map(
            |(flow, size, lifetime, tag, replaces)| Step::Send { flow, size, lifetime, tag, replaces }),
        2 => (0u64..4, size(), 2usize..40)
            .prop_map(|(flow, size, count)| Step::Flood { flow, size, count }),
        1 => (0u64..4, 0u64..3).prop_map(|(flow, tag)| Step::Cancel { flow, tag }),
        4 => (100usize..12_000, any::<bool>(), select(&[0u64, 0, 500, 1400][..]), 0u64..2, any::<bool>())
            .prop_map(|(limit, takes_now, datagram, path, second)| {
                Step::Segment { limit, takes_now, datagram, path, second }
            }),
        4 => (room, 1usize..30, 0u64..2, any::<bool>())
            .prop_map(|(room, most, path, second)| Step::Datagram { room, most, path, second }),
        5 => any::<usize>().prop_map(Step::Arrives),
        2 => any::<usize>().prop_map(Step::Lost),
        2 => (1u64..40).prop_map(Step::Wait),
        2 => (0u64..40_000).prop_map(Step::Allow),
    ]
}

fn flow() -> impl Strategy<Value = FlowOptions> {
    let group = prop::option::weighted(0.2, Just(1u8));
    (select(&Class::ALL[..]), select(&[3u8, 3, 3, 5][..]), select(&[8u8, 16, 32][..]), group, 0u8..8)
        .prop_map(|(class, level, weight, group, rest)| FlowOptions {
            urgency: Urgency::new(level).unwrap(),
            weight,
            group: group.filter(|_| class.sequenced),
            redundant: rest == 0,
            buffering: Duration::from_millis(if rest == 1 { 20 } else { 0 }),
            queue: 60_000,
            ..FlowOptions::new(class)
        })
}

/// What is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Carried {
    Segment(Vec<Content>),
    Datagram(Vec<Leaver>),
}

struct World {
    sender: Sender,
    /// It may send in runs.
    runs: bool,
    now: Duration,
    allowed: u64,
    flying: Vec<Carried>,
    events: Events,
}

impl World {
    fn new(flows: &[FlowOptions], runs: bool) -> Self {
        let (mut sender, allowed) = (Sender::new(), 100_000);
        sender.open(allowed);
        for options in flows {
            sender.open_flow(*options).unwrap();
        }
        let (now, flying, events) = (Duration::ZERO, Vec::new(), Events::default());
        Self { sender, runs, now, allowed, flying, events }
    }

    fn send(&mut self, flow: u64, size: usize, options: SendOptions, replaces: bool) -> String {
        let data = vec![self.sender.len() as u8; size];
        let (sender, flow) = (&mut self.sender, FlowId(flow));
        let replaces = replaces.then_some(&[][..]);
        let sent = sender.send(self.now, replaces, flow, data, options, &mut self.events);
        format!("{:?}", sent.map_err(|refused| refused.error))
    }

    fn segment(&mut self, chance: Chance, limit: usize) -> Vec<u8> {
        let (mut out, sender) = (Vec::new(), &mut self.sender);
        let mut draft = Draft::new(&mut out, 12_000);
        sender.put_skips(&mut draft, |draft| draft.len() < 2000);
        while sender.has_copy_for(chance) && draft.len() < limit && sender.put_copy(chance, &mut draft) {}
        let mut barren = 0;
        while draft.room() >= MIN_PIECE && draft.len() < limit {
            let levels = sender.levels() & !barren;
            let level = levels.trailing_zeros() as u8;
            let (now, events) = (self.now, &mut self.events);
            let sent = match levels.count_ones() {
                0 => break,
                1 if self.runs => sender.put_all(level, now, chance, limit, &mut draft, events),
                _ => sender.put_one(level, now, chance, limit, &mut draft, events),
            };
            barren |= if sent { 0 } else { 1 << level };
        }
        let contents = draft.contents.to_vec();
        if !contents.is_empty() {
            self.flying.push(Carried::Segment(contents));
        }
        out
    }

    fn datagram(&mut self, chance: Chance, most: usize) -> Vec<u8> {
        let (mut out, mut leavers, sender) = (Vec::new(), Leavers::new(), &mut self.sender);
        if let Some(copied) = sender.copy_alone(chance) {
            leavers.extend(sender.put_copy_alone(copied, &mut out));
        }
        while leavers.len() < most && !sender.is_idle() {
            let room = chance.datagram - out.len() as u64;
            let (chance, level) =
                (Chance { datagram: room, ..chance }, sender.levels().trailing_zeros() as u8);
            if self.runs && sender.levels().count_ones() == 1 {
                let most = most - leavers.len();
                let together = Together { room, most, out: &mut out, leavers: &mut leavers };
                match sender.put_run_alone(level, self.now, chance, together) {
                    Ran::In => continue,
                    Ran::Full => break,
                    Ran::Not => {}
                }
            }
            let put = sender.put_alone(level, self.now, chance, &mut out, &mut self.events);
            let Some(leaver) = put else { break };
            leavers.push(leaver);
        }
        assert!(out.len() as u64 <= chance.datagram, "{} of {}", out.len(), chance.datagram);
        if !leavers.is_empty() {
            self.flying.push(Carried::Datagram(leavers.to_vec()));
        }
        out
    }

    fn all_delivered(&mut self, ids: std::ops::Range<u64>) {
        let (now, sender, events) = (self.now, &mut self.sender, &mut self.events);
        if self.runs {
            return sender.all_delivered(now, ids, events);
        }
        for id in ids {
            if let Some(size) = sender.messages.get(id).map(Outgoing::size) {
                sender.delivered(now, id, 0..size, events);
            }
        }
    }

    /// The peer has something that was under way.
    fn arrives(&mut self, what: usize) {
        match self.flying.remove(what) {
            Carried::Datagram(leavers) => {
                for run in leavers.chunk_by(|one, next| one.id + 1 == next.id) {
                    self.all_delivered(run[0].id..run[run.len() - 1].id + 1);
                }
            }
            Carried::Segment(contents) => {
                for content in contents {
                    let (now, sender, events) = (self.now, &mut self.sender, &mut self.events);
                    match content {
                        Content::Message { id, range, .. } => {
                            sender.delivered(now, id, range.start.into()..range.end.into(), events);
                        }
                        Content::Messages { ids, .. } => self.all_delivered(ids),
                        Content::Skip(id) => sender.skip_delivered(id, events),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    fn is_lost(&mut self, what: usize) {
        let (sender, events) = (&mut self.sender, &mut self.events);
        match self.flying.remove(what) {
            Carried::Datagram(leavers) => {
                leavers.iter().for_each(|leaver| sender.come_back(leaver.id, 0..leaver.size, events));
            }
            Carried::Segment(contents) => {
                for content in contents {
                    match content {
                        Content::Message { id, range, .. } => {
                            sender.come_back(id, range.start.into()..range.end.into(), events);
                        }
                        Content::Messages { ids, .. } => sender.all_come_back(ids, events),
                        Content::Skip(id) => sender.skip_came_back(id),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    fn chance(datagram: u64, takes_now: bool, path: u64, second: bool) -> Chance {
        Chance { path: PathId(path), takes_now, datagram, reliable: true, second, redundant: false }
    }

    fn take(&mut self, step: &Step) -> String {
        match *step {
            Step::Send { flow, size, lifetime, tag, replaces } => {
                let lifetime = lifetime.map(Duration::from_millis);
                let options = SendOptions { lifetime, tag: tag.map(Tag), ..SendOptions::default() };
                self.send(flow, size, options, replaces && tag.is_some())
            }
            Step::Flood { flow, size, count } => {
                let options =
                    SendOptions { lifetime: Some(Duration::from_secs(1)), ..SendOptions::default() };
                (0..count).map(|_| self.send(flow, size, options, false)).collect()
            }
            Step::Cancel { flow, tag } => {
                let fate = crate::message::Outcome::Cancelled;
                format!("{:?}", self.sender.cancel(FlowId(flow), Tag(tag), fate, &mut self.events))
            }
            Step::Segment { limit, takes_now, datagram, path, second } => {
                format!("{:?}", self.segment(Self::chance(datagram, takes_now, path, second), limit))
            }
            Step::Datagram { room, most, path, second } => {
                format!("{:?}", self.datagram(Self::chance(room, true, path, second), most))
            }
            Step::Arrives(what) if !self.flying.is_empty() => {
                self.arrives(what % self.flying.len());
                String::new()
            }
            Step::Lost(what) if !self.flying.is_empty() => {
                self.is_lost(what % self.flying.len());
                String::new()
            }
            Step::Arrives(_) | Step::Lost(_) => String::new(),
            Step::Wait(millis) => {
                self.now += Duration::from_millis(millis);
                self.sender.run(self.now, &mut self.events);
                String::new()
            }
            Step::Allow(more) => {
                self.allowed += more;
                self.sender.allow(self.allowed);
                String::new()
            }
        }
    }

    /// Everything there is to see. What is told of several at once is told in any order.
    fn seen(&mut self) -> (String, Vec<u8>) {
        let mut events: Vec<String> =
            std::iter::from_fn(|| self.events.pop()).map(|event| format!("{event:?}")).collect();
        events.sort();
        let mut bytes = Vec::new();
        self.sender.write_down(&mut bytes);
        self.sender.write_tallies_down(&mut bytes);
        let (held, deadline) = (self.sender.held(), self.sender.deadline());
        (format!("{events:?} {:?} {held} {deadline:?} {:?}", self.sender.stats(), self.flying), bytes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn runs_send_settle_and_lose_what_messages_one_by_one_would(
        flows in prop::collection::vec(flow(), 1..4),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut worlds = [World::new(&flows, true), World::new(&flows, false)];
        for step in &steps {
            let [together, one_by_one] = worlds.each_mut().map(|world| (world.take(step), world.seen()));
            prop_assert_eq!(together, one_by_one, "{:?}", step);
        }
        let [mut world, _] = worlds;
        for _ in 0..2000 {
            world.take(&Step::Wait(20));
            world.take(&Step::Allow(cost(20_000)));
            world.take(&Step::Segment { limit: 12_000, takes_now: true, datagram: 0, path: 0, second: false });
            while !world.flying.is_empty() {
                world.take(&Step::Arrives(0));
            }
            if world.sender.is_drained() {
                break;
            }
        }
        let sender = &world.sender;
        prop_assert!(sender.is_drained() && sender.deadline().is_none() && sender.is_idle());
        prop_assert_eq!((sender.held(), sender.len()), (0, 0));
        prop_assert!(sender.flows.iter().all(|flow| flow.queued == 0));
        prop_assert!(sender.lanes.iter().all(|lane| lane.backlog == 0 && lane.in_segments == 0));
    }
}
