//! Entries that all devices agreed on are let go, and nothing that counts is.

use std::time::Duration;

use proptest::prelude::*;

use super::stage::{Stage, device_name, label, stranger};
use crate::checkpoint::Closed;
use crate::{Label, Last, Log, Op, Refusal, Rights, Subject, Vector, Visibility, WriteError};

const DEVICES: usize = 4;
const DAY: i64 = 86_400;

fn compact(stage: &mut Stage) -> Result<bool, WriteError> {
    let key = stage.sides[0].key.clone();
    stage.sides[0].log.compact(&key)
}

fn acknowledge(stage: &mut Stage, number: usize) -> bool {
    let key = stage.sides[number].key.clone();
    stage.sides[number].log.acknowledge(&key)
}

/// All meet and sign, until nothing new comes of it.
fn gather(stage: &mut Stage) {
    for _ in 0..3 {
        stage.gather();
        for number in 0..stage.sides.len() {
            acknowledge(stage, number);
        }
    }
    stage.gather();
}

/// How many entries a side still has one by one.
fn links(log: &Log) -> usize {
    log.chains().values().map(crate::chain::Chain::len).sum()
}

fn closed(log: &Log) -> Option<&Closed> {
    log.checkpoints().closed.as_deref()
}

fn call(friend: u8, name: &str) -> Op {
    Op::Call { whom: Subject::Friend(stranger(friend)), name: label(name) }
}

fn add(friend: u8) -> Op {
    Op::AddFriend { friend: stranger(friend), name: None }
}

/// Two devices that act for the user and one that does not, with some history that all know.
fn busy() -> Stage {
    let mut stage = Stage::new(3, 2);
    stage.write(1, add(1)).unwrap();
    for number in 0..20 {
        stage.write(1, call(1, &format!("pal{number}"))).unwrap();
    }
    stage.write(2, add(2)).unwrap();
    stage.gather();
    stage
}

#[test]
fn entries_are_let_go_once_all_devices_signed_and_what_they_came_to_stays() {
    let mut stage = busy();
    let (group, had) = (stage.log(0).group().clone(), stage.log(0).len());
    assert_eq!(compact(&mut stage), Ok(true));
    stage.gather();
    assert_eq!(stage.log(0).waited_for().len(), 3);
    for number in [1, 2] {
        assert!(acknowledge(&mut stage, number));
    }
    stage.gather();
    assert_eq!(stage.log(0).waited_for(), [stage.id(3)].into());
    assert_eq!(links(stage.log(0)), had, "device 3 may know more");
    assert!(acknowledge(&mut stage, 3));
    stage.gather();
    assert!(stage.agree());
    for side in &stage.sides {
        assert_eq!((links(&side.log), side.log.group()), (0, &group));
        assert!(side.log.len() < had / 2, "{} of {had}", side.log.len());
    }
    assert_eq!(compact(&mut stage), Ok(false), "there is nothing new");
    // And goes on.
    stage.write(3, Op::Call { whom: Subject::Device(stage.id(3)), name: label("tv") }).unwrap();
    stage.write(2, call(1, "ann")).unwrap();
    gather(&mut stage);
    assert!(stage.agree());
    assert_eq!(stage.call(1, Subject::Friend(stranger(1))).as_deref(), Some("ann"));
    assert_eq!(compact(&mut stage), Ok(true));
    gather(&mut stage);
    assert_eq!((links(stage.log(3)), closed(stage.log(3)).unwrap().stated.checkpoint.number), (0, 2));
}

#[test]
fn what_a_device_wrote_weeks_apart_takes_its_place_by_its_time_among_what_was_let_go() {
    let mut stage = busy();
    // Device 2 is apart, and writes before device 1 does.
    stage.write(2, call(1, "early")).unwrap();
    stage.write(2, call(2, "bea")).unwrap();
    stage.write(1, call(1, "late")).unwrap();
    stage.meet(0, 1);
    assert_eq!(compact(&mut stage), Ok(true));
    gather(&mut stage);
    assert!(stage.agree() && closed(stage.log(2)).is_some());
    assert_eq!(links(stage.log(0)), 2, "what device 2 wrote is behind the checkpoint");
    assert_eq!(stage.call(0, Subject::Friend(stranger(1))).as_deref(), Some("late"));
    assert_eq!(stage.call(0, Subject::Friend(stranger(2))).as_deref(), Some("bea"));
}

#[test]
fn a_friend_that_was_removed_stays_out_whatever_comes_dated_back() {
    let mut stage = busy();
    stage.write(2, call(1, "old-friend")).unwrap();
    stage.write(1, Op::RemoveFriend { friend: stranger(1) }).unwrap();
    stage.meet(0, 1);
    compact(&mut stage).unwrap();
    gather(&mut stage);
    assert!(closed(stage.log(2)).is_some());
    assert!(stage.log(0).group().friend(stranger(1)).is_none());
}

