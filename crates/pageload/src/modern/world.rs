//! What is under way, and how it goes on.

use super::parts::{Claim, Connection, Done, Flow, LEAST_URGENT, NEVER, NOTHING, Rules, State, Stream};
use super::settings::Protocol;
use whimbrel_access::{MAX_PATHS, PathList};

/// The state that a prediction copies.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) clock: f64,
    pub(super) connections: Vec<Connection>,
    pub(super) flows: Vec<Flow>,
    /// The flows that set up or carry something, ascending.
    pub(super) running: Vec<u16>,
    pub(super) streams: Vec<Stream>,
    /// When each host's name is known on each path: host × paths + path.
    resolved: Vec<f64>,
    pub(super) carried: [f64; MAX_PATHS],
    next_number: u32,
    /// Rates have to be computed anew.
    pub(super) stale: bool,
    /// So has who takes part: a stream has begun, ended or become shorter.
    pub(super) regroup: bool,
    /// The positions in `streams` of those that get a share of their connection's rate. All others stand
    /// still.
    pub(super) movers: Vec<u16>,
    /// When the next stream of which everything is there is no longer held up.
    next_release: f64,
    /// When the next stream begins to arrive.
    next_arrival: f64,
    /// When a trace changes a rate next.
    pub(super) rates_change: f64,
    /// Scratch space, not part of the state.
    pub(super) claims: Vec<Claim>,
    due: Vec<u16>,
}

impl World {
    pub(super) fn begin(&mut self, rules: &Rules<'_>) {
        self.clock = 0.0;
        self.connections.clear();
        self.flows.clear();
        self.running.clear();
        self.streams.clear();
        self.resolved.clear();
        let known = if rules.settings.dns { NEVER } else { 0.0 };
        self.resolved.resize(rules.page.hosts.len() * rules.networks.len(), known);
        self.carried = [0.0; MAX_PATHS];
        self.next_number = 0;
        (self.stale, self.regroup) = (true, true);
        (self.next_release, self.next_arrival, self.rates_change) = (NEVER, NEVER, NEVER);
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.clock = other.clock;
        self.connections.clone_from(&other.connections);
        self.flows.clone_from(&other.flows);
        self.running.clone_from(&other.running);
        self.streams.clone_from(&other.streams);
        self.resolved.clone_from(&other.resolved);
        self.carried = other.carried;
        self.next_number = other.next_number;
        (self.stale, self.regroup) = (other.stale, other.regroup);
        self.movers.clone_from(&other.movers);
        (self.next_release, self.next_arrival) = (other.next_release, other.next_arrival);
        self.rates_change = other.rates_change;
    }

    /// Open a connection: look up the name, shake hands on the first path; the other paths follow.
    pub(super) fn open(&mut self, paths: PathList, host: u16, tls: bool, rules: &Rules<'_>) -> u16 {
        let number = self.connections.len() as u16;
        let first_flow = self.flows.len() as u16;
        let mut ready = 0.0;
        for (n, path) in paths.as_slice().iter().enumerate() {
            let rtt = rules.networks[path.index()].link.rtt;
            let up = if n == 0 {
                ready = self.resolve(host, path.index(), rules) + rtt * rules.settings.setup_rtts(tls);
                ready
            } else {
                // A further path joins once the first is there: one handshake.
                ready + rtt
            };
            self.add_flow(number, path.0, up, rules);
        }
        self.connections.push(Connection {
            host,
            tls,
            open: true,
            protocol: rules.settings.protocol_of(tls),
            paths,
            first_flow,
            streams: 0,
            arriving: 0,
            rate: 0.0,
            wanting: 0,
            most_urgent: LEAST_URGENT,
            ready,
            quiet_since: ready,
        });
        number
    }

    /// When a host's name is known on a path, which starts to be looked up now if it was not before.
    fn resolve(&mut self, host: u16, path: usize, rules: &Rules<'_>) -> f64 {
        let known = &mut self.resolved[usize::from(host) * rules.networks.len() + path];
        if *known == NEVER {
            *known = self.clock + rules.networks[path].link.rtt;
        }
        known.max(self.clock)
    }

    /// Ask for bytes of a transfer on a connection. Returns the stream's number.
    pub(super) fn ask(&mut self, connection: u16, transfer: u16, bytes: f64, rules: &Rules<'_>) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        let at = &mut self.connections[usize::from(connection)];
        at.streams += 1;
        let queued = at.protocol == Protocol::H1 && at.streams > 1;
        self.streams.push(Stream {
            transfer,
            connection,
            number,
            urgency: (rules.page.transfers[usize::from(transfer)].kind as u64) << 32 | u64::from(number),
            state: if queued { State::Queued } else { State::Asked },
            timer: NEVER,
            left: bytes,
            rate: 0.0,
            think: rules.think[usize::from(transfer)],
            held_until: 0.0,
        });
        if !queued {
            self.request(self.streams.len() - 1, rules);
        }
        number
    }

