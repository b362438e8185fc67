//! Questions to which a connection of Whimbrel is the answer, over the socket and by the client library.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::{Running, World, world};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use whimbrel_access::{Granularity, Intents};
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::{Ask, Protocol};
use whimbrel_multiaccess::{Client, ClientError, GatewayOr, Pool};

const NAME: &str = "ssh.laptop.ada@example.org";
const HOST: &str = "ssh.laptop.ada.at.example.org.whimbrel";
const GATE: &str = "gate.home.ada@example.org";
/// An ordinary host of the internet, as far as addresses say.
const FAR: &str = "9.9.9.9:443";

/// Two links, of which the second one costs money, and a manager that knows a gateway.
fn with_gateway() -> (World, Running) {
    let world = world(&[(5, 20), (20, 20)]);
    let settings = format!("gateway = \"{GATE}\"\nmetered = [\"link1\"]");
    let running = Running::start(&world.client, &settings);
    (world, running)
}

#[track_caller]
fn decision(running: &Running, ask: &Value) -> Value {
    let answer = running.client().ask(&json!({ "ask": ask }).to_string());
    assert!(answer["decision"].is_object(), "{ask}: {answer}");
    answer["decision"].clone()
}

fn networks(by: &Value) -> Vec<&str> {
    by["ways"].as_array().unwrap().iter().map(|way| way["interface"].as_str().unwrap()).collect()
}

