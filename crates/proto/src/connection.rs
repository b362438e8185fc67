//! The connection: streams above, paths below, and the state between them.

mod acks;
mod addresses;
mod close;
mod control;
mod draft;
mod events;
mod handover;
mod paths;
mod receive;
mod reinjection;
mod retire;
mod schedule;
mod streams;
mod timers;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointId};

use crate::error::CloseCode;
use crate::event::{ClosedBy, Event, Footprint, PathStats, Stats};
use crate::frame::Open;
use crate::handover::{Agreed, HandoverMode};
use crate::ids::{PathId, Side, StreamId};
use crate::notice::NoticeKey;
use crate::params::{MAX_GRANT, Params};
use crate::path::Path;
use crate::path_table::PathTable;
use crate::scheduler::SchedulerKind;
use crate::secret::Secret;
use crate::session::credit::Credit;
use crate::session::send_memory::SendMemory;
use crate::session::stream_numbers::StreamNumbers;
use crate::stream::{Pool, Stream};
use addresses::Addresses;
use close::Farewell;
use control::Control;
use events::Events;

pub use paths::{JoinError, MAX_PATHS};
pub use streams::Read;

/// How this side wants a connection to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the peer is told.
    pub params: Params,
    /// Streams of the peer that may be open at once. It begins with `params.max_streams`, and is allowed
    /// more, up to this, as it uses them.
    pub streams: u64,
    /// Bytes that the peer may be ahead of the reader on one stream. A stream begins with
    /// `params.max_stream_data`, and grows up to this while its reader keeps up.
    pub stream_window: u64,
    /// Bytes of all streams that may wait for their readers. Up to two thirds of it are kept free for streams
    /// that are not open yet; the peer may have another `params.max_data` under way.
    pub unread: u64,
    /// Bytes kept for one stream until they are acknowledged.
    pub stream_send_buffer: u64,
    /// Bytes kept for all streams until they are acknowledged, beyond 64 KiB that each stream may hold
    /// anyway.
    pub send_buffer: u64,
    /// Bytes of one stream that may wait to be sent for the first time while a path is up. More
    /// would not be faster: they would only grow old, and cold in the processor's caches.
    pub stream_unsent: u64,
    /// A client asks for a sign of life after this much silence, a server after twice as much.
    pub keepalive: Duration,
    /// How several paths are used. Unless it is `single`, the peer is told, and does the same.
    pub handover: HandoverMode,
    /// How this side shares its data out among the paths.
    pub scheduler: SchedulerKind,
    /// Memory that streams fill and empty. Connections with the same configuration share it.
    pub pool: Pool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            params: Params::default(),
            streams: 65_536,
            stream_window: 8 << 20,
            unread: 384 << 20,
            stream_send_buffer: 8 << 20,
            send_buffer: 16 << 20,
            stream_unsent: 256 << 10,
            keepalive: Duration::from_secs(60),
            handover: HandoverMode::default(),
            scheduler: SchedulerKind::default(),
            pool: Pool::default(),
        }
    }
}

