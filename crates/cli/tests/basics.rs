//! Help, identity, configuration, and how the program says that something is wrong.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

use crate::common::{self, LIMIT, Output, Process, World, dead_port};

/// The commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

/// Help as a terminal of so many columns has it.
fn help(world: &World, args: &[&str], columns: usize) -> Output {
    let mut command = world.command("a", args);
    Process::start(command.env("COLUMNS", columns.to_string())).output(LIMIT)
}

/// Lines of a terminal of so many columns.
fn lines_of(text: &str, columns: usize) -> usize {
    text.lines().map(|line| line.chars().count().div_ceil(columns).max(1)).sum()
}

#[test]
fn every_command_has_help_with_an_example_that_fits_80_columns_and_40_lines() {
    let world = World::new();
    let mut left = vec![Vec::new()];
    let mut seen = 0;
    while let Some(command) = left.pop() {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let output = help(&world, &args, 80);
        let text = &output.succeeded().stdout;
        let name = command.join(" ");
        let lines = lines_of(text, 80);
        assert!(lines <= 40, "{name}: {lines} lines\n{text}");
        assert!(text.contains("Example"), "{name}: {text}");
        assert!(text.contains(format!("Usage: whimbrel {name}").trim_end()), "{name}: {text}");
        let rest = "Global options: whimbrel help options. Exit codes: whimbrel help exit-codes";
        assert_eq!(text.lines().last(), Some(rest), "{name}");
        assert!(!text.contains("--identity"), "{name}: {text}");
        assert_eq!(output.stderr, "", "{name}");
        left.extend(listed(text).into_iter().map(|next| [&command[..], &[next]].concat()));
        seen += 1;
    }
    assert!(seen > 75, "only {seen} commands were found");
}

#[test]
fn options_of_several_commands_have_help_of_their_own() {
    let world = World::new();
    for (topic, options, commands) in [
        ("networks", ["--mode", "--interface", "--intent"], [["forward"].as_slice(), &["run"]]),
        ("service-limits", ["--names-per-key", "--limit", "--bytes-per-second"], [&["serve"], &["serve"]]),
    ] {
        let explained = world.run("a", &["help", topic]).succeeded().stdout.clone();
        assert!(lines_of(&explained, 110) <= 45, "{explained}");
        for option in options {
            assert!(explained.contains(&format!("  {option} <")), "{option}: {explained}");
        }
        for command in commands {
            let text = world.run("a", &[command, &["--help"]].concat()).succeeded().stdout.clone();
            assert!(text.contains(&format!("whimbrel help {topic}. For ")), "{text}");
            assert!(options.iter().all(|option| text.contains(option)), "{text}");
            assert!(options.iter().all(|option| !text.contains(&format!("  {option} <"))), "{text}");
        }
    }
}

#[test]
fn global_options_and_exit_codes_have_help_of_their_own() {
    let world = World::new();
    let options = world.run("a", &["help", "options"]).succeeded().stdout.clone();
    for option in ["--config", "--identity", "--names", "--carrier", "--pin", "--quiet"] {
        assert!(options.contains(option), "{option}: {options}");
    }
    assert!(options.lines().count() <= 40, "{options}");
    let codes = world.run("a", &["help", "exit-codes"]).succeeded().stdout.clone();
    assert!(codes.contains("  5  ") && codes.contains("130"), "{codes}");
    let same = world.run("a", &["help", "names", "serve"]).succeeded().stdout.clone();
    assert_eq!(same, world.run("a", &["names", "serve", "--help"]).stdout);
}

#[test]
fn help_explains_the_configuration() {
    let output = World::new().run("a", &["help", "config"]);
    assert!(output.succeeded().stdout.contains("[names-serve]"));
    World::new().run("a", &["help", "nonsense"]).failed(2, &["nonsense", "whimbrel --help"]);
}

