//! Who gets how much: flows share paths, streams share connections.

use super::settings::{Network, Protocol};
use super::world::{NEVER, Phase, Rules, World};

/// The rate of a flow that waits for its share.
const UNDECIDED: f64 = -1.0;

impl World {
    /// Compute all rates for the time from now on.
    pub(super) fn share(&mut self, rules: &Rules<'_>) {
        self.stale = false;
        self.rates_change = NEVER;
        self.note_wants();
        for (path, network) in rules.networks.iter().enumerate() {
            let rate = match &network.trace {
                None => network.link.rate,
                Some(trace) => {
                    let (rate, until) = trace.rate_at(self.clock);
                    self.rates_change = self.rates_change.min(until);
                    rate
                }
            };
            self.share_path(path as u8, rate, network);
        }
        self.share_connections(rules);
    }

    fn note_wants(&mut self) {
        self.connections.iter_mut().for_each(|connection| connection.wants = false);
        for stream in &self.streams {
            if stream.wants() {
                self.connections[usize::from(stream.connection)].wants = true;
            }
        }
    }

    /// Max-min fair: whoever wants less than an even share gets that, the rest is shared evenly again.
    fn share_path(&mut self, path: u8, rate: f64, network: &Network) {
        let mut left = rate;
        let mut waiting = 0;
        for flow in self.flows.iter_mut().filter(|flow| flow.path == path) {
            let wants = flow.active && self.connections[usize::from(flow.connection)].wants;
            flow.rate = if wants { UNDECIDED } else { 0.0 };
            waiting += usize::from(wants);
        }
        if waiting == 0 {
            return;
        }
        let rtt = network.link.rtt;
        loop {
            let even = left / waiting as f64;
            let before = waiting;
            for flow in self.flows.iter_mut().filter(|flow| flow.path == path && flow.rate < 0.0) {
                let wanted = if flow.phase == Phase::Full { NEVER } else { flow.window / rtt };
                if wanted <= even {
                    flow.rate = wanted;
                    left -= wanted;
                    waiting -= 1;
                }
            }
            if waiting == 0 {
                return;
            }
            if waiting == before {
                break;
            }
        }
        let even = (left / waiting as f64).max(0.0);
        for flow in self.flows.iter_mut().filter(|flow| flow.path == path && flow.rate < 0.0) {
            flow.rate = even;
            flow.limited = true;
        }
    }

    /// With priorities the most urgent stream of a connection gets all its rate, else all get the same.
    fn share_connections(&mut self, rules: &Rules<'_>) {
        for connection in &mut self.connections {
            (connection.rate, connection.wanting, connection.most_urgent) = (0.0, 0, None);
        }
        for flow in &self.flows {
            self.connections[usize::from(flow.connection)].rate += flow.rate;
        }
        for stream in self.streams.iter().filter(|stream| stream.wants()) {
            let connection = &mut self.connections[usize::from(stream.connection)];
            let urgency = (stream.kind, stream.number);
            connection.wanting += 1;
            connection.most_urgent = Some(connection.most_urgent.map_or(urgency, |most| most.min(urgency)));
        }
        for stream in &mut self.streams {
            let connection = &self.connections[usize::from(stream.connection)];
            let ranked = rules.settings.priorities && connection.protocol != Protocol::H1;
            stream.rate = match stream.wants() {
                true if !ranked => connection.rate / f64::from(connection.wanting),
                true if connection.most_urgent == Some((stream.kind, stream.number)) => connection.rate,
                _ => 0.0,
            };
        }
    }
}