impl Config {
    /// Brings what an application asked for within what the protocol promises and can express.
    fn keep_promises(&mut self) {
        self.params.keep_promises();
        self.stream_window = self.stream_window.clamp(self.params.max_stream_data, MAX_GRANT);
        self.unread = self.unread.min(MAX_GRANT);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Closing {
    code: CloseCode,
    reason: String,
    /// Wait until all stream data was acknowledged.
    graceful: bool,
    sent: bool,
    /// When the wait began that has a limit: for a path, or for the peer's answer.
    since: Option<Instant>,
}

/// One end of a connection. See the [crate] documentation for how to drive it.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    id: ConnectionId,
    local: EndpointId,
    peer: EndpointId,
    config: Config,
    /// What the peer stated; `None` until ACCEPT (client only).
    peer_params: Option<Params>,
    random: [u8; 32],
    /// The peer's random: every OPEN, and every answer to one, has the same.
    peer_random: Option<[u8; 32]>,
    secret: Option<Secret>,
    /// Server: the client has shown that it knows the secret.
    confirmed: bool,

    paths: PathTable,

    streams: BTreeMap<StreamId, Stream>,
    /// Streams with something to send, in turn.
    send_queue: VecDeque<StreamId>,
    /// Streams whose writer found no room.
    blocked_writers: BTreeSet<StreamId>,
    numbers: StreamNumbers,
    open_blocked: bool,

    credit: Credit,
    memory: SendMemory,
    /// Pieces of stream data that wait for others before them, over all streams.
    pieces: usize,

    handover: Agreed<HandoverMode>,
    scheduler: SchedulerKind,
    /// Segments with new stream data.
    chunks_sent: u64,
    /// Bytes that went a second time although nothing was wrong.
    sent_twice: u64,

    control: Control,
    announced: Addresses,
    peer_announced: Addresses,
    local_addresses: (u64, Vec<SocketAddr>),
    peer_addresses_sequence: u64,

    closing: Option<Closing>,
    closed: Option<(ClosedBy, CloseCode, String)>,
    farewell: Farewell,
    detached_since: Option<Instant>,
    /// Since when no path is there on which the peer was heard; dialling is no contact.
    contact_lost: Option<Instant>,
    events: Events,
    stats: Stats,
    /// When the connection began here, and how long ago that was when this side was last told the time.
    began: Instant,
    clock: Duration,
}

impl Connection {
    /// The dialling end. `random` must be fresh, unpredictable bytes.
    #[must_use]
    pub fn client(
        config: Config,
        id: ConnectionId,
        local: EndpointId,
        peer: EndpointId,
        random: [u8; 32],
        now: Instant,
    ) -> Self {
        Self::new(Side::Client, config, id, local, peer, random, now)
    }

    /// The accepting end, for an OPEN that arrived over a path whose TLS peer is `peer`. The OPEN's
    /// path is added; hand its whole first segment to [`handle_segment`](Self::handle_segment) next.
    #[must_use]
    pub fn server(
        config: Config,
        open: &Open,
        local: EndpointId,
        peer: EndpointId,
        random: [u8; 32],
        now: Instant,
    ) -> Self {
        let mut connection = Self::new(Side::Server, config, open.connection, local, peer, random, now);
        connection.learn_random(open.random);
        connection.learn_params(open.params.clone());
        connection.accept_open(open, now);
        connection
    }

    fn new(
        side: Side,
        mut config: Config,
        id: ConnectionId,
        local: EndpointId,
        peer: EndpointId,
        random: [u8; 32],
        now: Instant,
    ) -> Self {
        config.keep_promises();
        let Params { max_data, max_stream_data, .. } = config.params;
        let early = Params::unknown_peer();
        let credit = Credit::new(max_data, config.unread, max_stream_data, early.max_data);
        let mut handover = Agreed::unsaid(HandoverMode::Single);
        let mut control = Control::default();
        if config.handover != HandoverMode::Single {
            handover.state(config.handover, side);
            control.handover = true;
        }
        Self {
            side,
            id,
            local,
            peer,
            peer_params: None,
            random,
            peer_random: None,
            secret: None,
            confirmed: false,
            paths: PathTable::default(),
            streams: BTreeMap::new(),
            send_queue: VecDeque::new(),
            blocked_writers: BTreeSet::new(),
            numbers: StreamNumbers::new(early.max_streams, config.params.max_streams, config.streams),
            open_blocked: false,
            credit,
            memory: SendMemory::new(config.stream_send_buffer, config.send_buffer),
            pieces: 0,
            handover,
            scheduler: config.scheduler,
            chunks_sent: 0,
            sent_twice: 0,
            control,
            announced: Addresses::default(),
            peer_announced: Addresses::default(),
            local_addresses: (0, config.params.notice_addresses.clone()),
            peer_addresses_sequence: 0,
            config,
            closing: None,
            closed: None,
            farewell: Farewell::NotOwed,
            detached_since: Some(now),
            contact_lost: Some(now),
            events: Events::default(),
            stats: Stats::default(),
            began: now,
            clock: Duration::ZERO,
        }
    }

    fn note_time(&mut self, now: Instant) {
        self.clock = self.clock.max(now.saturating_duration_since(self.began));
    }

