//! What is under way, and how it goes on.

use super::rates::Claim;
use super::settings::{Network, Protocol, Settings};
use crate::page::{Kind, Page};
use whimbrel_access::{MAX_PATHS, PathList};

/// Bytes in a segment.
pub(super) const SEGMENT: f64 = 1460.0;
/// The smallest retransmission timeout of Linux; the round trip comes on top.
const RTO_MIN: f64 = 0.2;
/// Never.
pub(super) const NEVER: f64 = f64::INFINITY;
/// Less than this is nothing left: rounding of sums of products.
const NOTHING: f64 = 1e-3;

/// How a flow's rate is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Handshakes; the timer says until when.
    Setup,
    /// By its window, which doubles each round trip.
    SlowStart,
    /// By its window, which grows by a segment each round trip.
    Avoidance,
    /// By its share only.
    Full,
}

/// One path of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) connection: u16,
    pub(super) path: u8,
    pub(super) phase: Phase,
    pub(super) active: bool,
    /// When set-up is done, or the present round ends.
    pub(super) timer: f64,
    pub(super) window: f64,
    pub(super) rate: f64,
    delivered: f64,
    /// The share of the path was less than the window allows, at some time in this round.
    pub(super) limited: bool,
    rounds: u32,
}

/// A connection. Those that are closed stay in place without flows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub(super) host: u16,
    pub(super) tls: bool,
    pub(super) open: bool,
    pub(super) protocol: Protocol,
    pub(super) paths: PathList,
    /// Streams that are queued, asked for, or arriving.
    pub(super) streams: u16,
    /// Those that arrive at present.
    pub(super) arriving: u16,
    /// What all its flows bring at present.
    pub(super) rate: f64,
    /// Streams that want some of it, and the one that comes first.
    pub(super) wanting: u16,
    pub(super) most_urgent: Option<(Kind, u32)>,
    /// When the first request can leave.
    pub(super) ready: f64,
    /// Since when nothing arrives.
    pub(super) quiet_since: f64,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// HTTP/1.1: behind others.
    Queued,
    /// Asked for; `timer` is when the first byte comes.
    Asked,
    /// On its way.
    Arriving,
}

/// A transfer, or a part of one, on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) transfer: u16,
    pub(super) connection: u16,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) state: State,
    pub(super) timer: f64,
    pub(super) left: f64,
    pub(super) rate: f64,
    think: f64,
    /// A loss keeps what arrives from the application until then.
    held_until: f64,
}

impl Stream {
    /// Arriving, and not all there.
    pub(super) fn wants(&self) -> bool {
        self.state == State::Arriving && self.left > 0.0
    }
}

/// A stream that is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) number: u32,
    pub(super) transfer: u16,
}

/// What never changes during a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) settings: &'a Settings,
    pub(super) networks: &'a [Network],
    pub(super) page: &'a Page,
    pub(super) think: &'a [f64],
    pub(super) seed: u64,
}

