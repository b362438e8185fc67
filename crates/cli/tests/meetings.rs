//! First meetings by code: two machines that know nothing of each other, and somebody who guesses.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use whimbrel_names::{Code, Role, introduce};

use crate::common::{LIMIT, Process, World, tcp_server, terminal, wait_for};

/// A process that printed a code, and the code.
fn with_code(world: &World, user: &str, args: &[&str]) -> (Process, String) {
    let mut process = world.start(user, args);
    let code = process.next_json()["code"].as_str().unwrap().to_owned();
    assert_eq!(code.split('-').count(), 3, "{code}");
    (process, code)
}

/// The same meeting, another secret.
fn wrong(code: &str) -> String {
    let (slot, secret) = code.split_once('-').unwrap();
    let other = if secret == "zoo-zoo" { "zone-zoo" } else { "zoo-zoo" };
    format!("{slot}-{other}")
}

#[test]
fn a_file_reaches_a_machine_that_was_told_three_words() {
    let (world, _names) = World::with_names();
    let content = "hello\n".repeat(100_000);
    fs::create_dir_all(world.path("ada")).unwrap();
    fs::create_dir_all(world.path("bob")).unwrap();
    fs::write(world.path("ada/greeting.txt"), &content).unwrap();
    let (send, code) = with_code(&world, "ada", &["send", "greeting.txt", "--json", "-q"]);
    let words: Vec<&str> = code.split('-').collect();
    let received = world.run("bob", &["receive", words[0], words[1], words[2], "--json", "-q"]);
    assert_eq!(received.succeeded().json()["size"], content.len());
    let sent = send.output(LIMIT);
    assert_eq!(sent.succeeded().json()["size"], content.len());
    assert_eq!(fs::read_to_string(world.path("bob/greeting.txt")).unwrap(), content);
    // It worked once.
    world.run("carol", &["receive", &code, "-q"]).failed(5, &["used before"]);
}

#[test]
fn a_wrong_guess_kills_the_code_and_both_sides_are_told() {
    let (world, _names) = World::with_names();
    fs::create_dir_all(world.path("ada")).unwrap();
    fs::write(world.path("ada/secret.txt"), "secret").unwrap();
    let (send, code) = with_code(&world, "ada", &["send", "secret.txt", "--json", "-q"]);
    world.run("eve", &["receive", &wrong(&code), "-q"]).failed(1, &["code was wrong", "void"]);
    let told = send.output(LIMIT);
    assert_eq!(told.status.code(), Some(1));
    assert!(told.stderr.contains("code was wrong") && told.stderr.contains("new one"), "{}", told.stderr);
    // The right code comes too late.
    world.run("bob", &["receive", &code, "-q"]).failed(5, &["used before"]);
    assert!(!world.path("eve/secret.txt").exists());
}

#[test]
fn two_users_who_meet_by_code_may_let_each_other_in_by_name() {
    let (world, _names) = World::with_names();
    let (invite, code) = with_code(&world, "ada", &["invite", "--as", "ada@example.org", "--json"]);
    let joined = world.run("bob", &["join", &code, "--as", "bob@example.org", "--json"]);
    assert_eq!(joined.succeeded().json()["user"], "ada@example.org");
    assert_eq!(joined.json()["id"], world.id("ada"));
    let met = invite.output(LIMIT);
    assert_eq!(met.succeeded().json()["user"], "bob@example.org");
    let known = world.run("ada", &["trust", "show", "bob@example.org", "--json"]).succeeded().json();
    assert_eq!(known["owners"][0]["origin"], "code");
    // What the code confirmed grants access; the name service's word alone does not.
    let page = tcp_server(|mut socket| drop(writeln!(socket, "page"))).to_string();
    let args = ["expose", "web.ada@example.org", "--to", &page, "--allow", "bob@example.org", "--json"];
    let mut expose = world.start("ada", &args);
    expose.next_json();
    assert_eq!(world.run("bob", &["pipe", "web.ada@example.org"]).succeeded().stdout.trim(), "page");
    world.run("eve", &["pipe", "web.ada@example.org", "-q"]).failed(3, &[]);
}

