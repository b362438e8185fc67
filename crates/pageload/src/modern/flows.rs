//! Flows: one path of one connection each. How windows grow, round by round, and what a loss does.

use super::parts::{Flow, NEVER, Phase, Rules, State};
use super::settings::Protocol;
use super::world::World;

/// Bytes in a segment.
pub(super) const SEGMENT: f64 = 1460.0;
/// The smallest retransmission timeout of Linux; the round trip comes on top.
const RTO_MIN: f64 = 0.2;

impl World {
    /// Add a flow that is set up at this time.
    pub(super) fn add_flow(&mut self, connection: u16, path: u8, up: f64, rules: &Rules<'_>) {
        self.running.push(self.flows.len() as u16);
        self.flows.push(Flow {
            connection,
            path,
            phase: Phase::Setup,
            active: false,
            timer: up,
            window: f64::from(rules.settings.initial_window) * SEGMENT,
            rate: 0.0,
            delivered: 0.0,
            limited: false,
            rounds: 0,
        });
    }

    /// A connection begins to carry data.
    pub(super) fn wake(&mut self, number: u16, rules: &Rules<'_>) {
        let clock = self.clock;
        let quiet = clock - self.connections[usize::from(number)].quiet_since;
        for n in self.connections[usize::from(number)].flows() {
            let flow = &mut self.flows[usize::from(n)];
            if flow.phase == Phase::Setup {
                continue;
            }
            let rtt = rules.networks[usize::from(flow.path)].link.rtt;
            if rules.settings.idle_restart && quiet > RTO_MIN + rtt {
                flow.window = flow.window.min(f64::from(rules.settings.initial_window) * SEGMENT);
                flow.phase = Phase::SlowStart;
            }
            start_round(flow, clock, rtt);
            if let Err(place) = self.running.binary_search(&n) {
                self.running.insert(place, n);
            }
        }
    }

    /// Nothing arrives on a connection any more.
    pub(super) fn rest(&mut self, number: u16) {
        self.connections[usize::from(number)].quiet_since = self.clock;
        for n in self.connections[usize::from(number)].flows() {
            let flow = &mut self.flows[usize::from(n)];
            if !flow.active {
                continue;
            }
            if flow.phase == Phase::SlowStart && !flow.limited {
                flow.window += flow.delivered;
            }
            self.stop(n);
        }
    }

    /// A flow has nothing to do, and no timer.
    pub(super) fn stop(&mut self, n: u16) {
        let flow = &mut self.flows[usize::from(n)];
        (flow.active, flow.timer, flow.rate) = (false, NEVER, 0.0);
        if let Ok(place) = self.running.binary_search(&n) {
            self.running.remove(place);
        }
    }

    /// Set-up is done, or a round is over.
    pub(super) fn flow_timer(&mut self, n: u16, rules: &Rules<'_>) {
        let clock = self.clock;
        let flow = &mut self.flows[usize::from(n)];
        let network = &rules.networks[usize::from(flow.path)];
        if flow.phase == Phase::Setup {
            flow.phase = Phase::SlowStart;
            if self.connections[usize::from(flow.connection)].arriving > 0 {
                start_round(flow, clock, network.link.rtt);
                self.stale = true;
            } else {
                self.stop(n);
            }
            return;
        }
        self.stale = true;
        let lost = network.loss > 0.0 && is_lost(flow, network.loss, rules.seed);
        match flow.phase {
            _ if lost => {
                flow.window = (flow.window / 2.0).max(2.0 * SEGMENT);
                flow.phase = Phase::Avoidance;
            }
            Phase::SlowStart if flow.limited && network.loss > 0.0 => flow.phase = Phase::Avoidance,
            Phase::SlowStart if flow.limited => flow.phase = Phase::Full,
            Phase::SlowStart => flow.window += flow.delivered,
            Phase::Avoidance if !flow.limited => flow.window += SEGMENT,
            Phase::Avoidance | Phase::Full | Phase::Setup => {}
        }
        flow.rounds += 1;
        start_round(flow, clock, network.link.rtt);
        let connection = flow.connection;
        if lost {
            self.hold(connection, clock + network.link.rtt);
        }
    }

    /// A segment is missing until `until`: over TCP all that arrives on the connection waits for it, over
    /// QUIC one stream.
    fn hold(&mut self, connection: u16, until: f64) {
        let all = self.connections[usize::from(connection)].protocol != Protocol::H3;
        let hit = self
            .streams
            .iter_mut()
            .filter(|stream| stream.connection == connection && stream.state == State::Arriving);
        for stream in hit.take(if all { usize::MAX } else { 1 }) {
            stream.held_until = until;
        }
        self.find_release();
    }
}

fn start_round(flow: &mut Flow, clock: f64, rtt: f64) {
    flow.active = true;
    flow.delivered = 0.0;
    flow.limited = false;
    flow.timer = if flow.phase == Phase::Full { NEVER } else { clock + rtt };
}

/// Whether a segment of this round was lost: drawn from seed, path, connection and round alone, so that it is
/// the same in a prediction as in reality.
fn is_lost(flow: &Flow, loss: f64, seed: u64) -> bool {
    if flow.delivered == 0.0 {
        return false;
    }
    let segments = (flow.delivered / SEGMENT).max(1.0);
    let likely = 1.0 - (1.0 - loss).powf(segments);
    let mut mixed = seed
        ^ (u64::from(flow.path) << 56)
        ^ (u64::from(flow.connection) << 32)
        ^ u64::from(flow.rounds).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64 <= likely
}
