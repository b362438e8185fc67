//! Two engines under simulated time, joined by simulated carriers. The simulation plays the
//! drivers: it dials, accepts, moves bytes, fires timers, notices losses and closes carriers.
#![allow(clippy::unwrap_used)]

pub(crate) mod app;
pub(crate) mod carrier;
pub(crate) mod driver;
pub(crate) mod log;
pub(crate) mod rng;
pub(crate) mod tcp;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointId, SecretKey};
use whimbrel_proto::{Assignment, Config, Connection, Event, PathId, Side, StreamId};

use app::App;
use carrier::{Carrier, End};
use log::Logged;
use rng::Rng;
use tcp::Link;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

static KEYS: LazyLock<[SecretKey; 2]> = LazyLock::new(|| [SecretKey::generate(), SecretKey::generate()]);

/// The identity of a side in every simulation, at the beginning.
pub(crate) fn identity(side: Side) -> EndpointId {
    KEYS[side as usize].id()
}

pub(crate) const CONNECTION: [u8; 16] = [0x11; 16];

/// Like `Config::default()`, with small windows, so that little data fills them.
pub(crate) fn small_config() -> Config {
    let mut config = Config::default();
    config.params.max_data = 96 * 1024;
    config.params.max_stream_data = 64 * 1024;
    config.stream_window = 64 * 1024;
    config.unread = 512 * 1024;
    config.params.max_streams = 20;
    config.streams = 20;
    config.stream_send_buffer = 80 * 1024;
    config.send_buffer = 128 * 1024;
    config
}

/// Like `Config::default()`, with windows that are large from the beginning: for tests in which nobody reads
/// while much is written.
pub(crate) fn wide_config() -> Config {
    let mut config = Config::default();
    config.params.max_stream_data = config.stream_window;
    config
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) client: Config,
    pub(crate) server: Config,
    /// One way.
    pub(crate) delay: Duration,
    pub(crate) early_limit: u64,
    /// Bytes that a carrier takes before it blocks.
    pub(crate) capacity: usize,
    /// The client dials when a path is suspect, or none is left.
    pub(crate) redial: bool,
    /// Segments arrive in pieces.
    pub(crate) fragment: bool,
    /// What carriers do with datagrams; without, they have none.
    pub(crate) datagrams: Option<Air>,
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            client: Config::default(),
            server: Config::default(),
            delay: ms(20),
            early_limit: 14_000,
            capacity: 128 * 1024,
            redial: false,
            fragment: false,
            datagrams: None,
            seed: 1,
        }
    }
}

/// Datagrams beside a carrier's bytes: each arrives after the carrier's delay or not at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Air {
    /// Bytes that fit into one.
    pub(crate) room: u64,
    /// Lost of each thousand.
    pub(crate) loss: u64,
    /// They arrive up to so much later, whatever was sent before or behind them.
    pub(crate) jitter: Duration,
}

/// How a carrier breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both ends notice at once.
    Both,
    /// Only this side notices now; the other finds out two seconds later.
    First(Side),
    /// Nothing arrives any more, and nobody is told (until the kernel gives up after a minute).
    Silent,
}

pub(crate) struct Sim {
    pub(crate) now: Instant,
    pub(crate) options: Options,
    pub(crate) client: Connection,
    /// `None` before OPEN arrived and after the server forgot the connection.
    pub(crate) server: Option<Connection>,
    pub(crate) client_app: App,
    pub(crate) server_app: App,
    pub(crate) carriers: Vec<Carrier>,
    pub(crate) client_events: Vec<Event>,
    pub(crate) server_events: Vec<Event>,
    /// No dial succeeds.
    pub(crate) offline: bool,
    pub(crate) redial_at: Option<Instant>,
    /// Turns off the rule that a finished server is dropped.
    pub(crate) keep_server: bool,
    pub(crate) server_was_over: bool,
    /// Times that the server had state and gave it up.
    pub(crate) forgotten: u32,
    /// Carriers whose cutting point (`Pipe::cut_after`) breaks them in this way.
    pub(crate) cut_style: Cut,
    pub(crate) rng: Rng,
    pub(crate) peak_buffered: u64,
    pub(crate) steps: u64,
    /// Nonces of sides that were read back.
    nonces: u8,
    /// How often the server rested.
    pub(crate) rests: usize,
    /// What leaves and what is told, for a test that wants to know and takes it out.
    pub(crate) log: Option<Vec<Logged>>,
    /// The present key of each side.
    keys: [SecretKey; 2],
}