#[test]
fn a_device_that_removed_another_one_from_before_the_checkpoint_does_not_sign_it() {
    let mut stage = busy();
    let last = stage.log(2).last_of(stage.id(1));
    // A thief has device 1, and device 2, apart, removes it as of before.
    stage.write(1, call(1, "thief")).unwrap();
    stage.write(2, Op::RemoveDevice { device: stage.id(1), last }).unwrap();
    stage.meet(0, 1);
    compact(&mut stage).unwrap();
    acknowledge(&mut stage, 1);
    stage.fetch(2, 0);
    assert!(!acknowledge(&mut stage, 2));
    gather(&mut stage);
    assert!(stage.agree() && closed(stage.log(0)).is_none());
    assert_eq!(stage.call(0, Subject::Friend(stranger(1))).as_deref(), Some("pal19"));
    // The next one has it as it is.
    assert_eq!(compact(&mut stage), Ok(true));
    gather(&mut stage);
    assert!(stage.agree() && closed(stage.log(3)).is_some());
    assert_eq!(stage.call(3, Subject::Friend(stranger(1))).as_deref(), Some("pal19"));
    assert!(stage.log(3).group().is_removed(stage.id(1)));
    // What the thief says later is not taken.
    stage.force(1, Op::Seen);
    let report = stage.fetch(0, 1);
    assert!(!report.is_change());
}

#[test]
fn a_removal_that_names_an_entry_before_the_checkpoint_is_refused_or_reaches_back_to_it_alone() {
    let mut stage = busy();
    let early = stage.log(0).chains()[&stage.id(1)].hash_at(2).unwrap();
    let last = Last { sequence: 2, hash: early };
    compact(&mut stage).unwrap();
    gather(&mut stage);
    stage.write(1, call(1, "after")).unwrap();
    gather(&mut stage);
    let op = Op::RemoveDevice { device: stage.id(1), last };
    assert_eq!(stage.write(2, op.clone()), Err(WriteError::Closed));
    stage.force(2, op);
    gather(&mut stage);
    assert!(stage.agree() && stage.log(0).group().is_removed(stage.id(1)));
    assert_eq!(stage.call(0, Subject::Friend(stranger(1))).as_deref(), Some("pal19"));
}

#[test]
fn a_device_that_knows_nothing_yet_takes_the_base_and_goes_on() {
    let mut stage = busy();
    compact(&mut stage).unwrap();
    gather(&mut stage);
    stage.write(1, call(2, "bea")).unwrap();
    stage.gather();
    stage.sides[3].log = Log::new(stage.id(0));
    stage.meet(3, 1);
    assert_eq!((stage.log(3).vector(), stage.log(3).group()), (stage.log(1).vector(), stage.log(1).group()));
    stage.write(3, Op::Seen).unwrap();
    stage.gather();
    assert!(stage.agree());
}

#[test]
fn a_device_restored_from_before_the_checkpoint_goes_on_behind_it_and_does_not_fork() {
    let mut stage = busy();
    let backup = stage.log(1).clone();
    stage.write(1, call(1, "newer")).unwrap();
    stage.gather();
    compact(&mut stage).unwrap();
    gather(&mut stage);
    stage.sides[1].log = backup;
    stage.meet(1, 2);
    stage.write(1, call(1, "newest")).unwrap();
    stage.gather();
    assert!(stage.agree() && stage.log(0).forked().count() == 0);
    assert_eq!(stage.call(3, Subject::Friend(stranger(1))).as_deref(), Some("newest"));
}

#[test]
fn a_second_history_of_what_a_checkpoint_covers_changes_nothing_and_is_told() {
    let mut stage = busy();
    let mut twin = stage.clone();
    stage.write(1, call(1, "one")).unwrap();
    stage.gather();
    compact(&mut stage).unwrap();
    gather(&mut stage);
    twin.write(1, call(1, "other")).unwrap();
    twin.write(1, call(1, "another")).unwrap();
    let update = twin.log(1).missing(&Vector::default());
    let now = stage.now(0);
    let report = stage.sides[0].log.take(update, now);
    assert!(!report.is_change());
    assert!(report.refused.contains(&(stage.id(1), Refusal::Closed)), "{:?}", report.refused);
    // Behind it a second history is proved as ever.
    let mut twin = stage.clone();
    twin.write(1, call(1, "two")).unwrap();
    stage.write(1, call(1, "three")).unwrap();
    stage.meet(0, 1);
    let update = twin.log(1).missing(&stage.log(2).vector());
    assert_eq!(stage.sides[0].log.take(update, now).forked, [stage.id(1)]);
    stage.gather();
    assert!(stage.agree() && stage.log(3).forked().count() == 1);
    assert_eq!(compact(&mut stage), Err(WriteError::ForkedDevice(stage.id(1))));
    stage.remove(0, 1).unwrap();
    assert_eq!(compact(&mut stage), Ok(true));
    gather(&mut stage);
    assert!(stage.agree() && stage.log(3).forked().count() == 0);
}

