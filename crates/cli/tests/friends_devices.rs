//! Friends see which devices a user has as long as they may, and nobody else does: real processes, each with
//! a home of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::time::{Duration, Instant};

use crate::agents::{PATIENCE, introduce, until};
use crate::common::{LIMIT, Process, World, page};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::transport::{CloseCode, ConnectError, Connection, ManualMonitor};
use whimbrel_base::{EndpointId, Ticket};

/// What who may not see them hears, without its length: no devices.
const NONE: &[u8] = b"\0";

fn make_friends(world: &World, one: &str, other: &str) {
    let [of_one, of_other] = [one, other].map(|user| format!("{user}@example.org"));
    introduce(world, (one, &["--as", &of_one]), (other, &["--as", &of_other]));
}

/// Starts an agent, which is found by a name.
fn agent(world: &World, machine: &str, name: &str) -> Process {
    ready(world, machine, &["--as", name]).0
}

/// Starts one without a name. Returns its ticket too.
fn agent_alone(world: &World, machine: &str) -> (Process, String) {
    let (agent, ready) = ready(world, machine, &[]);
    (agent, ready["ticket"].as_str().unwrap().to_owned())
}

fn ready(world: &World, machine: &str, args: &[&str]) -> (Process, Value) {
    let mut agent = world.start(machine, &[&["agent", "--json", "-q"], args].concat());
    let ready = agent.next_json();
    assert_eq!(ready["event"], "ready", "{ready}");
    (agent, ready)
}

/// What bob's list says of ada.
fn ada(world: &World) -> Value {
    let list = world.run("bob", &["friends", "list", "--json"]).succeeded().json();
    let friends = list["friends"].as_array().unwrap();
    friends.iter().find(|friend| friend["name"] == "ada@example.org").unwrap().clone()
}

fn is_up(ada: &Value) -> bool {
    ada["up"].as_object().unwrap().values().any(|up| up["state"] == "present")
}

/// Of ada's devices that bob sees, the one that he sees at all.
fn laptop(world: &World) -> Option<Value> {
    let ada = ada(world);
    let shows = ada["shows"].as_array().unwrap();
    assert!(shows.len() <= 1, "{ada}");
    shows.first().cloned()
}

#[test]
fn a_friend_sees_the_devices_and_names_them_and_sees_them_no_more_once_the_right_is_taken_back() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    make_friends(&world, "ada", "bob");
    world.run("ada", &["devices", "name", "laptop", "slate"]).succeeded();
    world.run("ada", &["devices", "show", "slate", "--to", "friends"]).succeeded();
    world.run("bob", &["friends", "allow", "ada@example.org"]).succeeded();
    let allow = |how: &[&str]| {
        let allow = [&["friends", "allow", "bob@example.org", "--json"], how].concat();
        world.run("ada", &allow).succeeded().json()["may_see"].clone()
    };
    assert_eq!(allow(&[]), json!({ "presence": true, "devices": false }));
    let _ada = agent(&world, "ada", "home.ada@example.org");
    let _laptop = agent(&world, "laptop", "laptop.ada@example.org");
    let first = agent(&world, "bob", "home.bob@example.org");
    until("bob sees that ada is up", || is_up(&ada(&world)).then_some(()));
    assert_eq!(laptop(&world), None, "without the right");

    assert_eq!(allow(&["--devices"]), json!({ "presence": true, "devices": true }));
    let seen = until("bob sees that the laptop is up", || {
        laptop(&world).filter(|laptop| laptop["presence"]["state"] == "present")
    });
    assert_eq!(seen["name"], "laptop.ada@example.org");
    assert_eq!(seen["id"], world.id("laptop"));
    assert_eq!((&seen["called"], &seen["called_there"]), (&Value::Null, &json!("slate")));
    let text = world.run("bob", &["friends", "list"]).succeeded().stdout.clone();
    assert!(text.contains("  -  laptop.ada@example.org, called slate there"), "{text}");

    // What bob calls it is taken wherever a name is.
    world.run("bob", &["friends", "name", "laptop.ada@example.org", "adas"]).succeeded();
    until("the laptop is called so", || laptop(&world).filter(|laptop| laptop["called"] == "adas"));
    assert_eq!(ada(&world)["devices"], json!([world.id("laptop")]), "it is noted by that");
    world.run("bob", &["friends", "name", "adas", "ada"]).failed(2, &["something else is called ada"]);
    let bob = world.id("bob");
    let mut exposing = world.start(
        "laptop",
        &["expose", "web.laptop.ada@example.org", "--to", &page("at ada's"), "--allow", &bob, "--json", "-q"],
    );
    exposing.next_json();
    assert_eq!(world.run("bob", &["pipe", "web.adas"]).succeeded().stdout.trim(), "at ada's");

    // It is kept without an agent.
    until("bob sees the laptop", || laptop(&world));
    drop(first);
    assert_eq!(laptop(&world).unwrap()["called_there"], "slate");
    let _second = agent(&world, "bob", "home.bob@example.org");

    assert_eq!(allow(&["--devices", "--off"]), json!({ "presence": true, "devices": false }));
    // The laptop tells him until it has heard of that.
    until("bob does not see the laptop any more, and still that ada is up", || {
        (laptop(&world).is_none() && is_up(&ada(&world))).then_some(())
    });
    allow(&["--devices"]);
    until("bob sees the laptop again", || laptop(&world));
    // His agent is refused now, and must take that for an answer.
    assert_eq!(allow(&["--off"]), json!({ "presence": false, "devices": false }));
    until("bob sees nothing any more", || {
        let ada = ada(&world);
        let sees = !ada["shows"].as_array().unwrap().is_empty() || is_up(&ada);
        sees.then(|| eprintln!("{ada}")).is_none().then_some(())
    });
}

