//! Three machines of the lab on which documents come true: `vps`, `home` with an sshd, and `laptop` with two
//! links. Each has a home directory and the programs that the documents use.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_lab::{Host, HostChild, Lab, Link, LinkSpec, Rate};

use crate::shell::Shells;
pub use crate::shell::{LIMIT, PROGRAM, Running, possible};

/// The machines' addresses, as the documents write them.
pub const VPS: &str = "203.0.113.5";
const HOME: &str = "198.51.100.7";
/// The laptop's links: interface, network and the time that a packet takes on it, in milliseconds.
const LINKS: [(&str, &str, u64); 2] = [("wlan0", "192.168.1", 5), ("usb0", "100.64.3", 15)];
const MACHINES: [&str; 3] = ["vps", "home", "laptop"];

pub struct Stage {
    hosts: BTreeMap<&'static str, Host>,
    links: BTreeMap<&'static str, Link>,
    shells: Shells,
    _sshd: HostChild,
    _lab: Lab,
}

impl Stage {
    pub fn new() -> Self {
        let lab = Lab::new().unwrap();
        let net = lab.router("net").unwrap();
        let hosts: BTreeMap<_, _> =
            MACHINES.into_iter().map(|name| (name, lab.host(name).unwrap())).collect();
        let mut links = BTreeMap::new();
        for (host, address) in [("vps", VPS), ("home", HOME)] {
            let spec = LinkSpec::default().delay(Duration::from_millis(2)).interface_names("eth0", host);
            let link = lab.link(&hosts[host], &net, spec).unwrap();
            let gateway = format!("{}.1", address.rsplit_once('.').unwrap().0);
            link.end(&net).add_address(&format!("{gateway}/24")).unwrap();
            link.end(&hosts[host]).add_address(&format!("{address}/24")).unwrap();
            link.end(&hosts[host]).add_default_route(&gateway, 1).unwrap();
            links.insert(host, link);
        }
        let laptop = &hosts["laptop"];
        for (number, (interface, network, delay)) in (1_u8..).zip(LINKS) {
            let spec = LinkSpec::default().delay(Duration::from_millis(delay)).rate(Rate::mbit(40));
            let link = lab.link(laptop, &net, spec.interface_names(interface, interface)).unwrap();
            let [address, gateway] = [10, 1].map(|last| format!("{network}.{last}"));
            link.end(&net).add_address(&format!("{gateway}/24")).unwrap();
            let end = link.end(laptop);
            end.add_address(&format!("{address}/24")).unwrap();
            end.add_default_route(&gateway, u32::from(number)).unwrap();
            let [source, gateway]: [IpAddr; 2] = [address, gateway].map(|text| text.parse().unwrap());
            laptop.add_source_route(interface, source, gateway, number).unwrap();
            links.insert(interface, link);
        }
        let shells = Shells::new(&MACHINES);
        let sshd = shells.sshd(&hosts["home"]);
        Self { hosts, links, shells, _sshd: sshd, _lab: lab }
    }

    /// A script that stands for a program.
    pub fn program(&self, name: &str, script: &str) {
        self.shells.program(name, script);
    }

    pub fn home(&self, host: &str) -> PathBuf {
        self.shells.home(host)
    }

    /// Takes a link of the laptop away.
    pub fn unplug(&self, interface: &str) {
        self.links[interface].end(&self.hosts["laptop"]).set_up(false).unwrap();
    }

    /// Brings it back.
    pub fn plug(&self, interface: &str) {
        self.links[interface].end(&self.hosts["laptop"]).set_up(true).unwrap();
        self.hosts["laptop"].restore(interface).unwrap();
    }

    /// Starts a script of the shell. Its standard error is in its output.
    pub fn start(&self, host: &str, script: &str) -> Running {
        let machine = self.hosts.get(host).unwrap_or_else(|| panic!("there is no machine {host}"));
        self.shells.start(host, machine, script)
    }
}
