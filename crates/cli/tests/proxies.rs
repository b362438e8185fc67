//! `proxy socks`, `gateway serve` and names as hosts, as real processes, with curl as the program.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::common::{self, LIMIT, Process, World, tcp_server};

/// An HTTP server that says one word.
fn site(says: &'static str) -> SocketAddr {
    tcp_server(move |mut socket| {
        let mut head = [0; 4096];
        if socket.read(&mut head).is_ok_and(|n| n > 0) {
            let _ = write!(socket, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{says}", says.len());
        }
    })
}

fn curl(proxy: &str, url: &str) -> common::Output {
    let mut command = Command::new("curl");
    Process::start(command.args(["-sS", "--max-time", "20", "--proxy", proxy, url])).output(LIMIT)
}

/// The proxy's process, and its URL.
fn socks(world: &World, user: &str, args: &[&str]) -> (Process, String) {
    let begin = ["proxy", "socks", "--listen", "127.0.0.1:0", "--json"];
    let mut socks = world.start(user, &[&begin[..], args].concat());
    let url = format!("socks5h://{}", socks.next_json()["listening"].as_str().unwrap());
    (socks, url)
}

fn gateway(world: &World, user: &str, args: &[&str]) -> (Process, String) {
    let begin = ["gateway", "serve", "--ticket", "--json"];
    let mut gateway = world.start(user, &[&begin[..], args].concat());
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    (gateway, ticket)
}

#[test]
fn without_a_gateway_a_program_goes_the_systems_way_and_no_key_is_made() {
    let world = World::new();
    let (_socks, proxy) = socks(&world, "bob", &[]);
    let got = curl(&proxy, &format!("http://{}/", site("hello")));
    assert_eq!(got.succeeded().stdout.trim_end(), "hello");
    assert_eq!(curl(&proxy, "http://127.0.0.1:1/").status.code(), Some(97));
    assert!(!world.config("bob", "identity").exists());
}

#[test]
fn a_gateway_lets_those_in_who_are_allowed_and_to_what_is_listed() {
    let world = World::new();
    let (bob, here) = (world.id("bob"), site("hello"));
    let (_gateway, ticket) = gateway(&world, "gate", &["--allow", &bob, "--to", "127.0.0.1", "--only"]);
    let (_socks, proxy) = socks(&world, "bob", &["--through", &ticket]);
    assert_eq!(curl(&proxy, &format!("http://{here}/")).succeeded().stdout.trim_end(), "hello");
    for refused in
        ["http://127.0.0.2/", "http://192.0.2.1/", "http://169.254.169.254/", "http://localhost:25/"]
    {
        let got = curl(&proxy, refused);
        assert!(got.stderr.contains("(2)"), "{refused}: {}", got.stderr);
    }
    // A key that is not allowed, though it has the ticket.
    world.id("eve");
    let args = ["proxy", "socks", "--listen", "127.0.0.1:0", "--through", &ticket];
    world.run("eve", &args).failed(5, &["not allowed"]);
}

#[test]
fn a_gateway_that_was_started_again_is_used_again() {
    let world = World::new();
    let here = format!("http://{}/", site("hello"));
    let port = common::dead_port().port().to_string();
    let args = ["--allow", "any", "--to", "127.0.0.1", "--port", &port];
    let (gate, ticket) = gateway(&world, "gate", &args);
    let (_socks, proxy) = socks(&world, "bob", &["--through", &ticket]);
    assert_eq!(curl(&proxy, &here).succeeded().stdout.trim_end(), "hello");
    gate.signal(rustix::process::Signal::TERM);
    gate.output(LIMIT).succeeded();
    assert_ne!(curl(&proxy, &here).status.code(), Some(0));
    let (_gate, _) = gateway(&world, "gate", &args);
    assert_eq!(curl(&proxy, &here).succeeded().stdout.trim_end(), "hello");
}

#[test]
fn a_place_of_a_gateway_comes_back_when_nothing_is_said_for_its_limit_of_time() {
    let world = World::new();
    let silent = tcp_server(|mut socket| {
        let mut sink = [0; 64];
        while socket.read(&mut sink).is_ok_and(|n| n > 0) && socket.write_all(b"x").is_ok() {}
    });
    let args = ["--allow", "any", "--to", "127.0.0.1", "--most", "1", "1", "--idle", "1s"];
    let (_gateway, ticket) = gateway(&world, "gate", &args);
    let (_socks, proxy) = socks(&world, "bob", &["--through", &ticket]);
    let open = || {
        let mut socket = TcpStream::connect(proxy.trim_start_matches("socks5h://")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let request = [&b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01"[..], &silent.port().to_be_bytes()].concat();
        socket.write_all(&request).unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).unwrap();
        (socket, answer[3])
    };
    let (mut first, answer) = open();
    assert_eq!(answer, 0);
    // One that says something now and then lives on: longer than twice the limit.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_secs(3) {
        first.write_all(b"x").unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_ne!(open().1, 0, "the only place is taken");
    let broken = first.read(&mut [0]).unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
    let begun = std::time::Instant::now();
    while open().1 != 0 {
        assert!(begun.elapsed() < LIMIT, "the place does not come back");
    }
}

#[test]
fn a_listed_name_is_a_host_for_programs_and_no_other_is() {
    let (world, _names) = World::with_names();
    let (bob, here) = (world.id("bob"), site("at home").to_string());
    for name in ["web.home.ada@example.org", "at.home.ada@example.org"] {
        let mut expose = world.start("ada", &["expose", name, "--to", &here, "--allow", &bob, "--json"]);
        expose.next_json();
        let (_socks, proxy) = socks(&world, "bob", &["--host", &format!("{name}:8080")]);
        let host = name.replace("at.", "x-at.").replace('@', ".at.");
        let got = curl(&proxy, &format!("http://{host}.whimbrel:8080/"));
        assert_eq!(got.succeeded().stdout.trim_end(), "at home");
        for other in [format!("{host}.whimbrel"), "db.home.ada.at.example.org.whimbrel:8080".to_owned()] {
            let refused = curl(&proxy, &format!("http://{other}/"));
            assert!(refused.stderr.contains("(2)"), "{other}: {}", refused.stderr);
        }
        let none = curl(&proxy, "http://nothing.whimbrel:8080/");
        assert!(none.stderr.contains("(4)"), "{}", none.stderr);
        expose.signal(rustix::process::Signal::TERM);
        expose.output(LIMIT);
    }
}

/// An HTTP proxy's process, and its URL.
fn http(world: &World, user: &str, args: &[&str]) -> (Process, String) {
    let begin = ["proxy", "http", "--listen", "127.0.0.1:0", "--json"];
    let mut http = world.start(user, &[&begin[..], args].concat());
    let url = format!("http://{}", http.next_json()["listening"].as_str().unwrap());
    (http, url)
}

/// The status, and the page.
fn asked(proxy: &str, url: &str, more: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "-w", "%{http_code}", "--proxy", proxy, url]).args(more);
    Process::start(&mut command).output(LIMIT).stdout.trim_end().to_owned()
}