    /// The request leaves now, or with the end of the handshake; the first byte comes a round trip later.
    fn request(&mut self, stream: usize, rules: &Rules<'_>) {
        let connection = self.connections[usize::from(self.streams[stream].connection)];
        let rtt = rules.networks[connection.paths.first().index()].link.rtt;
        let is_new = connection.ready >= self.clock;
        let trip = if is_new || rules.settings.request_rtt { rtt } else { 0.0 };
        let stream = &mut self.streams[stream];
        stream.state = State::Asked;
        stream.timer = self.clock.max(connection.ready) + trip + stream.think;
        self.next_arrival = self.next_arrival.min(stream.timer);
    }

    /// The time of the next event, no later than which rates are constant.
    pub(super) fn next_event(&mut self, rules: &Rules<'_>) -> f64 {
        if self.stale {
            self.share(rules);
        }
        let mut next = self.rates_change.min(self.next_release).min(self.next_arrival);
        for &n in &self.running {
            next = next.min(self.flows[usize::from(n)].timer);
        }
        for &n in &self.movers {
            let stream = &self.streams[usize::from(n)];
            if stream.rate > 0.0 {
                next = next.min(self.clock + stream.left / stream.rate);
            }
        }
        next.max(self.clock)
    }

    /// Let everything move until `time`, which is at most that of the next event, and handle what happens
    /// then.
    pub(super) fn advance(&mut self, time: f64, rules: &Rules<'_>, done: &mut Vec<Done>) {
        let elapsed = time - self.clock;
        self.clock = time;
        self.due.clear();
        for &n in &self.running {
            let flow = &mut self.flows[usize::from(n)];
            if flow.active {
                flow.delivered += flow.rate * elapsed;
                self.carried[usize::from(flow.path)] += flow.rate * elapsed;
            }
            if flow.timer <= time {
                self.due.push(n);
            }
        }
        for &n in &self.movers {
            let stream = &mut self.streams[usize::from(n)];
            stream.left -= stream.rate * elapsed;
            if stream.left <= NOTHING {
                stream.left = 0.0;
                (self.stale, self.regroup) = (true, true);
                self.next_release = self.next_release.min(stream.held_until);
            }
        }
        self.stale |= time >= self.rates_change;
        for n in 0..self.due.len() {
            self.flow_timer(self.due[n], rules);
        }
        if self.next_release <= time {
            self.complete(rules, done);
        }
        if self.next_arrival <= time {
            self.arrive(rules);
        }
    }

    /// Streams of which everything is there leave; HTTP/1.1 goes on with the next.
    fn complete(&mut self, rules: &Rules<'_>, done: &mut Vec<Done>) {
        let mut n = 0;
        while n < self.streams.len() {
            let stream = self.streams[n];
            if stream.state != State::Arriving || stream.left > 0.0 || stream.held_until > self.clock {
                n += 1;
                continue;
            }
            self.streams.remove(n);
            (self.stale, self.regroup) = (true, true);
            done.push(Done { number: stream.number, transfer: stream.transfer });
            self.left_connection(stream.connection, rules);
        }
        self.find_release();
    }

    /// When the first of the streams that are held up will no longer be.
    pub(super) fn find_release(&mut self) {
        let held = self.streams.iter().filter(|stream| stream.state == State::Arriving && stream.left <= 0.0);
        self.next_release = held.map(|stream| stream.held_until).fold(NEVER, f64::min);
    }

    /// An arriving stream is gone from its connection.
    fn left_connection(&mut self, number: u16, rules: &Rules<'_>) {
        let connection = &mut self.connections[usize::from(number)];
        connection.streams -= 1;
        connection.arriving -= 1;
        if connection.arriving == 0 {
            self.rest(number);
        }
        let next = self
            .streams
            .iter()
            .position(|stream| stream.connection == number && stream.state == State::Queued);
        if let Some(next) = next {
            self.request(next, rules);
        }
    }

    /// Streams whose first byte comes now.
    fn arrive(&mut self, rules: &Rules<'_>) {
        for n in 0..self.streams.len() {
            let stream = &mut self.streams[n];
            if stream.state == State::Asked && stream.timer <= self.clock {
                stream.state = State::Arriving;
                let connection = stream.connection;
                (self.stale, self.regroup) = (true, true);
                self.connections[usize::from(connection)].arriving += 1;
                if self.connections[usize::from(connection)].arriving == 1 {
                    self.wake(connection, rules);
                }
            }
        }
        let asked = self.streams.iter().filter(|stream| stream.state == State::Asked);
        self.next_arrival = asked.map(|stream| stream.timer).fold(NEVER, f64::min);
    }

    /// Take bytes off the end of a stream that is under way; as many as asked for, but not those in flight.
    pub(super) fn shorten(&mut self, number: u32, bytes: f64, rules: &Rules<'_>) -> f64 {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.number == number) else { return 0.0 };
        let connection = &self.connections[usize::from(stream.connection)];
        let rtt = rules.networks[connection.paths.first().index()].link.rtt;
        let taken = bytes.min((stream.left - stream.rate * rtt).floor()).max(0.0);
        stream.left -= taken;
        (self.stale, self.regroup) = (true, true);
        if stream.left <= 0.0 {
            self.next_release = self.next_release.min(stream.held_until);
        }
        taken
    }
}
