//! Subflows of the kernel's Multipath TCP, by the manager's word and through the helper.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::multipath::{
    FAR, UserProgram, backups, connect, echo, exchange, is_supported, sources, wait_for_sources,
};
use crate::support::{self, Client, Running, World, world};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::net::UnixListener;
use whimbrel_access::Intents;
use whimbrel_lab::{Runtime, require};
use whimbrel_multiaccess::Helper;

/// A user who is not root.
const USER: u32 = 1000;
const OTHER: u32 = 65_534;

/// A helper on the client host, on a socket that all can reach.
struct Helping {
    helper: Option<Helper>,
    runtime: Runtime,
    folder: TempDir,
}

impl Helping {
    fn start(world: &World, user: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut helping = Self { helper: None, runtime: world.client.runtime(1).unwrap(), folder };
        helping.again(user);
        helping
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("steer")
    }

    fn stop(&mut self) {
        self.helper = None;
        let _ = std::fs::remove_file(self.socket());
    }

    fn again(&mut self, user: u32) {
        self.stop();
        let socket = self.socket();
        let start = async { Helper::start(UnixListener::bind(&socket).unwrap(), user).await };
        self.helper = Some(self.runtime.block_on(start).unwrap());
        open_to_all(self.folder.path(), &socket);
    }

    /// Settings of a manager that uses it: every connection over all networks, of which the second costs
    /// money.
    fn settings(&self) -> String {
        let helper = self.socket();
        let helper = helper.to_str().unwrap();
        format!("helper = \"{helper}\"\nmetered = [\"link1\"]\n[policy]\nname = \"mptcp\"")
    }
}

fn open_to_all(folder: &Path, socket: &Path) {
    for path in [folder, socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
}

/// Two networks, and a server of Multipath TCP beyond them.
fn two_networks(test: &str) -> Option<World> {
    if !is_supported(test) {
        return None;
    }
    let world = world(&[(5, 20), (5, 20)]);
    echo(&world);
    Some(world)
}

fn path_manager(world: &World) -> String {
    let read = || std::fs::read_to_string("/proc/sys/net/mptcp/pm_type").unwrap();
    world.client.run(read).trim().to_owned()
}

fn steer(local: &str, intents: Value) -> Value {
    json!({"id": 7, "steer": {"local": local, "remote": FAR, "intents": intents}})
}

fn local(stream: &TcpStream) -> String {
    stream.local_addr().unwrap().to_string()
}

/// The interfaces in an answer.
#[track_caller]
fn steered(answer: &Value) -> Vec<&str> {
    let listed = answer["steered"].as_array().unwrap_or_else(|| panic!("{answer}"));
    listed.iter().map(|one| one["interface"].as_str().unwrap()).collect()
}

#[test]
fn a_connection_has_the_subflows_that_the_policy_says_and_loses_them_when_the_word_changes() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("subflows by the policy's word") else { return };
    let helping = Helping::start(&world, 0);
    let running = Running::start(&world.client, &helping.settings());
    let mut client = running.client();
    let mut stream = connect(&world.client);
    exchange(&mut stream);
    // The kernel's own path manager opens nothing; the manager has it opened.
    assert_eq!(sources(&world.client), ["10.0.0.1"]);
    let both = client.ask(&steer(&local(&stream), json!({})).to_string());
    assert_eq!(steered(&both), ["link0", "link1"]);
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.1.1"]);
    exchange(&mut stream);
    // The word changes: now nothing may cost money.
    let free = client.ask(&steer(&local(&stream), json!({"cost": "no-expense"})).to_string());
    assert_eq!(steered(&free), ["link0"]);
    wait_for_sources(&world.client, &["10.0.0.1"]);
    exchange(&mut stream);
    // And back.
    client.ask(&steer(&local(&stream), json!({})).to_string());
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.1.1"]);
    exchange(&mut stream);
}

