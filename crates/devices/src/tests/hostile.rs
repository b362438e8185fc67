//! What is forged, replayed, torn or far too much.

use std::time::Duration;

use whimbrel_base::SecretKey;

use super::stage::{START, Stage, device_name, stranger};
use crate::{BadRun, Last, Log, MAX_RUN, Op, Refusal, Update, WriteError};

fn add(number: u8) -> Op {
    Op::AddFriend { friend: stranger(number), name: None }
}

/// What device 2 lacks of device 1, which wrote three entries.
fn story() -> (Stage, Update) {
    let mut stage = Stage::new(2, 2);
    for number in 0..3 {
        stage.write(1, add(number)).unwrap();
    }
    let update = stage.log(1).missing(&stage.log(2).vector());
    assert_eq!(update.entries(), 3);
    (stage, update)
}

fn refused(stage: &mut Stage, update: Update) -> Refusal {
    let before = stage.log(2).vector();
    let now = stage.now(2);
    let report = stage.sides[2].log.take(update, now);
    assert!(!report.is_change());
    assert_eq!(stage.log(2).vector(), before);
    report.refused[0].1
}

#[test]
fn a_changed_entry_order_or_author_breaks_the_signature() {
    let (mut stage, good) = story();
    let mut changed = good.clone();
    changed.runs[0].entries[1].1 = add(9);
    assert_eq!(refused(&mut stage, changed), Refusal::Bad(BadRun::Signature));
    let mut swapped = good.clone();
    swapped.runs[0].entries.swap(1, 2);
    assert_eq!(refused(&mut stage, swapped), Refusal::Bad(BadRun::Signature));
    let mut cut = good.clone();
    cut.runs[0].entries.pop();
    assert_eq!(refused(&mut stage, cut), Refusal::Bad(BadRun::Signature));
    let mut redated = good.clone();
    redated.runs[0].entries[0].0 -= 1;
    assert_eq!(refused(&mut stage, redated), Refusal::Bad(BadRun::Signature));
    let mut other = good.clone();
    other.runs[0].author = stage.id(2);
    assert_eq!(refused(&mut stage, other), Refusal::Bad(BadRun::Signature));
    let mut moved = good;
    moved.runs[0].first += 1;
    assert_eq!(refused(&mut stage, moved), Refusal::Bad(BadRun::Signature));
}

#[test]
fn an_entry_of_another_group_is_none_of_this_one() {
    let (mut stage, good) = story();
    let other = SecretKey::from_bytes(&[77; 32]);
    let mut log = Log::new(other.id());
    log.add_device(&other, stage.id(1), device_name(1), true, stage.now(1)).unwrap();
    let report = log.take(good, stage.now(1));
    assert_eq!(report.refused, [(stage.id(1), Refusal::Bad(BadRun::Signature))]);
    let theirs = log.missing(&Log::new(other.id()).vector());
    assert_eq!(refused(&mut stage, theirs), Refusal::Stranger);
}

#[test]
fn what_comes_again_changes_nothing() {
    let (mut stage, good) = story();
    let now = stage.now(2);
    assert_eq!(stage.sides[2].log.take(good.clone(), now).entries, 3);
    let group = stage.log(2).group().clone();
    let again = stage.sides[2].log.take(good, now);
    assert!(!again.is_change() && again.refused.is_empty());
    assert_eq!(*stage.log(2).group(), group);
}

#[test]
fn entries_behind_a_gap_wait_for_those_before_them() {
    let (mut stage, _) = story();
    let mut ahead = stage.log(2).vector();
    let reach = stage.log(1).chains()[&stage.id(1)].hash_at(1).unwrap();
    let known = crate::vector::Reach { sequence: 1, hash: crate::vector::beginning(&reach), is_split: false };
    ahead.reach.insert(stage.id(1), known);
    let gap = stage.log(1).missing(&ahead);
    assert_eq!(gap.entries(), 2);
    assert_eq!(refused(&mut stage, gap), Refusal::Gap);
    stage.meet(1, 2);
    assert!(stage.log(1).vector() == stage.log(2).vector());
}

#[test]
fn a_log_dated_a_week_ahead_waits_until_its_time_comes_nearer() {
    let (mut stage, _) = story();
    stage.sides[1].skew = 7 * 86_400;
    stage.write(1, add(9)).unwrap();
    let update = stage.log(1).missing(&stage.log(2).vector());
    // The three earlier ones come with their own signature.
    assert_eq!(update.entries(), 4);
    assert_eq!(refused(&mut stage, update.clone()), Refusal::Ahead);
    stage.pass(Duration::from_secs(5 * 86_400));
    let now = stage.now(2);
    assert_eq!(stage.sides[2].log.take(update, now).entries, 4);
}

#[test]
fn an_empty_or_huge_batch_is_refused() {
    let (mut stage, good) = story();
    let mut empty = good.clone();
    empty.runs[0].entries.clear();
    assert_eq!(refused(&mut stage, empty), Refusal::Bad(BadRun::Malformed));
    let mut huge = good.clone();
    huge.runs[0].entries = vec![(1, Op::Seen); MAX_RUN + 1];
    assert_eq!(refused(&mut stage, huge), Refusal::Bad(BadRun::Malformed));
    let mut wrapping = good.clone();
    wrapping.runs[0].first = u64::MAX;
    assert_eq!(refused(&mut stage, wrapping), Refusal::Bad(BadRun::Malformed));
    let mut timeless = good;
    timeless.runs[0].entries[1].0 = 0;
    assert_eq!(refused(&mut stage, timeless), Refusal::Bad(BadRun::Malformed));
    let now = stage.now(1);
    let key = stage.sides[1].key.clone();
    let written = stage.sides[1].log.write(&key, vec![Op::Seen; MAX_RUN + 1], now);
    assert_eq!(written, Err(WriteError::TooMany));
}

#[test]
fn a_proof_of_two_histories_cannot_be_made_by_others() {
    let (mut stage, good) = story();
    stage.meet(1, 2);
    let run = good.runs[0].clone();
    let mut other = run.clone();
    other.entries[0].1 = add(9);
    let forged = crate::run::Fork { one: run.clone(), other };
    let same = crate::run::Fork { one: run.clone(), other: run };
    for fork in [forged, same] {
        let update = Update { forks: vec![fork], ..Update::default() };
        assert_eq!(refused(&mut stage, update), Refusal::NoProof);
    }
    assert_eq!(stage.log(2).forked().count(), 0);
}

#[test]
fn a_chain_of_devices_that_nobody_added_is_not_kept() {
    let mut stage = Stage::new(2, 2);
    let thief = SecretKey::from_bytes(&[66; 32]);
    let mut log = stage.log(1).clone();
    log.append(&thief, vec![add(1)], whimbrel_base::UnixTime::from_secs(START));
    assert!(!log.vector().reach.contains_key(&thief.id()));
    stage.force(2, Op::RemoveDevice { device: stage.id(2), last: Last::default() });
    stage.gather();
    assert!(stage.agree() && stage.log(1).group().device(stage.id(2)).is_some(), "nobody removes itself");
}
