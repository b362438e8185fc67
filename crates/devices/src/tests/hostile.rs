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

/// Entries of device 1 from a number on, with this time and content, signed by it.
fn signed(stage: &Stage, first: u64, time: crate::Hybrid, ops: Vec<Op>) -> crate::run::Run {
    let key = &stage.sides[1].key;
    let whose = crate::run::Whose { group: stage.id(0), author: key.id() };
    let before = stage.log(1).chains()[&key.id()].hash_at(first - 1).unwrap();
    let (mut links, mut hash, mut time) = (Vec::new(), before, time);
    for (number, op) in (first..).zip(ops) {
        links.push(whose.link(number, &hash, crate::run::Entry { time, op }));
        hash = links.last().unwrap().hash;
        time = crate::Hybrid::after(time, whimbrel_base::UnixTime::from_secs(0));
    }
    let last = first + links.len() as u64 - 1;
    crate::run::Run::new(key.id(), first, before, &links, whose.sign(key, last, &hash))
}

#[test]
fn a_proof_of_two_histories_dated_1970_or_a_year_ahead_is_refused() {
    let (mut stage, _) = story();
    stage.meet(1, 2);
    let at = |seconds| crate::Hybrid::of(whimbrel_base::UnixTime::from_secs(seconds));
    let year = START + 365 * 86_400;
    for (time, why) in [(at(1), Refusal::NoProof), (at(year), Refusal::Ahead)] {
        let (one, other) = (signed(&stage, 3, time, vec![add(8)]), signed(&stage, 3, time, vec![add(9)]));
        let update = Update { forks: vec![crate::run::Fork { one, other }], ..Update::default() };
        assert_eq!(refused(&mut stage, update), why);
    }
    assert_eq!(stage.log(2).forked().count(), 0);
    // Nor does a history that is dated back make one.
    let run = signed(&stage, 3, at(1), vec![add(8)]);
    let update = Update { runs: vec![run], ..Update::default() };
    assert_eq!(refused(&mut stage, update), Refusal::Backwards);
}

#[test]
fn what_comes_before_a_split_can_be_given_on_however_long_the_proof_is() {
    let (mut stage, _) = story();
    stage.meet(1, 2);
    // All three of device 2 come with one signature, which ends behind the split.
    let time = crate::Hybrid::of(stage.now(1));
    let long = || vec![Op::Seen; MAX_RUN];
    let (mut one, mut other) = (long(), long());
    one[0] = add(8);
    other[0] = add(9);
    let (one, other) = (signed(&stage, 3, time, one), signed(&stage, 3, time, other));
    let update = Update { forks: vec![crate::run::Fork { one, other }], ..Update::default() };
    let now = stage.now(2);
    assert_eq!(stage.sides[2].log.take(update, now).forked, [stage.id(1)]);
    let mut new = Log::new(stage.id(0));
    for _ in 0..3 {
        new.take(stage.log(2).missing(&new.vector()), now);
    }
    assert_eq!(new.vector(), stage.log(2).vector());
}

#[test]
fn a_device_without_trust_fills_no_more_than_its_share() {
    let mut stage = Stage::new(2, 1);
    let (now, thief) = (stage.now(2), stage.sides[2].key.clone());
    let mut log = stage.log(2).clone();
    log.append(&thief, vec![Op::Seen; crate::MAX_UNTRUSTED + 1], now);
    let update = log.missing(&stage.log(1).vector());
    let report = stage.sides[1].log.take(update, now);
    assert_eq!(report.refused, [(stage.id(2), Refusal::Full)]);
    let full = vec![Op::Seen; crate::MAX_UNTRUSTED];
    stage.sides[2].log.write(&thief, full, now).unwrap();
    assert_eq!(stage.write(2, Op::Seen), Err(WriteError::LogFull));
    stage.meet(1, 2);
    assert!(stage.log(1).vector() == stage.log(2).vector());
}

#[test]
fn one_long_log_does_not_keep_others_from_being_sent_and_no_update_is_too_large() {
    let mut stage = Stage::new(3, 3);
    let now = stage.now(1);
    for (number, batches) in [(1_usize, 3), (2, 1), (3, 1)] {
        let key = stage.sides[number].key.clone();
        for batch in 0..batches {
            let friend = |entry: usize| {
                let bytes = stage.sides[0].key.sign(&[number as u8, batch, (entry >> 8) as u8, entry as u8]);
                let friend = bytes.to_bytes()[..32].try_into().unwrap();
                Op::AddFriend { friend: whimbrel_base::EndpointId::from_bytes(&friend), name: None }
            };
            let ops = (0..MAX_RUN).map(friend).collect();
            stage.sides[number].log.append(&key, ops, now);
        }
    }
    stage.gather();
    let mut new = Log::new(stage.id(0));
    for round in 0.. {
        let update = stage.log(0).missing(&new.vector());
        crate::wire::pack(&update).unwrap();
        assert!(update.runs[0].author == stage.id(0) || round > 0, "the user's log comes first");
        let shares = (1..=3).map(|number| {
            let runs = update.runs.iter().filter(|run| run.author == stage.id(number));
            runs.map(|run| run.entries.len()).sum::<usize>()
        });
        assert!(round > 0 || shares.into_iter().all(|share| share == MAX_RUN), "each has its share");
        new.take(update, now);
        if new.vector() == stage.log(0).vector() {
            break;
        }
        assert!(round < 9);
    }
}