#[test]
fn the_first_network_of_a_decision_carries_and_the_other_stands_by() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("subflows that stand by") else { return };
    let helping = Helping::start(&world, 0);
    let settings = helping.settings().replace("\"mptcp\"", "\"eaf\"");
    let running = Running::start(&world.client, &settings);
    let mut client = running.client();
    let mut stream = connect(&world.client);
    exchange(&mut stream);
    // Which one is first is the policy's business, and may change while it measures.
    let end = std::time::Instant::now() + support::LIMIT;
    loop {
        let told = client.ask(&steer(&local(&stream), json!({})).to_string());
        let listed = told["steered"].as_array().unwrap_or_else(|| panic!("{told}"));
        let standing: Vec<&str> = listed
            .iter()
            .filter(|one| one["backup"] == true)
            .map(|one| one["source"].as_str().unwrap())
            .collect();
        assert_eq!((listed.len(), standing.len(), &listed[0]["backup"]), (2, 1, &Value::Null), "{told}");
        if sources(&world.client).len() == 2 && backups(&world.client) == standing {
            break;
        }
        assert!(std::time::Instant::now() < end, "{told}, and {:?} stand by", backups(&world.client));
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    exchange(&mut stream);
}

#[test]
fn where_nothing_may_cost_money_no_subflow_is_even_tried_over_what_does() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("no subflow that costs") else { return };
    let helping = Helping::start(&world, 0);
    let running = Running::start(&world.client, &helping.settings());
    let mut client = running.client();
    let mut stream = connect(&world.client);
    exchange(&mut stream);
    let free = client.ask(&steer(&local(&stream), json!({"cost": "no-expense"})).to_string());
    // What there was to order was ordered before that was answered.
    assert_eq!((steered(&free), sources(&world.client)), (vec!["link0"], vec!["10.0.0.1".to_owned()]));
    exchange(&mut stream);
    assert_eq!(sources(&world.client), ["10.0.0.1"]);
}

#[test]
fn a_network_that_comes_gets_a_subflow_and_one_that_goes_takes_none_along() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("networks come and go") else { return };
    world.links[1].end(&world.client).del_address("10.0.1.1/24").unwrap();
    let helping = Helping::start(&world, 0);
    let running = Running::start(&world.client, &helping.settings());
    let mut client = running.client();
    let mut stream = connect(&world.client);
    exchange(&mut stream);
    let one = client.ask(&steer(&local(&stream), json!({})).to_string());
    assert_eq!(steered(&one), ["link0"]);
    let end = world.links[1].end(&world.client);
    end.add_address("10.0.1.1/24").unwrap();
    end.add_default_route("10.0.1.2", 2).unwrap();
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.1.1"]);
    exchange(&mut stream);
    end.del_address("10.0.1.1/24").unwrap();
    wait_for_sources(&world.client, &["10.0.0.1"]);
    exchange(&mut stream);
}

#[test]
fn connections_of_the_client_library_are_steered_by_themselves() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("the client library") else { return };
    let helping = Helping::start(&world, 0);
    let running = Running::start(&world.client, &helping.settings());
    let client = whimbrel_multiaccess::Client::at(&running.socket());
    let connecting = async move {
        let connected = client.connect("10.9.9.9", 7000, Intents::default()).await.unwrap();
        (connected.stream.into_std().unwrap(), client)
    };
    let (mut stream, _client) = running.runtime.block_on(connecting);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(support::LIMIT)).unwrap();
    exchange(&mut stream);
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.1.1"]);
}

