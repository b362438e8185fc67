//! The real run: which transfers are ready, and who decides about them.

use super::parts::{Done, NEVER, Rules};
use super::predict::Predictor;
use super::settings::{Network, Protocol, Settings};
use super::world::World;
use crate::page::Page;
use crate::scenario::{Outcome, Span};
use whimbrel_access::{
    BytesPerSecond, Choice, Connection, ConnectionId, Decision, Granularity, Intents, MAX_PATHS,
    PathEstimate, Policy, Seconds, Situation, UnderWay,
};

/// Events after which a load is given up: some hundred times as many as the largest real page takes.
const MAX_EVENTS: usize = 10_000_000;

/// Loads pages in the modern model. Keeps its memory from load to load.
#[derive(Default)]
pub struct Simulator {
    world: World,
    copy: World,
    ready: Vec<u16>,
    /// Streams that each transfer still waits for.
    waits: Vec<u16>,
    think: Vec<f64>,
    done: Vec<Done>,
    foreseen: Vec<Done>,
    eligible: Vec<Connection>,
    estimates: Vec<PathEstimate>,
    decision: Decision,
}

impl Simulator {
    /// A simulator.
    pub fn new() -> Self {
        Self::default()
    }

    /// Load a page over these networks by this policy. The outcome is written into `outcome`, whose memory is
    /// reused; its page load time is infinite if the page can't be completed (a network without any rate).
    ///
    /// The policy is used as it is: reset it for reproducible results. `seed` decides about losses.
    pub fn load(
        &mut self,
        page: &Page,
        networks: &[Network],
        settings: &Settings,
        policy: &mut dyn Policy,
        seed: u64,
        outcome: &mut Outcome,
    ) {
        let mut think = std::mem::take(&mut self.think);
        thinking(page, settings, &mut think);
        let rules = Rules { settings, networks, page, think: &think, seed };
        self.world.begin(&rules);
        self.ready.clone_from(&page.roots);
        self.waits.clear();
        self.waits.resize(page.transfers.len(), 0);
        outcome.spans.clear();
        outcome.spans.resize(page.transfers.len(), Span::default());
        let mut run = Run { sim: self, rules, policy, outcome };
        let plt = run.until_loaded();
        outcome.plt = plt;
        outcome.connections = self.world.connections.len() as u32;
        outcome.carried.clear();
        outcome.carried.extend_from_slice(&self.world.carried[..networks.len()]);
        self.think = think;
    }
}

/// How long each server thinks: what the recorded wait exceeds the host's shortest by, at most two seconds.
fn thinking(page: &Page, settings: &Settings, think: &mut Vec<f64>) {
    const MOST: f64 = 2.0;
    think.clear();
    think.resize(page.transfers.len(), 0.0);
    if !settings.think {
        return;
    }
    let mut shortest = vec![f64::INFINITY; page.hosts.len()];
    for transfer in &page.transfers {
        let host = &mut shortest[usize::from(transfer.host)];
        *host = host.min(transfer.wait);
    }
    for (think, transfer) in think.iter_mut().zip(&page.transfers) {
        *think = (transfer.wait - shortest[usize::from(transfer.host)]).min(MOST);
    }
}

struct Run<'a> {
    sim: &'a mut Simulator,
    rules: Rules<'a>,
    policy: &'a mut dyn Policy,
    outcome: &'a mut Outcome,
}

