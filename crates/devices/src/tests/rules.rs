//! Each rule of merging, by the smallest story that needs it.

use std::time::Duration;

use super::stage::{Stage, device_name, label, stranger};
use crate::{Last, Op, Rights, Subject, Visibility, WriteError};

const DAY: i64 = 86_400;
const FRIEND: Subject = Subject::Friend(whimbrel_base::EndpointId::from_bytes(&[200; 32]));

fn friend(stage: &mut Stage) {
    stage.write(1, Op::AddFriend { friend: stranger(0), name: None }).unwrap();
    stage.gather();
}

fn call(name: &str) -> Op {
    Op::Call { whom: FRIEND, name: label(name) }
}

#[test]
fn of_two_names_given_at_once_the_later_one_holds_on_all_devices() {
    let mut stage = Stage::new(3, 3);
    friend(&mut stage);
    stage.write(1, call("bob")).unwrap();
    stage.pass(Duration::from_secs(60));
    stage.write(2, call("robert")).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.call(3, FRIEND).as_deref(), Some("robert"));
}

#[test]
fn an_answer_to_what_was_seen_is_later_although_the_clock_is_a_day_behind() {
    let mut stage = Stage::new(2, 2);
    friend(&mut stage);
    stage.sides[1].skew = DAY;
    stage.write(1, call("bob")).unwrap();
    stage.meet(1, 2);
    stage.sides[2].skew = -DAY;
    stage.write(2, call("robert")).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.call(1, FRIEND).as_deref(), Some("robert"));
}

#[test]
fn a_removal_wins_over_a_name_given_meanwhile_even_a_later_one() {
    let mut stage = Stage::new(2, 2);
    friend(&mut stage);
    stage.write(1, Op::RemoveFriend { friend: stranger(0) }).unwrap();
    stage.pass(Duration::from_secs(3600));
    stage.write(2, call("bob")).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert!(stage.log(2).group().friend(stranger(0)).is_none());
    // A friend who comes again begins anew.
    stage.write(2, Op::AddFriend { friend: stranger(0), name: None }).unwrap();
    stage.gather();
    assert_eq!(stage.call(1, FRIEND), None);
}

#[test]
fn two_things_called_the_same_by_two_devices_keep_names_of_their_own() {
    let mut stage = Stage::new(2, 2);
    for number in 0..2 {
        stage.write(1, Op::AddFriend { friend: stranger(number), name: None }).unwrap();
    }
    stage.gather();
    let whom = |number| Subject::Friend(stranger(number));
    stage.write(1, Op::Call { whom: whom(1), name: label("bob") }).unwrap();
    stage.write(2, Op::Call { whom: whom(0), name: label("bob") }).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.call(1, whom(1)).as_deref(), Some("bob"), "it was called so first");
    assert_eq!(stage.call(1, whom(0)).as_deref(), Some("bob-2"));
    let bob = stage.log(2).group().called(&label("bob-2"));
    assert_eq!(bob, Some(whom(0)));
    // It gets its name as soon as that is free.
    stage.write(1, Op::Call { whom: whom(1), name: label("robert") }).unwrap();
    stage.gather();
    assert_eq!(stage.call(2, whom(0)).as_deref(), Some("bob"));
}

#[test]
fn a_device_without_trust_speaks_of_itself_only() {
    let mut stage = Stage::new(3, 1);
    let itself = stage.id(3);
    let refused = stage.write(3, Op::AddFriend { friend: stranger(0), name: None });
    assert_eq!(refused, Err(WriteError::NotTrusted));
    stage.write(3, Op::Show { device: itself, to: Visibility::Friends }).unwrap();
    stage.write(3, Op::Call { whom: Subject::Device(itself), name: label("tv") }).unwrap();
    // What it writes all the same is void everywhere.
    stage.force(3, Op::AddFriend { friend: stranger(0), name: None });
    stage.force(3, Op::Trust { device: itself });
    stage.force(3, Op::Show { device: stage.id(2), to: Visibility::Nobody });
    stage.force(3, Op::AddDevice { device: stranger(1), name: device_name(9), trusted: true });
    stage.force(3, Op::RemoveDevice { device: stage.id(1), last: Last::default() });
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(1).group();
    assert_eq!(group.device(itself).unwrap().visibility(), Visibility::Friends);
    assert_eq!(stage.call(1, Subject::Device(itself)).as_deref(), Some("tv"));
    assert!(group.friend(stranger(0)).is_none() && !group.is_trusted(itself));
    assert_eq!(group.device(stage.id(2)).unwrap().visibility(), Visibility::Devices);
    assert!(group.device(stranger(1)).is_none() && group.device(stage.id(1)).is_some());
}

