//! What a service manager sees of commands that run until they are stopped, and how they log.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{self, LIMIT, PROGRAM, Process, World, dead_port, shouting_server};
use rustix::process::Signal;
use serde_json::Value;

/// A service manager's end of the notification socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(world: &World, name: &str) -> Self {
        let path = world.path(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, path }
    }

    fn start(&self, command: &mut Command) -> Process {
        Process::start(command.env("NOTIFY_SOCKET", &self.path))
    }

    /// The next thing it is told, a line for each part.
    #[track_caller]
    fn told(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// Whether it was told nothing more.
    fn heard_nothing(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        self.socket.recv(&mut [0; 4096]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Ends the process, which says so before it does.
    #[track_caller]
    fn stop(&self, mut process: Process) {
        process.signal(Signal::TERM);
        assert_eq!(self.told(), "STOPPING=1\n");
        process.finish(LIMIT).succeeded();
        assert!(self.heard_nothing());
    }
}

/// A line to a port, and the line that comes back.
fn ask(address: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    writeln!(socket, "hello").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    line
}

#[test]
fn lasting_commands_say_when_they_are_ready_and_when_they_end() {
    let mut world = World::new();
    let store = world.path("names.redb");
    let managers: Vec<Manager> = (0..4).map(|i| Manager::new(&world, &format!("n{i}"))).collect();
    let args =
        ["names", "serve", "--json", "--port", "0", "--store", store.to_str().unwrap(), "--allow", "any"];
    let mut names = managers[0].start(&mut world.command("names", &args));
    assert!(managers[0].told().starts_with("READY=1\nSTATUS=serving names on port "));
    world.set_service(names.next_json()["ticket"].as_str().unwrap());

    let to = shouting_server().to_string();
    let args = ["expose", "web.a@example.org", "--to", &to, "--allow", "any"];
    let expose = managers[1].start(&mut world.command("a", &args));
    assert_eq!(managers[1].told(), format!("READY=1\nSTATUS={to} can be reached as web.a@example.org\n"));
    // It is true: the name is there.
    world.run("b", &["names", "lookup", "web.a@example.org"]).succeeded();

    let mut forward = managers[2].start(&mut world.command("b", &["forward", "web.a@example.org", "--json"]));
    let told = managers[2].told();
    let local = forward.next_json()["listening"].as_str().unwrap().to_owned();
    assert_eq!(told, format!("READY=1\nSTATUS={local} leads to web.a@example.org\n"));
    assert_eq!(ask(&local), "HELLO\n");

    let dir = world.dir.path().to_str().unwrap();
    let receive = managers[3].start(&mut world.command("c", &["receive", "--allow", "any", "--dir", dir]));
    assert_eq!(managers[3].told(), "READY=1\nSTATUS=waiting for files\n");

    for (manager, process) in managers.iter().zip([names, expose, forward, receive]).rev() {
        manager.stop(process);
    }
}

#[test]
fn a_command_that_cannot_do_its_work_never_says_that_it_is_ready() {
    let mut world = World::new();
    let id = world.id("nobody");
    world.id("a");
    world.set_service(&format!("whimbrel:{id}/{}", dead_port()));
    let manager = Manager::new(&world, "n");
    let args = ["expose", "web.a@example.org", "--to", "127.0.0.1:1", "--allow", "any"];
    manager.start(&mut world.command("a", &args)).output(LIMIT).failed(4, &["name service"]);
    assert!(manager.heard_nothing());
}

#[test]
fn who_is_watched_gives_signs_of_life() {
    let world = World::new();
    let manager = Manager::new(&world, "n");
    let mut command = world.command("names", &["names", "serve", "--ephemeral", "--port", "0"]);
    let process = manager.start(command.env("WATCHDOG_USEC", "200000"));
    assert!(manager.told().starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(manager.told(), "WATCHDOG=1\n");
    }
    process.signal(Signal::TERM);
    while manager.told() == "WATCHDOG=1\n" {}
    // Another process's watchdog is not ours.
    let manager = Manager::new(&world, "m");
    let mut command = world.command("names", &["names", "serve", "--ephemeral", "--port", "0"]);
    let process = manager.start(command.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1"));
    assert!(manager.told().starts_with("READY=1\n"));
    manager.stop(process);
}

#[test]
fn a_reload_changes_who_is_let_in_and_a_mistake_changes_nothing() {
    let (world, _names) = World::with_names();
    let (bob, eve) = (world.id("bob"), world.id("eve"));
    let config = world.config("a", "config.toml");
    let allow = |id: &str| std::fs::write(&config, format!("[expose]\nallow = [\"{id}\"]\n")).unwrap();
    allow(&bob);
    let to = shouting_server().to_string();
    let manager = Manager::new(&world, "n");
    let expose = manager.start(&mut world.command("a", &["expose", "web.a@example.org", "--to", &to]));
    let ready = format!("READY=1\nSTATUS={to} can be reached as web.a@example.org\n");
    assert_eq!(manager.told(), ready);
    let reload = || {
        expose.signal(Signal::HUP);
        let told = manager.told();
        let since = told.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(manager.told(), ready);
    };
    let mut bobs = world.start("bob", &["forward", "web.a@example.org", "--json"]);
    let local = bobs.next_json()["listening"].as_str().unwrap().to_owned();
    assert_eq!(ask(&local), "HELLO\n");
    world.run("eve", &["forward", "web.a@example.org"]).failed(3, &["web.a@example.org"]);

    // A file that cannot be understood leaves everything as it is.
    std::fs::write(&config, "[expose]\nalow = [\"any\"]\n").unwrap();
    reload();
    assert_eq!(ask(&local), "HELLO\n");

    allow(&eve);
    reload();
    // The name service hears of it on its own time.
    let shown = || world.run("eve", &["names", "lookup", "web.a@example.org"]).status.success().then_some(());
    common::wait_for("the name to be shown", shown);
    let mut eves = world.start("eve", &["forward", "web.a@example.org", "--json"]);
    let local = eves.next_json()["listening"].as_str().unwrap().to_owned();
    assert_eq!(ask(&local), "HELLO\n");
    world.run("bob", &["pipe", "web.a@example.org"]).failed(3, &["web.a@example.org"]);
    manager.stop(expose);
}

#[test]
fn a_reload_of_the_name_service_changes_who_may_register() {
    let mut world = World::new();
    let rules = world.path("rules");
    std::fs::write(&rules, "").unwrap();
    let manager = Manager::new(&world, "n");
    let args = ["names", "serve", "--json", "--port", "0", "--ephemeral", "--allow-from"];
    let mut names =
        manager.start(&mut world.command("names", &[&args[..], &[rules.to_str().unwrap()]].concat()));
    let ready = manager.told();
    world.set_service(names.next_json()["ticket"].as_str().unwrap());
    world.id("a");
    let register = ["id", "register", "ada@example.org"];
    world.run("a", &register).failed(5, &["ada@example.org"]);
    for (text, may) in [("@example.org\n", true), ("nonsense\n", true), ("", true)] {
        std::fs::write(&rules, text).unwrap();
        names.signal(Signal::HUP);
        assert!(manager.told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(manager.told(), ready);
        // Who is registered stays so.
        assert_eq!(world.run("a", &register).status.success(), may);
    }
    world.id("b");
    world.run("b", &["id", "register", "bob@example.org"]).failed(5, &["bob@example.org"]);
    manager.stop(names);
}

#[test]
fn without_a_service_manager_a_hangup_ends_the_command() {
    let (world, _names) = World::with_names();
    // Below nohup(1) it is ignored, which programs inherit.
    let default = ["--default-signal=HUP", PROGRAM];
    let args = ["expose", "web.a@example.org", "--to", "127.0.0.1:1", "--allow", "any", "--json"];
    let mut expose =
        Process::start(&mut world.command_of("env".as_ref(), "a", &[&default[..], &args].concat()));
    expose.next_json();
    expose.signal(Signal::HUP);
    assert_eq!(expose.finish(LIMIT).status.code(), None);
}

#[test]
fn forward_serves_the_socket_that_it_is_handed() {
    let (world, _names) = World::with_names();
    let to = shouting_server().to_string();
    let args = ["expose", "web.a@example.org", "--to", &to, "--allow", "any", "--json"];
    let mut expose = world.start("a", &args);
    expose.next_json();

    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    // As systemd does it: the socket is descriptor 3, and a variable holds the process's own number.
    let script = handing(1);
    let mut forward = world.command_of(
        "sh".as_ref(),
        "b",
        &["-c", &script, "sh", "forward", "web.a@example.org", "--json"],
    );
    let mut forward = Process::start(forward.stdin(Stdio::from(OwnedFd::from(socket))));
    assert_eq!(forward.next_json()["listening"], *address);
    assert_eq!(ask(&address), "HELLO\n");

    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut command =
        world.command_of("sh".as_ref(), "b", &["-c", &script, "sh", "forward", "web.a@example.org"]);
    command.stdin(Stdio::from(OwnedFd::from(datagrams)));
    Process::start(&mut command).output(LIMIT).failed(1, &["service manager", "TCP"]);
}

#[test]
fn a_socks_proxy_wants_to_know_who_uses_a_socket_that_it_is_handed_and_others_reach() {
    let world = World::new();
    let file = world.path("users");
    std::fs::write(&file, "ada:secret\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let serve = |address: &str, args: &[&str]| {
        let socket = TcpListener::bind(address).unwrap();
        let local = socket.local_addr().unwrap().to_string();
        let script = handing(1);
        let command = [&["-c", &script, "sh", "proxy", "socks", "--json"], args].concat();
        let mut command = world.command_of("sh".as_ref(), "b", &command);
        (Process::start(command.stdin(Stdio::from(OwnedFd::from(socket)))), local)
    };
    for open in ["0.0.0.0:0", "[::]:0"] {
        serve(open, &[]).0.output(LIMIT).failed(2, &["--credentials"]);
    }
    let credentials = ["--credentials", file.to_str().unwrap()];
    for (address, args) in [("127.0.0.1:0", &[][..]), ("0.0.0.0:0", &credentials)] {
        let (mut socks, local) = serve(address, args);
        assert_eq!(socks.next_json()["listening"], *local);
    }
}

#[test]
fn an_http_proxy_serves_the_socket_that_it_is_handed_and_others_only_if_that_is_said() {
    let world = World::new();
    let serve = |address: &str, args: &[&str]| {
        let socket = TcpListener::bind(address).unwrap();
        let local = socket.local_addr().unwrap();
        let script = handing(1);
        let command = [&["-c", &script, "sh", "proxy", "http", "--json"], args].concat();
        let mut command = world.command_of("sh".as_ref(), "b", &command);
        (Process::start(command.stdin(Stdio::from(OwnedFd::from(socket)))), local)
    };
    for open in ["0.0.0.0:0", "[::]:0"] {
        serve(open, &[]).0.output(LIMIT).failed(2, &["--allow-anyone"]);
    }
    let site = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = site.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = BufReader::new(site.accept().unwrap().0);
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n").unwrap();
        }
    });
    for (address, args) in [("127.0.0.1:0", &[][..]), ("0.0.0.0:0", &["--allow-anyone"])] {
        let (mut proxy, local) = serve(address, args);
        assert_eq!(proxy.next_json()["listening"], *local.to_string());
        let mut client = TcpStream::connect(("127.0.0.1", local.port())).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        write!(client, "GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    }
    serving.join().unwrap();
}

/// A script that hands over standard input, and for a second socket standard output, of which a copy is the
/// new one.
fn handing(sockets: u8) -> String {
    let second = if sockets == 2 { "4>&1 >&2" } else { "" };
    format!("exec 3<&0 </dev/null {second}; LISTEN_PID=$$ LISTEN_FDS={sockets} exec {PROGRAM} \"$@\"")
}

/// A TCP and a UDP socket on one port of the name service's address.
fn pair(world: &World) -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind((world.address("names"), 0)).unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (tcp, udp);
        }
    }
}