impl Run<'_> {
    fn until_loaded(&mut self) -> f64 {
        let mut left = self.rules.page.transfers.len();
        self.offer();
        let mut done = std::mem::take(&mut self.sim.done);
        for _ in 0..MAX_EVENTS {
            let next = self.sim.world.next_event(&self.rules);
            if next == NEVER {
                break;
            }
            done.clear();
            self.sim.world.advance(next, &self.rules, &mut done);
            left -= done.iter().filter(|done| self.finished(done)).count();
            if left == 0 {
                break;
            }
            if !done.is_empty() {
                self.offer();
                self.reconsider();
            }
        }
        self.sim.done = done;
        if left == 0 { self.sim.world.clock } else { f64::INFINITY }
    }

    /// Note a stream's end. True if its transfer is complete, whose children are then ready.
    fn finished(&mut self, done: &Done) -> bool {
        let waits = &mut self.sim.waits[usize::from(done.transfer)];
        *waits -= 1;
        if *waits > 0 {
            return false;
        }
        let clock = self.sim.world.clock;
        self.outcome.spans[usize::from(done.transfer)].done = clock;
        for &child in self.rules.page.children(done.transfer) {
            self.outcome.spans[usize::from(child)].ready = clock;
            self.sim.ready.push(child);
        }
        true
    }

    /// Offer what is ready to the policy, in order.
    fn offer(&mut self) {
        let mut kept = 0;
        for n in 0..self.sim.ready.len() {
            let transfer = self.sim.ready[n];
            if self.has_no_slot(transfer) || !self.choose(transfer) {
                self.sim.ready[kept] = transfer;
                kept += 1;
            }
        }
        self.sim.ready.truncate(kept);
    }

    fn uses_tls(&self, transfer: u16) -> bool {
        self.rules.settings.upgrade || self.rules.page.transfers[usize::from(transfer)].tls
    }

    /// HTTP/1.1: a host has only so many connections at work.
    fn has_no_slot(&self, transfer: u16) -> bool {
        if self.rules.settings.protocol_of(self.uses_tls(transfer)) != Protocol::H1 {
            return false;
        }
        let host = self.rules.page.transfers[usize::from(transfer)].host;
        let busy = self.sim.world.connections.iter().filter(|other| other.host == host && other.streams > 0);
        busy.count() >= self.rules.settings.max_per_host as usize
    }

    /// Ask the policy and do what it says. False if the transfer has to wait.
    fn choose(&mut self, transfer: u16) -> bool {
        let bytes = self.rules.page.transfers[usize::from(transfer)].size;
        self.ask_policy(transfer, bytes, None);
        let sim = &mut *self.sim;
        let decision = std::mem::take(&mut sim.decision);
        let mut streams = 0;
        for part in decision.parts() {
            streams += u16::from(self.send(transfer, part.choice, part.bytes as f64));
        }
        if let (0, Some(best)) = (streams, decision.best()) {
            streams += u16::from(self.send(transfer, best.choice, bytes));
        }
        self.sim.decision = decision;
        self.sim.waits[usize::from(transfer)] += streams;
        if let Some(choice) = self.sim.decision.warm() {
            self.warm(transfer, choice);
        }
        streams > 0
    }

    /// Open a connection that nothing is asked for yet.
    fn warm(&mut self, transfer: u16, choice: Choice) {
        let (host, tls) = (self.rules.page.transfers[usize::from(transfer)].host, self.uses_tls(transfer));
        self.sim.world.carry_out(choice, host, tls, &self.rules);
    }

    fn send(&mut self, transfer: u16, choice: Choice, bytes: f64) -> bool {
        let (host, tls) = (self.rules.page.transfers[usize::from(transfer)].host, self.uses_tls(transfer));
        let world = &mut self.sim.world;
        let Some(connection) = world.carry_out(choice, host, tls, &self.rules) else { return false };
        world.ask(connection, transfer, bytes, &self.rules);
        let span = &mut self.outcome.spans[usize::from(transfer)];
        if span.assigned == 0.0 {
            span.assigned = world.clock;
            span.connection = u32::from(connection);
            span.path = world.connections[usize::from(connection)].paths.first().0;
        }
        true
    }

    /// Let the policy fill `decision` for so many bytes of a transfer, new or under way.
    fn ask_policy(&mut self, transfer: u16, bytes: f64, under_way: Option<(u32, UnderWay)>) {
        let object = &self.rules.page.transfers[usize::from(transfer)];
        let tls = self.uses_tls(transfer);
        let sim = &mut *self.sim;
        list_connections(&sim.world, object.host, tls, &mut sim.eligible);
        estimate_paths(&sim.world, self.rules.networks, &mut sim.estimates);
        let intents = Intents::receive(bytes as u64);
        let situation = Situation {
            now: Seconds(sim.world.clock),
            granularity: Granularity::Message,
            intents: &intents,
            paths: &sim.estimates,
            destinations: &[],
            connections: &sim.eligible,
        };
        let mut predictor = Predictor {
            real: &sim.world,
            copy: &mut sim.copy,
            done: &mut sim.foreseen,
            rules: self.rules,
            transfer,
            bytes,
            host: object.host,
            tls,
            from: under_way.map(|(number, _)| number),
        };
        sim.decision.clear();
        match under_way {
            None => self.policy.decide(&situation, &mut predictor, &mut sim.decision),
            Some((_, under_way)) => {
                self.policy.reconsider(&under_way, &situation, &mut predictor, &mut sim.decision);
            }
        }
    }

    /// Ask the policy about what is under way, the largest rest first.
    fn reconsider(&mut self) {
        if !self.policy.reconsiders() || !self.some_path_is_free() {
            return;
        }
        let largest = self
            .sim
            .world
            .streams
            .iter()
            .filter(|stream| stream.wants())
            .max_by(|a, b| a.left.total_cmp(&b.left));
        let Some(&stream) = largest else { return };
        let Some(completes) = self.foresee(stream.number) else { return };
        let connection = ConnectionId(u32::from(stream.connection));
        let under_way = UnderWay { connection, left: stream.left as u64, completes, stands: false };
        self.ask_policy(stream.transfer, stream.left.floor(), Some((stream.number, under_way)));
        let Some(part) = self.sim.decision.parts().first().copied() else { return };
        let host = self.rules.page.transfers[usize::from(stream.transfer)].host;
        let tls = self.uses_tls(stream.transfer);
        let world = &mut self.sim.world;
        let Some(connection) = world.carry_out(part.choice, host, tls, &self.rules) else { return };
        let taken = world.shorten(stream.number, part.bytes as f64, &self.rules);
        if taken > 0.0 {
            world.ask(connection, stream.transfer, taken, &self.rules);
            self.sim.waits[usize::from(stream.transfer)] += 1;
        }
    }

    fn some_path_is_free(&self) -> bool {
        let world = &self.sim.world;
        let mut used = [false; MAX_PATHS];
        for stream in &world.streams {
            for path in world.connections[usize::from(stream.connection)].paths.as_slice() {
                used[path.index()] = true;
            }
        }
        used[..self.rules.networks.len()].contains(&false)
    }

    /// When a stream will be complete if nothing is added.
    fn foresee(&mut self, number: u32) -> Option<Seconds> {
        let sim = &mut *self.sim;
        sim.copy.copy_from(&sim.world);
        for _ in 0..MAX_EVENTS {
            let next = sim.copy.next_event(&self.rules);
            if next == NEVER {
                return None;
            }
            sim.foreseen.clear();
            sim.copy.advance(next, &self.rules, &mut sim.foreseen);
            if sim.foreseen.iter().any(|done| done.number == number) {
                return Some(Seconds(next));
            }
        }
        None
    }
}