/// The state that a prediction copies.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) clock: f64,
    pub(super) connections: Vec<Connection>,
    pub(super) flows: Vec<Flow>,
    pub(super) streams: Vec<Stream>,
    /// When each host's name is known on each path: host × paths + path.
    resolved: Vec<f64>,
    pub(super) carried: [f64; MAX_PATHS],
    next_number: u32,
    pub(super) stale: bool,
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
        self.streams.clear();
        self.resolved.clear();
        let known = if rules.settings.dns { NEVER } else { 0.0 };
        self.resolved.resize(rules.page.hosts.len() * rules.networks.len(), known);
        self.carried = [0.0; MAX_PATHS];
        self.next_number = 0;
        self.stale = true;
        self.rates_change = NEVER;
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.clock = other.clock;
        self.connections.clone_from(&other.connections);
        self.flows.clone_from(&other.flows);
        self.streams.clone_from(&other.streams);
        self.resolved.clone_from(&other.resolved);
        self.carried = other.carried;
        self.next_number = other.next_number;
        self.stale = other.stale;
        self.rates_change = other.rates_change;
    }

    /// Open a connection: look up the name, shake hands on the first path; the other paths follow.
    pub(super) fn open(&mut self, paths: PathList, host: u16, tls: bool, rules: &Rules<'_>) -> u16 {
        let number = self.connections.len() as u16;
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
            self.flows.push(Flow {
                connection: number,
                path: path.0,
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
        self.connections.push(Connection {
            host,
            tls,
            open: true,
            protocol: rules.settings.protocol_of(tls),
            paths,
            streams: 0,
            arriving: 0,
            rate: 0.0,
            wanting: 0,
            most_urgent: None,
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
            kind: rules.page.transfers[usize::from(transfer)].kind,
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
    }

    /// The time of the next event, no later than which rates are constant.
    pub(super) fn next_event(&mut self, rules: &Rules<'_>) -> f64 {
        if self.stale {
            self.share(rules);
        }
        let mut next = self.rates_change;
        for flow in &self.flows {
            next = next.min(flow.timer);
        }
        for stream in &self.streams {
            next = next.min(match stream.state {
                State::Queued => NEVER,
                State::Asked => stream.timer,
                State::Arriving if stream.left <= 0.0 => stream.held_until,
                State::Arriving if stream.rate > 0.0 => self.clock + stream.left / stream.rate,
                State::Arriving => NEVER,
            });
        }
        next.max(self.clock)
    }

    /// Let everything move until `time`, which is at most that of the next event, and handle what happens then.
    pub(super) fn advance(&mut self, time: f64, rules: &Rules<'_>, done: &mut Vec<Done>) {
        let elapsed = time - self.clock;
        self.clock = time;
        self.due.clear();
        for (number, flow) in self.flows.iter_mut().enumerate() {
            if flow.active {
                flow.delivered += flow.rate * elapsed;
                self.carried[usize::from(flow.path)] += flow.rate * elapsed;
            }
            if flow.timer <= time {
                self.due.push(number as u16);
            }
        }
        for stream in &mut self.streams {
            if stream.state == State::Arriving {
                stream.left -= stream.rate * elapsed;
                if stream.left <= NOTHING {
                    self.stale |= stream.left != 0.0;
                    stream.left = 0.0;
                }
            }
        }
        self.stale |= time >= self.rates_change;
        for n in 0..self.due.len() {
            self.flow_timer(usize::from(self.due[n]), rules);
        }
        self.complete(rules, done);
        self.arrive(rules);
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
            self.stale = true;
            done.push(Done { number: stream.number, transfer: stream.transfer });
            self.left_connection(stream.connection, rules);
        }
    }

    /// An arriving stream is gone from its connection.
    fn left_connection(&mut self, number: u16, rules: &Rules<'_>) {
        let connection = &mut self.connections[usize::from(number)];
        connection.streams -= 1;
        connection.arriving -= 1;
        if connection.arriving == 0 {
            connection.quiet_since = self.clock;
            for flow in self.flows_of(number).filter(|flow| flow.active) {
                flow.active = false;
                flow.timer = NEVER;
                if flow.phase == Phase::SlowStart && !flow.limited {
                    flow.window += flow.delivered;
                }
            }
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
                self.stale = true;
                self.connections[usize::from(connection)].arriving += 1;
                if self.connections[usize::from(connection)].arriving == 1 {
                    self.wake(connection, rules);
                }
            }
        }
    }

    /// A connection begins to carry data.
    fn wake(&mut self, number: u16, rules: &Rules<'_>) {
        let clock = self.clock;
        let quiet = clock - self.connections[usize::from(number)].quiet_since;
        for flow in self.flows_of(number).filter(|flow| flow.phase != Phase::Setup) {
            let rtt = rules.networks[usize::from(flow.path)].link.rtt;
            if rules.settings.idle_restart && quiet > RTO_MIN + rtt {
                flow.window = flow.window.min(f64::from(rules.settings.initial_window) * SEGMENT);
                flow.phase = Phase::SlowStart;
            }
            start_round(flow, clock, rtt);
        }
    }

    fn flows_of(&mut self, connection: u16) -> impl Iterator<Item = &mut Flow> {
        self.flows.iter_mut().filter(move |flow| flow.connection == connection)
    }

    /// Set-up is done, or a round is over.
    fn flow_timer(&mut self, n: usize, rules: &Rules<'_>) {
        let clock = self.clock;
        let flow = &mut self.flows[n];
        let network = &rules.networks[usize::from(flow.path)];
        if flow.phase == Phase::Setup {
            flow.phase = Phase::SlowStart;
            flow.timer = NEVER;
            if self.connections[usize::from(flow.connection)].arriving > 0 {
                start_round(flow, clock, network.link.rtt);
                self.stale = true;
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

    /// A segment is missing until `until`: over TCP all that arrives on the connection waits for it, over QUIC one stream.
    fn hold(&mut self, connection: u16, until: f64) {
        let all = self.connections[usize::from(connection)].protocol != Protocol::H3;
        let hit = self
            .streams
            .iter_mut()
            .filter(|stream| stream.connection == connection && stream.state == State::Arriving);
        for stream in hit.take(if all { usize::MAX } else { 1 }) {
            stream.held_until = until;
        }
    }

    /// Take bytes off the end of a stream that is under way; as many as asked for, but not those in flight.
    pub(super) fn shorten(&mut self, number: u32, bytes: f64, rules: &Rules<'_>) -> f64 {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.number == number) else { return 0.0 };
        let connection = &self.connections[usize::from(stream.connection)];
        let rtt = rules.networks[connection.paths.first().index()].link.rtt;
        let taken = bytes.min((stream.left - stream.rate * rtt).floor()).max(0.0);
        stream.left -= taken;
        self.stale = true;
        taken
    }
}

fn start_round(flow: &mut Flow, clock: f64, rtt: f64) {
    flow.active = true;
    flow.delivered = 0.0;
    flow.limited = false;
    flow.timer = if flow.phase == Phase::Full { NEVER } else { clock + rtt };
}

/// Whether a segment of this round was lost: drawn from seed, path, connection and round alone, so that it is the same
/// in a prediction as in reality.
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