#[test]
fn what_a_device_without_trust_calls_itself_takes_no_name_from_anything_else() {
    let mut stage = Stage::new(3, 2);
    let itself = Subject::Device(stage.id(3));
    let of_world = stage.call(1, Subject::Device(stage.id(2))).unwrap();
    // It says that it was called so long before.
    stage.sides[3].skew = -DAY;
    for wanted in ["bob", of_world.as_str()] {
        stage.write(3, Op::Call { whom: itself, name: label(wanted) }).unwrap();
        friend(&mut stage);
        stage.write(2, call("bob")).unwrap();
        stage.gather();
        assert!(stage.agree());
        assert_eq!(stage.call(1, FRIEND).as_deref(), Some("bob"));
        assert_eq!(stage.call(1, Subject::Device(stage.id(2))), Some(of_world.clone()));
        assert_eq!(stage.call(1, itself), Some(format!("{wanted}-2")));
        assert!(stage.log(1).group().names_itself(itself));
        assert_eq!(stage.log(1).group().chosen(stage.id(3)), None);
    }
    // What the user calls it is the user's word, and so is its own once it may act for the user.
    stage.write(1, Op::Call { whom: itself, name: label("tv") }).unwrap();
    stage.gather();
    assert!(!stage.log(1).group().names_itself(itself));
    assert_eq!(stage.call(1, itself).as_deref(), Some("tv"));
    assert_eq!(stage.log(1).group().chosen(stage.id(3)), Some(&label("tv")));
    assert_eq!(stage.log(1).group().chosen(stage.id(2)), None, "it has the name that the world has for it");
    stage.sides[3].skew = 0;
    stage.pass(Duration::from_secs(60));
    stage.write(3, Op::Call { whom: itself, name: label("telly") }).unwrap();
    stage.gather();
    assert!(stage.log(1).group().names_itself(itself));
    stage.write(1, Op::Trust { device: stage.id(3) }).unwrap();
    stage.gather();
    assert!(!stage.log(1).group().names_itself(itself));
}

#[test]
fn a_friend_who_is_named_like_another_one_is_not_meant_in_that_ones_place() {
    let mut stage = Stage::new(1, 1);
    let name = |text: &str| Some(text.parse().unwrap());
    let [first, second] = [9, 3].map(stranger);
    stage.write(1, Op::AddFriend { friend: first, name: name("bob@example.org") }).unwrap();
    let group = stage.log(1).group();
    assert_eq!(group.called(&label("bob")), Some(Subject::Friend(first)));
    assert!(!group.is_unclear(Subject::Friend(first)));
    // The other one's key comes first, and so does its owner.
    stage.write(1, Op::AddFriend { friend: second, name: name("bob@example.net") }).unwrap();
    for friend in [first, second] {
        assert!(stage.log(1).group().is_unclear(Subject::Friend(friend)));
    }
    // What the user says is clear; the other one is what nobody chose.
    stage.write(1, Op::Call { whom: Subject::Friend(first), name: label("bob") }).unwrap();
    let group = stage.log(1).group();
    assert_eq!(group.called(&label("bob")), Some(Subject::Friend(first)));
    assert!(!group.is_unclear(Subject::Friend(first)));
    assert!(group.is_unclear(Subject::Friend(second)), "it is bob-2 by chance");
    assert!(!group.is_unclear(Subject::Device(stage.id(1))));
}

#[test]
fn a_trusted_device_adds_devices_and_these_their_own() {
    let mut stage = Stage::empty(2);
    stage.write(0, Op::AddDevice { device: stage.id(1), name: device_name(1), trusted: true }).unwrap();
    stage.meet(0, 1);
    stage.write(1, Op::AddDevice { device: stage.id(2), name: device_name(2), trusted: false }).unwrap();
    stage.meet(1, 2);
    stage.write(2, Op::Show { device: stage.id(2), to: Visibility::Nobody }).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.log(0).group().devices().count(), 2);
}

