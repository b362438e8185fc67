//! Whatever happens, in whatever order: devices that met have the same group.

use std::time::Duration;

use proptest::prelude::*;

use super::stage::{Stage, device_name, label, stranger};
use crate::{Last, Log, MAX_UNTRUSTED, Op, Rights, Subject, Visibility};

const DEVICES: usize = 5;
const DAY: i64 = 86_400;

/// What can happen.
#[derive(Clone, Debug)]
enum Step {
    /// A side writes what it may.
    Write(usize, Saying),
    /// A side writes so many entries.
    Much(usize, usize),
    /// A side writes it although it may not.
    Force(usize, Saying),
    /// A side removes a device; the entry that it says is the last may be an earlier one.
    Remove { by: usize, whom: usize, back: u64, force: bool },
    /// A side trusts a device or not any more.
    Trust { by: usize, whom: usize, trusted: bool, back: u64, force: bool },
    /// Two sides meet. Those that don't are apart.
    Meet(usize, usize),
    /// One takes from another, which does not hear of it.
    Fetch(usize, usize),
    /// Time passes.
    Pass(u64),
    /// A clock is wrong by so many seconds from now on.
    Clock(usize, i64),
    /// A side keeps a copy of its disk.
    Backup(usize),
    /// A side is set back to its copy.
    Restore(usize),
}

#[derive(Clone, Debug)]
enum Saying {
    Seen,
    AddDevice(usize, bool),
    AddStranger(u8),
    Show(usize, bool),
    AddFriend(u8),
    RemoveFriend(u8),
    Allow(u8, bool),
    FriendDevice(u8, u8, bool),
    CallDevice(usize, u8),
    CallFriend(u8, u8),
    CallFriendDevice(u8, u8, u8),
}