#[test]
fn a_device_gets_its_name_by_code() {
    let (world, _names) = World::with_names();
    let (invite, code) =
        with_code(&world, "ada", &["invite", "--device", "laptop.ada@example.org", "--json"]);
    let joined = world.run("laptop", &["join", &code, "--json"]);
    let invited = invite.output(LIMIT);
    assert!(joined.status.success() && invited.status.success(), "{} {}", joined.stderr, invited.stderr);
    assert_eq!(joined.json()["given"], "laptop.ada@example.org");
    let args = ["expose", "ssh.laptop.ada@example.org", "--to", "127.0.0.1:1", "--allow", "any", "--json"];
    let mut expose = world.start("laptop", &args);
    expose.next_json();
    let found = world.run("bob", &["names", "lookup", "ssh.laptop.ada@example.org", "--json"]);
    assert_eq!(found.succeeded().json()["delegated_by"], world.id("ada"));
}

#[test]
fn a_device_that_gets_no_name_is_told_that_something_failed_at_the_other_side() {
    let (world, _names) = World::with_names();
    world.id("ada");
    fs::write(world.path("ada/.config/whimbrel/identity.devices"), "no list").unwrap();
    let (invite, code) =
        with_code(&world, "ada", &["invite", "--device", "laptop.ada@example.org", "--json", "-q"]);
    let joined = world.run("laptop", &["join", &code, "-q"]);
    joined.failed(1, &["the other side refuses", "there"]);
    assert!(!joined.stderr.contains("config"), "what its files are called is nobody else's business");
    invite.output(LIMIT).failed(1, &["identity.devices"]);
}

#[test]
fn nobody_is_introduced_under_a_name_that_is_not_theirs() {
    let (world, _names) = World::with_names();
    world.run("bob", &["id", "register", "bob@example.org"]).succeeded();
    let (invite, code) = with_code(&world, "ada", &["invite", "--json", "-q"]);
    // The program does not let eve say so.
    world.run("eve", &["join", &code, "--as", "bob@example.org", "-q"]).failed(5, &["another key"]);
    // And a program of her own that says so is not believed, although it knows the code.
    lie(&world, &code);
    let refused = invite.output(LIMIT);
    assert_eq!(refused.status.code(), Some(6), "{}", refused.stderr);
    assert!(refused.stderr.contains("belongs to another key"), "{}", refused.stderr);
    let known = world.run("ada", &["trust", "show", "--json"]).succeeded().json();
    assert!(!known.to_string().contains("\"code\""), "{known}");
}

/// Joins as somebody who says that it is bob.
fn lie(world: &World, code: &str) {
    let code: Code = code.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let eve = whimbrel::Endpoint::builder().names(world.service()).bind().await.unwrap();
        let meeting = eve.names().unwrap().join_meeting(code.slot()).await.unwrap();
        let mut ada = introduce(meeting, Role::Joiner, &code, eve.id()).await.unwrap();
        ada.recv().await.unwrap();
        // A greeting, between users, with a name, without a ticket.
        let name = b"bob@example.org";
        let greeting = [&[0, 1, 1, name.len() as u8], &name[..], &[0]].concat();
        ada.send(&greeting).await.unwrap();
        ada.recv().await.unwrap();
    });
}

#[test]
fn codes_that_are_none_are_told() {
    let (world, _names) = World::with_names();
    world.run("bob", &["receive", "one-two"]).failed(2, &["three words"]);
    world.run("bob", &["join", "zoo-zoo-qqq"]).failed(2, &["qqq"]);
    world.id("bob");
    world.run("bob", &["join", "zoo-zoo-zoo", "-q"]).failed(5, &["used before"]);
    let (invite, code) = with_code(&world, "ada", &["invite", "--json", "-q"]);
    world.run("bob", &["receive", &code, "-q"]).failed(1, &["whimbrel join"]);
    assert_ne!(invite.output(LIMIT).status.code(), Some(0));
}

#[test]
fn a_code_is_shown_as_a_qr_code_in_a_terminal_and_nowhere_else() {
    let (world, _names) = World::with_names();
    let piped = world.start("ada", &["invite", "--qr"]);
    piped.until_said("--qr is for terminals", 1);
    let (mut person, program) = terminal(80, 40);
    // It ends with its input, and so with this test.
    let mut command = world.command("ada", &["invite", "--qr", "-q", "--until-eof"]);
    let mut child = command.stdin(Stdio::piped()).stdout(program).spawn().unwrap();
    drop(command);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = person.read(&mut piece) {
            noted.lock().unwrap().extend_from_slice(&piece[..read]);
        }
    });
    let text = || String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
    for half in ["█", "▀", "▄"] {
        wait_for("a QR code", || text().contains(half).then_some(()));
    }
    assert_eq!(text().lines().next().unwrap().trim().split('-').count(), 3, "{}", text());
    drop(child.stdin.take());
    child.wait().unwrap();
}