#[test]
fn the_http_proxy_reaches_hosts_through_a_gateway() {
    let world = World::new();
    let (bob, here) = (world.id("bob"), format!("http://{}/", site("hello")));
    let (_gateway, ticket) = gateway(&world, "gate", &["--allow", &bob, "--to", "127.0.0.1", "--only"]);
    let (_http, proxy) = http(&world, "bob", &["--through", &ticket]);
    assert_eq!(asked(&proxy, &here, &[]), "hello200");
    assert_eq!(asked(&proxy, &here, &["--proxytunnel"]), "hello200");
    assert!(asked(&proxy, "http://192.0.2.1/", &[]).ends_with("403"));
    world.id("eve");
    let args = ["proxy", "http", "--listen", "127.0.0.1:0", "--through", &ticket];
    world.run("eve", &args).failed(5, &["not allowed"]);
    // The flags that each command of a test gets go to the shell, which has no use for them.
    let script = format!("curl -sS --max-time 20 {here}");
    let run = ["run", "--through", &ticket, "--", "sh", "-c", &script];
    assert_eq!(world.run("bob", &run).succeeded().stdout.trim_end(), "hello");
}

#[test]
fn the_http_proxy_reaches_a_listed_name_and_no_page_of_another_site_does() {
    let (world, _names) = World::with_names();
    let (bob, here) = (world.id("bob"), site("at home").to_string());
    let name = "web.home.ada@example.org";
    let mut expose = world.start("ada", &["expose", name, "--to", &here, "--allow", &bob, "--json"]);
    expose.next_json();
    let (_http, proxy) = http(&world, "bob", &["--host", name]);
    let url = "http://web.home.ada.at.example.org.whimbrel/";
    let own = "Origin: http://web.home.ada.at.example.org.whimbrel";
    let (evil, browser) = ("Origin: https://evil.example", "User-Agent: Mozilla/5.0");
    assert_eq!(asked(&proxy, url, &[]), "at home200");
    assert_eq!(asked(&proxy, url, &["-H", browser, "-H", "Upgrade-Insecure-Requests: 1"]), "at home200");
    assert_eq!(asked(&proxy, url, &["-H", browser, "-H", own]), "at home200");
    for lines in [
        &["-H", evil][..],
        &["-H", own, "-H", evil],
        &["-H", "Sec-Fetch-Site: cross-site"],
        &["-H", "Sec-Fetch-Site: same-origin", "-H", "Sec-Fetch-Site: cross-site"],
        &["-H", browser],
    ] {
        let refused = asked(&proxy, url, lines);
        assert!(refused.contains("a page of another site") && refused.ends_with("403"), "{refused}");
    }
    // What comes in a tunnel is not seen: programs get one, browsers do not.
    assert_eq!(asked(&proxy, url, &["--proxytunnel"]), "at home200");
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "--proxytunnel", "--proxy", &proxy, url]);
    command.args(["--proxy-header", browser, "-A", "Mozilla/5.0"]);
    let refused = Process::start(&mut command).output(LIMIT);
    assert!(refused.stderr.contains("403"), "{}", refused.stderr);
    // A name or a port that is not listed.
    for other in
        ["http://web.home.ada.at.example.org.whimbrel:81/", "http://db.home.ada.at.example.org.whimbrel/"]
    {
        assert!(asked(&proxy, other, &[]).ends_with("403"), "{other}");
    }
    assert!(asked(&proxy, "http://nothing.whimbrel/", &[]).ends_with("502"));
}

