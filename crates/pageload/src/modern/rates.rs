//! Who gets how much: flows share paths, streams share connections.

use super::parts::{Claim, Connection, LEAST_URGENT, NEVER, Phase, Rules};
use super::settings::Protocol;
use super::world::World;

impl Connection {
    /// Whether the most urgent stream goes before all others.
    fn ranks(&self, rules: &Rules<'_>) -> bool {
        rules.settings.priorities && self.protocol != Protocol::H1
    }
}

impl World {
    /// Compute all rates for the time from now on.
    pub(super) fn share(&mut self, rules: &Rules<'_>) {
        self.stale = false;
        self.rates_change = NEVER;
        if self.regroup {
            self.group(rules);
        }
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

    /// Which connections have something to bring, and which of their streams take part. Connections without
    /// such streams have no active flows either.
    fn group(&mut self, rules: &Rules<'_>) {
        self.regroup = false;
        for &n in &self.running {
            let connection = &mut self.connections[usize::from(self.flows[usize::from(n)].connection)];
            (connection.wanting, connection.most_urgent) = (0, LEAST_URGENT);
        }
        for stream in &mut self.streams {
            stream.rate = 0.0;
            if stream.wants() {
                let connection = &mut self.connections[usize::from(stream.connection)];
                connection.wanting += 1;
                connection.most_urgent = connection.most_urgent.min(stream.urgency);
            }
        }
        self.movers.clear();
        for (n, stream) in self.streams.iter().enumerate().filter(|(_, stream)| stream.wants()) {
            let connection = &self.connections[usize::from(stream.connection)];
            if !connection.ranks(rules) || connection.most_urgent == stream.urgency {
                self.movers.push(n as u16);
            }
        }
    }

    /// Those that want least come first.
    fn gather_claims(&mut self, rules: &Rules<'_>) {
        self.claims.clear();
        for &number in &self.running {
            let flow = &mut self.flows[usize::from(number)];
            flow.rate = 0.0;
            let connection = &mut self.connections[usize::from(flow.connection)];
            connection.rate = 0.0;
            if flow.active && connection.wanting > 0 {
                let rtt = rules.networks[usize::from(flow.path)].link.rtt;
                let wanted = if flow.phase == Phase::Full { NEVER } else { flow.window / rtt };
                self.claims.push(Claim { flow: number, path: flow.path, wanted });
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
        for &n in &self.movers {
            let stream = &mut self.streams[usize::from(n)];
            let connection = &self.connections[usize::from(stream.connection)];
            let sharers = if connection.ranks(rules) { 1 } else { connection.wanting };
            stream.rate = connection.rate / f64::from(sharers);
        }
    }
}
