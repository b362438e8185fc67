//! Who gets how much: flows share paths, streams share connections.

use super::settings::{Network, Protocol};
use super::world::{NEVER, Phase, Rules, State, World};

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
            if stream.state == State::Arriving && stream.left > 0.0 {
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

    fn share_connections(&mut self, rules: &Rules<'_>) {
        for stream in &mut self.streams {
            stream.rate = 0.0;
        }
        for number in 0..self.connections.len() as u16 {
            let connection = self.connections[usize::from(number)];
            if !connection.wants {
                continue;
            }
            let flows = self.flows.iter().filter(|flow| flow.connection == number);
            let rate: f64 = flows.map(|flow| flow.rate).sum();
            let ranked = rules.settings.priorities && connection.protocol != Protocol::H1;
            self.share_streams(number, rate, ranked);
        }
    }

    /// With priorities the most urgent stream gets everything, else all get the same.
    fn share_streams(&mut self, connection: u16, rate: f64, ranked: bool) {
        let wants = |stream: &super::world::Stream| {
            stream.connection == connection && stream.state == State::Arriving && stream.left > 0.0
        };
        if ranked {
            let first = self
                .streams
                .iter_mut()
                .filter(|stream| wants(stream))
                .min_by_key(|stream| (stream.kind, stream.number));
            if let Some(first) = first {
                first.rate = rate;
            }
            return;
        }
        let count = self.streams.iter().filter(|stream| wants(stream)).count();
        for stream in self.streams.iter_mut().filter(|stream| wants(stream)) {
            stream.rate = rate / count as f64;
        }
    }
}