fn list_connections(world: &World, host: u16, tls: bool, into: &mut Vec<Connection>) {
    into.clear();
    for (number, connection) in world.connections.iter().enumerate() {
        if connection.open && connection.host == host && connection.tls == tls {
            let mine = world.streams.iter().filter(|stream| usize::from(stream.connection) == number);
            let scheduled = mine.map(|stream| stream.left as u64).sum();
            into.push(Connection { id: ConnectionId(number as u32), paths: connection.paths, scheduled });
        }
    }
}

fn estimate_paths(world: &World, networks: &[Network], into: &mut Vec<PathEstimate>) {
    into.clear();
    into.extend(networks.iter().map(|network| PathEstimate {
        loss: Some(network.loss),
        ..PathEstimate::known(Seconds(network.link.rtt), BytesPerSecond(network.link.rate))
    }));
    for connection in world.connections.iter().filter(|connection| connection.open) {
        for flow in &world.flows[usize::from(connection.flows().start)..usize::from(connection.flows().end)] {
            let path = &mut into[usize::from(flow.path)];
            path.connections += 1;
            path.down.now = path.down.now.map(|rate| BytesPerSecond(rate.0 + flow.rate));
        }
    }
    for stream in &world.streams {
        let path = world.connections[usize::from(stream.connection)].paths.first();
        into[path.index()].scheduled += stream.left as u64;
        into[path.index()].objects += 1;
    }
}
