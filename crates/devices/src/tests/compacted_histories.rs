//! Whatever happens: replicas that let go of entries are equal, and equal to those that keep all.

use std::time::Duration;

use proptest::prelude::*;

use super::checkpoints::{acknowledge, add, compact, links};
use super::stage::{Stage, device_name, label, stranger};
use crate::{Label, Last, Log, Op, Rights, Subject, Visibility};

const DEVICES: usize = 4;
const DAY: i64 = 86_400;

#[derive(Clone, Debug)]
enum Step {
    Say(usize, Saying),
    Remove(usize, usize),
    Trust(usize, usize, bool),
    Meet(usize, usize),
    Fetch(usize, usize),
    Pass(u64),
    Clock(usize, i64),
    Compact,
    /// What is said of a device reaches back, as no honest device has it.
    Reach {
        by: usize,
        whom: usize,
        back: u64,
        distrust: bool,
    },
    /// A side says what it may not.
    Force(usize, Saying),
    Backup(usize),
    Restore(usize),
}

#[derive(Clone, Copy, Debug)]
enum Saying {
    Seen,
    Stranger(u8),
    Show(usize, bool),
    Friend(u8, bool),
    Allow(u8, bool),
    FriendDevice(u8, u8, bool),
    CallDevice(usize, u8),
    CallFriend(u8, u8),
    CallFriendDevice(u8, u8, u8),
}

impl Saying {
    fn op(self, stage: &Stage) -> Op {
        let name = |number: u8| -> Label { label(&format!("name-{number}")) };
        let friend_device = |device: u8| stranger(10 + device);
        match self {
            Self::Seen => Op::Seen,
            Self::Stranger(number) => {
                Op::AddDevice { device: stranger(20 + number), name: device_name(9), trusted: false }
            }
            Self::Show(device, to) => {
                let to = if to { Visibility::Friends } else { Visibility::Nobody };
                Op::Show { device: stage.id(device), to }
            }
            Self::Friend(friend, true) => add(friend),
            Self::Friend(friend, false) => Op::RemoveFriend { friend: stranger(friend) },
            Self::Allow(friend, may) => {
                Op::Allow { friend: stranger(friend), rights: Rights { presence: may, devices: !may } }
            }
            Self::FriendDevice(friend, device, true) => {
                Op::AddFriendDevice { friend: stranger(friend), device: friend_device(device), name: None }
            }
            Self::FriendDevice(friend, device, false) => {
                Op::RemoveFriendDevice { friend: stranger(friend), device: friend_device(device) }
            }
            Self::CallDevice(device, called) => {
                Op::Call { whom: Subject::Device(stage.id(device)), name: name(called) }
            }
            Self::CallFriend(friend, called) => {
                Op::Call { whom: Subject::Friend(stranger(friend)), name: name(called) }
            }
            Self::CallFriendDevice(friend, device, called) => {
                let whom = Subject::FriendDevice(stranger(friend), friend_device(device));
                Op::Call { whom, name: name(called) }
            }
        }
    }
}

fn saying() -> impl Strategy<Value = Saying> {
    let (device, few, name) = (1..=DEVICES, 0..3_u8, 0..4_u8);
    prop_oneof![
        1 => Just(Saying::Seen),
        3 => (device.clone(), any::<bool>()).prop_map(|(device, to)| Saying::Show(device, to)),
        5 => (few.clone(), any::<bool>()).prop_map(|(friend, add)| Saying::Friend(friend, add)),
        2 => (few.clone(), any::<bool>()).prop_map(|(friend, may)| Saying::Allow(friend, may)),
        3 => (few.clone(), few.clone(), any::<bool>())
            .prop_map(|(friend, device, add)| Saying::FriendDevice(friend, device, add)),
        3 => (device, name.clone()).prop_map(|(device, name)| Saying::CallDevice(device, name)),
        3 => (few.clone(), name.clone()).prop_map(|(friend, name)| Saying::CallFriend(friend, name)),
        2 => (few.clone(), few, name)
            .prop_map(|(friend, device, name)| Saying::CallFriendDevice(friend, device, name)),
    ]
}

