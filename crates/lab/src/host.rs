//! Hosts: network namespaces with interfaces, addresses and routes.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::agent::Agent;
use crate::firewall::Firewall;
use crate::{Block, Error, Result, sys, tool};

/// A host of the lab. Clones are handles of the same host; its namespace lives until the lab and all of them
/// are gone.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    name: String,
    agent: Agent,
    namespace: File,
    interfaces: AtomicU32,
    settings: Mutex<Vec<Setting>>,
    firewall: Mutex<Firewall>,
    /// What the routes say of congestion, as arguments of `ip`.
    congestion: Mutex<String>,
}

/// Something the kernel forgets when an interface goes down.
#[derive(Clone, PartialEq)]
struct Setting {
    interface: String,
    /// Arguments of `ip`, with `replace` as the verb.
    command: String,
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Host {}

impl Host {
    pub(crate) fn build(name: &str, forwarding: bool, table: Option<u32>) -> Result<Self> {
        let (agent, namespace) = Agent::start(name, forwarding, table)?;
        Ok(Self(Arc::new(Inner {
            name: name.into(),
            agent,
            namespace,
            interfaces: AtomicU32::new(0),
            settings: Mutex::default(),
            firewall: Mutex::default(),
            congestion: Mutex::default(),
        })))
    }

    /// The name given to it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Gives an interface an address with its prefix length, such as `10.0.1.2/24` or `fd00:1::2/64`.
    pub fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        self.configure(interface, address_command(interface, address))
    }

    /// Takes an address away from an interface.
    pub fn del_address(&self, interface: &str, address: &str) -> Result<()> {
        let added = address_command(interface, address);
        self.settings().retain(|setting| setting.command != added);
        self.ip(format!("address del {address} dev {interface}\n"))
    }

    /// Sends what goes to `destination` (such as `10.2.0.0/16`) through that interface to a gateway.
    pub fn add_route(&self, interface: &str, destination: &str, gateway: &str) -> Result<()> {
        self.add_way(interface, &format!("{destination} via {gateway} dev {interface}"))
    }

    /// Removes a route. The default route of IPv4 is `default`, that of IPv6 `::/0`: by its destination `ip`
    /// tells the family, which lines of a batch cannot say in another way.
    pub fn del_route(&self, interface: &str, destination: &str) -> Result<()> {
        self.settings().retain(|s| !(s.interface == interface && adds(&s.command, destination)));
        self.ip(format!("route del {destination} dev {interface}\n"))
    }

    /// Sends everything without a better route through that interface to a gateway. The route with the lowest
    /// metric wins, except for sockets bound to an interface, which use that interface's route.
    pub fn add_default_route(&self, interface: &str, gateway: &str, metric: u32) -> Result<()> {
        self.add_way(interface, &format!("default via {gateway} dev {interface} metric {metric}"))
    }

    /// Sends what leaves from the address `source` through that interface to a gateway, whatever the other
    /// routes say: a host with several networks needs one such route for each of them. `table` is a number
    /// from 1 to 252 that no other source of this host uses.
    pub fn add_source_route(
        &self,
        interface: &str,
        source: IpAddr,
        gateway: IpAddr,
        table: u8,
    ) -> Result<()> {
        let family = if source.is_ipv6() { "-6 " } else { "" };
        self.ip(format!("{family}rule add from {source} table {table}\n"))?;
        self.add_way(interface, &format!("default via {gateway} dev {interface} table {table}"))
    }

    /// Chooses how TCP and MPTCP react to congestion, such as `cubic`, over the routes that are given from
    /// now on. (The kernel lets only the whole system choose some of these for every socket of a namespace.)
    pub fn set_congestion_control(&self, name: &str) {
        *lock(&self.0.congestion) = format!(" congctl {name}");
    }

    /// Switches an interface on or off. As in every Linux system, switching off loses its routes and IPv6
    /// addresses; [`Host::restore`] switches on again with all of them.
    pub fn set_link(&self, interface: &str, up: bool) -> Result<()> {
        self.ip(format!("link set {interface} {}\n", if up { "up" } else { "down" }))
    }

