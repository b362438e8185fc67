//! Users and machines that ask by the name service: real processes, each with a home of its own.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant, SystemTime};

use crate::common::{LIMIT, World};
use serde_json::Value;
use whimbrel_base::{Name, UnixTime};
use whimbrel_names::{Proposal, Wished};

const ADA: &str = "ada@example.org";
const BOB: &str = "bob@example.org";

/// Has a user's machine be given a name by a code.
fn add_device(world: &World, device: &str) {
    let name = format!("{device}.{ADA}");
    let mut inviting = world.start("ada", &["invite", "--json", "-q", "--device", &name]);
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run(device, &["join", &code, "--json", "-q"]).succeeded();
    inviting.output(LIMIT).succeeded();
}

fn register(world: &World, machine: &str, user: &str) {
    world.run(machine, &["id", "register", user]).succeeded();
}

fn requests(world: &World, machine: &str) -> Vec<Value> {
    let listed = world.run(machine, &["friends", "requests", "--json", "-q"]).succeeded().json();
    listed["requests"].as_array().unwrap().clone()
}

fn friends(world: &World, machine: &str) -> Vec<String> {
    let listed = world.run(machine, &["friends", "list", "--json", "-q"]).succeeded().json();
    let friends = listed["friends"].as_array().unwrap().iter();
    friends.map(|friend| friend["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_request_reaches_all_devices_a_trusted_one_accepts_and_the_others_see_it() {
    let (world, _names) = World::with_names();
    add_device(&world, "laptop");
    add_device(&world, "desk");
    world.run("ada", &["devices", "trust", "laptop"]).succeeded();
    let mut serving = world.start("ada", &["devices", "serve", "--json", "-q"]);
    let ticket = serving.next_json()["ticket"].as_str().unwrap().to_owned();
    let sync: &[&str] = &["devices", "sync", &ticket, "-q"];
    world.run("laptop", sync).succeeded();
    world.run("desk", sync).succeeded();
    register(&world, "bob", BOB);
    let ask: &[&str] = &["friends", "request", ADA, "--json", "-q"];
    assert_eq!(world.run("bob", ask).succeeded().json()["state"], "waits");
    world.run("bob", ask).failed(5, &["was asked already"]);
    world.run("bob", &["friends", "request", "carol@example.org", "-q"]).failed(3, &["carol@example.org"]);
    for machine in ["ada", "laptop", "desk"] {
        let all = requests(&world, machine);
        assert_eq!(
            (all.len(), &all[0]["from"], &all[0]["state"]),
            (1, &BOB.into(), &"open".into()),
            "{machine}"
        );
    }
    // Neither a stranger, nor a device without trust, nor the one who asked.
    let accept: &[&str] = &["friends", "accept", BOB, "--json", "-q"];
    world.id("eve");
    world.run("eve", accept).failed(3, &["no request of"]);
    world.run("bob", accept).failed(3, &["no request of"]);
    world.run("desk", accept).failed(5, &["may not act for the user"]);
    let accepted = world.run("laptop", accept).succeeded().json();
    assert_eq!((&accepted["state"], &accepted["id"]), (&"accepted".into(), &world.id("bob").into()));
    let laptop = world.id("laptop");
    for machine in ["ada", "laptop", "desk"] {
        let all = requests(&world, machine);
        let told = (&all[0]["state"], &all[0]["answered_by"]);
        assert_eq!(told, (&"accepted".into(), &laptop.as_str().into()), "{machine}");
    }
    world.run("ada", &["friends", "refuse", BOB, "-q"]).failed(3, &["no request of"]);
    let told = world.run("bob", &["friends", "requests", "--json", "-q"]).succeeded().json();
    assert_eq!(told["new_friends"], serde_json::json!([ADA]));
    assert_eq!(friends(&world, "bob"), [ADA]);
    assert_eq!(friends(&world, "laptop"), [BOB]);
    world.run("laptop", sync).succeeded();
    assert_eq!(friends(&world, "ada"), [BOB]);
    // The name service's word alone lets nobody in.
    for whom in [BOB, "bob"] {
        let expose = ["expose", "web.ada@example.org", "--to", "127.0.0.1:1", "--allow", whom, "-q"];
        world.run("ada", &expose).failed(6, &["nobody confirmed its key"]);
    }
}

#[test]
fn a_refused_request_is_not_repeated_and_makes_nobody_a_friend() {
    let (world, _names) = World::with_names();
    register(&world, "ada", ADA);
    register(&world, "bob", BOB);
    world.run("bob", &["friends", "request", ADA, "--for", "8d"]).failed(2, &["7 days at most"]);
    world.run("bob", &["friends", "request", ADA, "-q"]).succeeded();
    world.run("ada", &["friends", "refuse", BOB, "-q"]).succeeded();
    assert_eq!(requests(&world, "bob")[0]["state"], "refused");
    world.run("bob", &["friends", "request", ADA, "-q"]).failed(5, &["was asked already"]);
    // Taking it back does not help.
    world.run("bob", &["friends", "refuse", ADA, "-q"]).succeeded();
    world.run("bob", &["friends", "request", ADA, "-q"]).failed(5, &["was asked already"]);
    assert!(friends(&world, "ada").is_empty() && friends(&world, "bob").is_empty());
}

#[test]
fn two_requests_that_cross_become_one_friendship() {
    let (world, _names) = World::with_names();
    register(&world, "ada", ADA);
    register(&world, "bob", BOB);
    // Bob's goes out before ada's has come.
    world.run("ada", &["friends", "request", BOB, "-q"]).succeeded();
    propose_without_a_look(&world);
    let told = world.run("ada", &["friends", "requests", "--json", "-q"]).succeeded().json();
    assert_eq!(told["new_friends"], serde_json::json!([BOB]));
    let told = world.run("bob", &["friends", "requests", "--json", "-q"]).succeeded().json();
    assert_eq!(told["new_friends"], serde_json::json!([ADA]));
    assert_eq!(
        (friends(&world, "ada"), friends(&world, "bob")),
        (vec![BOB.to_owned()], vec![ADA.to_owned()])
    );
    for machine in ["ada", "bob"] {
        let left = requests(&world, machine);
        assert!(left.iter().all(|it| it["state"] == "accepted"), "{machine}: {left:?}");
    }
    // One who asks after the other has is a friend at once.
    register(&world, "carol", "carol@example.org");
    world.run("carol", &["friends", "request", ADA, "-q"]).succeeded();
    let asked =
        world.run("ada", &["friends", "request", "carol@example.org", "--json", "-q"]).succeeded().json();
    assert_eq!(asked["state"], "accepted");
    world.run("carol", &["friends", "requests", "-q"]).succeeded();
    assert_eq!(friends(&world, "carol"), [ADA]);
}

/// As bob's machine does when it has not heard of ada's request yet.
fn propose_without_a_look(world: &World) {
    let file = world.path("bob").join(".config/whimbrel/identity");
    let key = whimbrel::Identity::in_file(file).unwrap().key;
    let name = |text: &str| text.parse::<Name>().unwrap();
    let made = UnixTime::from(SystemTime::now());
    let proposal = Proposal {
        wished: Wished::Friends { from: name(BOB) },
        to: name(ADA),
        owner: world.id("ada").parse().unwrap(),
        by: key.id(),
        made,
        expires: made.saturating_add(Duration::from_secs(600)),
        word: None,
    };
    let bytes = proposal.sign(&key).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bob = whimbrel::Endpoint::builder().identity(key).names(world.service()).bind().await.unwrap();
        bob.names().unwrap().propose(bytes).await.unwrap();
        bob.close(LIMIT).await;
    });
}