/// What happens among honest devices.
fn honest() -> impl Strategy<Value = Step> {
    let side = 0..=DEVICES;
    let two = (side.clone(), side.clone());
    let clock = prop_oneof![Just(0), Just(DAY), Just(-DAY), -DAY..=DAY];
    prop_oneof![
        14 => (side.clone(), saying()).prop_map(|(side, saying)| Step::Say(side, saying)),
        1 => two.clone().prop_map(|(by, whom)| Step::Remove(by, whom)),
        2 => (two.clone(), any::<bool>()).prop_map(|((by, whom), trusted)| Step::Trust(by, whom, trusted)),
        14 => two.clone().prop_map(|(one, other)| Step::Meet(one, other)),
        3 => two.prop_map(|(to, from)| Step::Fetch(to, from)),
        1 => (0..3 * DAY as u64 * 1000).prop_map(Step::Pass),
        2 => (side, clock).prop_map(|(side, skew)| Step::Clock(side, skew)),
        4 => Just(Step::Compact),
    ]
}

/// And what happens among others.
fn hostile() -> impl Strategy<Value = Step> {
    let device = 1..=DEVICES;
    let stranger = (0..3_u8).prop_map(Saying::Stranger);
    let reach = (device.clone(), 0..=DEVICES, 0..4_u64, any::<bool>())
        .prop_map(|(by, whom, back, distrust)| Step::Reach { by, whom, back, distrust });
    prop_oneof![
        20 => honest(),
        2 => reach,
        1 => (device.clone(), saying()).prop_map(|(side, saying)| Step::Force(side, saying)),
        1 => (device.clone(), stranger).prop_map(|(side, saying)| Step::Force(side, saying)),
        1 => device.clone().prop_map(Step::Backup),
        1 => device.prop_map(Step::Restore),
    ]
}

/// Replicas that compact, and beside each one that has the same entries and never does.
struct Play {
    stage: Stage,
    whole: Vec<Log>,
    backups: Vec<Option<Log>>,
}

impl Play {
    fn new() -> Self {
        let stage = Stage::new(DEVICES, 3);
        let whole = stage.sides.iter().map(|side| side.log.clone()).collect();
        Self { stage, whole, backups: vec![None; DEVICES + 1] }
    }

    /// Does something to a side that may write; the one beside it has the same then.
    fn write(&mut self, side: usize, run: impl FnOnce(&mut Stage)) {
        let before = self.stage.log(side).vector();
        run(&mut self.stage);
        let mut update = self.stage.log(side).missing(&before);
        update.checkpoints = crate::checkpoint::Checkpoints::default();
        let now = self.stage.now(side);
        self.whole[side].take(update, now);
    }

    fn fetch(&mut self, to: usize, from: usize) {
        self.stage.fetch(to, from);
        acknowledge(&mut self.stage, to);
        let update = self.whole[from].missing(&self.whole[to].vector());
        let now = self.stage.now(to);
        self.whole[to].take(update, now);
    }

    fn meet(&mut self, one: usize, other: usize) {
        for _ in 0..4 {
            self.fetch(one, other);
            self.fetch(other, one);
        }
    }