#[test]
fn what_a_removed_device_says_later_is_void_also_if_it_arrives_first_and_is_dated_back() {
    let mut stage = Stage::new(3, 3);
    friend(&mut stage);
    stage.write(2, call("bob")).unwrap();
    stage.gather();
    stage.pass(Duration::from_secs(10 * DAY as u64));
    // Device 2 was stolen; the thief sets its clock back to before anybody knew.
    stage.sides[2].skew = -9 * DAY;
    stage.force(2, call("mallory"));
    stage.force(2, Op::AddDevice { device: stranger(5), name: device_name(9), trusted: true });
    let anchor = stage.log(1).last_of(stage.id(2));
    stage.force(2, Op::RemoveDevice { device: stage.id(3), last: Last::default() });
    // Device 3 hears of that before it hears of the removal.
    stage.meet(2, 3);
    assert!(stage.log(3).group().device(stage.id(3)).is_none());
    stage.remove(1, 2).unwrap();
    assert_eq!(stage.log(1).last_of(stage.id(2)), anchor);
    stage.sides[2].skew = 0;
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(3).group();
    assert!(group.device(stage.id(3)).is_some() && group.device(stage.id(2)).is_none());
    assert!(group.device(stranger(5)).is_none());
    assert_eq!(stage.call(3, FRIEND).as_deref(), Some("bob"), "what it said before counts");
    assert_eq!(stage.write(2, Op::Seen), Err(WriteError::NotMember));
    let again = Op::AddDevice { device: stage.id(2), name: device_name(2), trusted: true };
    assert_eq!(stage.write(1, again), Err(WriteError::Removed));
}

#[test]
fn of_two_devices_that_remove_each_other_the_one_added_first_stays() {
    let mut stage = Stage::new(3, 3);
    stage.remove(2, 1).unwrap();
    stage.pass(Duration::from_secs(60));
    stage.remove(1, 2).unwrap();
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(3).group();
    assert!(group.device(stage.id(1)).is_some() && group.device(stage.id(2)).is_none());
}

#[test]
fn of_three_devices_that_remove_each_other_in_a_circle_the_first_wins_and_the_answer_is_the_same_everywhere()
{
    let mut stage = Stage::new(4, 4);
    stage.remove(1, 2).unwrap();
    stage.remove(2, 3).unwrap();
    stage.remove(3, 1).unwrap();
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(4).group();
    let left: Vec<bool> = (1..=4).map(|number| group.device(stage.id(number)).is_some()).collect();
    assert_eq!(left, [true, false, true, true]);
}

#[test]
fn a_younger_device_removes_an_older_one_and_undoes_what_that_removed_after_the_theft() {
    let mut stage = Stage::new(3, 3);
    // Device 1, the first, is in a thief's hands, and removes device 2.
    stage.remove(1, 2).unwrap();
    stage.remove(3, 1).unwrap();
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(0).group();
    assert!(group.device(stage.id(1)).is_none() && group.device(stage.id(2)).is_some());
}

#[test]
fn the_users_key_is_right_against_any_device() {
    let mut stage = Stage::new(2, 2);
    stage.remove(1, 2).unwrap();
    stage.remove(0, 1).unwrap();
    stage.force(1, Op::RemoveDevice { device: stage.id(0), last: Last::default() });
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(2).group();
    assert!(group.device(stage.id(1)).is_none() && group.device(stage.id(2)).is_some());
}

#[test]
fn trust_that_was_taken_back_ends_with_the_named_entry_and_can_be_given_again() {
    let mut stage = Stage::new(2, 2);
    let add = |number| Op::AddFriend { friend: stranger(number), name: None };
    stage.write(2, add(0)).unwrap();
    stage.gather();
    let last = stage.log(1).last_of(stage.id(2));
    stage.write(2, add(1)).unwrap();
    stage.write(1, Op::Distrust { device: stage.id(2), last }).unwrap();
    stage.gather();
    assert!(stage.agree());
    let friends = |stage: &Stage| stage.log(1).group().friends().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(friends(&stage), [stranger(0)]);
    assert!(!stage.log(2).group().is_trusted(stage.id(2)));
    stage.write(1, Op::Trust { device: stage.id(2) }).unwrap();
    stage.gather();
    stage.write(2, add(2)).unwrap();
    stage.gather();
    assert!(stage.agree());
    assert_eq!(friends(&stage), [stranger(0), stranger(2)]);
}

