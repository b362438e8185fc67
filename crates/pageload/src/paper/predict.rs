//! When would a transfer complete, if (13)?

use super::node::{At, NONE};
use super::world::{Queues, World};
use crate::scenario::Link;
use whimbrel_access::{Choice, Forecast, Seconds};

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
        while let Some((time, owner)) = world.pop() {
            if time >= bound.0 {
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
}

impl Predictor<'_> {
    fn find(&self, id: u32) -> Option<At> {
        self.real.channels.iter().copied().find(|at| self.real.nodes[usize::from(*at)].id == id)
    }
}