    /// Switches an interface on and gives it again the addresses and routes it had been given, as a network
    /// manager does.
    pub fn restore(&self, interface: &str) -> Result<()> {
        self.set_link(interface, true)?;
        let settings = self.settings().clone();
        let lost = settings.iter().filter(|setting| setting.interface == interface);
        self.ip(lost.map(|setting| format!("{}\n", setting.command)).collect())
    }

    /// Drops some of the packets that this host sends, receives or forwards.
    pub fn block(&self, what: Block) -> Result<()> {
        self.change_firewall(|firewall| firewall.add(what))
    }

    /// Lets packets pass again that [`Host::block`] stopped.
    pub fn unblock(&self, what: Block) -> Result<()> {
        self.change_firewall(|firewall| firewall.remove(what))
    }

    /// Runs a closure on a thread inside the namespace and returns its value. Sockets it makes belong to this
    /// host for good, wherever they are used later.
    ///
    /// # Panics
    /// If the closure does, or if the system refuses a thread.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        let outcome = thread::scope(|scope| scope.spawn(|| self.enter().map(|()| job())).join());
        match outcome {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => panic!("{error}"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Moves the calling thread into the namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        sys::enter_network_namespace(self.namespace().as_fd()).map_err(Error::Namespace)
    }

    pub(crate) fn namespace(&self) -> &File {
        &self.0.namespace
    }

    /// Runs a job on the host's own thread and waits for it.
    pub(crate) fn call<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.0.agent.call(job)
    }

    pub(crate) fn ip(&self, commands: String) -> Result<()> {
        self.call(move || tool::ip(&commands))?
    }

    /// Applies nftables rules on this host, all of them or none.
    pub fn nft(&self, ruleset: impl Into<String>) -> Result<()> {
        let ruleset = ruleset.into();
        self.call(move || tool::nft(&ruleset))?
    }

    pub(crate) fn next_interface_name(&self) -> String {
        format!("eth{}", self.0.interfaces.fetch_add(1, Ordering::Relaxed))
    }

    fn add_way(&self, interface: &str, route: &str) -> Result<()> {
        let congestion = lock(&self.0.congestion).clone();
        self.configure(interface, format!("route replace {route}{congestion}"))
    }

    /// Runs an `ip` command and remembers it for [`Host::restore`].
    fn configure(&self, interface: &str, command: String) -> Result<()> {
        self.ip(format!("{command}\n"))?;
        let setting = Setting { interface: interface.into(), command };
        let mut settings = self.settings();
        if !settings.contains(&setting) {
            settings.push(setting);
        }
        Ok(())
    }

    fn settings(&self) -> MutexGuard<'_, Vec<Setting>> {
        lock(&self.0.settings)
    }

    fn change_firewall(&self, change: impl FnOnce(&mut Firewall)) -> Result<()> {
        let mut firewall = lock(&self.0.firewall);
        change(&mut firewall);
        self.nft(firewall.ruleset())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address_command(interface: &str, address: &str) -> String {
    // Usable at once: nobody else on an emulated link could have the same address.
    let nodad = if address.contains(':') { " nodad" } else { "" };
    format!("address replace {address} dev {interface}{nodad}")
}

/// Whether a command adds the route to this destination that is not for one source alone.
fn adds(command: &str, destination: &str) -> bool {
    let Some(route) = command.strip_prefix("route replace ") else { return false };
    let mut words = route.split(' ');
    let (to, gateway) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
    let to = if to == "default" && gateway.contains(':') { "::/0" } else { to };
    to == destination && !route.contains(" table ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_added_a_route_is_known_by_its_destination_and_family() {
        let default = |gateway: &str| format!("route replace default via {gateway} dev eth0 metric 1");
        assert!(adds(&default("10.0.1.1"), "default") && !adds(&default("10.0.1.1"), "::/0"));
        assert!(adds(&default("fd00:1::1"), "::/0") && !adds(&default("fd00:1::1"), "default"));
        assert!(adds("route replace 10.0.1.0/24 via 10.0.2.1 dev eth0", "10.0.1.0/24"));
        assert!(!adds("route replace 10.0.1.0/25 via 10.0.2.1 dev eth0", "10.0.1.0/24"));
        assert!(!adds("route replace default via 10.0.1.1 dev eth0 table 7", "default"));
        assert!(!adds("address add 10.0.1.2/24 dev eth0", "10.0.1.2/24"));
    }
}