#[test]
fn help_into_a_closed_pipe_is_no_failure() {
    let world = World::new();
    let mut command = world.command("a", &["--help"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn mistakes_on_the_command_line_are_one_line_and_code_2() {
    let world = World::new();
    world.run("a", &["--bogus"]).failed(2, &["--bogus", "whimbrel --help"]);
    world.run("a", &["expose", "--bogus"]).failed(2, &["--bogus", "`whimbrel expose --help`"]);
    world.run("a", &["bogus"]).failed(2, &["bogus"]);
    world.run("a", &["pageload", "load", "page.har"]).failed(2, &["`whimbrel-pageload --help`"]);
    world.run("a", &["forward", "no-name", "--names", "x"]).failed(2, &["forward --help"]);
    world.run("a", &["forward", "no-name"]).failed(2, &["no-name", "'@'"]);
    world.run("a", &["pipe", "a.b.c.d.e@example.org"]).failed(2, &["a.b.c.d.e@example.org"]);
    world.run("a", &["pipe", "whimbrel:nonsense"]).failed(2, &["whimbrel:nonsense"]);
    world.run("a", &["expose", "a@b", "--to", "nonsense", "--allow", "any"]).failed(2, &["HOST:PORT"]);
    world.run("a", &["expose", "a@b", "--to", "h:1", "--allow", "all"]).failed(2, &["any"]);
    world.run("a", &["id", "delegate", "a.b@c", "--to", "x"]).failed(2, &["52"]);
    world.run("a", &["id", "register", "a.b@c"]).failed(2, &["b@c"]);
}

#[test]
fn without_a_name_service_names_are_refused_and_the_way_out_is_told() {
    let world = World::new();
    for args in [
        &["forward", "a@b"][..],
        &["pipe", "a@b"],
        &["names", "lookup", "a@b"],
        &["names", "watch", "a@b"],
        &["expose", "x.a@b", "--to", "127.0.0.1:1", "--allow", "any", "-q"],
    ] {
        world.id("a");
        world.run("a", args).failed(2, &["--names", "ticket"]);
    }
}

#[test]
fn the_identity_is_made_once_and_private() {
    let world = World::new();
    let first = world.run("a", &["id", "--json"]);
    assert_eq!(first.succeeded().json()["created"], true);
    assert!(first.stderr.contains("made a new identity"));
    let again = world.run("a", &["id", "--json"]);
    assert_eq!(again.json()["created"], false);
    assert_eq!(again.json()["id"], first.json()["id"]);
    assert_eq!(again.stderr, "");
    let file = world.config("a", "identity");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(world.id("a"), again.json()["id"]);
}

#[test]
fn many_that_make_the_identity_at_once_have_the_same() {
    let world = World::new();
    let all: Vec<Process> = (0..8).map(|_| world.start("a", &["id"])).collect();
    let mut ids: Vec<String> =
        all.into_iter().map(|p| p.output(common::LIMIT).succeeded().stdout.clone()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

#[test]
fn xdg_config_home_is_honoured() {
    let world = World::new();
    let elsewhere = world.path("elsewhere");
    let output =
        Process::start(world.command("a", &["id"]).env("XDG_CONFIG_HOME", &elsewhere)).output(common::LIMIT);
    output.succeeded();
    assert!(elsewhere.join("whimbrel/identity").exists());
}

#[test]
fn an_identity_that_others_can_read_is_refused() {
    let world = World::new();
    world.id("a");
    let file = world.config("a", "identity");
    let before = fs::read(&file).unwrap();
    for mode in [0o644, 0o640, 0o604] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        world.run("a", &["id"]).failed(1, &["read by others", "chmod 600"]);
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn an_identity_that_cannot_be_used_is_told_and_kept() {
    let world = World::new();
    let file = world.config("a", "identity");
    fs::write(&file, "whimbrel-identity-v1 abc\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    world.run("a", &["id"]).failed(1, &["not an identity", "identity"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "whimbrel-identity-v1 abc\n");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    world.run("a", &["id"]).failed(1, &["not a file"]);
    world.run("a", &["id", "--identity", "/proc/nowhere/x"]).failed(1, &["/proc/nowhere"]);
}

#[test]
fn the_configuration_is_honoured_and_flags_win() {
    let (world, _names) = World::with_names();
    let elsewhere = world.path("a/other-identity");
    let text = format!("identity = {:?}\n[id]\njson = true\n", elsewhere.to_str().unwrap());
    fs::write(world.config("a", "config.toml"), text).unwrap();
    let output = world.run("a", &["id"]);
    assert_eq!(output.succeeded().json()["file"], elsewhere.to_str().unwrap());
    let third = world.path("a/third");
    let output = world.run("a", &["id", "--identity", third.to_str().unwrap()]);
    assert_eq!(output.succeeded().json()["file"], third.to_str().unwrap());
    let named = world.path("a/named.toml");
    fs::write(&named, "").unwrap();
    let output = world.run("a", &["--config", named.to_str().unwrap(), "id"]);
    assert!(output.succeeded().stdout.trim().len() == 52, "{}", output.stdout);
}

#[test]
fn a_whole_command_can_be_in_the_configuration() {
    let (world, _names) = World::with_names();
    let text = format!(
        "names = \"{}\"\n[expose]\nname = \"web.a@example.org\"\nto = \"127.0.0.1:1\"\nallow = [\"any\"]\njson = true\n",
        world.service()
    );
    fs::write(world.config("a", "config.toml"), text).unwrap();
    let mut expose = world.start("a", &["expose"]);
    assert_eq!(expose.next_json()["name"], "web.a@example.org");
}

#[test]
fn mistakes_in_the_configuration_name_file_line_and_key() {
    let world = World::new();
    let file = world.config("a", "config.toml");
    for (text, says) in [
        ("\n\nprot = 1\n", &["config.toml:3:", "`prot`"][..]),
        ("[expose]\nalow = [\"any\"]\n", &["config.toml:2:", "`alow`", "allow"]),
        ("[nonsense]\n", &["config.toml:1:", "[nonsense]"]),
        ("port = \"high\"\n", &["config.toml:1:", "high"]),
        ("port = \n", &["config.toml:1:"]),
        ("names = \"somewhere\"\n", &["config.toml:1:", "somewhere"]),
    ] {
        fs::write(&file, text).unwrap();
        world.run("a", &["id"]).failed(2, says);
    }
    // Help is given all the same.
    world.run("a", &["help", "--help"]).succeeded();
    world.run("a", &["id", "--config", "/nowhere/c.toml"]).failed(2, &["/nowhere/c.toml"]);
}

#[test]
fn a_port_in_use_is_told() {
    let (world, _names) = World::with_names();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    world.id("a");
    world.run("a", &["forward", "x.a@b", "--listen", &address]).failed(1, &[&address, "choose another port"]);
    let names = world.address("names");
    let other = TcpListener::bind((names.as_str(), 0)).unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let store = world.path("other.redb");
    let serve = ["names", "serve", "--port", &port, "--store", store.to_str().unwrap(), "-q"];
    world.run("names", &serve).failed(1, &[&port, "choose another port"]);
}

#[test]
fn a_service_that_is_not_there_is_told_with_code_4() {
    let mut world = World::new();
    let id = world.id("nobody");
    world.set_service(&format!("whimbrel:{id}/{}", dead_port()));
    world.id("a");
    let commands = [
        &["names", "lookup", "x.a@b"][..],
        &["forward", "x.a@b"],
        &["pipe", "x.a@b"],
        &["expose", "x.a@b", "--to", "127.0.0.1:1", "--allow", "any"],
        &["id", "register", "a@b"],
        &["names", "watch", "a@b"],
    ];
    // Each of them waits a while for an answer.
    let started: Vec<Process> = commands.iter().map(|args| world.start("a", args)).collect();
    for process in started {
        process.output(common::LIMIT).failed(4, &["name service"]);
    }
}

#[test]
fn a_tunnel_needs_no_capability() {
    let (world, _names) = World::with_names();
    let setpriv = std::path::Path::new("setpriv");
    // Whatever user runs this test: no capability, and none to be had.
    let bare =
        ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", common::PROGRAM];
    let start = |user: &str, args: &[&str]| {
        let mut command =
            world.command_of(setpriv, user, &[&bare[if is_root() { 0 } else { 1 }..], args].concat());
        Process::start(&mut command)
    };
    let to = common::shouting_server().to_string();
    let mut expose = start("a", &["expose", "web.a@example.org", "--to", &to, "--allow", "any", "--json"]);
    expose.next_json();
    let mut forward = start("b", &["forward", "web.a@example.org", "--json"]);
    let local = forward.next_json()["listening"].as_str().unwrap().to_owned();
    let mut socket = std::net::TcpStream::connect(local).unwrap();
    socket.set_read_timeout(Some(common::LIMIT)).unwrap();
    std::io::Write::write_all(&mut socket, b"hello\n").unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(socket), &mut line).unwrap();
    assert_eq!(line, "HELLO\n");
    let status = fs::read_to_string(format!("/proc/{}/status", forward.child.id())).unwrap();
    let effective = status.lines().find(|line| line.starts_with("CapEff:")).unwrap();
    assert_eq!(effective.split_whitespace().last(), Some("0000000000000000"), "{status}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
