//! When would a transfer complete, if (13)?

use super::lanes::Field;
use super::node::{At, INITIAL_WINDOW, Mode, NONE, Node, Phase, Role};
use super::world::{Queues, World};
use crate::scenario::Link;
use whimbrel_access::{Choice, Forecast, MAX_PATHS, PathList, Seconds};

/// Rounding must never make a lower bound too high.
const BEFORE: f64 = 1.0 - 1e-9;

/// Bounds on what can happen. They hold because no path is faster than its rate, and no flow gets more than it wants: it
/// wants its window per round trip, which grows by what has moved, or its queue per round trip.
///
/// One oddity of the model (end of section 9) can grant more than is wanted, in one prediction of some hundred thousand;
/// `tests/pruning.rs` compares with predictions that are never cut short.
impl World {
    /// The bytes of its queue that a channel cannot complete without.
    #[inline]
    fn must_move(&self, at: At) -> f64 {
        self.get(at, Field::Queued) - self.owed(at)
    }

    /// Truncation holds back a few bytes that a completion makes up for (7.3).
    #[inline]
    fn owed(&self, at: At) -> f64 {
        let get = |field| self.get(at, field);
        let due = get(Field::MovedThen) + get(Field::Grant) * (self.clock - get(Field::GrantedAt));
        (due - get(Field::Moved)).max(0.0) + 1.0
    }

    /// Bytes above which a channel does not move from now until then, with `bytes` on its queue.
    #[inline]
    fn most_until(&self, at: At, bytes: f64, then: f64, links: &[Link]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        if node.role == Role::Tcp {
            let start = if node.phase == Phase::Setup { node.timer } else { self.clock };
            return self.fastest(at, bytes, links) * (then - start);
        }
        let mut most = 0.0;
        let mut flow = node.next;
        for path in node.paths.as_slice() {
            let (start, fastest) = self.subflow_bounds(node, flow, bytes, &links[path.index()]);
            most += fastest * (then - start).max(0.0);
            if flow != NONE {
                flow = self.nodes[usize::from(flow)].next;
            }
        }
        most
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

    /// When a subflow can start, and a rate above which it does not get. One that does not exist yet starts 2 rtt from
    /// now at the earliest.
    fn subflow_bounds(&self, owner: &Node, flow: At, bytes: f64, link: &Link) -> (f64, f64) {
        let (start, window) = match self.nodes.get(usize::from(flow)) {
            Some(node) if node.phase == Phase::Setup => (node.timer, INITIAL_WINDOW),
            Some(_) => (self.clock, self.get(flow, Field::Window)),
            None => (self.clock + link.rtt * 2.0, INITIAL_WINDOW),
        };
        // A subflow keeps what was wanted when it was last asked.
        let wanted = (bytes / owner.rtt).max(owner.demand + 1.0).max((window + bytes) / link.rtt);
        (start, wanted.min(link.rate))
    }

    /// A moment before which a channel cannot have moved all it has queued and `more`.
    fn done_no_earlier(&self, at: At, more: f64, links: &[Link]) -> f64 {
        let queue = self.get(at, Field::Queued) + more;
        let bytes = (queue - self.owed(at)).max(0.0);
        let node = &self.nodes[usize::from(at)];
        let alone = if node.role == Role::Tcp {
            let start = if node.phase == Phase::Setup { node.timer } else { self.clock };
            start + bytes / self.fastest(at, queue, links)
        } else {
            let mut starts = [(f64::INFINITY, 0.0); MAX_PATHS];
            let mut flow = node.next;
            for (slot, path) in starts.iter_mut().zip(node.paths.as_slice()) {
                *slot = self.subflow_bounds(node, flow, queue, &links[path.index()]);
                flow = self.nodes.get(usize::from(flow)).map_or(NONE, |node| node.next);
            }
            moved_by(&starts[..node.paths.as_slice().len()], bytes)
        };
        alone.max(self.clock + self.in_company(at, bytes, links)) * BEFORE
    }

    /// Others that want all of a path take as much of it as this channel, until their transfer is complete.
    fn in_company(&self, at: At, bytes: f64, links: &[Link]) -> f64 {
        let paths = self.nodes[usize::from(at)].paths;
        let mut total = bytes;
        for &other in &self.channels {
            if other != at && self.is_greedy(other, paths, links) {
                total += bytes.min(self.get(other, Field::Left) - self.owed(other)).max(0.0);
            }
        }
        total / paths.as_slice().iter().map(|path| links[path.index()].rate).sum::<f64>()
    }

    /// Whether a channel is past slow start on exactly these paths, and wants all that each of them carries.
    fn is_greedy(&self, at: At, paths: PathList, links: &[Link]) -> bool {
        let node = &self.nodes[usize::from(at)];
        if node.mode == Mode::Idle || node.paths != paths {
            return false;
        }
        let takes_all =
            |flow: &Node| flow.phase == Phase::Steady && flow.demand >= links[usize::from(flow.path)].rate;
        if node.role == Role::Tcp {
            return takes_all(node);
        }
        let mut flow = node.next;
        let mut flows = 0;
        while let Some(subflow) = self.nodes.get(usize::from(flow)) {
            if !takes_all(subflow) {
                return false;
            }
            flows += 1;
            flow = subflow.next;
        }
        flows == paths.as_slice().len()
    }
}

/// When flows that start at these times and run at these rates have moved so many bytes.
fn moved_by(starts: &[(f64, f64)], bytes: f64) -> f64 {
    let all_from = |first: f64| {
        let running = starts.iter().filter(move |(start, _)| *start <= first);
        let (rate, before) =
            running.fold((0.0, 0.0), |(rate, before), (start, fast)| (rate + fast, before + fast * start));
        (bytes + before) / rate
    };
    starts.iter().map(|(start, _)| all_from(*start)).fold(f64::INFINITY, f64::min)
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
            Choice::Open(_) => NONE,
        };
        let world = &mut *self.copy;
        world.copy_from(self.real, self.links.len());
        let at = match choice {
            Choice::Reuse(_) => open,
            Choice::Open(paths) => world.open(paths, self.host, self.tls, self.links),
        };
        world.assign(at, self.transfer, size, self.links);
        let limit = bound.0 / BEFORE;
        while world.heap.earliest() < bound.0
            && let Some((time, owner)) = world.pop()
        {
            let queue = world.get(at, Field::Queued);
            let hopeless = world.must_move(at) > world.most_until(at, queue, limit, self.links).max(0.0);
            if time >= bound.0 || (hopeless && !self.thorough) {
                return None;
            }
            if let Some(finished) = world.handle(time, owner, self.links, self.queues)
                && finished.transfer == self.transfer
            {
                return Some(Seconds(time));
            }
        }
        None
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
            Choice::Open(paths) => {
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
        let mut starts = [(f64::INFINITY, 0.0); MAX_PATHS];
        let paths = paths.as_slice();
        for (n, path) in paths.iter().enumerate() {
            let link = &self.links[path.index()];
            let start = if n == 0 { ready } else { ready + link.rtt * 2.0 };
            let window = (INITIAL_WINDOW + size) / link.rtt;
            let wanted = if paths.len() > 1 { window.max(size / first + 1.0) } else { window };
            starts[n] = (start, wanted.min(link.rate));
        }
        moved_by(&starts[..paths.len()], size - 1.0)
    }

    fn find(&self, id: u32) -> Option<At> {
        self.real.channels.iter().copied().find(|at| self.real.nodes[usize::from(*at)].id == id)
    }
}