/// Asks an agent for its user's devices, with the key of this user. A connection that is ended in place of an
/// answer says nothing at all.
async fn ask(world: &World, user: &str, agent: &str) -> Result<Vec<u8>, ConnectError> {
    let monitor = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
    let identity = world.config(user, "identity");
    let endpoint =
        whimbrel::Endpoint::builder().identity_file(identity).monitor(monitor).bind().await.unwrap();
    let connection: Connection = endpoint.connect(agent.parse::<Ticket>().unwrap()).await?;
    let asking = async {
        let mut stream = connection.open_stream().await.map_err(io::Error::other)?;
        stream.write_all(b"WHB3").await?;
        let mut bytes = vec![0_u8; stream.read_u16().await?.into()];
        stream.read_exact(&mut bytes).await?;
        io::Result::Ok(bytes)
    };
    Ok(tokio::time::timeout(LIMIT, asking).await.expect("no answer").unwrap_or_default())
}

/// Asks again until the answer is so.
async fn ask_until(
    (world, user, agent): (&World, &str, &str),
    what: &str,
    is_so: impl Fn(&Result<Vec<u8>, ConnectError>) -> bool,
) {
    let start = Instant::now();
    loop {
        let heard = ask(world, user, agent).await;
        if is_so(&heard) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "it never came: {what}: {heard:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn is_refused(heard: &Result<Vec<u8>, ConnectError>) -> bool {
    matches!(heard, Err(ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_friends_without_the_right_who_ask_for_the_devices_hear_nothing() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    make_friends(&world, "ada", "bob");
    make_friends(&world, "ada", "carol");
    make_friends(&world, "dave", "carol");
    world.id("eve");
    let laptop: EndpointId = world.id("laptop").parse().unwrap();
    let has_laptop = |heard: &Result<Vec<u8>, ConnectError>| {
        let bytes = laptop.as_bytes().as_slice();
        heard.as_ref().is_ok_and(|heard| heard.windows(bytes.len()).any(|part| part == bytes))
    };
    let allow = |friend: &str, how: &[&str]| {
        world.run("ada", &[&["friends", "allow", friend], how].concat()).succeeded();
    };
    allow("carol@example.org", &[]);
    world.run("dave", &["friends", "allow", "carol@example.org", "--devices"]).succeeded();
    let (_ada, at_ada) = agent_alone(&world, "ada");
    let (_dave, at_dave) = agent_alone(&world, "dave");

    for nobody in ["eve", "bob"] {
        let heard = ask(&world, nobody, &at_ada).await;
        assert!(is_refused(&heard), "{nobody} heard {heard:?}");
    }
    // A friend who may see presence alone gets what a friend of somebody without devices gets.
    assert_eq!(ask(&world, "carol", &at_ada).await.unwrap(), NONE);
    assert_eq!(ask(&world, "carol", &at_dave).await.unwrap(), NONE);

    allow("carol@example.org", &["--devices"]);
    let carol = (&world, "carol", at_ada.as_str());
    ask_until(carol, "carol hears of the laptop", has_laptop).await;
    let heard = ask(&world, "bob", &at_ada).await;
    assert!(is_refused(&heard), "bob heard {heard:?}");
    allow("carol@example.org", &["--devices", "--off"]);
    ask_until(carol, "carol hears nothing", |heard| heard.as_ref().is_ok_and(|heard| heard == NONE)).await;
    allow("carol@example.org", &["--off"]);
    ask_until(carol, "carol is refused", is_refused).await;
}