#[test]
fn a_proxy_that_others_reach_wants_to_know_who_they_are() {
    let world = World::new();
    let file = world.path("users");
    fs::write(&file, "ada:secret\n").unwrap();
    let file = file.to_str().unwrap();
    world.run("bob", &["proxy", "socks", "--listen", "0.0.0.0:0"]).failed(2, &["--credentials"]);
    let args = ["--listen", "0.0.0.0:0", "--credentials", file];
    world.run("bob", &[&["proxy", "socks"], &args[..]].concat()).failed(2, &["chmod 600"]);
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    let (_socks, proxy) = socks(&world, "bob", &["--credentials", file]);
    let here = format!("http://{}/", site("hello"));
    let known = proxy.replace("//", "//ada:secret@");
    assert_eq!(curl(&known, &here).succeeded().stdout.trim_end(), "hello");
    assert_eq!(curl(&proxy, &here).status.code(), Some(97));
    assert_eq!(curl(&proxy.replace("//", "//ada:wrong@"), &here).status.code(), Some(97));
}

#[test]
fn mistakes_are_told_in_one_line() {
    let world = World::new();
    for (args, says) in [
        (&["gateway", "serve", "--allow", "any"][..], "under which name"),
        (&["gateway", "serve", "--ticket"], "nobody would be let in"),
        (&["gateway", "serve", "--ticket", "--allow", "any", "--only"], "--to"),
        (&["gateway", "serve", "--ticket", "--allow", "any", "--to", "10.0.0.0/99"], "write it as HOST"),
        (&["proxy", "socks", "--host", "example.org"], "@"),
        (&["proxy", "socks", "--host", "a@example.org:0"], "a port is a number"),
        (&["proxy", "socks", "--credentials", "/nowhere"], "cannot read /nowhere"),
        (&["proxy", "socks", "--through", "nobody"], "@"),
    ] {
        world.run("bob", args).failed(2, &[says]);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    world.run("bob", &["proxy", "socks", "--listen", &listen]).failed(1, &["choose another port"]);
}

/// What a browser is told by the file that `proxy pac` prints, for each of these hosts.
fn told(world: &World, args: &[&str], hosts: &[&str]) -> Vec<String> {
    let file = world.run("bob", &[&["proxy", "pac"], args].concat()).succeeded().stdout.clone();
    let script = format!(
        "{file}\nprocess.argv.slice(1).forEach(h => console.log(FindProxyForURL(`http://${{h}}/`, h)))"
    );
    let node = Command::new("node").args(["-e", &script, "--"]).args(hosts).output();
    let node = node.unwrap_or_else(|error| panic!("node: {error}; scripts/setup.sh test installs it"));
    assert!(node.status.success(), "{}", String::from_utf8_lossy(&node.stderr));
    String::from_utf8(node.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_pac_file_sends_names_to_the_http_proxy_alone() {
    let world = World::new();
    let hosts =
        ["web.home.ada.at.example.org.whimbrel", "x.Whimbrel", "whimbrel", "x.whimbrel.", "x.whimbrel.."];
    for (args, proxy) in [
        (&[][..], "PROXY 127.0.0.1:8118"),
        (&["--only-names", "--http", "127.0.0.1:3128"], "PROXY 127.0.0.1:3128"),
        (&["--socks", "127.0.0.1:1080"], "PROXY 127.0.0.1:8118"),
    ] {
        assert_eq!(told(&world, args, &hosts), [proxy; 5], "{args:?}");
    }
}

#[test]
fn a_pac_file_hides_all_hosts_but_this_machine_and_its_networks_names() {
    let world = World::new();
    let others = [
        "example.org",
        "127.tracker.example",
        "127.0.0.1.tracker.example",
        "128.0.0.1",
        "2001:db8::1",
        "[2001:db8::1]",
        "localhost.example",
        "xwhimbrel.example",
        "whimbrel.example",
    ];
    let own =
        ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "web.localhost", "LOCALHOST.", "printer"];
    for (args, rest) in [
        (&[][..], "PROXY 127.0.0.1:8118"),
        (&["--only-names"], "DIRECT"),
        (&["--socks", "127.0.0.1:1080"], "SOCKS5 127.0.0.1:1080"),
    ] {
        assert_eq!(told(&world, args, &others), [rest; 9], "{args:?}");
        assert_eq!(told(&world, args, &own), ["DIRECT"; 8], "{args:?}");
    }
}

#[test]
fn a_page_that_talks_http_to_the_socks_port_gets_nothing() {
    let world = World::new();
    let (_socks, proxy) = socks(&world, "bob", &[]);
    let mut socket = TcpStream::connect(proxy.trim_start_matches("socks5h://")).unwrap();
    let here = site("hello");
    write!(socket, "POST http://{here}/ HTTP/1.1\r\nHost: {here}\r\nOrigin: http://evil.example\r\n\r\n")
        .unwrap();
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    assert!(all.is_empty());
}

#[test]
fn a_browser_does_not_reach_a_name_by_socks_and_a_service_that_speaks_first_is_heard() {
    let (world, _names) = World::with_names();
    let (bob, here) = (world.id("bob"), site("at home").to_string());
    let greeter = tcp_server(|mut socket| {
        let mut name = [0; 3];
        let _ = socket.write_all(b"who? ").and_then(|()| socket.read_exact(&mut name));
        let _ = socket.write_all(&name);
    });
    let (web, talk) = ("web.home.ada@example.org", "talk.home.ada@example.org");
    let expose = |name: &str, to: &str| {
        let mut expose = world.start("ada", &["expose", name, "--to", to, "--allow", &bob, "--json"]);
        expose.next_json();
        expose
    };
    let _exposed = [expose(web, &here), expose(talk, &greeter.to_string())];
    let (_socks, proxy) = socks(&world, "bob", &["--host", web, "--host", &format!("{talk}:23")]);
    let url = "http://web.home.ada.at.example.org.whimbrel/";
    assert_eq!(curl(&proxy, url).succeeded().stdout.trim_end(), "at home");
    for header in ["User-Agent: Mozilla/5.0 (X11)", "Origin: http://evil.example"] {
        let mut command = Command::new("curl");
        let refused =
            Process::start(command.args(["-sS", "-H", header, "--proxy", &proxy, url])).output(LIMIT);
        assert!(refused.succeeded().stdout.contains("Use the HTTP proxy"), "{header}: {}", refused.stdout);
    }
    let mut socket = TcpStream::connect(proxy.trim_start_matches("socks5h://")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
        .write_all(b"\x05\x01\x00\x05\x01\x00\x03\x25talk.home.ada.at.example.org.whimbrel\x00\x17")
        .unwrap();
    let mut asked = [0; 17];
    socket.read_exact(&mut asked).unwrap();
    assert_eq!(&asked[12..], b"who? ", "the service speaks first");
    socket.write_all(b"ada").unwrap();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "ada");
}
