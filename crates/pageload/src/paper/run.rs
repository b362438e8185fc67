//! The real run: the scheduler (12) around the world.

use super::lanes::Field;
use super::node::{At, Mode};
use super::predict::Predictor;
use super::world::{Finished, Queues, World};
use crate::page::Page;
use crate::scenario::{Link, Outcome, Span};
use whimbrel_access::{
    Choice, Connection, ConnectionId, Decision, Granularity, Intents, PathEstimate, Policy, Seconds,
    Situation,
};

/// Busy channels of one host.
const MAX_PER_HOST: u16 = 6;
/// Channels in total.
const MAX_TOTAL: usize = 17;

/// Loads pages in the paper's model. Keeps its memory from load to load.
#[derive(Default)]
pub struct Simulator {
    world: World,
    copy: World,
    queues: Queues,
    ready: Vec<u16>,
    busy_of_host: Vec<u16>,
    busy: usize,
    eligible: Vec<Connection>,
    estimates: Vec<PathEstimate>,
    decision: Decision,
    done: usize,
    thorough: bool,
}

impl Simulator {
    /// A simulator.
    pub fn new() -> Self {
        Self::default()
    }

    /// A simulator that never cuts a prediction short because it cannot win: slower, for comparison.
    pub fn thorough() -> Self {
        Self { thorough: true, ..Self::default() }
    }

    /// Load a page over these links by this policy. The outcome is written into `outcome`, whose memory is
    /// reused.
    ///
    /// The policy is used as it is: reset it for reproducible results.
    pub fn load(&mut self, page: &Page, links: &[Link], policy: &mut dyn Policy, outcome: &mut Outcome) {
        self.begin(page, links, outcome);
        let mut run = Run { sim: self, page, links, policy, outcome };
        run.notify();
        while run.sim.done < page.transfers.len() {
            let Some((time, owner)) = run.sim.world.next(f64::INFINITY) else { break };
            run.note_carried(time - run.sim.world.clock);
            if let Some(finished) = run.sim.world.handle(time, owner, links, &run.sim.queues) {
                run.finished(finished);
            }
        }
        outcome.plt = self.world.clock;
        outcome.connections = self.world.next_id;
    }

    fn begin(&mut self, page: &Page, links: &[Link], outcome: &mut Outcome) {
        self.world.clear();
        self.queues.size.clear();
        self.queues.size.extend(page.transfers.iter().map(|transfer| transfer.size));
        self.queues.next.clear();
        self.queues.next.resize(page.transfers.len(), 0);
        self.ready.clone_from(&page.roots);
        self.busy_of_host.clear();
        self.busy_of_host.resize(page.hosts.len(), 0);
        self.busy = 0;
        self.done = 0;
        self.estimates.clear();
        self.estimates.extend(links.iter().map(Link::estimate));
        outcome.spans.clear();
        outcome.spans.resize(page.transfers.len(), Span::default());
        outcome.carried.clear();
        outcome.carried.resize(links.len(), 0.0);
    }
}

struct Run<'a> {
    sim: &'a mut Simulator,
    page: &'a Page,
    links: &'a [Link],
    policy: &'a mut dyn Policy,
    outcome: &'a mut Outcome,
}

