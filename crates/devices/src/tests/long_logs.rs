//! Devices that wrote more than one may that never acted for the user, and what became of their trust.

use whimbrel_base::{SecretKey, UnixTime};

use super::stage::{START, Stage, device_name, label, stranger};
use crate::chain::Chain;
use crate::{Last, Log, MAX_DEVICES, MAX_UNTRUSTED, Op, Refusal, Report, Subject, WriteError};

/// More than a device may write that never acted for the user.
const MUCH: usize = MAX_UNTRUSTED + 10;

fn much() -> Vec<Op> {
    vec![Op::Seen; MUCH]
}

/// How many entries of a device a side has.
fn length(stage: &Stage, of: usize, whose: usize) -> usize {
    stage.log(of).chains().get(&stage.id(whose)).map_or(0, Chain::len)
}

/// Device 2 may act for the user and wrote much: device 1 and the user have the half of it, device 3 has all,
/// and device 4 nothing.
fn apart() -> Stage {
    let mut stage = Stage::new(4, 2);
    stage.write_all(2, much()).unwrap();
    stage.meet(2, 1);
    stage.meet(1, 0);
    stage.write_all(2, much()).unwrap();
    stage.fetch(3, 2);
    assert_eq!([0, 1, 3, 4].map(|of| length(&stage, of, 2)), [MUCH, MUCH, 2 * MUCH, 0]);
    stage
}

#[test]
fn a_device_that_wrote_much_and_lost_the_trust_has_the_same_log_on_all_devices_and_goes_on() {
    let mut stage = apart();
    let last = stage.log(1).last_of(stage.id(2));
    stage.write(1, Op::Distrust { device: stage.id(2), last }).unwrap();
    // The user hears of that first.
    stage.meet(1, 0);
    assert!(!stage.log(0).group().is_trusted(stage.id(2)));
    stage.gather();
    assert!(stage.agree());
    assert_eq!(length(&stage, 0, 2), 2 * MUCH);
    // What it says of itself goes on to count.
    let itself = Subject::Device(stage.id(2));
    stage.write(2, Op::Call { whom: itself, name: label("tv") }).unwrap();
    stage.gather();
    assert!(stage.agree());
    for of in [0, 1, 3, 4] {
        assert_eq!(stage.call(of, itself).as_deref(), Some("tv"));
    }
}

#[test]
fn a_device_that_wrote_much_and_was_removed_has_the_same_log_on_all_devices() {
    let mut stage = apart();
    stage.remove(1, 2).unwrap();
    stage.meet(1, 0);
    // One that knows nothing yet hears of the removal first, too.
    stage.sides[4].log = Log::new(stage.id(0));
    stage.meet(4, 0);
    assert!(stage.log(4).group().is_removed(stage.id(2)));
    stage.gather();
    assert!(stage.agree());
    assert_eq!(length(&stage, 4, 2), 2 * MUCH);
}

#[test]
fn who_could_write_much_is_known_although_the_trust_never_counted() {
    let mut stage = Stage::new(3, 1);
    let last = stage.log(0).last_of(stage.id(1));
    assert_eq!(last, Last::default());
    // The user removes device 1, and does not count that it let device 3 act for the user.
    stage.write(1, Op::Trust { device: stage.id(3) }).unwrap();
    stage.meet(1, 3);
    stage.write_all(3, much()).unwrap();
    stage.meet(1, 3);
    stage.write(0, Op::RemoveDevice { device: stage.id(1), last }).unwrap();
    stage.meet(0, 2);
    stage.gather();
    assert!(stage.agree());
    assert!(!stage.log(2).group().is_trusted(stage.id(3)));
    assert_eq!(length(&stage, 2, 3), MUCH);
}

#[test]
fn who_could_write_much_is_known_although_what_gave_the_trust_is_gone_with_a_second_history() {
    let mut stage = Stage::new(4, 1);
    let backup = stage.log(1).clone();
    stage.write(1, Op::Trust { device: stage.id(3) }).unwrap();
    stage.meet(1, 3);
    stage.write_all(3, much()).unwrap();
    stage.meet(3, 2);
    stage.sides[1].log = backup;
    stage.write(1, Op::AddFriend { friend: stranger(0), name: None }).unwrap();
    stage.meet(1, 0);
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.log(4).forked().collect::<Vec<_>>(), [stage.id(1)]);
    assert!(!stage.log(4).group().is_trusted(stage.id(3)));
    assert_eq!(length(&stage, 4, 3), MUCH);
}

