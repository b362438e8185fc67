//! The connection: streams above, paths below, and the state between them.

mod acks;
mod application;
mod assignment;
mod candidates;
mod close;
mod contact;
mod datagrams;
mod handover;
mod join_error;
mod marks;
mod messages;
mod packed;
mod paths;
mod reach;
mod receive;
mod reinjection;
mod resting;
mod retire;
mod schedule;
mod sharing;
mod suspend;
mod timers;
mod transmit;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointId};

use crate::clock::Clock;
use crate::config::Config;
use crate::event::{Event, Events, Footprint, PathStats, Stats};
use crate::frame::Open;
use crate::ids::{PathId, Side};
use crate::notice::NoticeKey;
use crate::pacing::Pacing;
use crate::path::{Path, PathState};
use crate::path_table::PathTable;
use crate::session::Session;
use crate::timeouts::Timeouts;
use contact::Contact;
use marks::PathMarks;
use reach::Reach;
use sharing::Sharing;

pub use join_error::JoinError;
pub use paths::MAX_PATHS;
pub use resting::Resting;

/// One end of a connection. See the [crate] documentation for how to drive it.
#[derive(Debug)]
pub struct Connection {
    /// What survives the loss of all paths.
    session: Session,
    paths: PathTable,
    /// What the peer has to be told about paths.
    path_marks: PathMarks,
    sharing: Sharing,
    pacing: Pacing,
    contact: Contact,
    reach: Reach,
    timeouts: Timeouts,
    /// Paths that were added after the first.
    joined: u64,
    /// Another owner may be going on with this end: it stands still.
    held: bool,
    events: Events,
    clock: Clock,
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
        connection.session.identity.learn_random(open.random);
        connection.session.learn_params(open.params.clone(), &mut connection.events);
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
        let session = Session::new(side, &config, id, local, peer, random);
        Self::without_paths(session, &config, now, Duration::ZERO)
    }

    /// A connection that is `age` old and has no path.
    fn without_paths(session: Session, config: &Config, now: Instant, age: Duration) -> Self {
        Self {
            session,
            paths: PathTable::default(),
            path_marks: PathMarks::default(),
            sharing: Sharing::new(config.scheduler),
            pacing: Pacing::default(),
            contact: Contact::none(now),
            reach: Reach::new(now),
            timeouts: config.timeouts,
            joined: 0,
            held: false,
            events: Events::default(),
            clock: Clock::new(now, age),
        }
    }

    /// The next thing to know, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// The connection's id.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.session.identity.id()
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.session.identity.side()
    }

    /// The peer's identity, as its TLS key proved it.
    #[must_use]
    pub fn peer(&self) -> EndpointId {
        self.session.identity.peer()
    }

    /// The name that the client asked for, on either side.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        self.session.identity.target()
    }

    /// Both sides know each other's parameters.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.session.identity.is_established()
    }

    /// Server: the client is known to have our answer to OPEN. It may have gone before.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.session.identity.is_confirmed()
    }

    /// Makes and checks this connection's notices; `None` before ACCEPT.
    #[must_use]
    pub fn notice_key(&self) -> Option<NoticeKey> {
        self.session.identity.notice_key()
    }

    /// Server: the sequence number for a new notice, which replaces those before.
    pub fn begin_notice(&mut self) -> u64 {
        self.session.notices.begin()
    }

    /// The number of the newest notice: sent, on a server; heard, on a client; 0 if there was none.
    #[must_use]
    pub fn newest_notice(&self) -> u64 {
        self.session.notices.newest()
    }

    /// Server: no notice was begun after the one with this sequence number.
    #[must_use]
    pub fn is_newest_notice(&self, sequence: u64) -> bool {
        self.session.notices.is_newest(sequence)
    }

    /// Client: an authentic notice came. False if it is no newer than one that came before, and must be
    /// ignored.
    pub fn hear_notice(&mut self, sequence: u64) -> bool {
        self.session.notices.hear(sequence)
    }

    /// States this side's notice addresses anew; the peer is told reliably.
    pub fn set_notice_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.session.notice_addresses.state(addresses);
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counts = self.session.streams.counts();
        Stats {
            stream_bytes_sent: counts.sent,
            stream_bytes_resent: counts.resent,
            stream_bytes_reinjected: self.sharing.reinjected(),
            stream_bytes_received: counts.received,
            stream_bytes_duplicate: counts.duplicate,
            paths_joined: self.joined,
        }
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
            bytes_sent: path.outgoing.bytes() + path.datagrams.leaving.sent_bytes(),
            bytes_received: path.incoming.bytes() + path.datagrams.arriving.bytes(),
            in_flight: path.outgoing.in_flight(),
            rate: path.figures.rate(),
        })
        .collect()
    }

    /// The round-trip time of the newest path, which may be lost: the best guess for the next one.
    #[must_use]
    pub fn last_rtt(&self) -> Option<Duration> {
        self.paths.values().next_back().map(|path| path.figures.srtt())
    }

    /// Bytes on their way over all paths, in segments and datagrams, not acknowledged yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let of = |path: &Path| path.outgoing.in_flight() + path.datagrams.leaving.unanswered();
        self.paths.values().map(of).sum()
    }

    /// Anything is [in flight](Self::in_flight).
    #[must_use]
    pub fn has_in_flight(&self) -> bool {
        let any = |path: &Path| path.outgoing.in_flight() > 0 || path.datagrams.leaving.unanswered() > 0;
        self.paths.values().any(any)
    }

    /// Streams or messages have something to send, perhaps more than credit or the scheduler allow.
    #[must_use]
    pub fn has_stream_data(&self) -> bool {
        self.session.streams.want_to_send() || !self.session.messages.sender.is_idle()
    }

    /// Control frames wait that the peer may be blocked for.
    #[must_use]
    pub fn has_urgent_control(&self) -> bool {
        !self.path_marks.is_empty() || self.session.has_control()
    }

    /// Where a path stands; `None` once it is forgotten.
    #[must_use]
    pub fn path_state(&self, id: PathId) -> Option<PathState> {
        self.paths.get(id).map(Path::state)
    }

    /// Since when no path is left; `None` while there is one.
    #[must_use]
    pub fn detached_since(&self) -> Option<Instant> {
        self.contact.detached_since()
    }

    /// Bytes of streams and messages that are kept: written and unacknowledged, or received and unread.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.session.streams.buffered() + self.session.messages.buffered()
    }

    /// What this connection keeps, in numbers.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            paths: self.paths.len(),
            unseen_reports: self.paths.unseen(),
            segments: self.paths.values().map(|p| p.outgoing.segments().len()).sum(),
            streams: self.session.streams.len(),
            pieces: self.session.streams.pieces(),
            messages: self.session.messages.len(),
            events: self.events.len(),
        }
    }
}