    /// Takes the peer's random, with which the secret is known.
    fn learn_random(&mut self, random: [u8; 32]) {
        let (local, peer) = ((self.local, &self.random), (self.peer, &random));
        let (client, server) = match self.side {
            Side::Client => (local, peer),
            Side::Server => (peer, local),
        };
        self.secret = Some(Secret::derive(self.id, client.0, server.0, client.1, server.1));
        self.peer_random = Some(random);
    }

    fn learn_params(&mut self, params: Params) {
        self.credit.allow(params.max_data);
        self.numbers.allow(params.max_streams);
        for stream in self.streams.values_mut() {
            stream.send.max_data = stream.send.max_data.max(params.max_stream_data);
        }
        if !params.notice_addresses.is_empty() {
            self.push(Event::PeerAddresses(params.notice_addresses.clone()));
        }
        self.peer_params = Some(params);
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            self.grant_at_once(id);
            self.enqueue(id);
        }
        if std::mem::take(&mut self.open_blocked) {
            self.push(Event::StreamsAvailable);
        }
    }

    /// The next thing to know, if any.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The connection's id.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// The peer's identity, as its TLS key proved it.
    #[must_use]
    pub fn peer(&self) -> EndpointId {
        self.peer
    }

    /// The name that the client asked for, on either side.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        match self.side {
            Side::Client => self.config.params.target.as_deref(),
            Side::Server => self.peer_params.as_ref()?.target.as_deref(),
        }
    }

    /// Both sides know each other's parameters.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.peer_params.is_some()
    }

    /// Makes and checks this connection's notices; `None` before ACCEPT.
    #[must_use]
    pub fn notice_key(&self) -> Option<NoticeKey> {
        self.secret.as_ref().map(Secret::notice_key)
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Snapshots of the paths that are not given up.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStats> {
        let live = self.paths.iter().filter(|(_, path)| path.is_live());
        live.map(|(id, path)| PathStats {
            id,
            state: path.state(),
            priority: path.priority.value,
            srtt: path.figures.srtt(),
            min_rtt: path.figures.rtt().min(),
            bytes_sent: path.outgoing.bytes(),
            bytes_received: path.incoming.bytes(),
            in_flight: path.outgoing.in_flight(),
            rate: path.figures.rate(),
        })
        .collect()
    }

    /// Server: the client is known to have our answer to OPEN. It may have gone before.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// The round-trip time of the newest path, which may be lost: the best guess for the next one.
    #[must_use]
    pub fn last_rtt(&self) -> Option<Duration> {
        self.paths.values().next_back().map(|path| path.figures.srtt())
    }

    /// Bytes on their way over all paths, not acknowledged yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.paths.values().map(|path| path.outgoing.in_flight()).sum()
    }

    /// Streams have something to send, perhaps more than credit or the scheduler allow.
    #[must_use]
    pub fn has_stream_data(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// Control frames wait that the peer may be blocked for.
    #[must_use]
    pub fn has_urgent_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Where a path stands; `None` once it is forgotten.
    #[must_use]
    pub fn path_state(&self, id: PathId) -> Option<crate::path::PathState> {
        self.paths.get(id).map(Path::state)
    }

    /// Since when no path is left; `None` while there is one.
    #[must_use]
    pub fn detached_since(&self) -> Option<Instant> {
        self.detached_since
    }

    /// Bytes kept in buffers: written and unacknowledged, or received and unread.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.memory.held() + self.credit.unread()
    }

    /// What this connection keeps, in numbers.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            paths: self.paths.len(),
            unseen_reports: self.paths.unseen(),
            segments: self.paths.values().map(|p| p.outgoing.segments().len()).sum(),
            streams: self.streams.len(),
            pieces: self.pieces,
            events: self.events.len(),
        }
    }

    /// States this side's notice addresses anew; the peer is told reliably.
    pub fn set_notice_addresses(&mut self, addresses: Vec<SocketAddr>) {
        if self.local_addresses.1 == addresses {
            return;
        }
        self.local_addresses = (self.local_addresses.0 + 1, addresses);
        self.control.addresses = true;
    }
}
