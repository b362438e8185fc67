//! The plain TCP connection (8).

use super::lanes::Field;
use super::node::{At, Kind, Mode, Node, Phase};
use super::whole;
use super::world::{IDLE_TIMEOUT, World};
use crate::scenario::Link;

impl World {
    /// 8.3
    #[inline]
    pub(super) fn refresh_tcp(&mut self, at: At, links: &[Link]) {
        let node = *self.node(at);
        let demand = match (node.mode, node.phase) {
            (Mode::Idle, _) | (Mode::Busy, Phase::Setup) => 0.0,
            (Mode::Busy, Phase::Ramp) => whole(self.get(at, Field::Window) / node.rtt),
            (Mode::Busy, Phase::Steady) => whole(self.get(at, Field::Queued) / node.rtt).max(1.0),
        };
        if demand != node.demand {
            self.demand(at, demand, links);
        }
    }

    /// 8.4
    #[inline]
    pub(super) fn grant_tcp(&mut self, at: At, rate: f64) {
        let Node { mode, phase, rtt, demand, .. } = *self.node(at);
        if phase != Phase::Ramp && rate == self.get(at, Field::Grant) {
            return;
        }
        self.set(at, Field::Grant, rate);
        self.set(at, Field::GrantedAt, self.clock);
        self.set(at, Field::MovedThen, self.get(at, Field::Moved));
        if mode == Mode::Busy && phase == Phase::Ramp && whole(self.get(at, Field::Window) / rtt) > rate {
            self.turn(at, mode, Phase::Steady);
            self.node(at).demand = whole(self.get(at, Field::Queued) / rtt).max(demand);
        }
        self.reschedule_tcp(at);
    }

    /// 8.5
    #[inline]
    pub(super) fn reschedule_tcp(&mut self, at: At) {
        let clock = self.clock;
        let Node { mode, phase, rtt, since, .. } = *self.node(at);
        let (time, kind) = match (mode, phase) {
            (Mode::Idle, _) => (since + IDLE_TIMEOUT, Kind::Expire),
            (Mode::Busy, Phase::Setup) => return,
            (Mode::Busy, phase) => {
                let rest = self.get(at, Field::Left) / self.get(at, Field::Grant);
                if phase == Phase::Ramp && rest > rtt {
                    (clock + rtt, Kind::Round)
                } else {
                    let eta = clock + rest;
                    self.set(at, Field::Eta, eta);
                    (eta, if phase == Phase::Ramp { Kind::DoneRamp } else { Kind::DoneSteady })
                }
            }
        };
        self.set_timer(at, time, kind);
    }

    /// 8.6, cases 2 to 4
    pub(super) fn tcp_event(&mut self, at: At, links: &[Link]) {
        let Node { mode, phase, .. } = *self.node(at);
        if mode == Mode::Busy && phase == Phase::Ramp {
            self.refresh_tcp(at, links);
        } else if phase == Phase::Setup {
            self.turn(at, mode, Phase::Ramp);
            self.refresh_tcp(at, links);
        } else if mode == Mode::Idle {
            self.close(at);
        }
    }
}