impl Sim {
    pub(crate) fn new(options: Options) -> Self {
        let now = Instant::now();
        let client = Connection::client(
            options.client.clone(),
            ConnectionId::from_bytes(&CONNECTION),
            identity(Side::Client),
            identity(Side::Server),
            [7; 32],
            now,
        );
        let rng = Rng::new(options.seed);
        Self {
            now,
            options,
            client,
            server: None,
            client_app: App::new(Side::Client),
            server_app: App::new(Side::Server),
            carriers: Vec::new(),
            client_events: Vec::new(),
            server_events: Vec::new(),
            offline: false,
            redial_at: None,
            keep_server: false,
            server_was_over: false,
            forgotten: 0,
            cut_style: Cut::Both,
            rng,
            peak_buffered: 0,
            steps: 0,
            nonces: 0,
            rests: 0,
            log: None,
            keys: KEYS.clone(),
        }
    }

    /// A connection that is open over one path.
    pub(crate) fn established(options: Options) -> Self {
        let mut sim = Self::new(options);
        sim.dial();
        sim.advance(sim.options.delay * 4 + ms(60));
        assert!(sim.client.is_established());
        sim
    }

    /// The client opens a carrier and a path over it.
    pub(crate) fn dial(&mut self) -> Option<usize> {
        self.dial_with(self.options.delay)
    }

    pub(crate) fn dial_with(&mut self, delay: Duration) -> Option<usize> {
        if self.offline {
            return None;
        }
        let early_limit = self.options.early_limit;
        self.hear_of_new_owner();
        let to = self.client.expected_peer().unwrap_or(self.client.peer());
        let path = self.client.open_path_to(self.now, to, Some(delay * 2), early_limit)?;
        let by_open = !self.client.is_established();
        let ids = Some((self.key(Side::Client).id(), to));
        self.carriers.push(Carrier { by_open, ids, ..Carrier::new(path, delay, early_limit, self.now) });
        Some(self.carriers.len() - 1)
    }

    /// What a notice or the name service would tell the client.
    fn hear_of_new_owner(&mut self) {
        let assignment = self.server.as_ref().and_then(Connection::own_assignment).cloned();
        if let Some(assignment) = assignment
            && self.client.is_authentic(&assignment)
        {
            self.nonces = self.nonces.wrapping_add(1);
            self.client.expect_peer(assignment.to, [self.nonces; 32]);
        }
    }

    /// The client opens a path over a link, the same in both directions.
    pub(crate) fn dial_over(&mut self, link: Link) -> Option<usize> {
        let early_limit = self.options.early_limit;
        let path = self.client.open_path(self.now, Some(link.delay * 2), early_limit)?;
        self.carriers.push(Carrier::over(path, link, link, early_limit, self.now));
        Some(self.carriers.len() - 1)
    }

    /// A connection over links, all of which are open.
    pub(crate) fn over(options: Options, links: &[Link]) -> Self {
        let mut sim = Self::new(options);
        for link in links {
            sim.dial_over(*link);
            sim.advance(link.delay * 4 + ms(60));
        }
        let live = sim.client.paths().len();
        assert!(sim.client.is_established() && live == links.len(), "{live} paths\n{}", sim.report());
        sim
    }

    pub(crate) fn cut(&mut self, index: usize, how: Cut) {
        let now = self.now;
        let Some(carrier) = self.carriers.get_mut(index) else {
            return;
        };
        carrier.up.kill();
        carrier.down.kill();
        let (client, server) = match how {
            Cut::Both => (now, now),
            Cut::First(Side::Client) => (now, now + secs(2)),
            Cut::First(Side::Server) => (now + secs(2), now),
            Cut::Silent => (now + secs(60), now + secs(60)),
        };
        carrier.notice_at(Side::Client, client);
        carrier.notice_at(Side::Server, server);
    }

