//! Machines of the lab on which a session goes from one device to another: a phone and a pc with two networks
//! each, a gateway and a server that knows nothing of Whimbrel.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::io::{PipeWriter, Write as _};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde_json::Value;
use whimbrel_lab::{Host, HostChild, HostCommand, Lab, Link, LinkSpec, Rate};

use crate::lines;
use crate::machines::{self, silent, wait_for_server, web_server};
pub use crate::machines::{HTTP, LIMIT, length, random, wait_for};

pub const CHAT: &str = "203.0.113.80:7000";
pub const SOCKS: &str = "127.0.0.1:1080";

/// A server that greets, and answers each line.
const TALKING: &str = r#"
import socket, threading

def serve(connection):
    connection.sendall(b"welcome to the room\n")
    for line in connection.makefile("r"):
        connection.sendall(("you said " + line).encode())
    connection.close()

with socket.create_server(("203.0.113.80", 7000)) as server:
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

pub struct Stage {
    /// They end before their machines do.
    running: Vec<HostChild>,
    /// How the gateway is found.
    pub ticket: String,
    pub phone: Host,
    pub pc: Host,
    gateway: Host,
    server: Host,
    /// The phone's networks.
    wlan: Link,
    cellular: Link,
    /// The pc's.
    cable: Link,
    wireless: Link,
    folder: tempfile::TempDir,
    _to_server: Link,
    _lab: Lab,
}

impl Stage {
    /// The phone is in its first network, and has a proxy through the gateway.
    pub fn new() -> Self {
        let lab = Lab::new().unwrap();
        let [phone, pc, gateway, server] =
            ["phone", "pc", "gateway", "server"].map(|name| lab.host(name).unwrap());
        // What is under way when the phone moves takes long: 300 ms there and back.
        let far = || LinkSpec::default().delay(Duration::from_millis(150)).rate(Rate::mbit(8));
        let wlan = lab.link(&phone, &gateway, far()).unwrap();
        let cellular = lab.link(&phone, &gateway, far()).unwrap();
        let near = LinkSpec::default().delay(Duration::from_millis(5)).rate(Rate::mbit(100));
        let cable = lab.link(&pc, &gateway, near.clone()).unwrap();
        let wireless = lab.link(&pc, &gateway, near).unwrap();
        let to_server = lab.link(&server, &gateway, LinkSpec::default()).unwrap();
        for (link, net) in [
            (&wlan, "10.0.0"),
            (&cellular, "10.0.2"),
            (&cable, "10.0.1"),
            (&wireless, "10.0.3"),
            (&to_server, "203.0.113"),
        ] {
            link.end(&gateway).add_address(&format!("{net}.1/24")).unwrap();
        }
        wlan.end(&phone).add_address("10.0.0.10/24").unwrap();
        wlan.end(&phone).add_default_route("10.0.0.1", 1).unwrap();
        cable.end(&pc).add_address("10.0.1.10/24").unwrap();
        cable.end(&pc).add_default_route("10.0.1.1", 1).unwrap();
        to_server.end(&server).add_address("203.0.113.80/24").unwrap();
        let folder = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        fs::create_dir(folder.path().join("site")).unwrap();
        let mut stage = Self {
            running: Vec::new(),
            ticket: String::new(),
            phone,
            pc,
            gateway,
            server,
            wlan,
            cellular,
            cable,
            wireless,
            folder,
            _to_server: to_server,
            _lab: lab,
        };
        stage.serve();
        stage
    }

