//! The plain TCP connection (8).

use super::node::{At, Kind, Mode, Phase};
use super::whole;
use super::world::{IDLE_TIMEOUT, World};
use crate::scenario::Link;

impl World {
    /// 8.3
    pub(super) fn refresh_tcp(&mut self, at: At, links: &[Link]) {
        let node = self.node(at);
        let demand = match (node.mode, node.phase) {
            (Mode::Idle, _) | (Mode::Busy, Phase::Setup) => 0.0,
            (Mode::Busy, Phase::Ramp) => whole(node.window / node.rtt),
            (Mode::Busy, Phase::Steady) => whole(node.queued / node.rtt).max(1.0),
        };
        if demand != node.demand {
            node.demand = demand;
            let path = node.path;
            self.reshare(path, links);
        }
    }

    /// 8.4
    #[inline]
    pub(super) fn grant_tcp(&mut self, at: At, rate: f64) {
        let clock = self.clock;
        let node = self.node(at);
        if rate == node.grant && node.phase != Phase::Ramp {
            return;
        }
        node.grant = rate;
        node.granted_at = clock;
        node.moved_then = node.moved;
        if node.mode == Mode::Busy && node.phase == Phase::Ramp && whole(node.window / node.rtt) > rate {
            node.phase = Phase::Steady;
            node.demand = whole(node.queued / node.rtt).max(node.demand);
        }
        self.reschedule_tcp(at);
    }

    /// 8.5
    #[inline]
    pub(super) fn reschedule_tcp(&mut self, at: At) {
        let clock = self.clock;
        let node = self.node(at);
        let (time, kind) = match (node.mode, node.phase) {
            (Mode::Idle, _) => (node.since + IDLE_TIMEOUT, Kind::Expire),
            (Mode::Busy, Phase::Setup) => return,
            (Mode::Busy, phase) => {
                let rest = node.left / node.grant;
                if phase == Phase::Ramp && rest > node.rtt {
                    (clock + node.rtt, Kind::Round)
                } else {
                    node.eta = clock + rest;
                    (node.eta, if phase == Phase::Ramp { Kind::DoneRamp } else { Kind::DoneSteady })
                }
            }
        };
        self.set_timer(at, time, kind);
    }

    /// 8.6, cases 2 to 4
    pub(super) fn tcp_event(&mut self, at: At, links: &[Link]) {
        let node = self.node(at);
        if node.mode == Mode::Busy && node.phase == Phase::Ramp {
            self.refresh_tcp(at, links);
        } else if node.phase == Phase::Setup {
            node.phase = Phase::Ramp;
            self.refresh_tcp(at, links);
        } else if node.mode == Mode::Idle {
            self.close(at);
        }
    }
}
