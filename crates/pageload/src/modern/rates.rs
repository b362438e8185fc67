//! Who gets how much: flows share paths, streams share connections.

use super::settings::Protocol;
use super::world::{NEVER, Phase, Rules, World};

/// A flow that wants a share of its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    flow: u16,
    path: u8,
    wanted: f64,
}

impl World {
    /// Compute all rates for the time from now on.
    pub(super) fn share(&mut self, rules: &Rules<'_>) {
        self.stale = false;
        self.rates_change = NEVER;
        self.note_wants();
        self.gather_claims(rules);
        for (path, network) in rules.networks.iter().enumerate() {
            let rate = match &network.trace {
                None => network.link.rate,
                Some(trace) => {
                    let (rate, until) = trace.rate_at(self.clock);
                    self.rates_change = self.rates_change.min(until);
                    rate
                }
            };
            self.share_path(path as u8, rate);
        }
        self.share_connections(rules);
    }

    /// Which connections have something to bring. Those without streams have no active flows either.
    fn note_wants(&mut self) {
        for stream in &self.streams {
            let connection = &mut self.connections[usize::from(stream.connection)];
            (connection.rate, connection.wanting, connection.most_urgent) = (0.0, 0, None);
        }
        for stream in self.streams.iter().filter(|stream| stream.wants()) {
            let connection = &mut self.connections[usize::from(stream.connection)];
            let urgency = (stream.kind, stream.number);
            connection.wanting += 1;
            connection.most_urgent = Some(connection.most_urgent.map_or(urgency, |most| most.min(urgency)));
        }
    }

    /// Those that want least come first.
    fn gather_claims(&mut self, rules: &Rules<'_>) {
        self.claims.clear();
        for (number, flow) in self.flows.iter_mut().enumerate() {
            flow.rate = 0.0;
            if flow.active && self.connections[usize::from(flow.connection)].wanting > 0 {
                let rtt = rules.networks[usize::from(flow.path)].link.rtt;
                let wanted = if flow.phase == Phase::Full { NEVER } else { flow.window / rtt };
                self.claims.push(Claim { flow: number as u16, path: flow.path, wanted });
            }
        }
        self.claims.sort_unstable_by(|a, b| a.wanted.total_cmp(&b.wanted).then(a.flow.cmp(&b.flow)));
    }

    /// Max-min fair: whoever wants less than an even share gets that, and the rest is shared evenly again.
    fn share_path(&mut self, path: u8, rate: f64) {
        let mut waiting = self.claims.iter().filter(|claim| claim.path == path).count();
        let mut left = rate;
        for claim in self.claims.iter().filter(|claim| claim.path == path) {
            let flow = &mut self.flows[usize::from(claim.flow)];
            let even = (left / waiting as f64).max(0.0);
            flow.rate = claim.wanted.min(even);
            flow.limited |= claim.wanted > even;
            left -= flow.rate;
            waiting -= 1;
            self.connections[usize::from(flow.connection)].rate += flow.rate;
        }
    }

    /// With priorities the most urgent stream of a connection gets all its rate, else all get the same.
    fn share_connections(&mut self, rules: &Rules<'_>) {
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