    /// Starts the servers, the gateway and the phone's proxy.
    fn serve(&mut self) {
        let talking = silent(self.server.command("python3").args(["-c", TALKING])).spawn().unwrap();
        self.running.extend([web_server(&self.server, &self.path("site")), talking]);
        [HTTP, CHAT].iter().for_each(|address| wait_for_server(&self.gateway, address));
        let gate = ["gateway", "serve", "--ticket", "--allow", "any", "--to", HTTP, "--to", CHAT, "--json"];
        let mut gate = Running::start(self.whimbrel("gateway", &gate));
        self.ticket = gate.json()["ticket"].as_str().unwrap().to_owned();
        let socks = ["proxy", "socks", "--through", &self.ticket, "--listen", SOCKS, "--json"];
        let mut socks = Running::start(self.whimbrel("phone", &socks));
        assert_eq!(socks.json()["listening"], SOCKS);
        self.running.extend([gate.child, socks.child]);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program on a machine, with a home directory of that machine's own.
    pub fn whimbrel(&self, machine: &str, args: &[&str]) -> HostCommand {
        let host = match machine {
            "phone" => &self.phone,
            "pc" => &self.pc,
            "gateway" => &self.gateway,
            other => panic!("there is no machine {other}"),
        };
        machines::whimbrel(host, &self.path(machine)).args(args)
    }

    /// What a command says that ends by itself, and well.
    #[track_caller]
    pub fn says(&self, machine: &str, args: &[&str]) -> String {
        let output = self.whimbrel(machine, args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Lets the pc have the phone's session that leads there. Returns what it is called.
    pub fn hand_over(&self, to: &str) -> String {
        let listed = self.says("phone", &["sessions", "--json", "--through", &self.ticket]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let session = listed["sessions"].as_array().unwrap().iter().find(|it| it["to"] == to);
        let id = session.unwrap_or_else(|| panic!("{listed}"))["id"].as_str().unwrap().to_owned();
        let pc = self.says("pc", &["id"]);
        self.says("phone", &["handoff", &id, "--to", &pc, "--through", &self.ticket]);
        id
    }

    /// A program on the pc takes a session. It is about to begin when this returns.
    pub fn take(&self, id: &str, how: &str, program: &[&str]) -> Running {
        let take = ["take", id, "--through", &self.ticket, "--as", how, "--json", "--"];
        let mut taking = Running::start(self.whimbrel("pc", &[&take[..], program].concat()));
        taking.json();
        taking
    }

    /// The phone leaves its network, and is in the other one a moment later.
    pub fn move_phone(&self) {
        let wlan = self.wlan.end(&self.phone);
        self.phone.del_route(wlan.name(), "default").unwrap();
        wlan.del_address("10.0.0.10/24").unwrap();
        let cellular = self.cellular.end(&self.phone);
        cellular.add_address("10.0.2.10/24").unwrap();
        cellular.add_default_route("10.0.2.1", 1).unwrap();
    }

    /// The pc's cable is pulled, and it is in a wireless network a moment later.
    pub fn move_pc(&self) {
        let cable = self.cable.end(&self.pc);
        self.pc.del_route(cable.name(), "default").unwrap();
        cable.del_address("10.0.1.10/24").unwrap();
        let wireless = self.wireless.end(&self.pc);
        wireless.add_address("10.0.3.10/24").unwrap();
        wireless.add_default_route("10.0.3.1", 1).unwrap();
    }

    /// The gateway has another address where the phone is, and the phone reaches none of those before.
    pub fn move_gateway(&self) {
        self.phone.del_route(self.wlan.end(&self.phone).name(), "default").unwrap();
        let end = self.wlan.end(&self.gateway);
        end.del_address("10.0.0.1/24").unwrap();
        end.add_address("10.0.0.2/24").unwrap();
    }

    /// How many connections the server's kernel has accepted so far.
    pub fn accepted(&self) -> u64 {
        let output = self.server.command("cat").arg("/proc/net/snmp").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp: "));
        let (names, figures) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split(' ').zip(figures.split(' '));
        both.find(|(name, _)| *name == "PassiveOpens").unwrap().1.parse().unwrap()
    }
}

/// A program that is typed to, and whose lines are read.
pub struct Running {
    pub child: HostChild,
    input: Option<PipeWriter>,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(command: HostCommand) -> Self {
        let (stdin, input) = std::io::pipe().unwrap();
        // curl, as a client of lines, reads its input between two looks at its connection. Where it would
        // wait for somebody to type, it would not see meanwhile what a server says.
        rustix::io::ioctl_fionbio(&stdin, true).unwrap();
        let command = command.with(|command| {
            command.stdin(stdin).stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let output = child.child().stdout.take().unwrap();
        let (lines, _) = lines::of(output);
        Self { child, input: Some(input), lines }
    }

    #[track_caller]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap()
    }

    #[track_caller]
    pub fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    pub fn types(&mut self, line: &str) {
        self.input.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Its input has an end.
    pub fn types_no_more(&mut self) {
        self.input = None;
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        wait_for("a program ends", || self.child.child().try_wait().unwrap())
    }
}
