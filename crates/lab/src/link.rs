//! Links between hosts, and their ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::emulator::Emulator;
use crate::{Capacity, Direction, Error, Host, LinkSpec, Queue, Rate, Result, Shape, Stats, Trace, sys};

/// Frames the kernel holds for the link's thread while that is not running.
const KERNEL_QUEUE: u32 = 4096;

/// One host's interface on a link.
#[derive(Clone)]
pub struct End {
    host: Host,
    name: String,
}

impl End {
    /// The interface's name in its host's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host it belongs to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Gives the interface an address with its prefix length, such as `10.0.1.2/24` or `fd00:1::2/64`.
    pub fn add_address(&self, address: &str) -> Result<()> {
        self.host.add_address(&self.name, address)
    }

    /// Takes an address away.
    pub fn del_address(&self, address: &str) -> Result<()> {
        self.host.del_address(&self.name, address)
    }

    /// Sends everything without a better route to that gateway. The route with the lowest metric wins.
    pub fn add_default_route(&self, gateway: &str, metric: u32) -> Result<()> {
        self.host.add_default_route(&self.name, gateway, metric)
    }

    /// Switches the interface on or off. See [`Host::set_link`].
    pub fn set_up(&self, up: bool) -> Result<()> {
        self.host.set_link(&self.name, up)
    }
}

/// An emulated link between two hosts. Clones are handles of the same link; it runs until the lab and all of
/// them are gone. All settings may be changed while it runs.
#[derive(Clone)]
pub struct Link {
    ends: Arc<[End; 2]>,
    emulator: Arc<Emulator>,
}

impl Link {
    pub(crate) fn build(first: &Host, second: &Host, spec: &LinkSpec) -> Result<Self> {
        let ends = ends(first, second, spec)?;
        let taps = [make_tap(&ends[0], spec.mtu)?, make_tap(&ends[1], spec.mtu)?];
        let emulator = Arc::new(Emulator::start(taps, spec)?);
        Ok(Self { ends: Arc::new(ends), emulator })
    }

    /// The end at that host.
    ///
    /// # Panics
    /// If the host is not on this link.
    pub fn end(&self, host: &Host) -> &End {
        &self.ends[end_number(&self.ends, host)]
    }

    /// The direction in which that host sends.
    ///
    /// # Panics
    /// If the host is not on this link.
    pub fn from(&self, host: &Host) -> Direction {
        [Direction::Forward, Direction::Backward][end_number(&self.ends, host)]
    }

    /// Changes any settings of a direction.
    pub fn set(&self, direction: Direction, change: impl Fn(&mut Shape)) {
        self.emulator.change(direction, change);
    }

    /// Changes the one-way delay; packets under way keep to it as well.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        self.set(direction, |shape| shape.delay = delay);
    }

    /// Changes the rate; `None` means unlimited.
    pub fn set_rate(&self, direction: Direction, rate: impl Into<Option<Rate>>) {
        let capacity = rate.into().map_or(Capacity::Unlimited, Capacity::Rate);
        self.set(direction, |shape| shape.capacity = capacity.clone());
    }

    /// Plays a recorded capacity from now on.
    pub fn set_trace(&self, direction: Direction, trace: Trace) {
        let trace = Arc::new(trace);
        self.set(direction, |shape| shape.capacity = Capacity::Trace(trace.clone()));
    }

    /// Changes how much may wait. What waits already stays.
    pub fn set_queue(&self, direction: Direction, queue: Queue) {
        self.set(direction, |shape| shape.queue = queue);
    }

    /// Changes the chance of each packet to be lost.
    pub fn set_loss(&self, direction: Direction, loss: f64) {
        self.set(direction, |shape| shape.loss = loss);
    }

    /// Swallows everything, packets under way included, without the hosts being told; or stops doing so.
    pub fn set_blackhole(&self, direction: Direction, blackhole: bool) {
        self.set(direction, |shape| shape.blackhole = blackhole);
    }

    /// Swallows packets of more bytes from now on, without the hosts being told; `None` lets all pass again.
    pub fn set_largest(&self, direction: Direction, largest: Option<usize>) {
        self.set(direction, |shape| shape.largest = largest);
    }

    /// Pulls the cable of one end, or plugs it in: that host sees its interface without carrier, but not
    /// switched off, and nothing passes either way. The other host sees nothing of it.
    ///
    /// # Panics
    /// If the host is not on this link.
    pub fn set_carrier(&self, host: &Host, plugged: bool) -> Result<()> {
        let number = end_number(&self.ends, host);
        let failed = |source| Error::Tap { name: self.ends[number].name.clone(), source };
        self.emulator.set_carrier(number, plugged).map_err(failed)
    }

    /// The settings with which that host's packets travel.
    ///
    /// # Panics
    /// If the host is not on this link.
    pub fn shape_from(&self, host: &Host) -> Shape {
        self.emulator.shape(end_number(&self.ends, host))
    }

    /// Removes both interfaces, as if the adapters were unplugged. The link cannot be used again.
    pub fn remove(&self) -> Result<()> {
        let remove = |end: &End| end.host.ip(format!("link delete {}\n", end.name));
        self.ends.iter().try_for_each(remove)
    }

    /// What became of the packets so far.
    pub fn stats(&self, direction: Direction) -> Stats {
        self.emulator.stats(direction)
    }
}