/// `names serve` with these sockets.
fn serve_on(world: &World, first: OwnedFd, second: OwnedFd, args: &[&str]) -> std::process::Child {
    let script = handing(2);
    let serve = ["-c", &script, "sh", "names", "serve", "--ephemeral", "--allow", "any"];
    let mut command = world.command_of("sh".as_ref(), "names", &[&serve[..], args].concat());
    command.stdin(first).stdout(second).stderr(Stdio::piped()).spawn().unwrap()
}

/// One line that it says.
fn says(serving: &mut std::process::Child, what: &str) -> String {
    let mut lines = BufReader::new(serving.stderr.as_mut().unwrap()).lines();
    lines.find_map(|line| line.ok().filter(|line| line.contains(what))).unwrap()
}

#[test]
fn a_name_service_serves_the_sockets_that_it_is_handed() {
    let mut world = World::new();
    let (tcp, udp) = pair(&world);
    let (address, port) = (tcp.local_addr().unwrap(), tcp.local_addr().unwrap().port());
    let mut id = world.command("names", &["id"]);
    id.args(["--identity", world.config("names", "names-identity").to_str().unwrap()]);
    let id = Process::start(&mut id).output(LIMIT).succeeded().stdout.trim().to_owned();
    world.set_service(&format!("{id}@{address}"));
    // Here it outlives the service, as in systemd: whoever comes meanwhile waits.
    let (kept, kept_udp) = (tcp.try_clone().unwrap(), udp.try_clone().unwrap());
    let mut serving = serve_on(&world, tcp.into(), udp.into(), &[]);
    says(&mut serving, &format!("serving names on port {port}"));
    for (carrier, user) in [("tcp", "ada"), ("quic", "bob")] {
        let name = format!("{user}@example.org");
        world.run(user, &["id", "register", &name, "--carrier", carrier]).succeeded();
        world.run(user, &["names", "lookup", &name, "--carrier", carrier]).succeeded();
    }
    serving.kill().unwrap();
    serving.wait().unwrap();
    let waiting = world.start("ada", &["id", "register", "ada@example.org", "--carrier", "tcp"]);
    std::thread::sleep(Duration::from_millis(300));
    let mut serving = serve_on(&world, kept.into(), kept_udp.into(), &[]);
    waiting.output(LIMIT).succeeded();
    serving.kill().unwrap();
    serving.wait().unwrap();
}

