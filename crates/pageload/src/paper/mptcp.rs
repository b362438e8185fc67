//! The MPTCP connection and its subflows (11).

use super::lanes::Field;
use super::node::{At, Kind, Mode, NONE, Node, Phase};
use super::whole;
use super::world::{IDLE_TIMEOUT, World};
use crate::scenario::Link;

impl World {
    /// 11.3
    pub(super) fn refresh_mptcp(&mut self, at: At, links: &[Link]) {
        let queued = self.get(at, Field::Queued);
        let node = self.node(at);
        let demand = match node.mode {
            Mode::Idle => 0.0,
            Mode::Busy => whole(queued / node.rtt).max(1.0),
        };
        if demand == node.demand {
            return;
        }
        node.demand = demand;
        node.gathering = true;
        let mut subflow = node.next;
        while subflow != NONE {
            self.refresh_subflow(subflow, links);
            subflow = self.node(subflow).next;
        }
        self.node(at).gathering = false;
        self.aggregate(at);
    }

    /// 11.4
    fn refresh_subflow(&mut self, at: At, links: &[Link]) {
        let node = *self.node(at);
        let window = self.get(at, Field::Window);
        let owner = self.node(node.owner);
        let demand = match (owner.mode, node.phase) {
            (Mode::Idle, _) | (Mode::Busy, Phase::Setup) => 0.0,
            (Mode::Busy, Phase::Ramp) => whole(window / node.rtt),
            (Mode::Busy, Phase::Steady) => owner.demand,
        };
        if demand != node.demand {
            self.demand(at, demand, links);
        }
    }

    /// 11.5
    pub(super) fn grant_subflow(&mut self, at: At, rate: f64) {
        let clock = self.clock;
        let node = *self.node(at);
        if node.phase != Phase::Ramp && rate == self.get(at, Field::Grant) {
            return;
        }
        let (busy, owner_demand) = {
            let owner = self.node(node.owner);
            (owner.mode == Mode::Busy, owner.demand)
        };
        self.set(at, Field::Grant, rate);
        let mut ramping = busy && node.phase == Phase::Ramp;
        if ramping && whole(self.get(at, Field::Window) / node.rtt) > rate {
            ramping = false;
            self.turn(at, node.mode, Phase::Steady);
            self.node(at).demand = owner_demand.max(node.demand);
        }
        self.aggregate(node.owner);
        if ramping {
            self.set_timer(at, clock + node.rtt, Kind::Round);
        } else {
            self.cancel_timer(at);
        }
    }

    /// 11.6
    fn aggregate(&mut self, at: At) {
        let clock = self.clock;
        let Node { gathering, next: mut subflow, .. } = *self.node(at);
        if gathering {
            return;
        }
        let mut rate = 0.0;
        while subflow != NONE {
            rate += self.get(subflow, Field::Grant);
            subflow = self.node(subflow).next;
        }
        if rate != self.get(at, Field::Grant) {
            self.set(at, Field::Grant, rate);
            self.set(at, Field::GrantedAt, clock);
            self.set(at, Field::MovedThen, self.get(at, Field::Moved));
            self.reschedule_mptcp(at);
        }
    }

    /// 11.7
    pub(super) fn reschedule_mptcp(&mut self, at: At) {
        let clock = self.clock;
        let Node { mode, since, .. } = *self.node(at);
        let grant = self.get(at, Field::Grant);
        let (time, kind) = match mode {
            Mode::Idle => (since + IDLE_TIMEOUT, Kind::Expire),
            Mode::Busy if grant == 0.0 => return,
            Mode::Busy => {
                let eta = clock + self.get(at, Field::Left) / grant;
                self.set(at, Field::Eta, eta);
                (eta, Kind::DoneSteady)
            }
        };
        self.set_timer(at, time, kind);
    }

    /// 11.9
    pub(super) fn subflow_event(&mut self, at: At, links: &[Link]) {
        let node = *self.node(at);
        let busy = self.node(node.owner).mode == Mode::Busy;
        if busy && node.phase == Phase::Ramp {
            self.refresh_subflow(at, links);
        } else if node.phase == Phase::Setup {
            self.turn(at, node.mode, Phase::Ramp);
            if self.node(node.owner).next == at {
                self.open_further(node.owner, links);
            }
            self.refresh_subflow(at, links);
        }
    }

    /// The first subflow is set up: start the others. Each takes 2 rtt, TLS or not.
    fn open_further(&mut self, owner: At, links: &[Link]) {
        let paths = self.node(owner).paths;
        for path in &paths.as_slice()[1..] {
            let rtt = links[path.index()].rtt;
            let subflow = self.add_subflow(owner, path.0, rtt);
            self.set_timer(subflow, self.clock + rtt * 2.0, Kind::SetupDone);
        }
    }
}