#[test]
fn a_machine_becomes_a_device_when_its_words_are_accepted_where_the_users_key_is() {
    let (world, _names) = World::with_names();
    register(&world, "ada", ADA);
    add_device(&world, "laptop");
    let ask = |machine: &str, name: &str| {
        let mut asking = world.start(machine, &["devices", "request", name, "--json", "-q"]);
        let words = asking.next_json()["words"].as_str().unwrap().to_owned();
        (asking, words)
    };
    let (tablet, words) = ask("tablet", "tablet.ada@example.org");
    let (thief, others) = ask("thief", "tablet.ada@example.org");
    let listed = requests(&world, "ada");
    assert!(listed.iter().any(|it| it["kind"] == "device" && it["words"] == words.as_str()), "{listed:?}");
    let answer =
        |machine: &str, how: &str, words: &str| world.run(machine, &["devices", how, words, "--json", "-q"]);
    answer("ada", "accept", "zoo-zoo-zoo").failed(2, &["six words"]);
    answer("ada", "accept", "zoo-zoo-zoo-zoo-zoo-zoo").failed(3, &["no machine that waits"]);
    // A device without trust hears of it, and no more.
    answer("laptop", "accept", &words).failed(5, &["may not act for the user"]);
    answer("ada", "refuse", &others).succeeded();
    thief.output(LIMIT).failed(5, &["does not want this machine"]);
    answer("ada", "accept", &words).succeeded();
    assert_eq!(tablet.output(LIMIT).succeeded().json()["given"], "tablet.ada@example.org");
    let list = world.run("ada", &["devices", "list", "--json"]).succeeded().json();
    let devices = list["devices"].as_array().unwrap();
    assert!(devices.iter().any(|it| it["id"] == world.id("tablet").as_str()), "{list}");
    let args = ["expose", "ssh.tablet.ada@example.org", "--to", "127.0.0.1:1", "--allow", "any", "--json"];
    let mut expose = world.start("tablet", &args);
    expose.next_json();
    let found = world.run("laptop", &["names", "lookup", "ssh.tablet.ada@example.org", "--json"]);
    assert_eq!(found.succeeded().json()["delegated_by"], world.id("ada"));
}

