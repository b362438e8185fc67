//! What is handed over goes on in a program of the user's list, without a command on that device: real
//! programs, a real gateway and a real HTTP server.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::{LIMIT, Output, PROGRAM, Process, World, terminal, wait_for};
use crate::download::{Stage, requests};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A program that takes bytes as they come.
const READER: &str = "
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as source, open(sys.argv[3], 'wb') as out:
    while data := source.recv(65536):
        out.write(data)
";

/// One that writes down what it is told, and connects nowhere.
const RECORDER: &str = "
import json, os, sys
with open('told', 'w') as out:
    json.dump([sys.argv[1:], 'NOTIFY_SOCKET' in os.environ, sys.stdin.read()], out)
";

/// A running agent.
struct Agent(Process);

impl Agent {
    fn start(stage: &Stage, device: &str, apps: &str, more: &[&str]) -> Self {
        Self::of(&mut Self::command(stage, device, apps, more))
    }

    fn command(stage: &Stage, device: &str, apps: &str, more: &[&str]) -> Command {
        fs::write(stage.world.config(device, "apps.toml"), apps).unwrap();
        let args = ["agent", "--json", "--through", &stage.ticket];
        stage.world.command(device, &[&args, more].concat())
    }

    fn of(command: &mut Command) -> Self {
        let mut agent = Self(Process::start(command));
        agent.says("ready");
        agent
    }

    /// The next event, which is this one. That the gateway was away meanwhile is none.
    #[track_caller]
    fn says(&mut self, event: &str) -> Value {
        loop {
            let said = self.0.next_json();
            if said["event"] != "lost" && said["event"] != "back" {
                assert_eq!(said["event"], event, "{said}");
                return said;
            }
        }
    }

    #[track_caller]
    fn say_in_turn(&mut self, events: &[&str]) {
        for event in events {
            self.says(event);
        }
    }

    /// It was handed a session, and leaves it for this reason.
    #[track_caller]
    fn leaves(&mut self, reason: &str) -> String {
        self.says("handed");
        let left = self.says("left");
        assert_eq!(left["reason"], reason, "{left}");
        left["text"].as_str().unwrap().to_owned()
    }

    /// It ends in order.
    #[track_caller]
    fn stop(mut self) -> Output {
        self.0.signal(Signal::TERM);
        let output = self.0.finish(LIMIT);
        output.succeeded();
        output
    }
}

/// A list with one program, for all connections to this host.
fn list(adapter: &str, run: &str) -> String {
    format!("ask = false\n[[app]]\nmatch = \"127.0.0.0/8\"\nadapter = \"{adapter}\"\nrun = [{run}]\n")
}

