//! When would a transfer complete, if: by simulating a copy.

use super::parts::{Done, NEVER, NOTHING, Rules, State, Stream};
use super::settings::Protocol;
use super::world::World;
use whimbrel_access::{Choice, Forecast, Part, PathList, Seconds, UnderWay};

/// Events after which a prediction gives up; a real one takes some dozens.
const MAX_EVENTS: usize = 100_000;

/// What a prediction needs, borrowed from the run that asks.
pub(super) struct Predictor<'a> {
    pub(super) real: &'a World,
    pub(super) copy: &'a mut World,
    pub(super) done: &'a mut Vec<Done>,
    pub(super) rules: Rules<'a>,
    pub(super) transfer: u16,
    pub(super) bytes: f64,
    pub(super) host: u16,
    pub(super) tls: bool,
    /// The stream whose end would move, if one is under way.
    pub(super) from: Option<u32>,
}

impl Forecast for Predictor<'_> {
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        self.simulate(&[Part { choice, bytes: self.bytes as u64 }], None, bound)
    }

    fn completes_split(&mut self, parts: &[Part], bound: Seconds) -> Option<Seconds> {
        self.simulate(parts, None, bound)
    }

    fn completes_moved(&mut self, _: &UnderWay, part: Part, bound: Seconds) -> Option<Seconds> {
        self.simulate(&[part], Some(self.from?), bound)
    }

    fn no_earlier_than(&mut self, choice: Choice) -> Seconds {
        let Some((paths, ready)) = self.start(choice) else { return Seconds::NEVER };
        Seconds((ready + self.bytes / self.peak_of(paths)) * BEFORE)
    }
}

/// Rounding must never make a lower bound too high.
const BEFORE: f64 = 1.0 - 1e-9;

impl Predictor<'_> {
    /// When all parts are complete, and with them what is left of a stream that they are taken from.
    fn simulate(&mut self, parts: &[Part], from: Option<u32>, bound: Seconds) -> Option<Seconds> {
        self.copy.copy_from(self.real);
        if let Some(number) = from {
            let bytes = parts.iter().map(|part| part.bytes as f64).sum();
            if self.copy.shorten(number, bytes, &self.rules) < bytes {
                return None;
            }
        }
        let first = from.unwrap_or(u32::MAX);
        let mut waiting = usize::from(from.is_some());
        let mut smallest = u32::MAX;
        for part in parts {
            let connection = self.copy.carry_out(part.choice, self.host, self.tls, &self.rules)?;
            let number = self.copy.ask(connection, self.transfer, part.bytes as f64, &self.rules);
            smallest = smallest.min(number);
            waiting += 1;
        }
        for _ in 0..MAX_EVENTS {
            let next = self.copy.next_event(&self.rules);
            if next >= bound.0 || next == NEVER || self.is_hopeless(smallest, first, bound) {
                return None;
            }
            self.done.clear();
            self.copy.advance(next, &self.rules, self.done);
            let ours = |done: &&Done| done.number >= smallest || done.number == first;
            waiting -= self.done.iter().filter(ours).count();
            if waiting == 0 {
                return Some(Seconds(next));
            }
        }
        None
    }

    /// Whether one of the streams asked about (those with numbers from `smallest`, which are the last, and
    /// `first`) could not be complete before the bound even if it had its paths to itself.
    fn is_hopeless(&self, smallest: u32, first: u32, bound: Seconds) -> bool {
        let world = &*self.copy;
        let late = |stream: &Stream| {
            let start = if stream.state == State::Asked { stream.timer } else { world.clock };
            let paths = world.connections[usize::from(stream.connection)].paths;
            (start + (stream.left - NOTHING) / self.peak_of(paths)) * BEFORE >= bound.0
        };
        world.streams.iter().rev().take_while(|stream| stream.number >= smallest).any(late)
            || (first != u32::MAX
                && world.streams.iter().any(|stream| stream.number == first && late(stream)))
    }

    fn peak_of(&self, paths: PathList) -> f64 {
        paths.as_slice().iter().map(|path| self.peak(path.index())).sum()
    }

    /// The paths of a choice, and when its first byte can be there at the earliest.
    fn start(&self, choice: Choice) -> Option<(PathList, f64)> {
        let settings = self.rules.settings;
        let rtt = |paths: PathList| self.rules.networks[paths.first().index()].link.rtt;
        match choice {
            Choice::Open { paths, .. } => {
                if self.real.has_one_already(paths, self.host, self.tls, &self.rules) {
                    return None;
                }
                Some((paths, self.real.clock + rtt(paths) * (1.0 + settings.setup_rtts(self.tls))))
            }
            Choice::Reuse(id) => {
                let paths = self.real.connections.get(id.0 as usize)?.paths;
                Some((paths, self.real.clock + if settings.request_rtt { rtt(paths) } else { 0.0 }))
            }
        }
    }

    fn peak(&self, path: usize) -> f64 {
        let network = &self.rules.networks[path];
        if network.trace.is_some() { f64::INFINITY } else { network.link.rate }
    }
}

impl World {
    /// The connection that a choice leads to, opened if need be. `None` if the rules forbid it.
    pub(super) fn carry_out(
        &mut self,
        choice: Choice,
        host: u16,
        tls: bool,
        rules: &Rules<'_>,
    ) -> Option<u16> {
        match choice {
            Choice::Reuse(id) => {
                let connection = self.connections.get(id.0 as usize)?;
                connection.open.then_some(id.0 as u16)
            }
            Choice::Open { paths, .. } => {
                if self.has_one_already(paths, host, tls, rules) || !self.make_room(rules) {
                    return None;
                }
                Some(self.open(paths, host, tls, rules))
            }
        }
    }

    /// Browsers keep one multiplexed connection to a host (here: for each selection of paths).
    fn has_one_already(&self, paths: PathList, host: u16, tls: bool, rules: &Rules<'_>) -> bool {
        rules.settings.protocol_of(tls) != Protocol::H1
            && self
                .connections
                .iter()
                .any(|other| other.open && other.host == host && other.tls == tls && other.paths == paths)
    }

    /// Close the connection that has been idle longest if there are as many as allowed. False if all are in
    /// use.
    fn make_room(&mut self, rules: &Rules<'_>) -> bool {
        let open = self.connections.iter().filter(|connection| connection.open).count();
        if open < rules.settings.max_total as usize {
            return true;
        }
        let idle = self.connections.iter().enumerate().filter(|(_, other)| other.open && other.streams == 0);
        let oldest = idle.min_by(|(_, a), (_, b)| a.quiet_since.total_cmp(&b.quiet_since)).map(|(n, _)| n);
        let Some(oldest) = oldest else { return false };
        self.connections[oldest].open = false;
        self.connections[oldest].flows().for_each(|flow| self.stop(flow));
        true
    }
}