fn saying() -> impl Strategy<Value = Saying> {
    let (device, few, name) = (0..=DEVICES, 0..3_u8, 0..4_u8);
    prop_oneof![
        1 => Just(Saying::Seen),
        2 => (device.clone(), any::<bool>()).prop_map(|(device, trusted)| Saying::AddDevice(device, trusted)),
        1 => few.clone().prop_map(Saying::AddStranger),
        1 => (device.clone(), any::<bool>()).prop_map(|(device, to)| Saying::Show(device, to)),
        3 => few.clone().prop_map(Saying::AddFriend),
        2 => few.clone().prop_map(Saying::RemoveFriend),
        1 => (few.clone(), any::<bool>()).prop_map(|(friend, may)| Saying::Allow(friend, may)),
        1 => (few.clone(), few.clone(), any::<bool>())
            .prop_map(|(friend, device, add)| Saying::FriendDevice(friend, device, add)),
        2 => (device, name.clone()).prop_map(|(device, name)| Saying::CallDevice(device, name)),
        3 => (few.clone(), name.clone()).prop_map(|(friend, name)| Saying::CallFriend(friend, name)),
        1 => (few.clone(), few, name)
            .prop_map(|(friend, device, name)| Saying::CallFriendDevice(friend, device, name)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0..=DEVICES;
    let two = (side.clone(), side.clone());
    let clock = prop_oneof![Just(0), Just(DAY), Just(-DAY), -DAY..=DAY];
    prop_oneof![
        10 => (side.clone(), saying()).prop_map(|(side, saying)| Step::Write(side, saying)),
        3 => (side.clone(), saying()).prop_map(|(side, saying)| Step::Force(side, saying)),
        3 => (two.clone(), 0..3_u64, prop::bool::weighted(0.3)).prop_map(|((by, whom), back, force)| {
            Step::Remove { by, whom, back, force }
        }),
        2 => (two.clone(), any::<bool>(), 0..3_u64, prop::bool::weighted(0.3))
            .prop_map(|((by, whom), trusted, back, force)| Step::Trust { by, whom, trusted, back, force }),
        8 => two.clone().prop_map(|(one, other)| Step::Meet(one, other)),
        3 => two.prop_map(|(to, from)| Step::Fetch(to, from)),
        2 => (0..3 * DAY as u64 * 1000).prop_map(Step::Pass),
        2 => (side.clone(), clock).prop_map(|(side, skew)| Step::Clock(side, skew)),
        1 => side.clone().prop_map(Step::Backup),
        1 => side.prop_map(Step::Restore),
    ]
}

/// Much is written, while trust is given and taken, and what gave it may be gone with a second history.
fn step_of_much() -> impl Strategy<Value = Step> {
    let side = 0..=DEVICES;
    let two = (side.clone(), side.clone());
    let (backup, restored) = two.clone();
    let count = prop_oneof![Just(MAX_UNTRUSTED / 2 + 10), Just(MAX_UNTRUSTED + 10)];
    prop_oneof![
        5 => (side.clone(), count).prop_map(|(side, count)| Step::Much(side, count)),
        3 => (side.clone(), saying()).prop_map(|(side, saying)| Step::Write(side, saying)),
        2 => (side, saying()).prop_map(|(side, saying)| Step::Force(side, saying)),
        3 => (two.clone(), 0..3_u64, prop::bool::weighted(0.3)).prop_map(|((by, whom), back, force)| {
            Step::Remove { by, whom, back, force }
        }),
        5 => (two.clone(), any::<bool>(), 0..3_u64, prop::bool::weighted(0.3))
            .prop_map(|((by, whom), trusted, back, force)| Step::Trust { by, whom, trusted, back, force }),
        4 => two.clone().prop_map(|(one, other)| Step::Meet(one, other)),
        4 => two.prop_map(|(to, from)| Step::Fetch(to, from)),
        1 => backup.prop_map(Step::Backup),
        1 => restored.prop_map(Step::Restore),
    ]
}

struct Play {
    stage: Stage,
    backups: Vec<Option<Log>>,
}

impl Play {
    fn op(&self, saying: &Saying) -> Op {
        let name = |number: &u8| label(&format!("name-{number}"));
        match saying {
            Saying::Seen => Op::Seen,
            Saying::AddDevice(device, trusted) => Op::AddDevice {
                device: self.stage.id(*device),
                name: device_name(*device),
                trusted: *trusted,
            },
            Saying::AddStranger(number) => {
                Op::AddDevice { device: stranger(*number), name: device_name(9), trusted: true }
            }
            Saying::Show(device, to) => {
                let to = if *to { Visibility::Friends } else { Visibility::Nobody };
                Op::Show { device: self.stage.id(*device), to }
            }
            Saying::AddFriend(friend) => Op::AddFriend { friend: stranger(*friend), name: None },
            Saying::RemoveFriend(friend) => Op::RemoveFriend { friend: stranger(*friend) },
            Saying::Allow(friend, may) => {
                let rights = Rights { presence: *may, devices: !*may };
                Op::Allow { friend: stranger(*friend), rights }
            }
            Saying::FriendDevice(friend, device, add) => {
                let (friend, device) = (stranger(*friend), stranger(10 + *device));
                match add {
                    true => Op::AddFriendDevice { friend, device, name: None },
                    false => Op::RemoveFriendDevice { friend, device },
                }
            }
            Saying::CallDevice(device, called) => {
                Op::Call { whom: Subject::Device(self.stage.id(*device)), name: name(called) }
            }
            Saying::CallFriend(friend, called) => {
                Op::Call { whom: Subject::Friend(stranger(*friend)), name: name(called) }
            }
            Saying::CallFriendDevice(friend, device, called) => {
                let whom = Subject::FriendDevice(stranger(*friend), stranger(10 + *device));
                Op::Call { whom, name: name(called) }
            }
        }
    }

    fn say(&mut self, side: usize, op: Op, force: bool) {
        if force {
            self.stage.force(side, op);
        } else {
            // It may not be allowed, or not make sense here.
            let _ = self.stage.write(side, op);
        }
    }

    /// The last entry of a device that is to count, in the eyes of a side.
    fn last(&self, by: usize, whom: usize, back: u64) -> Last {
        let log = self.stage.log(by);
        let Some(chain) = log.chains().get(&self.stage.id(whom)) else { return Last::default() };
        let sequence = chain.head().sequence.saturating_sub(back);
        Last { sequence, hash: chain.hash_at(sequence).unwrap_or_default() }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Write(side, saying) => self.say(*side, self.op(saying), false),
            // It may not be a device any more, or have written too much.
            Step::Much(side, count) => {
                let _ = self.stage.write_all(*side, vec![Op::Seen; *count]);
            }
            Step::Force(side, saying) => self.say(*side, self.op(saying), true),
            Step::Remove { by, whom, back, force } => {
                let op =
                    Op::RemoveDevice { device: self.stage.id(*whom), last: self.last(*by, *whom, *back) };
                self.say(*by, op, *force);
            }
            Step::Trust { by, whom, trusted, back, force } => {
                let device = self.stage.id(*whom);
                let op = match trusted {
                    true => Op::Trust { device },
                    false => Op::Distrust { device, last: self.last(*by, *whom, *back) },
                };
                self.say(*by, op, *force);
            }
            Step::Meet(one, other) => self.stage.meet(*one, *other),
            Step::Fetch(to, from) => drop(self.stage.fetch(*to, *from)),
            Step::Pass(millis) => self.stage.pass(Duration::from_millis(*millis)),
            Step::Clock(side, skew) => self.stage.sides[*side].skew = *skew,
            Step::Backup(side) => self.backups[*side] = Some(self.stage.log(*side).clone()),
            Step::Restore(side) => {
                if let Some(copy) = &self.backups[*side] {
                    self.stage.sides[*side].log = copy.clone();
                }
            }
        }
    }
}

fn all_replicas_are_equal(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut play = Play { stage: Stage::new(DEVICES, 3), backups: vec![None; DEVICES + 1] };
    for step in steps {
        play.run(step);
    }
    // All clocks are past what anybody wrote.
    play.stage.pass(Duration::from_secs(10 * DAY as u64));
    play.stage.gather();
    for (number, side) in play.stage.sides.iter().enumerate() {
        prop_assert_eq!(side.log.vector(), play.stage.log(0).vector(), "logs of 0 and {}", number);
        prop_assert_eq!(side.log.group(), play.stage.log(0).group(), "groups of 0 and {}", number);
        let names = side.log.group().names();
        let mut unique: Vec<_> = names.values().collect();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(unique.len(), names.len(), "a name is there twice");
    }
    Ok(())
}

/// How many histories `make test` tries; WHIMBREL_HISTORIES says otherwise.
const HISTORIES: u32 = 300;

fn cases() -> u32 {
    let wanted = std::env::var("WHIMBREL_HISTORIES").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(HISTORIES)
}

/// One history with long logs is tried for so many others: it takes far longer.
const LONG_SHARE: u32 = 20;

fn try_histories(cases: u32, step: impl Strategy<Value = Step>, steps: usize) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let histories = prop::collection::vec(step, 0..steps);
    if let Err(error) = runner.run(&histories, |steps| all_replicas_are_equal(&steps)) {
        panic!("{error}");
    }
}

/// Partitions, wrong clocks, removals that reach back and contradict each other, forged rights, restored
/// backups.
#[test]
fn after_any_history_all_replicas_are_equal() {
    try_histories(cases(), step(), 48);
}

#[test]
fn after_any_history_of_devices_that_write_much_and_lose_the_trust_all_replicas_are_equal() {
    try_histories(cases().div_ceil(LONG_SHARE), step_of_much(), 20);
}
