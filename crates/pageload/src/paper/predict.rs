//! When would a transfer complete, if (13)?

use super::lanes::Field;
use super::node::{At, INITIAL_WINDOW, Mode, NONE, Node, Phase, Role};
use super::world::{Queues, World};
use crate::scenario::Link;
use whimbrel_access::{Choice, Forecast, MAX_PATHS, PathList, Seconds};

/// Each time after so many events, a prediction asks whether it can still win. Asking more often costs more
/// than it saves.
const LOOKS_EVERY: u32 = 4;

/// Rounding must never make a lower bound too high.
const BEFORE: f64 = 1.0 - 1e-9;

/// Bounds on what can happen. They hold because no path is faster than its rate, and no flow gets more than
/// it wants: it wants its window per round trip, which grows by what has moved, or its queue per round trip.
///
/// One oddity of the model (end of section 9) can grant more than is wanted, in one prediction of some
/// hundred thousand; `tests/oracle.rs` compares with predictions that are never cut short.
impl World {
    /// Truncation holds back a few bytes that a completion makes up for (7.3).
    #[inline]
    fn owed(&self, at: At) -> f64 {
        let get = |field| self.get(at, field);
        let due = get(Field::MovedThen) + get(Field::Grant) * (self.clock - get(Field::GrantedAt));
        (due - get(Field::Moved)).max(0.0) + 1.0
    }

    /// A rate above which a plain connection does not get, with `bytes` on its queue.
    #[inline]
    fn fastest(&self, at: At, bytes: f64, links: &[Link]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        let wanted = match node.phase {
            Phase::Steady if node.mode == Mode::Busy => node.demand.max(bytes / node.rtt),
            Phase::Steady => bytes / node.rtt,
            Phase::Setup | Phase::Ramp => (self.get(at, Field::Window) + bytes) / node.rtt,
        };
        wanted.min(links[usize::from(node.path)].rate)
    }

    /// The bounds of a subflow. One that does not exist yet starts 2 rtt from now at the earliest.
    fn subflow_bounds(&self, owner: &Node, flow: At, bytes: f64, link: &Link) -> FlowBounds {
        let (start, window, grant) = match self.nodes.get(usize::from(flow)) {
            Some(node) if node.phase == Phase::Setup => (self.get(flow, Field::Timer), INITIAL_WINDOW, 0.0),
            Some(_) => (self.clock, self.get(flow, Field::Window), self.get(flow, Field::Grant)),
            None => (self.clock + link.rtt * 2.0, INITIAL_WINDOW, 0.0),
        };
        // A subflow keeps what was wanted when it was last asked.
        let wanted = (bytes / owner.rtt).max(owner.demand + 1.0).max((window + bytes) / link.rtt);
        FlowBounds { start, fastest: wanted.min(link.rate), grant }
    }

    /// A moment before which a channel cannot have moved all it has queued and `more`.
    fn done_no_earlier(&self, at: At, more: f64, links: &[Link]) -> f64 {
        let queue = self.get(at, Field::Queued) + more;
        let bytes = (queue - self.owed(at)).max(0.0);
        let node = &self.nodes[usize::from(at)];
        let mut flows = [FlowBounds::default(); MAX_PATHS];
        let flows = &mut flows[..node.paths.as_slice().len()];
        let alone = if node.role == Role::Tcp {
            let start = if node.phase == Phase::Setup { self.get(at, Field::Timer) } else { self.clock };
            let fastest = self.fastest(at, queue, links);
            flows[0] = FlowBounds { start, fastest, grant: self.get(at, Field::Grant) };
            start + bytes / fastest
        } else {
            let mut flow = node.next;
            for (slot, path) in flows.iter_mut().zip(node.paths.as_slice()) {
                *slot = self.subflow_bounds(node, flow, queue, &links[path.index()]);
                flow = self.nodes.get(usize::from(flow)).map_or(NONE, |node| node.next);
            }
            moved_by(flows, bytes)
        };
        alone.max(self.clock + self.in_company(at, bytes, flows, links)) * BEFORE
    }

    /// How long the paths of a channel take for its bytes and those that others on exactly these paths move
    /// meanwhile.
    fn in_company(&self, at: At, bytes: f64, flows: &[FlowBounds], links: &[Link]) -> f64 {
        let paths = self.nodes[usize::from(at)].paths;
        let rates = paths.as_slice().iter().map(|path| links[path.index()].rate);
        let (all, most) = rates.fold((0.0, 0.0), |(all, most), rate| (all + rate, f64::max(most, rate)));
        let mut total = bytes;
        for &other in &self.channels {
            let node = &self.nodes[usize::from(other)];
            if other == at || node.mode == Mode::Idle || node.paths != paths {
                continue;
            }
            let pace = self.pace(other, flows);
            let mut lasts = self.get(other, Field::Left);
            if pace >= 1.0 {
                // What comes next on its queue keeps up as well, while that is long enough to want all of the
                // path.
                lasts = lasts.max(self.get(other, Field::Queued) - node.rtt * (most + 1.0));
            }
            total += (bytes * pace.min(1.0)).min(lasts - self.owed(other)).max(0.0);
        }
        total / all
    }