#[test]
fn sockets_that_a_name_service_cannot_serve_are_refused_in_one_line() {
    let world = World::new();
    world.id("names");
    let refused = |first: OwnedFd, second: OwnedFd, args: &[&str], code: i32, why: &str| {
        let output = serve_on(&world, first, second, args).wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let line = said.lines().last().unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(line.starts_with("whimbrel: ") && line.contains(why), "{said}");
    };
    let ((tcp, udp), (_, other)) = (pair(&world), pair(&world));
    refused(tcp.into(), other.into(), &[], 1, "one port");
    refused(pair(&world).0.into(), pair(&world).0.into(), &[], 1, "one port");
    let (tcp, _kept) = pair(&world);
    refused(tcp.try_clone().unwrap().into(), tcp.into(), &[], 1, "two sockets of one kind");
    let unix = std::os::unix::net::UnixListener::bind(world.path("socket")).unwrap();
    refused(udp.into(), unix.into(), &[], 1, "neither for TCP nor for UDP");
    let (tcp, udp) = pair(&world);
    refused(tcp.into(), udp.into(), &["--port", "1"], 2, "--port");
}

/// What `forward -v` logs while it connects.
fn log_of_forward(format: &[&str], variable: Option<&str>) -> String {
    let (world, _names) = World::with_names();
    let args = ["expose", "web.a@example.org", "--to", "127.0.0.1:1", "--allow", "any", "--json"];
    let mut expose = world.start("a", &args);
    expose.next_json();
    let mut command = world.command("b", &["forward", "web.a@example.org", "-vv", "--json"]);
    command.args(format).envs(variable.map(|value| ("WHIMBREL_LOG_FORMAT", value)));
    let mut forward = Process::start(&mut command);
    forward.next_json();
    forward.signal(Signal::TERM);
    forward.finish(LIMIT).succeeded().stderr.clone()
}

#[test]
fn logs_are_text_without_colour_codes_unless_a_terminal_shows_them() {
    let text = log_of_forward(&[], None);
    assert!(text.contains("DEBUG whimbrel_transport"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn logs_are_json_if_the_flag_or_the_environment_says_so() {
    for (format, variable) in [(&["--log-format", "json"][..], None), (&[], Some("json"))] {
        let text = log_of_forward(format, variable);
        // What is told to people, as that there is a new identity, is no log.
        assert!(!text.contains(" DEBUG "), "{text}");
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().any(|line| line["level"] == "DEBUG"), "{text}");
        assert!(lines.iter().all(|line| line["timestamp"].is_string()), "{text}");
    }
    // The flag wins.
    assert!(log_of_forward(&["--log-format", "text"], Some("json")).contains(" DEBUG "));
}

#[test]
fn an_unknown_log_format_is_told() {
    let world = World::new();
    world.run("a", &["id", "--log-format", "xml"]).failed(2, &["xml", "text", "json"]);
    let mut command = world.command("a", &["id"]);
    let process = Process::start(command.env("WHIMBREL_LOG_FORMAT", "xml"));
    process.output(LIMIT).failed(2, &["WHIMBREL_LOG_FORMAT=xml", "text or json"]);
}
