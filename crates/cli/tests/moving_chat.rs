//! A chat goes on at another device, and the other person notices nothing.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, World};
use crate::typed::{Typed, hand_off, session, take};

#[test]
fn a_chat_goes_on_at_another_device_and_the_other_person_notices_nothing() {
    let world = World::new();
    let mut bob = Typed::start(&world, "bob", &["chat", "--allow", "any", "--nick", "bob"]);
    let ticket = bob.sees();
    let mut phone = Typed::start(&world, "phone", &["chat", "--nick", "ada", &ticket]);
    let here = bob.sees();
    assert!(here.starts_with("-- ada ["), "{here}");
    assert!(phone.sees().starts_with("-- bob ["));
    phone.types("from the phone\n");
    assert_eq!(phone.sees(), "you [1]: from the phone");
    assert_eq!(phone.sees(), "-- [1] delivered");
    assert_eq!(bob.sees(), "ada: from the phone");
    assert_eq!(session(&world, "phone")["command"], "chat");
    let desk_id = world.id("desk");
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = Typed::start(&world, "desk", &take(&given));
    assert!(desk.sees().starts_with("-- bob ["));
    assert_eq!(phone.sees(), format!("-- went on at {desk_id}"));
    phone.process.output(LIMIT).succeeded();
    bob.types("are you there?\n");
    assert_eq!(bob.sees(), "you [1]: are you there?");
    assert_eq!(bob.sees(), "-- [1] delivered");
    assert_eq!(desk.sees(), "bob: are you there?");
    desk.types("at the desk\n");
    assert_eq!(desk.sees(), "you [2]: at the desk");
    assert_eq!(desk.sees(), "-- [2] delivered");
    // Not a word of the move, and the same person as before.
    assert_eq!(bob.sees(), "ada: at the desk");
    drop(desk.input);
    assert_eq!(bob.sees(), "-- ada has left");
    desk.process.output(LIMIT).succeeded();
}

#[test]
fn the_one_who_waited_for_a_chat_goes_to_another_device_too() {
    let (world, _names) = World::with_names();
    let (phone_id, desk_id) = (world.id("phone"), world.id("desk"));
    let waits =
        ["chat", "--as", "chat.home.bob@example.org", "--allow", &phone_id, "--nick", "bob", "--json"];
    let mut bob = Typed::start(&world, "bob", &waits);
    assert_eq!(bob.process.next_json()["name"], "chat.home.bob@example.org");
    let mut phone = Typed::start(&world, "phone", &["chat", "chat.home.bob@example.org", "--nick", "ada"]);
    assert!(phone.sees().ends_with("is here"));
    assert_eq!(bob.tells()["event"], "here");
    let given = hand_off(&world, "bob", &desk_id);
    let mut desk = Typed::start(&world, "desk", &take(&given));
    assert!(desk.sees().ends_with("is here"));
    desk.types("it is me\n");
    assert_eq!(desk.sees(), "you [1]: it is me");
    assert_eq!(phone.sees(), "chat.home.bob@example.org: it is me");
    phone.types("good\n");
    assert_eq!(phone.sees(), "you [1]: good");
    assert_eq!(phone.sees(), "-- [1] delivered");
    assert_eq!(bob.tells()["text"], format!("went on at {desk_id}"));
    bob.process.output(LIMIT).succeeded();
}

#[test]
fn one_who_waits_for_a_chat_by_ticket_goes_to_another_device_too() {
    let world = World::new();
    let mut bob = Typed::start(&world, "bob", &["chat", "--allow", "any", "--nick", "bob", "--json"]);
    let ticket = bob.process.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut phone = Typed::start(&world, "phone", &["chat", "--nick", "ada", &ticket]);
    assert!(phone.sees().starts_with("-- bob ["));
    assert_eq!(bob.tells()["event"], "here");
    let desk_id = world.id("desk");
    let given = hand_off(&world, "bob", &desk_id);
    let mut desk = Typed::start(&world, "desk", &take(&given));
    assert!(desk.sees().starts_with("-- ada ["));
    desk.types("it is me\n");
    assert_eq!(desk.sees(), "you [1]: it is me");
    assert_eq!(phone.sees(), "bob: it is me");
    assert_eq!(bob.tells()["text"], format!("went on at {desk_id}"));
    bob.process.output(LIMIT).succeeded();
}