#[test]
fn a_device_restored_from_a_backup_forks_its_log_and_is_told() {
    let mut stage = Stage::new(3, 3);
    friend(&mut stage);
    let backup = stage.log(2).clone();
    stage.write(2, call("bob")).unwrap();
    stage.meet(2, 1);
    stage.sides[2].log = backup;
    stage.write(2, call("robert")).unwrap();
    stage.meet(2, 3);
    stage.gather();
    assert!(stage.agree());
    for number in 0..=3 {
        assert_eq!(stage.log(number).forked().collect::<Vec<_>>(), [stage.id(2)]);
    }
    assert_eq!(stage.call(1, FRIEND), None, "what was said twice is void");
    assert_eq!(stage.write(2, Op::Seen), Err(WriteError::Forked));
    // One who comes later learns the proof from anybody.
    let mut late = stage.clone();
    late.sides[3].log = crate::Log::new(late.id(0));
    late.meet(1, 3);
    assert!(late.agree());
}

#[test]
fn a_removed_device_that_forks_below_the_last_entry_that_counts_stays_out_and_who_removed_it_stays() {
    let mut stage = Stage::new(3, 3);
    friend(&mut stage);
    let backup = stage.log(2).clone();
    stage.write(2, call("bob")).unwrap();
    stage.write(2, call("robert")).unwrap();
    stage.gather();
    stage.remove(1, 2).unwrap();
    stage.gather();
    // The thief of device 2 writes another history, from before the removal, and removes the remover.
    stage.sides[2].log = backup;
    stage.force(2, Op::RemoveDevice { device: stage.id(1), last: Last::default() });
    stage.gather();
    assert!(stage.agree());
    assert_eq!(stage.log(3).forked().collect::<Vec<_>>(), [stage.id(2)]);
    let group = stage.log(3).group();
    assert!(!group.is_member(stage.id(2)) && group.is_removed(stage.id(2)));
    assert!(group.is_member(stage.id(1)) && group.is_trusted(stage.id(1)));
}

#[test]
fn a_device_that_wrote_two_histories_is_no_member_and_may_not_act_for_the_user() {
    let mut stage = Stage::new(3, 3);
    let backup = stage.log(2).clone();
    stage.write(2, Op::AddFriend { friend: stranger(0), name: None }).unwrap();
    stage.meet(1, 2);
    stage.sides[2].log = backup;
    stage.write(2, Op::AddFriend { friend: stranger(1), name: None }).unwrap();
    stage.gather();
    assert!(stage.agree());
    let group = stage.log(1).group();
    assert!(!group.is_member(stage.id(2)) && !group.is_trusted(stage.id(2)));
    assert!(group.device(stage.id(2)).unwrap().is_forked(), "it is listed, so that it can be removed");
    stage.remove(3, 2).unwrap();
    stage.gather();
    assert!(stage.agree() && stage.log(1).group().is_removed(stage.id(2)));
}

#[test]
fn friends_devices_have_names_and_go_with_the_friend() {
    let mut stage = Stage::new(2, 2);
    friend(&mut stage);
    let (bob, phone) = (stranger(0), stranger(7));
    stage.write(1, Op::AddFriendDevice { friend: bob, device: phone, name: None }).unwrap();
    let whom = Subject::FriendDevice(bob, phone);
    stage.write(1, Op::Call { whom, name: label("bobs-phone") }).unwrap();
    stage.write(1, Op::Allow { friend: bob, rights: Rights { presence: true, devices: false } }).unwrap();
    stage.gather();
    assert_eq!(stage.call(2, whom).as_deref(), Some("bobs-phone"));
    assert!(stage.log(2).group().friend(bob).unwrap().rights().presence);
    stage.write(2, Op::RemoveFriend { friend: bob }).unwrap();
    stage.gather();
    assert_eq!(stage.call(1, whom), None);
}

#[test]
fn devices_meet_without_the_users_key_or_any_service() {
    let mut stage = Stage::new(5, 5);
    for number in 1..=5 {
        stage.write(number, Op::AddFriend { friend: stranger(number as u8), name: None }).unwrap();
    }
    for (one, other) in [(1, 2), (2, 3), (3, 4), (4, 5), (4, 3), (3, 2), (2, 1)] {
        stage.meet(one, other);
    }
    for number in 1..=5 {
        assert_eq!(stage.log(number).group().friends().count(), 5, "device {number}");
        assert_eq!(stage.log(number).vector().digest(), stage.log(1).vector().digest());
    }
}