    /// Breaks one direction only; nobody is told.
    pub(crate) fn cut_direction(&mut self, index: usize, from: Side) {
        let now = self.now;
        if let Some(carrier) = self.carriers.get_mut(index) {
            carrier.outgoing(from).kill();
            carrier.notice_at(from, now + secs(60));
        }
    }

    pub(crate) fn cut_all(&mut self, how: Cut) {
        for index in 0..self.carriers.len() {
            self.cut(index, how);
        }
    }

    pub(crate) fn stall(&mut self, index: usize, stalled: bool) {
        if let Some(carrier) = self.carriers.get_mut(index) {
            carrier.stalled = stalled;
        }
    }

    /// The server process lost its state (a restart): all its carriers break.
    pub(crate) fn forget(&mut self) {
        if self.server.take().is_some() {
            self.forgotten += 1;
            self.server_was_over = false;
            if !self.client.is_established() {
                // A repeated OPEN makes a new connection, whose application starts at zero. (An
                // established client will be refused; it may still read what it has.)
                self.server_app = App::new(Side::Server);
            }
        }
        for index in 0..self.carriers.len() {
            // An OPEN that the client gave up, or one of a connection whose other OPEN was answered, must not
            // find the new process either.
            let carrier = &self.carriers[index];
            let answered = carrier.by_open && self.client.is_established();
            if carrier.server == End::Attached || carrier.client == End::Gone || answered {
                self.cut(index, Cut::Both);
            }
        }
    }

    /// Writes a side down and reads it again, if it can be: it is established and has no path.
    pub(crate) fn resume(&mut self, side: Side) {
        self.nonces = self.nonces.wrapping_add(1);
        let (now, nonce) = (self.now, [self.nonces; 32]);
        let config = match side {
            Side::Client => self.options.client.clone(),
            Side::Server => self.options.server.clone(),
        };
        if let Some(connection) = self.connection(side)
            && let Some(bytes) = connection.snapshot()
        {
            *connection = Connection::restore(config, &bytes, nonce, now).unwrap();
        }
    }

    /// Packs the server and unpacks it again, if it has no path and may rest.
    pub(crate) fn rest(&mut self) {
        if let Some(server) = &mut self.server
            && let Some(from) = server.rests_from()
            && let Some(resting) = server.rest(from.max(self.now))
        {
            self.rests += 1;
            *server = resting.wake();
            // The driver looks at everything anew.
            self.pump();
        }
    }

    pub(crate) fn key(&self, side: Side) -> &SecretKey {
        &self.keys[side as usize]
    }

    /// Gives a side's paths up and hands its end over to a fresh key, if that may be now. Tells the bytes and
    /// the assignment that the new owner was given.
    pub(crate) fn hand_over(&mut self, side: Side) -> Option<(Vec<u8>, Assignment)> {
        self.nonces = self.nonces.wrapping_add(1);
        let nonce = [self.nonces; 32];
        self.hand_over_with(side, SecretKey::from_bytes(&nonce), nonce)
    }

    /// As [`hand_over`](Self::hand_over), to a key that may have had the end before.
    pub(crate) fn hand_over_to(&mut self, side: Side, new: SecretKey) -> Option<(Vec<u8>, Assignment)> {
        self.nonces = self.nonces.wrapping_add(1);
        self.hand_over_with(side, new, [self.nonces; 32])
    }

    fn hand_over_with(
        &mut self,
        side: Side,
        new: SecretKey,
        nonce: [u8; 32],
    ) -> Option<(Vec<u8>, Assignment)> {
        let (now, old) = (self.now, self.key(side).clone());
        let config = match side {
            Side::Client => self.options.client.clone(),
            Side::Server => self.options.server.clone(),
        };
        let connection = self.connection(side)?;
        let assignment = connection.assign(&old, new.id())?;
        connection.detach(now);
        self.pump();
        let connection = self.connection(side)?;
        let bytes = connection.snapshot()?;
        *connection = Connection::restore_assigned(config, &bytes, assignment.clone(), nonce, now).unwrap();
        self.keys[side as usize] = new;
        self.pump();
        Some((bytes, assignment))
    }