/// curl, that asks for the rest and puts it there.
fn with_curl(to: &Path) -> String {
    list("http", &format!(r#""curl", "-sS", "--fail", "-o", "{}", "{{url}}""#, to.display()))
}

/// What a program has put into a file, if it was given anything.
fn part(file: &Path) -> Vec<u8> {
    fs::read(file).unwrap_or_default()
}

#[test]
fn what_is_handed_over_goes_on_at_the_desk_without_a_command_there() {
    let mut stage = Stage::new(None);
    let (second, phone) = (stage.world.path("second"), stage.world.id("phone"));
    let mut agent = Agent::start(&stage, "desk", &with_curl(&second), &["--from", &phone]);
    let id = stage.hand_over("phone", "desk");
    let handed = agent.says("handed");
    assert_eq!((&handed["session"], &handed["by"]), (&id.into(), &phone.into()));
    assert_eq!(agent.says("started")["program"], "curl");
    agent.says("taken");
    stage.go_on();
    let ended = agent.says("ended");
    assert_eq!((&ended["how"], &ended["code"]), (&"ended".into(), &0.into()), "{ended}");
    let (first, second) = (stage.first_part(), part(&second));
    assert!(!first.is_empty() && !second.is_empty());
    stage.are_the_file(&first, &second);
    agent.stop();
    assert_eq!(requests(stage.server), 1, "the server saw one request, on one connection");
}

#[test]
fn a_session_goes_from_agent_to_agent_and_the_parts_are_the_file() {
    let mut stage = Stage::new(None);
    let [second, third] = ["second", "third"].map(|name| stage.world.path(name));
    let [phone, desk] = ["phone", "desk"].map(|device| stage.world.id(device));
    let reader =
        format!("\"python3\", \"-c\", '''{READER}''', \"{{host}}\", \"{{port}}\", \"{}\"", third.display());
    let mut at_desk = Agent::start(&stage, "desk", &with_curl(&second), &["--from", &phone]);
    let mut at_tablet = Agent::start(&stage, "tablet", &list("raw", &reader), &["--from", &desk]);
    stage.hand_over("phone", "desk");
    at_desk.say_in_turn(&["handed", "started", "taken"]);
    stage.hand_over("desk", "tablet");
    at_tablet.say_in_turn(&["handed", "started", "taken"]);
    assert_eq!(at_desk.says("ended")["how"], "moved");
    stage.go();
    let ended = at_tablet.says("ended");
    assert_eq!((&ended["how"], &ended["code"]), (&"ended".into(), &0.into()), "{ended}");
    let (first, rest) = (stage.first_part(), [part(&second), part(&third)].concat());
    assert!(!part(&third).is_empty());
    stage.are_the_file(&first, &rest);
    at_desk.stop();
    at_tablet.stop();
    assert_eq!(requests(stage.server), 1);
}

#[test]
fn a_session_that_no_program_may_go_on_with_stays_where_it_is() {
    let mut stage = Stage::new(Some("desk"));
    let phone = stage.world.id("phone");
    let from = ["--from", phone.as_str()];
    // No entry is for it; what was handed over before is looked at, and a word that is said again too.
    let mut agent =
        Agent::start(&stage, "desk", &list("raw", "\"true\", \"{url}\"").replace("127.", "10."), &from);
    let said = agent.leaves("no-app");
    assert!(said.contains("apps.toml"), "{said}");
    stage.hand_over("phone", "desk");
    agent.leaves("no-app");
    agent.stop();
    // The device may not.
    let mut agent = Agent::start(&stage, "desk", &list("raw", "\"true\", \"{url}\""), &[]);
    agent.leaves("stranger");
    agent.stop();
    // The program is not there, or ends at once; and no more are started in a minute.
    for (program, says) in [("no/such/program", "cannot run"), ("false", "ended before it connected")] {
        let run = format!("\"{program}\", \"{{url}}\"");
        let more = [&from[..], &["--each-minute", "1"]].concat();
        let mut agent = Agent::start(&stage, "desk", &list("raw", &run), &more);
        agent.says("handed");
        if program == "false" {
            agent.says("started");
        }
        let left = agent.says("left");
        assert_eq!(left["reason"], "program");
        assert!(left["text"].as_str().unwrap().contains(says), "{left}");
        stage.hand_over("phone", "desk");
        agent.leaves("busy");
        agent.stop();
    }
    let session = stage.session("phone");
    assert_eq!((&session["standing"], &session["moves"]), (&"live".into(), &0.into()));
    stage.go();
    stage.curl.finish(LIMIT).succeeded();
    assert!(part(&stage.world.path("first")) == stage.file, "it was at the phone all the time");
}

#[test]
fn without_a_terminal_what_asks_is_left_and_the_desktop_is_told() {
    let stage = Stage::new(Some("desk"));
    let (phone, bin) = (stage.world.id("phone"), stage.world.path("bin"));
    // What a desktop would show.
    fs::create_dir(&bin).unwrap();
    let script = bin.join("notify-send");
    fs::write(&script, "#!/bin/sh\nprintf '%s\\n' \"$@\" > notice.part && mv notice.part notice\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let apps = with_curl(&stage.world.path("second")).replace("ask = false\n", "");
    let mut command = Agent::command(&stage, "desk", &apps, &["--from", &phone]);
    let mut agent = Agent::of(command.env("PATH", path));
    let said = agent.leaves("asks");
    let id = stage.session("desk")["id"].as_str().unwrap()[..8].to_owned();
    assert!(said.contains(&format!("whimbrel take {id} --through ")), "{said}");
    let shown = fs::read_to_string(stage.world.path("desk").join("notice")).unwrap();
    let shown: Vec<&str> = shown.lines().collect();
    assert_eq!(shown[..3], ["--app-name=whimbrel", "--", "whimbrel"]);
    assert!(shown[3].contains("start curl?") && shown[3].contains(&id) && shown.len() == 4, "{shown:?}");
    agent.stop();
    assert_eq!(stage.session("phone")["standing"], "live");
}

#[test]
fn at_a_terminal_an_agent_asks_and_does_as_it_is_told() {
    let mut stage = Stage::new(None);
    let (second, phone) = (stage.world.path("second"), stage.world.id("phone"));
    let apps = with_curl(&second).replace("ask = false", "ask = true");
    fs::write(stage.world.config("desk", "apps.toml"), apps).unwrap();
    let (mut person, program) = terminal(120, 30);
    let shown = Arc::<Mutex<String>>::default();
    let (mut screen, seen) = (person.try_clone().unwrap(), shown.clone());
    std::thread::spawn(move || {
        let mut some = [0; 1024];
        while let Ok(n @ 1..) = screen.read(&mut some) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..n]));
        }
    });
    let asked = |times: usize| {
        wait_for("it asks", || (shown.lock().unwrap().matches("[y/N]").count() == times).then_some(()));
    };
    // Standard error is the terminal too.
    let script = "exec \"$0\" \"$@\" 2>&0";
    let args = ["-c", script, PROGRAM, "agent", "--json", "--through", &stage.ticket, "--from", &phone];
    let mut agent = Agent::of(stage.world.command_of("sh".as_ref(), "desk", &args).stdin(program));
    for (times, answer) in [(1, "n\n"), (2, "\n")] {
        stage.hand_over("phone", "desk");
        agent.says("handed");
        asked(times);
        person.write_all(answer.as_bytes()).unwrap();
        assert_eq!(agent.says("left")["reason"], "declined");
    }
    stage.hand_over("phone", "desk");
    agent.says("handed");
    asked(3);
    person.write_all(b"y\n").unwrap();
    agent.say_in_turn(&["started", "taken"]);
    stage.go_on();
    assert_eq!(agent.says("ended")["code"], 0);
    let question = shown.lock().unwrap().clone();
    assert!(question.contains("hands over a connection to 127.0.0.1:"), "{question}");
    assert!(question.contains("start curl?"), "{question}");
    let first = stage.first_part();
    stage.are_the_file(&first, &part(&second));
    agent.stop();
}