/// A checkpoint of the user's key that leaves out what device 1 said, with signatures of these sides.
fn invented(stage: &Stage, signers: &[usize], change: impl FnOnce(&mut Closed)) -> Closed {
    let mut thief = stage.clone();
    compact(&mut thief).unwrap();
    let open = thief.log(0).checkpoints().open.clone().unwrap();
    gather(&mut thief);
    let base = closed(thief.log(0)).unwrap().base.clone();
    let mut closed = Closed { stated: *open, base };
    change(&mut closed);
    closed.stated.checkpoint.base = closed.base.hash();
    let user = stage.sides[0].key.clone();
    closed.stated = crate::checkpoint::Stated::new(closed.stated.checkpoint, &user);
    for side in signers {
        closed.stated.sign(user.id(), &stage.sides[*side].key);
    }
    closed
}

fn taken(stage: &mut Stage, by: usize, closed: Closed) -> crate::Report {
    let checkpoints = crate::checkpoint::Checkpoints { closed: Some(Box::new(closed)), open: None };
    let now = stage.now(by);
    stage.sides[by].log.take(crate::Update { checkpoints, ..crate::Update::default() }, now)
}

#[test]
fn a_checkpoint_that_invents_or_hides_something_is_refused_where_the_entries_are() {
    let mut stage = busy();
    let group = stage.log(2).group().clone();
    let hide_friend = |closed: &mut Closed| {
        closed.base.entries.retain(|(_, op)| !matches!(op, Op::AddFriend { .. }));
    };
    let leave_out_devices = |closed: &mut Closed| {
        closed.base.entries.retain(|(_, op)| !matches!(op, Op::AddDevice { .. }));
    };
    for forged in [
        invented(&stage, &[1, 3], |_| {}),
        invented(&stage, &[1, 3], hide_friend),
        invented(&stage, &[], leave_out_devices),
        invented(&stage, &[], |closed| closed.base.entries.clear()),
    ] {
        let report = taken(&mut stage, 2, forged);
        assert_eq!(report.refused, [(stage.id(0), Refusal::Checkpoint)]);
        assert_eq!((links(stage.log(2)), stage.log(2).group()), (stage.log(2).len(), &group));
    }
    // One that has but a part, with the user's word of who the devices are.
    let mut part = Log::new(stage.id(0));
    let mut update = stage.log(0).missing(&Vector::default());
    update.runs.retain(|run| run.author == stage.id(0));
    part.take(update, stage.now(2));
    stage.sides[2].log = part;
    let forged = invented(&stage, &[], leave_out_devices);
    assert_eq!(taken(&mut stage, 2, forged).refused, [(stage.id(0), Refusal::Checkpoint)]);
}

#[test]
fn nobody_but_the_users_key_states_a_checkpoint_and_a_changed_one_is_refused() {
    let mut stage = busy();
    let key = stage.sides[1].key.clone();
    assert_eq!(stage.sides[1].log.compact(&key), Err(WriteError::NotUser));
    let right = invented(&stage, &[1, 2, 3], |_| {});
    let mut forged = right.clone();
    forged.stated.checkpoint.number += 1;
    assert_eq!(taken(&mut stage, 2, forged).refused, [(stage.id(0), Refusal::Checkpoint)]);
    let mut forged = right.clone();
    forged.base.entries.pop();
    assert_eq!(taken(&mut stage, 2, forged).refused, [(stage.id(0), Refusal::Checkpoint)]);
    assert!(taken(&mut stage, 2, right.clone()).checkpoint);
    assert_eq!(links(stage.log(2)), 0);
    assert!(!taken(&mut stage, 2, right).checkpoint, "it is there");
}

// --- Any history.

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
        let id = |stage: &Stage, whom: usize| stage.id(whom);
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
                let device = id(stage, whom);
                let op = match trusted {
                    true => Op::Trust { device },
                    false => Op::Distrust { device, last: stage.log(by).last_of(device) },
                };
                let _ = stage.write(by, op);
            }),
            Step::Reach { by, whom, back, distrust } => self.write(by, |stage| {
                let device = id(stage, whom);
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

fn try_histories(steps: impl Strategy<Value = Step>, holds: impl Fn(Play) -> Result<(), TestCaseError>) {
    let wanted = std::env::var("WHIMBREL_HISTORIES").ok().and_then(|count| count.parse().ok());
    let cases = wanted.unwrap_or(300);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let histories = prop::collection::vec(steps, 0..60);
    if let Err(error) = runner.run(&histories, |steps| holds(play(&steps)?)) {
        panic!("{error}");
    }
}

/// Partitions, wrong clocks, removals and checkpoints at any time: what there is in the end is what there would
/// be without checkpoints. And the last one is always closed.
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