    pub(crate) fn connection(&mut self, side: Side) -> Option<&mut Connection> {
        match side {
            Side::Client => Some(&mut self.client),
            Side::Server => self.server.as_mut(),
        }
    }

    pub(crate) fn server(&mut self) -> &mut Connection {
        self.server.as_mut().unwrap()
    }

    /// The parts that an application's operation needs.
    pub(crate) fn parts(&mut self, side: Side) -> Option<(&mut App, &mut Connection, &App)> {
        match side {
            Side::Client => Some((&mut self.client_app, &mut self.client, &self.server_app)),
            Side::Server => Some((&mut self.server_app, self.server.as_mut()?, &self.client_app)),
        }
    }

    pub(crate) fn open(&mut self, side: Side) -> Option<StreamId> {
        let (app, connection, _) = self.parts(side)?;
        app.open(connection)
    }

    pub(crate) fn write(&mut self, side: Side, id: StreamId, n: usize) -> usize {
        self.parts(side).map_or(0, |(app, connection, _)| app.write(connection, id, n))
    }

    pub(crate) fn finish(&mut self, side: Side, id: StreamId) {
        if let Some((app, connection, _)) = self.parts(side) {
            app.finish(connection, id);
        }
    }

    pub(crate) fn reset(&mut self, side: Side, id: StreamId) {
        if let Some((app, connection, _)) = self.parts(side) {
            app.reset(connection, id);
        }
    }

    pub(crate) fn stop(&mut self, side: Side, id: StreamId) {
        if let Some((app, connection, _)) = self.parts(side) {
            app.stop(connection, id);
        }
    }

    pub(crate) fn read(&mut self, side: Side, id: StreamId, max: usize) -> usize {
        self.parts(side).map_or(0, |(app, connection, peer)| {
            app.accept(connection);
            app.read(connection, peer, id, max)
        })
    }

    /// The server's application takes the streams that were opened.
    pub(crate) fn server_accepts(&mut self) {
        if let Some((app, connection, _)) = self.parts(Side::Server) {
            app.accept(connection);
        }
    }

    /// Accepts what was opened and reads what has arrived.
    pub(crate) fn read_all(&mut self, side: Side) -> u64 {
        self.parts(side).map_or(0, |(app, connection, peer)| app.read_all(connection, peer))
    }

    /// Lets time pass while both applications read what comes; until `done` or for `limit`.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.read_all(Side::Client);
            self.read_all(Side::Server);
            self.pump();
            if done(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            let next = self.next_event().unwrap_or(end).min(self.now + ms(200));
            self.step_to(next.min(end).max(self.now));
        }
    }

    /// Both ends read until everything written has come out; panics if that does not happen.
    pub(crate) fn settle(&mut self) {
        let done = self.run_until(secs(120), |sim| {
            sim.client_app.missing_at(&sim.server_app).is_none()
                && sim.server_app.missing_at(&sim.client_app).is_none()
        });
        assert!(done, "{}", self.report());
    }

    pub(crate) fn report(&self) -> String {
        format!(
            "client to server: {:?}\nserver to client: {:?}\nclient closed: {:?}, server closed: {:?}\n\
             client paths: {:?}\nserver paths: {:?}\ncarriers: {:#?}",
            self.client_app.missing_at(&self.server_app),
            self.server_app.missing_at(&self.client_app),
            self.client.close_reason(),
            self.server.as_ref().map(|s| s.close_reason()),
            self.client.paths(),
            self.server.as_ref().map(Connection::paths),
            self.carriers.iter().filter(|c| !c.is_over()).collect::<Vec<_>>(),
        )
    }

    pub(crate) fn events(&self, side: Side) -> &[Event] {
        match side {
            Side::Client => &self.client_events,
            Side::Server => &self.server_events,
        }
    }

    /// The state of a path at one side, if it is live there.
    pub(crate) fn path(&self, side: Side, id: PathId) -> Option<whimbrel_proto::PathStats> {
        let connection = match side {
            Side::Client => &self.client,
            Side::Server => self.server.as_ref()?,
        };
        connection.paths().into_iter().find(|p| p.id == id)
    }
}
