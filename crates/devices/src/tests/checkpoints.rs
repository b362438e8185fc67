//! Entries that all devices agreed on are let go, and nothing that counts is.

use std::time::Duration;

use super::stage::{Stage, label, stranger};
use crate::checkpoint::Closed;
use crate::log::{MANY, SETTLING};
use crate::{Last, Log, Op, Refusal, Subject, Vector, WriteError};

pub(super) fn compact(stage: &mut Stage) -> Result<bool, WriteError> {
    let (key, now) = (stage.sides[0].key.clone(), stage.now(0));
    stage.sides[0].log.compact(&key, now)
}

/// Signs as if it was long ago that the user stated it.
pub(super) fn acknowledge(stage: &mut Stage, number: usize) -> bool {
    let (key, now) = (stage.sides[number].key.clone(), stage.now(number).saturating_add(2 * SETTLING));
    stage.sides[number].log.acknowledge(&key, now)
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
pub(super) fn links(log: &Log) -> usize {
    log.chains().values().map(crate::chain::Chain::len).sum()
}

fn closed(log: &Log) -> Option<&Closed> {
    log.checkpoints().closed.as_deref()
}

fn call(friend: u8, name: &str) -> Op {
    Op::Call { whom: Subject::Friend(stranger(friend)), name: label(name) }
}

pub(super) fn add(friend: u8) -> Op {
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
    assert_eq!(stage.log(0).waited_for().len(), 4);
    for number in [0, 1, 2] {
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
    stage.write(2, add(1)).unwrap();
    stage.write(2, call(1, "old-friend")).unwrap();
    stage.write(1, Op::RemoveFriend { friend: stranger(1) }).unwrap();
    stage.meet(0, 1);
    compact(&mut stage).unwrap();
    gather(&mut stage);
    assert!(closed(stage.log(2)).is_some());
    assert_eq!(links(stage.log(0)), 2, "what device 2 wrote is behind the checkpoint");
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
fn a_thief_who_writes_enough_for_a_checkpoint_does_not_make_it_count_before_the_user_had_time_to_notice() {
    let mut stage = busy();
    let last = stage.log(2).last_of(stage.id(1));
    stage.write(1, call(1, "thief")).unwrap();
    stage.gather();
    assert_eq!(compact(&mut stage), Ok(true));
    stage.gather();
    stage.pass(SETTLING - Duration::from_secs(60));
    let signs = |stage: &mut Stage, number: usize| {
        let (key, now) = (stage.sides[number].key.clone(), stage.now(number));
        stage.sides[number].log.acknowledge(&key, now)
    };
    // The thief's own word comes early, and is not enough.
    assert!(acknowledge(&mut stage, 1));
    stage.gather();
    assert!(![0, 2, 3].into_iter().any(|number| signs(&mut stage, number)));
    stage.write(2, Op::RemoveDevice { device: stage.id(1), last }).unwrap();
    stage.gather();
    stage.pass(Duration::from_secs(120));
    assert!(![0, 2, 3].into_iter().any(|number| signs(&mut stage, number)));
    assert!(stage.log(0).is_checkpoint_due(stage.now(0)), "it can't be closed as it is");
    assert_eq!(stage.call(0, Subject::Friend(stranger(1))).as_deref(), Some("pal19"));
    assert_eq!(compact(&mut stage), Ok(true));
    assert!(!stage.log(0).is_checkpoint_due(stage.now(0)));
    stage.pass(SETTLING);
    for number in [0, 2, 3, 0] {
        stage.gather();
        signs(&mut stage, number);
    }
    stage.gather();
    assert_eq!(links(stage.log(3)), 0);
    assert_eq!(stage.call(3, Subject::Friend(stranger(1))).as_deref(), Some("pal19"));
}

#[test]
fn a_checkpoint_that_is_not_closed_for_months_is_stated_anew_once_many_entries_are_behind_it() {
    let mut stage = busy();
    assert!(!stage.log(0).is_checkpoint_due(stage.now(0)), "few entries");
    assert_eq!(compact(&mut stage), Ok(true));
    stage.write_all(1, vec![Op::Seen; MANY]).unwrap();
    stage.gather();
    assert!(!stage.log(0).is_checkpoint_due(stage.now(0)));
    stage.pass(4 * SETTLING);
    assert!(stage.log(0).is_checkpoint_due(stage.now(0)));
    assert_eq!(compact(&mut stage), Ok(true));
    assert!(!stage.log(0).is_checkpoint_due(stage.now(0)));
}

#[test]
fn a_device_that_signed_a_checkpoint_says_that_a_removal_reaches_no_further_back() {
    let mut stage = busy();
    let early = stage.log(0).chains()[&stage.id(1)].hash_at(2).unwrap();
    compact(&mut stage).unwrap();
    stage.gather();
    assert!(acknowledge(&mut stage, 2));
    let op = Op::RemoveDevice { device: stage.id(1), last: Last { sequence: 2, hash: early } };
    assert_eq!(stage.write(2, op.clone()), Err(WriteError::Closed));
    // Another one still may.
    assert_eq!(stage.write(0, op), Ok(()));
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
    // Behind it a second history is proved as before.
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
        invented(&stage, &[0, 1, 3], |_| {}),
        invented(&stage, &[0, 1, 3], hide_friend),
        invented(&stage, &[0], leave_out_devices),
        invented(&stage, &[0], |closed| closed.base.entries.clear()),
        invented(&stage, &[1, 2, 3], |_| {}),
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
    let forged = invented(&stage, &[0], leave_out_devices);
    assert_eq!(taken(&mut stage, 2, forged).refused, [(stage.id(0), Refusal::Checkpoint)]);
}

#[test]
fn nobody_but_the_users_key_states_a_checkpoint_and_a_changed_one_is_refused() {
    let mut stage = busy();
    let key = stage.sides[1].key.clone();
    let now = stage.now(1);
    assert_eq!(stage.sides[1].log.compact(&key, now), Err(WriteError::NotUser));
    let all = [0, 1, 2, 3];
    let right = invented(&stage, &all, |_| {});
    // One that says that a device is gone which nobody removed, and one that covers what nobody can write.
    let phone = stage.id(3);
    let gone = invented(&stage, &all, |closed| closed.stated.checkpoint.gone.extend([phone]));
    let endless = invented(&stage, &all, |closed| {
        closed.stated.checkpoint.cut.get_mut(&phone).unwrap().sequence = u64::MAX;
    });
    for forged in [gone, endless] {
        assert_eq!(taken(&mut stage, 2, forged).refused, [(stage.id(0), Refusal::Checkpoint)]);
    }
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