impl Run<'_> {
    /// 12.3: offer the ready transfers to the policy. The limit in total is tested once only.
    fn notify(&mut self) {
        if self.sim.ready.is_empty() || self.sim.busy >= MAX_TOTAL {
            return;
        }
        let mut kept = 0;
        for n in 0..self.sim.ready.len() {
            let transfer = self.sim.ready[n];
            let host = self.page.transfers[usize::from(transfer)].host;
            let full = self.sim.busy_of_host[usize::from(host)] >= MAX_PER_HOST;
            if full || !self.choose(transfer) {
                self.sim.ready[kept] = transfer;
                kept += 1;
            }
        }
        self.sim.ready.truncate(kept);
    }

    /// Ask the policy and do what it says. False if the transfer has to wait.
    fn choose(&mut self, transfer: u16) -> bool {
        let object = &self.page.transfers[usize::from(transfer)];
        let sim = &mut *self.sim;
        // Once here, instead of in each prediction.
        sim.world.events.catch_up();
        sim.eligible.clear();
        for &at in &sim.world.channels {
            let node = &sim.world.nodes[usize::from(at)];
            if node.host == object.host && node.tls == object.tls {
                let scheduled = sim.world.get(at, Field::Queued) as u64;
                sim.eligible.push(Connection { id: ConnectionId(node.id), paths: node.paths, scheduled });
            }
        }
        let intents = Intents::receive(object.size as u64);
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
            queues: &sim.queues,
            links: self.links,
            transfer,
            host: object.host,
            tls: object.tls,
            thorough: sim.thorough,
        };
        sim.decision.clear();
        self.policy.decide(&situation, &mut predictor, &mut sim.decision);
        let Some(choice) = sim.decision.best().map(|best| best.choice) else { return false };
        self.execute(transfer, choice);
        true
    }

    /// 12.5
    fn execute(&mut self, transfer: u16, choice: Choice) {
        let object = &self.page.transfers[usize::from(transfer)];
        let chosen = match choice {
            Choice::Reuse(id) => self.channel(id.0),
            Choice::Open { .. } => None,
        };
        self.evict(chosen);
        let world = &mut self.sim.world;
        let at = match (choice, chosen) {
            (_, Some(at)) => at,
            (Choice::Open { paths, .. }, None) => world.open(paths, object.host, object.tls, self.links),
            (Choice::Reuse(_), None) => return,
        };
        let node = world.node(at);
        if node.mode == Mode::Idle {
            self.sim.busy += 1;
            self.sim.busy_of_host[usize::from(object.host)] += 1;
        } else {
            self.sim.queues.next[usize::from(node.tail)] = transfer;
        }
        let span = &mut self.outcome.spans[usize::from(transfer)];
        (span.assigned, span.connection, span.path) =
            (self.sim.world.clock, self.sim.world.node(at).id, self.sim.world.node(at).path);
        self.sim.world.assign(at, transfer, object.size, self.links);
    }

    fn channel(&self, id: u32) -> Option<At> {
        let world = &self.sim.world;
        world.channels.iter().copied().find(|at| world.nodes[usize::from(*at)].id == id)
    }

    /// 12.6: close the channel that has been idle longest, needed or not, unless it is the chosen one.
    fn evict(&mut self, chosen: Option<At>) {
        let world = &mut self.sim.world;
        if world.channels.len() < MAX_TOTAL {
            return;
        }
        let idle =
            world.channels.iter().copied().filter(|at| world.nodes[usize::from(*at)].mode == Mode::Idle);
        let key = |at: &At| (world.nodes[usize::from(*at)].since, world.nodes[usize::from(*at)].id);
        let oldest = idle.min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
        if let Some(oldest) = oldest
            && Some(oldest) != chosen
        {
            world.close(oldest);
        }
    }

    /// What each path carries while time goes on by `elapsed`: its flows' grants.
    fn note_carried(&mut self, elapsed: f64) {
        let world = &self.sim.world;
        for (carried, flows) in self.outcome.carried.iter_mut().zip(&world.wanting) {
            let rate: f64 = flows.iter().map(|at| world.get(*at, Field::Grant)).sum();
            *carried += rate * elapsed;
        }
    }

    /// 10.2 to 10.4
    fn finished(&mut self, finished: Finished) {
        if finished.emptied {
            let host = self.sim.world.node(finished.channel).host;
            self.sim.busy -= 1;
            self.sim.busy_of_host[usize::from(host)] -= 1;
            self.notify();
        }
        let clock = self.sim.world.clock;
        self.outcome.spans[usize::from(finished.transfer)].done = clock;
        self.sim.done += 1;
        for &child in self.page.children(finished.transfer) {
            self.outcome.spans[usize::from(child)].ready = clock;
            self.sim.ready.push(child);
            self.notify();
        }
    }
}