/// A plain virtual cable between two hosts, for tests that move gigabytes. Large segments pass unsplit.
#[derive(Clone)]
pub struct DirectLink {
    ends: Arc<[End; 2]>,
}

impl DirectLink {
    pub(crate) fn build(first: &Host, second: &Host, spec: &LinkSpec) -> Result<Self> {
        let ends = ends(first, second, spec)?;
        let [one, other] = [ends[0].name(), ends[1].name()];
        let mtu = spec.mtu;
        let there = format!("/proc/{}/fd/{}", std::process::id(), second.namespace().as_raw_fd());
        first
            .ip(format!("link add {one} mtu {mtu} type veth peer name {other} mtu {mtu} netns {there}\n"))?;
        ends.iter().try_for_each(quicken_address_resolution)?;
        ends.iter().try_for_each(|end| end.set_up(true))?;
        Ok(Self { ends: Arc::new(ends) })
    }

    /// The end at that host.
    ///
    /// # Panics
    /// If the host is not on this link.
    pub fn end(&self, host: &Host) -> &End {
        &self.ends[end_number(&self.ends, host)]
    }
}

fn ends(first: &Host, second: &Host, spec: &LinkSpec) -> Result<[End; 2]> {
    if first == second {
        return Err(Error::SameHost { host: first.name().into() });
    }
    let [one, other] = &spec.names;
    Ok([(first, one), (second, other)].map(|(host, name)| End {
        host: host.clone(),
        name: name.clone().unwrap_or_else(|| host.next_interface_name()),
    }))
}

fn make_tap(end: &End, mtu: u16) -> Result<File> {
    let name = end.name.clone();
    let tap = end.host.call(move || sys::open_tap(&name).map_err(|source| Error::Tap { name, source }))??;
    quicken_address_resolution(end)?;
    let name = &end.name;
    end.host.ip(format!("link set {name} mtu {mtu} txqueuelen {KERNEL_QUEUE} up\n"))?;
    Ok(tap)
}

/// Asks for a neighbour's address again after 20 ms instead of a second, for three seconds as before: a
/// kernel that has not yet joined the multicast group of a fresh IPv6 address misses the first question, and
/// a test should not.
fn quicken_address_resolution(end: &End) -> Result<()> {
    let timing = "retrans 20 mcast_probes 150 ucast_probes 150";
    let change = |cache| format!("ntable change name {cache} dev {} {timing}\n", end.name);
    end.host.ip(["arp_cache", "ndisc_cache"].map(change).concat())
}

fn end_number(ends: &[End; 2], host: &Host) -> usize {
    match ends.iter().position(|end| end.host == *host) {
        Some(number) => number,
        None => panic!("the host {} is not on this link", host.name()),
    }
}
