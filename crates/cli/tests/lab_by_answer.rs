//! Proxies of a user who has a gateway and a manager: each connection goes as the manager answers.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::machines::{HTTP, wait_for_server, whimbrel};
use crate::running::Running;
use serde_json::Value;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, require};

/// Another host, in a private network: no gateway is to reach it.
const PRIVATE: &str = "10.9.0.80:8000";
/// Which machine asks the server, by its own word: the laptop, or the gateway for it.
const LAPTOP: &str = "10.0.0.10";
const GATEWAY: &str = "203.0.113.1";
const NAME: &str = "gate.home.ada@example.org";

/// A laptop, its gateway, which is its router as well, and a server that tells who asks it.
struct Stage {
    laptop: Host,
    folder: tempfile::TempDir,
    ticket: String,
    _gate: Running,
    _links: [Link; 2],
    _hosts: [Host; 2],
    _lab: Lab,
}

impl Stage {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let [laptop, server] = ["laptop", "server"].map(|name| lab.host(name).unwrap());
        let gateway = lab.router("gateway").unwrap();
        let inside = lab.link(&laptop, &gateway, LinkSpec::default()).unwrap();
        inside.end(&gateway).add_address("10.0.0.1/24").unwrap();
        inside.end(&laptop).add_address(&format!("{LAPTOP}/24")).unwrap();
        inside.end(&laptop).add_default_route("10.0.0.1", 1).unwrap();
        let outside = lab.link(&gateway, &server, LinkSpec::default()).unwrap();
        outside.end(&gateway).add_address(&format!("{GATEWAY}/24")).unwrap();
        outside.end(&gateway).add_address("10.9.0.1/24").unwrap();
        outside.end(&server).add_address("203.0.113.80/24").unwrap();
        outside.end(&server).add_address("10.9.0.80/24").unwrap();
        outside.end(&server).add_default_route(GATEWAY, 1).unwrap();
        for at in [HTTP, PRIVATE] {
            tell_who_asks(server.run(|| TcpListener::bind(at)).unwrap());
        }
        wait_for_server(&laptop, HTTP);
        let folder = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        // The server is in the gateway's own network, so it is listed.
        let args = ["gateway", "serve", "--ticket", "--allow", "any", "--to", HTTP, "--json"];
        let gate = Running::start(whimbrel(&gateway, &folder.path().join("gate")).args(args));
        let said: Value = serde_json::from_str(&gate.next()).unwrap();
        let ticket = said["ticket"].as_str().unwrap().to_owned();
        Self {
            laptop,
            folder,
            ticket,
            _gate: gate,
            _links: [inside, outside],
            _hosts: [gateway, server],
            _lab: lab,
        }
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(whimbrel(&self.laptop, &self.folder.path().join("home")).args(args))
    }

    /// The laptop's manager, with these settings.
    fn manager(&self, settings: &str) -> Running {
        let file = self.folder.path().join("home/.config/whimbrel/access.toml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, settings).unwrap();
        let manager = self.start(&["access", "serve", "--json"]);
        manager.next();
        manager
    }

    /// A proxy through the gateway, what it says of itself, and its URL.
    fn proxy(&self, kind: &str, more: &[&str]) -> (Running, Value, String) {
        let begin = ["proxy", kind, "--through", &self.ticket, "--listen", "127.0.0.1:0", "--json"];
        let proxy = self.start(&[&begin[..], more].concat());
        let said: Value = serde_json::from_str(&proxy.next()).unwrap();
        let scheme = if kind == "http" { "http" } else { "socks5h" };
        let url = format!("{scheme}://{}", said["listening"].as_str().unwrap());
        (proxy, said, url)
    }

    /// The client that asks the server there, through this proxy.
    #[track_caller]
    fn asks(&self, proxy: &str, at: &str, more: &[&str]) -> String {
        let curl = self.laptop.command("curl").args(["-sS", "--max-time", "60", "--noproxy", ""]);
        let curl = curl.args(["--proxy", proxy]).args(more);
        let output = curl.arg(format!("http://{at}/")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Answers each request with the address from which its connection came.
fn tell_who_asks(listener: TcpListener) {
    std::thread::spawn(move || {
        while let Ok((mut socket, from)) = listener.accept() {
            std::thread::spawn(move || {
                let (mut head, from) = ([0; 4096], from.ip().to_string());
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{from}", from.len());
                while socket.read(&mut head).is_ok_and(|n| n > 0) {
                    if socket.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn each_connection_goes_through_the_gateway_or_a_network_as_the_manager_answers_and_is_watched() {
    if !require!() {
        return;
    }
    let stage = Stage::new();
    let _manager = stage.manager(&format!("gateway = \"{NAME}\""));
    let watching = stage.start(&["access", "watch"]);
    watching.until(|line| line.contains(LAPTOP));
    let by_answer = ["--manager", "auto", "--intent", "resilience=sensitive"];
    let (_socks, _, socks) = stage.proxy("socks", &by_answer);
    assert_eq!(stage.asks(&socks, HTTP, &[]), GATEWAY);
    let decided = format!("{HTTP} (resilience=sensitive): by whimbrel through {NAME} over ");
    watching.until(|line| line.starts_with(&decided));
    // What gateways refuse, and what nobody said must not break.
    assert_eq!(stage.asks(&socks, PRIVATE, &[]), LAPTOP);
    let (_plain, _, plain) = stage.proxy("socks", &["--manager", "auto"]);
    assert_eq!(stage.asks(&plain, HTTP, &[]), LAPTOP);
    watching.until(|line| line.starts_with(&format!("{HTTP} (no intents): ")) && !line.contains(NAME));

    // A tunnel is a connection, and an object can be asked for again.
    let (_http, said, http) = stage.proxy("http", &by_answer);
    assert_eq!(said["manager"], true, "{said}");
    assert_eq!(stage.asks(&http, HTTP, &["--proxytunnel"]), GATEWAY);
    assert_eq!(stage.asks(&http, HTTP, &[]), LAPTOP);
    assert_eq!(stage.asks(&http, PRIVATE, &["--proxytunnel"]), LAPTOP);
}

#[test]
fn all_goes_through_the_gateway_where_no_manager_is_named_or_says_anything_of_gateways() {
    if !require!() {
        return;
    }
    let stage = Stage::new();
    let manager = stage.manager(&format!("gateway = \"{NAME}\""));
    // There is a manager, and nobody said that it is to choose.
    for more in [&[][..], &["--manager", "off"]] {
        let (_socks, _, socks) = stage.proxy("socks", more);
        assert_eq!(stage.asks(&socks, HTTP, &[]), GATEWAY, "{more:?}");
        let (_http, said, http) = stage.proxy("http", more);
        assert_eq!(stage.asks(&http, HTTP, &[]), GATEWAY, "{more:?}");
        assert_eq!(said["manager"], false, "{said}");
    }
    let (_socks, _, socks) = stage.proxy("socks", &["--manager", "auto"]);
    let (_http, _, http) = stage.proxy("http", &["--manager", "auto"]);
    assert_eq!(stage.asks(&socks, HTTP, &[]), LAPTOP);
    assert_eq!(stage.asks(&http, HTTP, &[]), LAPTOP);
    // What is open without the gateway is not used any more then.
    manager.kill();
    assert_eq!(stage.asks(&socks, HTTP, &[]), GATEWAY);
    assert_eq!(stage.asks(&http, HTTP, &[]), GATEWAY);
    assert_eq!(stage.asks(&http, HTTP, &["--proxytunnel"]), GATEWAY);

    // One that knows no gateway says nothing of gateways.
    let _manager = stage.manager("");
    let (_socks, _, socks) = stage.proxy("socks", &["--manager", "auto"]);
    assert_eq!(stage.asks(&socks, HTTP, &[]), GATEWAY);
    let (_http, said, http) = stage.proxy("http", &["--manager", "auto"]);
    assert_eq!(said["manager"], false, "{said}");
    assert_eq!(stage.asks(&http, HTTP, &[]), GATEWAY);
}