    /// How much a channel moves at least, until its transfer is complete, for each byte that flows with these
    /// bounds move on the same paths.
    #[inline]
    fn pace(&self, at: At, flows: &[FlowBounds]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        if node.role == Role::Tcp {
            return self.flow_pace(at, &flows[0]);
        }
        let mut flow = node.next;
        let mut pace = f64::INFINITY;
        for bounds in flows {
            let Some(subflow) = self.nodes.get(usize::from(flow)) else { return 0.0 };
            pace = pace.min(self.flow_pace(flow, bounds));
            flow = subflow.next;
        }
        pace
    }

    /// A flow gets what it wants, or no less than any other; but what it has wanted since the last reshare
    /// only counts from the next one on (8.4 step 3).
    #[inline]
    fn flow_pace(&self, at: At, other: &FlowBounds) -> f64 {
        let demand = self.nodes[usize::from(at)].demand;
        if self.get(at, Field::Grant) >= demand.min(other.grant) { demand / other.fastest } else { 0.0 }
    }
}

/// What limits a flow.
#[derive(Debug, Clone, Copy, Default)]
struct FlowBounds {
    /// When its bytes can begin to move.
    start: f64,
    /// A rate above which it does not get.
    fastest: f64,
    /// The rate it has now.
    grant: f64,
}

/// When flows with these bounds have moved so many bytes.
fn moved_by(flows: &[FlowBounds], bytes: f64) -> f64 {
    let all_from = |first: f64| {
        let (mut rate, mut before) = (0.0, 0.0);
        for flow in flows.iter().filter(|flow| flow.start <= first) {
            rate += flow.fastest;
            before += flow.fastest * flow.start;
        }
        (bytes + before) / rate
    };
    flows.iter().map(|flow| all_from(flow.start)).fold(f64::INFINITY, f64::min)
}

/// What a prediction needs, borrowed from the run that asks.
pub(super) struct Predictor<'a> {
    pub(super) real: &'a World,
    pub(super) copy: &'a mut World,
    pub(super) queues: &'a Queues,
    pub(super) links: &'a [Link],
    pub(super) transfer: u16,
    pub(super) host: u16,
    pub(super) tls: bool,
    /// Never cut a prediction short by a bound on what can happen.
    pub(super) thorough: bool,
}

impl Forecast for Predictor<'_> {
    /// Simulates on a copy of the world, up to the bound.
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        let size = self.queues.size[usize::from(self.transfer)];
        let open = match choice {
            Choice::Reuse(id) => self.find(id.0)?,
            Choice::Open { .. } => NONE,
        };
        let world = &mut *self.copy;
        world.copy_from(self.real, self.links.len());
        let at = match choice {
            Choice::Reuse(_) => open,
            Choice::Open { paths, .. } => world.open(paths, self.host, self.tls, self.links),
        };
        world.assign(at, self.transfer, size, self.links);
        let prunes = !self.thorough && bound < Seconds::NEVER;
        let mut events = 0;
        loop {
            events += 1;
            let looks = prunes && events % LOOKS_EVERY == 0;
            if looks && world.done_no_earlier(at, 0.0, self.links) >= bound.0 {
                return None;
            }
            let (time, owner) = world.next(bound.0)?;
            if let Some(finished) = world.handle(time, owner, self.links, self.queues)
                && finished.transfer == self.transfer
            {
                return Some(Seconds(time));
            }
        }
    }

    fn no_earlier_than(&mut self, choice: Choice) -> Seconds {
        if self.thorough {
            return Seconds::ZERO;
        }
        let size = self.queues.size[usize::from(self.transfer)];
        let now = self.real.clock;
        Seconds(match choice {
            Choice::Reuse(id) => match self.find(id.0) {
                Some(at) => self.real.done_no_earlier(at, size, self.links),
                None => f64::INFINITY,
            },
            Choice::Open { paths, .. } => {
                let setup = self.links[paths.first().index()].rtt * if self.tls { 4.0 } else { 2.0 };
                self.opened_done_no_earlier(paths, now + setup, size) * BEFORE
            }
        })
    }
}

impl Predictor<'_> {
    /// The same for a new channel whose first path is set up at `ready`.
    fn opened_done_no_earlier(&self, paths: PathList, ready: f64, size: f64) -> f64 {
        let first = self.links[paths.first().index()].rtt;
        let mut flows = [FlowBounds::default(); MAX_PATHS];
        let paths = paths.as_slice();
        for (n, path) in paths.iter().enumerate() {
            let link = &self.links[path.index()];
            let start = if n == 0 { ready } else { ready + link.rtt * 2.0 };
            let window = (INITIAL_WINDOW + size) / link.rtt;
            let wanted = if paths.len() > 1 { window.max(size / first + 1.0) } else { window };
            flows[n] = FlowBounds { start, fastest: wanted.min(link.rate), grant: 0.0 };
        }
        moved_by(&flows[..paths.len()], size - 1.0)
    }

    fn find(&self, id: u32) -> Option<At> {
        self.real.channels.iter().copied().find(|at| self.real.nodes[usize::from(*at)].id == id)
    }
}