#[test]
fn a_program_is_told_this_hosts_address_and_nothing_of_a_target() {
    let stage = Stage::new(Some("desk"));
    let (phone, manager) = (stage.world.id("phone"), stage.world.path("manager"));
    let hears = UnixDatagram::bind(&manager).unwrap();
    hears.set_read_timeout(Some(LIMIT)).unwrap();
    let rest = r#""{url}", "--at={host}:{port}", "--", "$(touch pwned); `id`", "{port}x""#;
    let run = format!("\"python3\", \"-c\", '''{RECORDER}''', {rest}");
    let mut command = Agent::command(&stage, "desk", &list("http", &run), &["--from", &phone]);
    let mut agent = Agent::of(command.env("NOTIFY_SOCKET", &manager));
    let mut told = [0; 1024];
    let length = hears.recv(&mut told).unwrap();
    let told = String::from_utf8_lossy(&told[..length]).into_owned();
    assert!(told.starts_with("READY=1\nSTATUS=waiting for sessions of "), "{told}");
    agent.says("handed");
    agent.says("started");
    assert_eq!(agent.says("left")["reason"], "program");
    let home = stage.world.path("desk");
    let told: Value = serde_json::from_slice(&fs::read(home.join("told")).unwrap()).unwrap();
    let url = told[0][0].as_str().unwrap();
    let (at, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let port = at.strip_prefix("127.0.0.1:").unwrap();
    assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{url}");
    let path = path.strip_suffix('/').unwrap();
    assert!(path.len() == 32 && path.bytes().all(|byte| byte.is_ascii_hexdigit()), "{url}");
    let words = json!([url, format!("--at={at}"), "--", "$(touch pwned); `id`", format!("{port}x")]);
    assert_eq!(told, json!([words, false, ""]), "arguments, the manager's socket, and standard input");
    assert!(!home.join("pwned").exists());
    agent.stop();
    // What is no destination never is a session's.
    for host in ["--exec=sh", "$(touch pwned)", "{url} {port}", "a b"] {
        let mut socket = TcpStream::connect(&stage.proxy).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.write_all(&[5, 1, 0]).unwrap();
        socket.read_exact(&mut [0; 2]).unwrap();
        let length = u8::try_from(host.len()).unwrap();
        socket.write_all(&[&[5, 1, 0, 3, length], host.as_bytes(), &[0, 80]].concat()).unwrap();
        let mut answer = Vec::new();
        // It may be reset, once the proxy has said no.
        let _ = socket.read_to_end(&mut answer);
        assert_ne!(answer.get(1), Some(&0), "{host}");
    }
    assert_eq!(stage.session("phone")["standing"], "live", "the only one");
}

#[test]
fn of_two_agents_of_one_device_one_takes_the_session() {
    let mut stage = Stage::new(None);
    let phone = stage.world.id("phone");
    let parts = ["one", "two"].map(|name| stage.world.path(name));
    let agents = parts.each_ref().map(|to| Agent::start(&stage, "desk", &with_curl(to), &["--from", &phone]));
    stage.hand_over("phone", "desk");
    stage.go_on();
    wait_for("the second part", || {
        let is_whole =
            |file: &Path| part(file).len() + part(&stage.world.path("first")).len() == stage.file.len();
        parts.iter().any(|file| is_whole(file)).then_some(())
    });
    let taken = agents.map(|agent| agent.stop().stdout.matches("\"event\":\"taken\"").count());
    assert_eq!(taken.iter().sum::<usize>(), 1, "{taken:?}");
    let at = taken.iter().position(|count| *count == 1).unwrap();
    let first = stage.first_part();
    stage.are_the_file(&first, &part(&parts[at]));
    assert!(!parts[1 - at].exists());
}

#[test]
fn an_agent_goes_on_with_a_newer_gateway_and_after_a_restart() {
    let mut stage = Stage::new(None);
    let (phone, desk) = (stage.world.id("phone"), stage.world.id("desk"));
    let from = ["--from", phone.as_str()];
    let nothing = list("raw", "\"true\", \"{url}\"").replace("127.", "10.");
    let mut agent = Agent::start(&stage, "desk", &nothing, &from);
    stage.take_over();
    stage.hand_over("phone", "desk");
    agent.leaves("no-app");
    agent.stop();
    // What was said while there was no agent is not lost.
    let mut agent = Agent::start(&stage, "desk", &with_curl(&stage.world.path("second")), &from);
    agent.say_in_turn(&["handed", "started", "taken"]);
    agent.stop();
    // As with `take`, its program has ended, and the session is held for this device.
    let session = wait_for("it is held", || {
        Some(stage.session("desk")).filter(|session| session["standing"] == "held")
    });
    assert_eq!((&session["may"], &session["holder"]), (&"own".into(), &desk.into()));
    let id = session["id"].as_str().unwrap();
    let mut take = stage.world.start("desk", &["take", &id[..8], "--through", &stage.ticket, "--json"]);
    let listening = take.next_json()["listening"].as_str().unwrap().to_owned();
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    wait_for("it is here", || (stage.session("desk")["moves"] == 2).then_some(()));
    stage.go();
    let mut rest = Vec::new();
    program.read_to_end(&mut rest).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    assert!(rest.len() >= stage.file.len() / 2 && stage.file.ends_with(&rest), "not the end of the file");
}

#[test]
fn a_list_that_is_wrong_or_missing_is_refused_with_its_place() {
    let world = World::new();
    let (through, _) = (world.id("gate"), world.id("a"));
    let args = ["agent", "--through", &through];
    world.run("a", &args).failed(2, &["cannot read", "apps.toml", "whimbrel agent --help"]);
    for (from, to, says) in [
        ("ask = false", "aks = false", "apps.toml:1: unknown field `aks`"),
        ("ask = false", "ask = 1", "apps.toml:1: `ask`: invalid type"),
        ("adapter = \"raw\"", "adapter = \"ssh\"", "apps.toml:4: `adapter`: unknown variant `ssh`"),
        ("{url}", "{title}", "apps.toml:5: `run` has {title} in it"),
        ("127.0.0.0/8", "127.0.0.0/99", "apps.toml:3: `match` is \"127.0.0.0/99\""),
    ] {
        let text = list("raw", "\"true\", \"{url}\"");
        fs::write(world.config("a", "apps.toml"), text.replacen(from, to, 1)).unwrap();
        world.run("a", &args).failed(2, &[says]);
    }
    fs::write(world.config("a", "apps.toml"), list("raw", "\"true\", \"{url}\"")).unwrap();
    world.run("a", &[&args[..], &["--from", "nobody"]].concat()).failed(3, &["no device or friend"]);
    world.run("a", &[&args[..], &["--most", "0"]].concat()).failed(2, &["--most"]);
}
