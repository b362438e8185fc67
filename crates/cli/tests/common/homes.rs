//! Machines behind gateways of their own, and the program on them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, NatGateway, Rate};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");

/// Where the server of all homes is.
pub(crate) const VPS: &str = "203.0.113.5";

/// A network that joins gateways, and a small server on it.
pub(crate) struct Internet {
    _link: Link,
    pub(crate) vps: Host,
    pub(crate) router: Host,
    pub(crate) lab: Lab,
}

impl Internet {
    pub(crate) fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (router, vps) = (lab.router("internet").unwrap(), lab.host("vps").unwrap());
        let spec = LinkSpec::default().delay(Duration::from_millis(3)).interface_names("eth0", "vps0");
        let link = lab.link(&vps, &router, spec).unwrap();
        link.end(&router).add_address("203.0.113.1/24").unwrap();
        link.end(&vps).add_address(&format!("{VPS}/24")).unwrap();
        link.end(&vps).add_default_route("203.0.113.1", 1).unwrap();
        Self { _link: link, vps, router, lab }
    }

    /// Another small server, at 198.51.N.5.
    pub(crate) fn server(&self, name: &str, number: u8) -> (Host, Link) {
        let host = self.lab.host(name).unwrap();
        let spec = LinkSpec::default().delay(Duration::from_millis(3));
        let spec = spec.interface_names("eth0", &format!("rel{number}"));
        let link = self.lab.link(&host, &self.router, spec).unwrap();
        link.end(&self.router).add_address(&format!("198.51.{number}.1/24")).unwrap();
        link.end(&host).add_address(&format!("198.51.{number}.5/24")).unwrap();
        link.end(&host).add_default_route(&format!("198.51.{number}.1"), 1).unwrap();
        (host, link)
    }

    /// A machine behind a gateway of its own.
    pub(crate) fn home(&self, name: &str, network: u8) -> Home {
        Home::new(&self.lab, &self.router, name, network)
    }

    /// The same, where the gateway's outside is public, 198.18.N.10: packets that open gateways are sent to
    /// nothing else for a relay with a public address.
    pub(crate) fn public_home(&self, name: &str, network: u8) -> Home {
        Home::behind(&self.lab, &self.router, name, (network, "198.18"))
    }
}

/// A machine behind a gateway: its network is 192.168.N.0/24, the gateway's outside is 10.0.N.10.
pub(crate) struct Home {
    pub(crate) host: Host,
    inside: Link,
    network: u8,
    at: u8,
    pub(crate) gateway: NatGateway,
    _outside: Link,
}

impl Home {
    pub(crate) fn new(lab: &Lab, internet: &Host, name: &str, network: u8) -> Self {
        Self::behind(lab, internet, name, (network, "10.0"))
    }

    fn behind(lab: &Lab, internet: &Host, name: &str, (network, outer): (u8, &str)) -> Self {
        let (host, gateway) = (lab.host(name).unwrap(), lab.router(&format!("{name}-gw")).unwrap());
        let spec = || LinkSpec::default().delay(Duration::from_millis(3)).rate(Rate::mbit(100));
        let outside = spec().interface_names("wan0", &format!("to{network}"));
        let outside = lab.link(&gateway, internet, outside).unwrap();
        outside.end(internet).add_address(&format!("{outer}.{network}.1/24")).unwrap();
        outside.end(&gateway).add_address(&format!("{outer}.{network}.10/24")).unwrap();
        outside.end(&gateway).add_default_route(&format!("{outer}.{network}.1"), 1).unwrap();
        let inside = lab.link(&host, &gateway, spec().interface_names("eth0", "lan0")).unwrap();
        inside.end(&gateway).add_address(&format!("192.168.{network}.1/24")).unwrap();
        let nat = lab.nat_gateway(&gateway, "wan0").unwrap();
        let home = Self { host, inside, network, at: 10, gateway: nat, _outside: outside };
        home.arrive();
        home
    }

    fn arrive(&self) {
        let end = self.inside.end(&self.host);
        end.add_address(&format!("192.168.{}.{}/24", self.network, self.at)).unwrap();
        end.add_default_route(&format!("192.168.{}.1", self.network), 1).unwrap();
    }

    /// Loses its address, and has another one a moment later.
    pub(crate) fn move_on(&mut self) {
        let end = self.inside.end(&self.host);
        end.del_address(&format!("192.168.{}.{}/24", self.network, self.at)).unwrap();
        self.at += 1;
        self.arrive();
    }
}

pub(crate) fn whimbrel(host: &Host, folder: &Path, user: &str) -> HostCommand {
    program(PROGRAM, host, folder, user)
}

/// The same with a program at another place.
pub(crate) fn program(program: &str, host: &Host, folder: &Path, user: &str) -> HostCommand {
    let home = folder.join(user);
    fs::create_dir_all(&home).unwrap();
    host.command(program)
        .env("HOME", &home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_RUNTIME_DIR", &home)
        .with(|c| {
            c.env_remove("WHIMBREL_NAMES");
        })
}

/// What a command that ends says, which is JSON.
pub(crate) fn json_of(command: HostCommand) -> serde_json::Value {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {output:?}"))
}

/// Starts a command that goes on, and waits for its first line, which is JSON.
pub(crate) fn started(command: HostCommand) -> (HostChild, serde_json::Value) {
    let piped = command.with(|c| {
        c.stdout(Stdio::piped());
    });
    let mut child = piped.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}")))
}

/// Sends the same bytes to everybody, at the same time.
pub(crate) fn serve(listener: TcpListener, bytes: Vec<u8>) {
    let bytes = Arc::new(bytes);
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let bytes = bytes.clone();
            // A client that goes away is noticed by the test.
            std::thread::spawn(move || drop(socket.write_all(&bytes)));
        }
    });
}

/// The figures that a service tells on this host at port 9090.
pub(crate) fn figures(host: &Host) -> String {
    host.run(|| {
        let mut socket = TcpStream::connect("127.0.0.1:9090").unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    })
}