    fn gather(&mut self) {
        for _ in 0..4 {
            for number in 1..=DEVICES {
                self.meet(0, number);
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            // It may not be allowed, or not make sense here.
            Step::Say(side, saying) => self.write(side, |stage| {
                let op = saying.op(stage);
                let _ = stage.write(side, op);
            }),
            Step::Force(side, saying) => self.write(side, |stage| {
                let op = saying.op(stage);
                stage.force(side, op);
            }),
            Step::Remove(by, whom) => self.write(by, |stage| drop(stage.remove(by, whom))),
            Step::Trust(by, whom, trusted) => self.write(by, |stage| {
                let device = stage.id(whom);
                let op = match trusted {
                    true => Op::Trust { device },
                    false => Op::Distrust { device, last: stage.log(by).last_of(device) },
                };
                let _ = stage.write(by, op);
            }),
            Step::Reach { by, whom, back, distrust } => self.write(by, |stage| {
                let device = stage.id(whom);
                let Some(chain) = stage.log(by).chains().get(&device) else { return };
                let sequence = chain.head().sequence.saturating_sub(back);
                let last = Last { sequence, hash: chain.hash_at(sequence).unwrap_or_default() };
                let op = match distrust {
                    true => Op::Distrust { device, last },
                    false => Op::RemoveDevice { device, last },
                };
                stage.force(by, op);
            }),
            Step::Meet(one, other) => self.meet(one, other),
            Step::Fetch(to, from) => self.fetch(to, from),
            Step::Pass(millis) => self.stage.pass(Duration::from_millis(millis)),
            Step::Clock(side, skew) => self.stage.sides[side].skew = skew,
            Step::Compact => drop(compact(&mut self.stage)),
            Step::Backup(side) => self.backups[side] = Some(self.stage.log(side).clone()),
            Step::Restore(side) => {
                if let Some(copy) = &self.backups[side] {
                    self.stage.sides[side].log = copy.clone();
                }
            }
        }
    }

    fn all_equal(&self) -> Result<(), TestCaseError> {
        for (number, side) in self.stage.sides.iter().enumerate() {
            prop_assert_eq!(side.log.vector(), self.stage.log(0).vector(), "logs of 0 and {}", number);
            prop_assert_eq!(side.log.group(), self.stage.log(0).group(), "groups of 0 and {}", number);
        }
        Ok(())
    }
}

fn play(steps: &[Step]) -> Result<Play, TestCaseError> {
    let mut play = Play::new();
    steps.iter().for_each(|step| play.run(step));
    // All clocks are past what anybody wrote.
    play.stage.pass(Duration::from_secs(10 * DAY as u64));
    play.gather();
    play.all_equal()?;
    Ok(play)
}

/// How many histories `make test` tries.
const HISTORIES: u32 = 300;
/// Of so many that WHIMBREL_HISTORIES asks for one is tried: with checkpoints it takes far longer.
const SHARE: u32 = 10;

fn try_histories(steps: impl Strategy<Value = Step>, holds: impl Fn(Play) -> Result<(), TestCaseError>) {
    let wanted = std::env::var("WHIMBREL_HISTORIES").ok().and_then(|count| count.parse().ok());
    let cases = wanted.map_or(HISTORIES, |count: u32| count.div_ceil(SHARE));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let histories = prop::collection::vec(steps, 0..60);
    if let Err(error) = runner.run(&histories, |steps| holds(play(&steps)?)) {
        panic!("{error}");
    }
}

/// Partitions, wrong clocks, removals and checkpoints at any time: what there is in the end is what there
/// would be without checkpoints. And the last one is always closed.
#[test]
fn after_any_history_replicas_that_compact_are_equal_to_those_that_never_do() {
    try_histories(honest(), |mut play| {
        for (number, whole) in play.whole.iter().enumerate() {
            prop_assert_eq!(whole.group(), play.stage.log(0).group(), "without checkpoints, {}", number);
        }
        let group = play.stage.log(0).group().clone();
        prop_assert!(compact(&mut play.stage).is_ok());
        play.gather();
        play.all_equal()?;
        prop_assert_eq!(play.stage.log(0).group(), &group);
        let removed = |number: usize| group.is_removed(play.stage.id(number));
        let members = (0..=DEVICES).filter(|number| !removed(*number));
        for number in members {
            prop_assert_eq!(links(play.stage.log(number)), 0, "{} has all entries", number);
        }
        Ok(())
    });
}

/// Also removals that reach behind what was agreed, entries that may not be, and backups.
#[test]
fn after_any_history_with_checkpoints_and_thieves_all_replicas_are_equal() {
    try_histories(hostile(), |_| Ok(()));
}