#[test]
fn who_could_write_much_is_known_although_a_thief_named_a_late_entry_of_it() {
    let mut stage = Stage::new(3, 1);
    let named = Last { sequence: 60_000, hash: [7; 32] };
    stage.write(1, Op::Distrust { device: stage.id(3), last: named }).unwrap();
    stage.meet(1, 3);
    stage.write_all(3, much()).unwrap();
    stage.meet(3, 2);
    assert_eq!(length(&stage, 2, 3), MUCH);
    // The user hears of it only after the removal, which leaves nothing of what device 1 said.
    stage.remove(0, 1).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(length(&stage, 0, 3), MUCH);
}

#[test]
fn a_device_that_never_acted_for_the_user_gives_no_room_to_others() {
    let mut stage = Stage::new(3, 1);
    stage.force(2, Op::Trust { device: stage.id(3) });
    let named = Last { sequence: 60_000, hash: [7; 32] };
    stage.force(2, Op::Distrust { device: stage.id(3), last: named });
    stage.meet(2, 1);
    assert_eq!(length(&stage, 1, 2), 2);
    assert_eq!(stage.write_all(3, much()), Err(WriteError::LogFull));
    let (key, now) = (stage.sides[3].key.clone(), stage.now(3));
    stage.sides[3].log.append(&key, much(), now);
    assert_eq!(stage.fetch(1, 3).refused, [(stage.id(3), Refusal::Full)]);
    assert_eq!(length(&stage, 1, 3), 0);
}

/// The keys that a thief made.
fn made(number: usize) -> SecretKey {
    let mut bytes = [99; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    SecretKey::from_bytes(&bytes)
}

#[test]
fn a_removed_device_gives_room_to_no_more_keys_than_a_user_can_have_devices() {
    let mut stage = Stage::new(2, 1);
    let many = MAX_DEVICES + 40;
    let add = |number| Op::AddDevice { device: made(number).id(), name: device_name(9), trusted: true };
    stage.remove(0, 1).unwrap();
    let (thief, now) = (stage.sides[1].key.clone(), stage.now(1));
    stage.sides[1].log.append(&thief, (0..many).map(add).collect(), now);
    // Device 2 hears of the removal first.
    stage.meet(0, 2);
    stage.fetch(2, 1);
    assert_eq!(length(&stage, 2, 1), many);
    assert_eq!(stage.log(2).group().devices().count(), 1, "what it adds is void");
    for (number, refused) in [(many - 1, true), (3, false)] {
        let key = made(number);
        let report = long_log_arrives(&mut stage, 2, 1, &key);
        let why = if refused { vec![(key.id(), Refusal::Full)] } else { Vec::new() };
        assert_eq!(report.refused, why);
    }
}

#[test]
fn a_device_that_never_acted_for_the_user_gives_no_room_to_others_also_after_a_second_history() {
    let mut stage = Stage::new(3, 1);
    let backup = stage.log(1).clone();
    stage.write(1, Op::Seen).unwrap();
    stage.meet(1, 3);
    stage.sides[1].log = backup;
    stage.write(1, Op::AddFriend { friend: stranger(0), name: None }).unwrap();
    stage.meet(1, 3);
    assert_eq!(stage.log(3).forked().collect::<Vec<_>>(), [stage.id(1)]);
    // Device 2, which could have had trust that is gone, calls a key of its own a trusted device.
    let key = made(0);
    stage.force(2, Op::AddDevice { device: key.id(), name: device_name(9), trusted: true });
    stage.meet(2, 3);
    assert_eq!(length(&stage, 3, 2), 1);
    let report = long_log_arrives(&mut stage, 3, 2, &key);
    assert_eq!(report.refused, [(key.id(), Refusal::Full)]);
}

/// A side hears of what a key wrote that another one, which a thief has, calls a device.
fn long_log_arrives(stage: &mut Stage, to: usize, thief: usize, key: &SecretKey) -> Report {
    let mut theirs = stage.log(thief).clone();
    theirs.append(key, much(), UnixTime::from_secs(START));
    let mut update = theirs.missing(&stage.log(to).vector());
    update.runs.retain(|run| run.author == key.id());
    assert_eq!(update.entries(), MUCH);
    let now = stage.now(to);
    stage.sides[to].log.take(update, now)
}