#[test]
fn a_name_of_whimbrel_and_its_host_are_reached_by_whimbrel_over_the_best_network() {
    if !require!() {
        return;
    }
    let (_world, running) = with_gateway();
    let mut watcher = running.client();
    watcher.ask(r#"{"id":7,"watch":{"decisions":true}}"#);
    for to in [NAME.to_owned(), format!("{NAME}:22"), format!("{HOST}:22")] {
        let told = decision(&running, &json!({ "to": to }));
        let by = &told["whimbrel"];
        assert_eq!(by["endpoint"], NAME, "{told}");
        assert_eq!(by["gateway"], Value::Null, "{told}");
        assert_eq!(networks(by), ["link0", "link1"]);
        assert_eq!(by["ways"][0]["protocol"], "whimbrel");
        assert_eq!(by["ways"][0]["source"], "10.0.0.1");
        assert!(by["why"].as_str().unwrap().contains("is a name of Whimbrel"), "{told}");
        // Programs of before find no way, and are told why.
        assert_eq!(told["ways"], json!([]), "{told}");
        assert!(told["problems"][0].as_str().unwrap().contains("Whimbrel alone leads there"), "{told}");
        let heard = watcher.until(|line| line.get("decided").is_some());
        assert_eq!(heard["decided"]["to"], to);
        assert_eq!(heard["decided"]["whimbrel"]["endpoint"], NAME);
    }
    let free = decision(&running, &json!({"to": NAME, "intents": {"cost": "no-expense"}}));
    assert_eq!(networks(&free["whimbrel"]), ["link0"]);
    let wrong = running.client().ask(r#"{"ask":{"to":"nobody.whimbrel:80"}}"#);
    assert!(wrong["error"].as_str().unwrap().contains("is no name of Whimbrel"), "{wrong}");
}

#[test]
fn what_must_not_break_goes_by_whimbrel_through_the_users_gateway_and_all_else_as_before() {
    if !require!() {
        return;
    }
    let (world, mut running) = with_gateway();
    let sensitive = json!({"resilience": "sensitive"});
    let lasting = json!({"granularity": "connection", "to": FAR, "intents": sensitive});
    let told = decision(&running, &lasting);
    let by = &told["whimbrel"];
    assert_eq!((&by["endpoint"], &by["gateway"]), (&json!(GATE), &json!(true)), "{told}");
    assert_eq!(networks(by)[0], "link0");
    assert!(by["why"].as_str().unwrap().ends_with("; resilience=sensitive"), "{told}");
    // For programs that cannot, as it was.
    assert_eq!(told["ways"][0]["protocol"], "tcp");
    assert_eq!(told["ways"][0]["destination"], FAR);
    for other in [
        json!({"granularity": "connection", "to": FAR}),
        json!({"granularity": "message", "to": FAR, "intents": sensitive}),
        json!({"granularity": "connection", "to": "10.9.9.9:443", "intents": sensitive}),
        json!({"granularity": "connection", "intents": sensitive}),
    ] {
        let told = decision(&running, &other);
        assert_eq!(told["whimbrel"], Value::Null, "{other}: {told}");
        assert!(!told["ways"].as_array().unwrap().is_empty(), "{other}: {told}");
    }
    running.again("");
    assert_eq!(decision(&running, &lasting)["whimbrel"], Value::Null, "no gateway is set");
    drop(world);
}

#[test]
fn the_client_library_gives_programs_the_answer_and_asks_nobody_for_an_address() {
    if !require!() {
        return;
    }
    let (_world, running) = with_gateway();
    let client = Client::at(&running.socket());
    let (intents, granularity) = ("resilience=sensitive".parse().unwrap(), Granularity::Connection);
    let ask = Ask { intents, granularity, to: Some(FAR.to_owned()), ..Ask::default() };
    let by = running.runtime.block_on(client.ask(ask)).unwrap().whimbrel.unwrap();
    assert_eq!((by.endpoint.as_str(), by.gateway), (GATE, true));
    assert!(by.ways.iter().all(|way| way.protocol == Protocol::Whimbrel), "{by:?}");
    // With a manager and without one.
    for client in [client, Client::off()] {
        for host in [HOST, NAME] {
            let intents = Intents::default();
            let resolved = running.runtime.block_on(client.resolve(host, 22, intents)).map(drop);
            let routed = running.runtime.block_on(client.route(host, 22, intents, Vec::new(), false));
            let pool = Pool::new(client.clone());
            let pooled = running.runtime.block_on(pool.request(host, 22, intents)).map(drop);
            for refused in [resolved, routed.map(drop), pooled] {
                match refused {
                    Err(ClientError::ByWhimbrel { endpoint, .. }) => assert_eq!(endpoint, NAME),
                    other => panic!("{host}: {other:?}"),
                }
            }
        }
        let wrong = running.runtime.block_on(client.resolve("nobody.whimbrel", 22, Intents::default()));
        assert!(matches!(wrong, Err(ClientError::Refused(_))), "{wrong:?}");
    }
}

/// It would look names up over networks that the program's gateway may be there to hide them from.
#[test]
fn a_manager_that_knows_no_gateway_hears_nothing_of_where_a_program_behind_one_goes() {
    if !require!() {
        return;
    }
    let (_world, mut running) = with_gateway();
    let client = Client::at(&running.socket()).beside_gateway();
    let intents: Intents = "resilience=sensitive".parse().unwrap();
    let reach = |running: &Running| running.runtime.block_on(client.gateway_or("9.9.9.9", 443, intents));
    let route = |running: &Running| {
        running.runtime.block_on(client.route("9.9.9.9", 443, intents, Vec::new(), false)).unwrap()
    };
    assert!(matches!(reach(&running), Ok(GatewayOr::Gateway(_))) && route(&running).is_some());

    running.again("");
    let mut watcher = running.client();
    watcher.ask(r#"{"id":7,"watch":{"decisions":true}}"#);
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        // For a moment the one before may still answer, or it is not known yet that there is another one.
        match reach(&running) {
            Ok(GatewayOr::Unanswered(why)) if why.contains("name no gateway") => break,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(route(&running).is_none());
    decision(&running, &json!({ "to": "8.8.8.8:443" }));
    let heard = watcher.until(|line| line["decided"]["to"].is_string());
    assert_eq!(heard["decided"]["to"], "8.8.8.8:443");
}
