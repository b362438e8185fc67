//! Sharing a path among its flows (9).

use super::node::{At, Role};
use super::whole;
use super::world::World;
use crate::scenario::Link;

/// Flows of one path that are shared out on the stack; more take a slower way to memory.
const FEW: usize = 64;

impl World {
    /// A flow's demand is another one.
    #[inline]
    pub(super) fn demand(&mut self, at: At, demand: f64, links: &[Link]) {
        let node = self.node(at);
        let (path, order, before) = (node.path, node.order, node.demand);
        node.demand = demand;
        let wanting = &mut self.wanting[usize::from(path)];
        if before == 0.0 {
            let nodes = &self.nodes;
            let earlier = wanting.iter().rposition(|other| nodes[usize::from(*other)].order < order);
            wanting.insert(earlier.map_or(0, |place| place + 1), at);
        } else if demand == 0.0 {
            wanting.retain(|other| *other != at);
            // Of the flows that want nothing, this is the only one that is not told so again.
            self.grant(at, 0.0);
        }
        self.reshare(path, links);
    }

    /// Give each flow of a path that wants something its rate, in the model's order and with its oddities.
    fn reshare(&mut self, path: u8, links: &[Link]) {
        let flows = &self.wanting[usize::from(path)];
        let mut few = [0; FEW];
        let mut many = Vec::new();
        let buffer: &mut [At] = if flows.len() <= FEW {
            &mut few[..flows.len()]
        } else {
            many.resize(flows.len(), 0);
            &mut many
        };
        buffer.copy_from_slice(flows);
        self.share_out(buffer, links[usize::from(path)].rate);
    }

    /// 9.3 and 9.4. In a pass, the flow behind one that was served is not looked at.
    fn share_out(&mut self, mut wanting: &mut [At], rate: f64) {
        let mut low = 0.0;
        let mut share = 0.0;
        while !wanting.is_empty() {
            let fair = whole((rate - low) / wanting.len() as f64);
            if share == fair {
                break;
            }
            share = fair;
            let (mut kept, mut seen) = (0, 0);
            while seen < wanting.len() {
                let at = wanting[seen];
                seen += 1;
                let demand = self.node(at).demand;
                if demand > share {
                    wanting[kept] = at;
                    kept += 1;
                    continue;
                }
                low += demand;
                self.grant(at, demand);
                if seen < wanting.len() {
                    wanting[kept] = wanting[seen];
                    kept += 1;
                    seen += 1;
                }
            }
            wanting = &mut wanting[..kept];
        }
        for &mut at in wanting {
            self.grant(at, share);
        }
    }

    #[inline]
    fn grant(&mut self, at: At, rate: f64) {
        if self.node(at).role == Role::Tcp {
            self.grant_tcp(at, rate);
        } else {
            self.grant_subflow(at, rate);
        }
    }
}