#[test]
fn an_agent_tells_of_a_request_and_notes_who_accepted() {
    let (world, _names) = World::with_names();
    register(&world, "ada", ADA);
    register(&world, "bob", BOB);
    let asked = world.run("bob", &["friends", "request", ADA, "-q"]).succeeded().stdout.clone();
    // One of them has the answer, whoever hears of it first.
    for command in ["`whimbrel friends requests`", "`whimbrel friends list`"] {
        assert!(asked.contains(command), "{asked}");
    }
    let event = |machine: &str, has: &str| {
        let mut agent = world.start(machine, &["agent", "--json", "-q"]);
        // That it is ready may come before or after it, and other news.
        let told = (0..20).map(|_| agent.next_json()).find(|it| it["event"] == "request").unwrap();
        assert!(told["text"].as_str().unwrap().contains(has), "{told}");
    };
    event("ada", "bob@example.org asks to be a friend");
    world.run("ada", &["friends", "accept", BOB, "-q"]).succeeded();
    event("bob", "ada@example.org is a friend now");
    assert_eq!(friends(&world, "bob"), [ADA]);
    assert!(requests(&world, "bob").is_empty());
}

#[test]
fn an_agent_hears_of_requests_without_asking_again_and_again() {
    let (world, _names) = World::with_names();
    register(&world, "ada", ADA);
    let mut agent = world.start("ada", &["agent", "--json", "-q"]);
    let users = ["bob", "carol", "dan"];
    for user in users {
        register(&world, user, &format!("{user}@example.org"));
    }
    let mut took = Vec::new();
    for user in users {
        let asked = Instant::now();
        world.run(user, &["friends", "request", ADA, "-q"]).succeeded();
        let told = (0..20).map(|_| agent.next_json()).find(|it| it["event"] == "request").unwrap();
        assert!(told["text"].as_str().unwrap().starts_with(&format!("{user}@example.org asks")), "{told}");
        took.push(asked.elapsed());
    }
    // One that looks every 20 seconds has just looked when it tells of the first one, and hears of each of
    // the others 20 seconds later. On a busy machine one of them may take long by itself.
    assert!(took[1..].iter().any(|took| *took < Duration::from_secs(15)), "{took:?}");
}