#[test]
fn a_connection_outlives_the_helper_and_the_next_one_steers_it_again() {
    if !require!() {
        return;
    }
    let Some(world) = two_networks("the helper dies") else { return };
    assert_eq!(path_manager(&world), "0");
    let mut helping = Helping::start(&world, 0);
    assert_eq!(path_manager(&world), "1");
    let running = Running::start(&world.client, &helping.settings());
    let mut client = running.client();
    let mut stream = connect(&world.client);
    exchange(&mut stream);
    client.ask(&steer(&local(&stream), json!({})).to_string());
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.1.1"]);
    helping.stop();
    // New connections are the kernel's own path manager's again.
    assert_eq!(path_manager(&world), "0");
    exchange(&mut stream);
    assert_eq!(sources(&world.client), ["10.0.0.1", "10.0.1.1"]);
    // Without a helper that is said, and the connection stays as it is.
    let other = connect(&world.client);
    let end = std::time::Instant::now() + support::LIMIT;
    loop {
        let told = client.ask(&steer(&local(&other), json!({})).to_string());
        if let Some(error) = told["error"].as_str() {
            assert!(error.contains("helper"), "{told}");
            break;
        }
        assert!(std::time::Instant::now() < end, "{told}");
    }
    drop(other);
    exchange(&mut stream);
    helping.again(0);
    let end = std::time::Instant::now() + support::LIMIT;
    loop {
        let told = client.ask(&steer(&local(&stream), json!({"cost": "no-expense"})).to_string());
        if told.get("steered").is_some() {
            break;
        }
        assert!(std::time::Instant::now() < end, "{told}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    wait_for_sources(&world.client, &["10.0.0.1"]);
    exchange(&mut stream);
}

#[test]
fn the_helper_takes_orders_of_one_user_about_its_own_connections_and_no_others() {
    if !require!() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        whimbrel_lab::skip("orders of several users", "it needs root to become one");
        return;
    }
    let Some(world) = two_networks("orders of several users") else { return };
    let helping = Helping::start(&world, USER);
    let mut foreign = UserProgram::start(&world.client, OTHER, &helping.socket());
    let told = foreign.hear().unwrap();
    assert!(told["error"].as_str().unwrap().contains("user 1000 and root, and you are user 65534"), "{told}");
    assert_eq!(foreign.hear(), None);
    let mut roots = connect(&world.client);
    exchange(&mut roots);
    let order = |local: &str, action: Value| {
        let connection = json!({"local": local, "remote": FAR});
        json!({"id": 7, "connection": connection, "action": action})
    };
    let create = |number: u8| {
        let interface = interface_number(&world, "link1");
        let source = "10.0.1.1";
        json!({"create": {"source": source, "interface": interface, "number": number, "remote": FAR}})
    };
    let mut user = UserProgram::start(&world.client, USER, &helping.socket());
    let own = user.local.clone();
    let refused = user.ask(&order(&local(&roots), create(1)));
    assert!(
        refused["error"].as_str().unwrap().contains("you have no connection of Multipath TCP"),
        "{refused}"
    );
    let is_opened = || sources(&world.client).iter().any(|source| source == "10.0.1.1");
    assert!(!is_opened(), "the connection of the first program may end meanwhile, and nothing else happens");
    assert_eq!(user.ask(&order(&own, create(1))), json!({"id": 7, "ok": true}));
    // It is told what becomes of its connection.
    let is_it = |told: &Value| told["event"]["what"] == "subflow-established";
    let event = (0..16).map(|_| user.hear().unwrap()).find(is_it).unwrap();
    assert_eq!(event["event"]["connection"]["local"], own);
    // Without an action it is told which subflows the connection has: of the kernel it may not hear.
    user.say(&json!({"id": 8, "connection": {"local": own, "remote": FAR}}));
    let listed = (0..16).map(|_| user.hear().unwrap()).find(|told| told["id"] == 8).unwrap();
    let mut locals: Vec<&str> = listed["subflows"]
        .as_array()
        .unwrap_or_else(|| panic!("{listed}"))
        .iter()
        .filter_map(|subflow| subflow["ends"]["local"].as_str()?.split(':').next())
        .collect();
    locals.sort_unstable();
    assert_eq!(locals, ["10.0.0.1", "10.0.1.1"], "{listed}");
    user.say(&json!({"id": 9, "connection": {"local": local(&roots), "remote": FAR}}));
    let refused = (0..16).map(|_| user.hear().unwrap()).find(|told| told["id"] == 9).unwrap();
    assert!(refused.get("subflows").is_none() && refused["error"].is_string(), "{refused}");
    // What the helper does not know, it does not do, and it hears no more of such a client.
    user.say(&order(&own, json!({"flush": {}})));
    let is_error = |told: &Value| told["error"].as_str().is_some_and(|why| why.contains("no order"));
    assert!((0..16).map(|_| user.hear().unwrap()).any(|told| is_error(&told)));
    assert_eq!(user.hear(), None);
    // Root may order about all.
    let mut root = Client::connect(&helping.socket());
    assert_eq!(root.ask(&order(&local(&roots), create(1)).to_string()), json!({"id": 7, "ok": true}));
}

fn interface_number(world: &World, name: &str) -> u32 {
    let output = world.client.command("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = text.split(':').next().and_then(|number| number.trim().parse().ok());
    number.unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn a_user_sees_and_steers_its_own_on_the_managers_of_the_host_and_nothing_of_others() {
    if !require!() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        whimbrel_lab::skip("a manager for several users", "it needs root to become one");
        return;
    }
    let Some(world) = two_networks("a manager for several users") else { return };
    let helping = Helping::start(&world, 0);
    let running = Running::start_for_host(&world.client, &helping.settings());
    open_to_all(running.folder.path(), &running.socket());
    let mut one = UserProgram::start(&world.client, USER, &running.socket());
    let mut two = UserProgram::start(&world.client, OTHER, &running.socket());
    // A connection of the one is steered by the one.
    let refused = two.ask(&steer(&one.local, json!({})));
    assert!(
        refused["error"].as_str().unwrap().contains("you have no connection of Multipath TCP"),
        "{refused}"
    );
    assert_eq!(sources(&world.client), ["10.0.0.1", "10.0.0.1"]);
    let done = one.ask(&steer(&one.local.clone(), json!({})));
    assert_eq!(steered(&done), ["link0", "link1"]);
    wait_for_sources(&world.client, &["10.0.0.1", "10.0.0.1", "10.0.1.1"]);
    // What the one is told of decisions is its own, and root is told of all.
    let mut root = running.client();
    root.ask(r#"{"watch":{"decisions":true}}"#);
    assert_eq!(two.ask(&json!({"watch": {"decisions": true}})), json!({"ok": true}));
    let asks = |to: &str| json!({"id": 1, "ask": {"to": to}});
    one.ask(&asks("10.9.9.9:1"));
    two.say(&asks("10.9.9.9:2"));
    let decided = (0..1000).map(|_| two.hear().unwrap()).find(|line| line.get("decided").is_some()).unwrap();
    assert_eq!(decided["decided"]["to"], "10.9.9.9:2", "{decided}");
    root.until(|line| line["decided"]["to"] == "10.9.9.9:1");
    root.until(|line| line["decided"]["to"] == "10.9.9.9:2");
    // What one reports keeps no other from anything.
    let failed = json!({"interface": "link0", "destination": "10.9.9.9:1"});
    assert_eq!(one.ask(&json!({"id": 2, "report": {"failed": failed}})), json!({"id": 2, "ok": true}));
    let first = |answer: &Value| answer["decision"]["ways"][0]["interface"].clone();
    let own = one.ask(&asks("10.9.9.9:1"));
    assert_eq!(first(&own), "link1", "{own}");
    let mut third = UserProgram::start(&world.client, OTHER, &running.socket());
    let others = third.ask(&asks("10.9.9.9:1"));
    assert_eq!(first(&others), "link0", "{others}");
    // Nor does a user decide for others.
    let offered = third.ask(&json!({"id": 3, "policy": {"name": "mine"}}));
    assert!(offered["error"].as_str().unwrap().contains("a program of root"), "{offered}");
}

/// Connects as a user more often than it may, and keeps all of that open.
const MANY: &str = "\
import os, socket, sys
user = int(sys.argv[1])
os.setgroups([]); os.setgid(user); os.setuid(user)
held = []
for n in range(400):
    one = socket.socket(socket.AF_UNIX); one.settimeout(30); one.connect(sys.argv[2]); held.append(one)
print('held', flush=True)
sys.stdin.read()
";

#[test]
fn a_user_who_connects_too_often_keeps_no_other_from_the_hosts_manager() {
    if !require!() {
        return;
    }
    if !rustix::process::getuid().is_root() {
        whimbrel_lab::skip("a user who connects too often", "it needs root to become one");
        return;
    }
    let world = world(&[(5, 20)]);
    let running = Running::start_for_host(&world.client, "");
    open_to_all(running.folder.path(), &running.socket());
    let (user, socket) = (USER.to_string(), running.socket());
    let args = ["-c", MANY, &user, socket.to_str().unwrap()];
    let command = world.client.command("python3").args(args).with(|command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
    });
    let mut many = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(many.child().stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let mut other = running.client();
    let answer = other.ask(r#"{"id":1,"ask":{"to":"10.9.9.9:1"}}"#);
    assert_eq!(answer["decision"]["ways"][0]["interface"], "link0", "{answer}");
}
