//! Sharing a path among its flows (9).

use super::node::{At, Kind, Mode, Role};
use super::whole;
use super::world::World;
use crate::scenario::Link;

/// Flows of one path that are shared out on the stack; more take a slower way to memory.
const FEW: usize = 64;

impl World {
    /// Give each flow of a path its rate, in the model's order and with its oddities.
    pub(super) fn reshare(&mut self, path: u8, links: &[Link]) {
        let flows = &self.flows[usize::from(path)];
        let mut few = [0; FEW];
        let mut many = Vec::new();
        let buffer: &mut [At] = if flows.len() <= FEW {
            &mut few[..flows.len()]
        } else {
            many.resize(flows.len(), 0);
            &mut many
        };
        buffer.copy_from_slice(flows);
        let mut wanting = 0;
        for n in 0..buffer.len() {
            let at = buffer[n];
            let node = self.node(at);
            if node.demand == 0.0 {
                // An idle connection that is already waiting for its expiry would only be told so again.
                if !(node.mode == Mode::Idle && node.kind == Kind::Expire && node.serial != 0) {
                    self.grant(at, 0.0);
                }
            } else {
                buffer[wanting] = at;
                wanting += 1;
            }
        }
        self.share_out(&mut buffer[..wanting], links[usize::from(path)].rate);
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
