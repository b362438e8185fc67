//! When would a transfer complete, if (13)?

use super::lanes::Field;
use super::node::{At, INITIAL_WINDOW, Mode, NONE, Phase, Role};
use super::world::{Queues, World};
use crate::scenario::Link;
use whimbrel_access::{Choice, Forecast, PathList, Seconds};

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
        let get = |field| self.get(at, field);
        // Truncation holds back a few bytes that a completion makes up for (7.3).
        let owed = get(Field::MovedThen) + get(Field::Grant) * (self.clock - get(Field::GrantedAt)) - get(Field::Moved);
        get(Field::Queued) - owed.max(0.0) - 1.0
    }

    /// A rate above which a channel does not get from now on, with `bytes` still to move.
    #[inline]
    fn fastest(&self, at: At, bytes: f64, links: &[Link]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        if node.role == Role::Mptcp {
            // Subflows keep what was wanted when they were last asked.
            let bytes = bytes.max((node.demand + 1.0) * node.rtt);
            return fastest_multipath(node.paths, bytes, self.widest(at), links);
        }
        let wanted = match node.phase {
            Phase::Steady if node.mode == Mode::Busy => node.demand.max(bytes / node.rtt),
            Phase::Steady => bytes / node.rtt,
            Phase::Setup | Phase::Ramp => (self.get(at, Field::Window) + bytes) / node.rtt,
        };
        wanted.min(links[usize::from(node.path)].rate)
    }

    /// The largest window of an MPTCP connection's subflows, those to come included.
    fn widest(&self, at: At) -> f64 {
        let mut widest = INITIAL_WINDOW;
        let mut subflow = self.nodes[usize::from(at)].next;
        while subflow != NONE {
            widest = widest.max(self.get(subflow, Field::Window));
            subflow = self.nodes[usize::from(subflow)].next;
        }
        widest
    }

    /// A moment before which a channel cannot have moved all it has queued and `more`.
    fn done_no_earlier(&self, at: At, more: f64, links: &[Link]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        let waits = node.role == Role::Tcp && node.phase == Phase::Setup;
        let start = if waits { node.timer } else { self.clock };
        let bytes = (self.must_move(at) + more).max(0.0);
        // What is queued will be wanted at once, so the demand of now is no limit.
        let fastest = self.fastest(at, self.get(at, Field::Queued) + more, links);
        (start + bytes / fastest) * BEFORE
    }
}

/// Subflows in slow start grow by what they move; later each wants the whole queue per round trip of the first path.
fn fastest_multipath(paths: PathList, bytes: f64, window: f64, links: &[Link]) -> f64 {
    let first = links[paths.first().index()].rtt;
    let fastest = paths.as_slice().iter().map(|path| {
        let link = &links[path.index()];
        (bytes / first).max((window + bytes) / link.rtt).min(link.rate)
    });
    fastest.sum()
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
            let bytes = world.must_move(at);
            let hopeless = bytes > 0.0
                && bytes > (limit - world.clock) * world.fastest(at, world.get(at, Field::Queued), self.links);
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
                (now + setup + size / fastest_multipath(paths, size, INITIAL_WINDOW, self.links)) * BEFORE
            }
        })
    }
}

impl Predictor<'_> {
    fn find(&self, id: u32) -> Option<At> {
        self.real.channels.iter().copied().find(|at| self.real.nodes[usize::from(*at)].id == id)
    }
}
