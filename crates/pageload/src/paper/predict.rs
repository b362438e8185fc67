//! When would a transfer complete, if (13)?

use super::lanes::Field;
use super::node::{At, NONE, Phase, Role};
use super::world::{Queues, World};
use crate::scenario::Link;
use whimbrel_access::{Choice, Forecast, PathList, Seconds};

/// Rounding must never make a lower bound too high.
pub(super) const BEFORE: f64 = 1.0 - 1e-9;

/// What all these paths carry together.
pub(super) fn rate_of(paths: PathList, links: &[Link]) -> f64 {
    paths.as_slice().iter().map(|path| links[path.index()].rate).sum()
}

impl World {
    /// The bytes of its queue that a channel cannot complete without.
    #[inline]
    fn must_move(&self, at: At) -> f64 {
        let get = |field| self.get(at, field);
        // Truncation holds back a few bytes that a completion makes up for (7.3).
        let owed = get(Field::MovedThen) + get(Field::Grant) * (self.clock - get(Field::GrantedAt)) - get(Field::Moved);
        get(Field::Queued) - owed.max(0.0) - 1.0
    }

    /// A moment before which a channel cannot have moved all it has queued and `more`, whatever happens: nothing is
    /// faster than the paths, and nothing moves during set-up.
    fn done_no_earlier(&self, at: At, more: f64, links: &[Link]) -> f64 {
        let node = &self.nodes[usize::from(at)];
        let setup = if node.role == Role::Tcp && node.phase == Phase::Setup { node.timer } else { self.clock };
        (setup + (self.must_move(at) + more).max(0.0) / rate_of(node.paths, links)) * BEFORE
    }
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
        let rate = rate_of(world.nodes[usize::from(at)].paths, self.links);
        let limit = bound.0 / BEFORE;
        while let Some((time, owner)) = world.pop() {
            if time >= bound.0 || world.must_move(at) > (limit - world.clock) * rate {
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
        let size = self.queues.size[usize::from(self.transfer)];
        let now = self.real.clock;
        Seconds(match choice {
            Choice::Reuse(id) => match self.find(id.0) {
                Some(at) => self.real.done_no_earlier(at, size, self.links),
                None => f64::INFINITY,
            },
            Choice::Open(paths) => {
                let setup = self.links[paths.first().index()].rtt * if self.tls { 4.0 } else { 2.0 };
                (now + setup + size / rate_of(paths, self.links)) * BEFORE
            }
        })
    }
}

impl Predictor<'_> {
    fn find(&self, id: u32) -> Option<At> {
        self.real.channels.iter().copied().find(|at| self.real.nodes[usize::from(*at)].id == id)
    }
}
