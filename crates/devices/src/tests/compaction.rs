//! What all devices acknowledged is kept as a snapshot.

use std::time::Duration;

use super::stage::{Stage, device_name, label, stranger};
use crate::snapshot::Snapshot;
use crate::{Hybrid, Op, Refusal, Subject, Update};

fn busy(stage: &mut Stage) {
    for round in 0..20_u8 {
        let by = 1 + usize::from(round % 3);
        stage.write(by, Op::AddFriend { friend: stranger(round), name: None }).unwrap();
        let whom = Subject::Friend(stranger(round));
        stage.write(by, Op::Call { whom, name: label("pal") }).unwrap();
    }
    stage.gather();
}

fn acknowledge(stage: &mut Stage) {
    for number in 1..stage.sides.len() {
        stage.write(number, Op::Seen).unwrap();
    }
    stage.gather();
}

fn compact(stage: &mut Stage, by: usize) -> bool {
    let key = stage.sides[by].key.clone();
    stage.sides[by].log.compact(&key, 1, Hybrid::MAX)
}

#[test]
fn nothing_is_compacted_before_all_devices_have_acknowledged() {
    let mut stage = Stage::new(3, 3);
    acknowledge(&mut stage);
    assert!(compact(&mut stage, 1));
    let until = stage.log(1).stage().until;
    // Device 3 is away.
    for round in 0..9 {
        stage.write(1, Op::AddFriend { friend: stranger(round), name: None }).unwrap();
        stage.write(2, Op::Seen).unwrap();
        stage.meet(1, 2);
    }
    compact(&mut stage, 1);
    let last = stage.log(1).chains()[&stage.id(3)].head().time;
    assert!(stage.log(1).stage().until <= last.max(until));
    assert!(stage.log(1).len() >= 9);
}

#[test]
fn a_snapshot_and_the_rest_say_the_same_as_the_whole_log() {
    let mut stage = Stage::new(3, 3);
    busy(&mut stage);
    acknowledge(&mut stage);
    let before = (stage.log(1).group().clone(), stage.log(1).len());
    assert!(compact(&mut stage, 2));
    assert_eq!(*stage.log(2).group(), before.0);
    assert!(stage.log(2).len() < 6, "{} of {} entries are left", stage.log(2).len(), before.1);
    stage.gather();
    assert!(stage.agree());
    assert!(stage.log(3).len() < 6, "others follow");
    stage.write(3, Op::RemoveFriend { friend: stranger(4) }).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert!(stage.log(1).group().friend(stranger(4)).is_none());
}

#[test]
fn a_device_that_was_away_for_weeks_catches_up_and_is_heard() {
    let mut stage = Stage::new(4, 4);
    acknowledge(&mut stage);
    let away = 4;
    stage.write(away, Op::AddFriend { friend: stranger(50), name: None }).unwrap();
    stage.pass(Duration::from_secs(30 * 86_400));
    busy_without(&mut stage, away);
    // It is away for good, as far as the others know: they remove it from those they wait for by hand? No:
    // they compact up to what it acknowledged.
    assert!(compact(&mut stage, 1));
    for number in [2, 3] {
        stage.meet(1, number);
    }
    stage.meet(away, 3);
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(1).group();
    assert!(group.friend(stranger(50)).is_some(), "what it wrote on its own");
    assert_eq!(stage.log(away).group().friends().count(), 21);
}

fn busy_without(stage: &mut Stage, away: usize) {
    for round in 0..20_u8 {
        let by = 1 + usize::from(round) % (away - 1);
        stage.write(by, Op::AddFriend { friend: stranger(round), name: None }).unwrap();
    }
    for number in 1..away {
        stage.meet(0, number);
    }
}

#[test]
fn a_new_device_begins_with_the_snapshot() {
    let mut stage = Stage::new(3, 3);
    busy(&mut stage);
    acknowledge(&mut stage);
    assert!(compact(&mut stage, 0), "the user's key signs it");
    let mut new = Stage::empty(3);
    new.elapsed = stage.elapsed;
    stage.sides[3].log = new.sides[3].log.clone();
    let report = stage.fetch(3, 0);
    assert!(report.snapshot && report.entries < 6);
    assert_eq!(stage.log(3).group(), stage.log(0).group());
}

#[test]
fn a_snapshot_that_lies_or_that_nobody_signed_is_refused() {
    let mut stage = Stage::new(3, 2);
    busy_without(&mut stage, 3);
    stage.gather();
    acknowledge(&mut stage);
    let away = stage.clone();
    assert!(compact(&mut stage, 1));
    let good = stage.log(1).snapshot().unwrap().clone();
    let mut content = good.content.clone();
    content.group.removed.insert(stage.id(2));
    let lie = |key: usize| Snapshot::new(content.clone(), &stage.sides[key].key);
    let take = |snapshot: Snapshot, to: &mut Stage| {
        let update = Update { snapshot: Some(Box::new(snapshot)), ..Update::default() };
        let now = to.now(2);
        to.sides[2].log.take(update, now)
    };
    let user = stage.id(0);
    let mut up_to_date = away.clone();
    let report = take(lie(1), &mut up_to_date);
    assert_eq!(report.refused, [(user, Refusal::SnapshotWrong)], "device 2 has all that it stands for");
    let mut behind = Stage::empty(3);
    behind.elapsed = stage.elapsed;
    assert_eq!(take(lie(3), &mut behind).refused, [(user, Refusal::SnapshotUnsigned)], "not trusted");
    assert_eq!(take(good.clone(), &mut behind).refused, [(user, Refusal::SnapshotUnsigned)], "not known");
    assert!(take(good, &mut up_to_date).snapshot);
}

#[test]
fn no_snapshot_comes_between_a_removal_and_what_it_makes_void() {
    let mut stage = Stage::new(3, 3);
    acknowledge(&mut stage);
    let last = stage.log(1).last_of(stage.id(2));
    stage.write(2, Op::AddDevice { device: stranger(5), name: device_name(9), trusted: true }).unwrap();
    stage.write(3, Op::Seen).unwrap();
    stage.gather();
    stage.write(1, Op::RemoveDevice { device: stage.id(2), last }).unwrap();
    assert!(stage.log(1).group().device(stranger(5)).is_none());
    compact(&mut stage, 1);
    assert!(stage.log(1).chains()[&stage.id(2)].base().sequence <= last.sequence);
    stage.gather();
    acknowledge_all_but(&mut stage, 2);
    compact(&mut stage, 1);
    stage.gather();
    assert!(stage.agree());
    assert!(stage.log(3).group().device(stranger(5)).is_none());
}

fn acknowledge_all_but(stage: &mut Stage, without: usize) {
    for number in (1..stage.sides.len()).filter(|number| *number != without) {
        stage.write(number, Op::Seen).unwrap();
    }
    stage.gather();
}
