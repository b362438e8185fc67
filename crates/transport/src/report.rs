//! What an application is told of its connections.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_base::{ConnectionId, EndpointId, Name};
use whimbrel_proto::{
    CloseCode, ClosedBy, Delays, FlowStats, HandoverMode, MessageStats, PathState, Priority, SchedulerKind,
    Side,
};

use crate::carrier::{CarrierKind, CarrierStats};
use crate::cause::DownCause;
use crate::locator::Locator;
use crate::signal::Signal;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReason {
    /// By whom.
    pub by: ClosedBy,
    /// The code.
    pub code: CloseCode,
    /// In words; may be empty.
    pub reason: String,
}

impl From<(ClosedBy, CloseCode, &str)> for CloseReason {
    fn from((by, code, reason): (ClosedBy, CloseCode, &str)) -> Self {
        Self { by, code, reason: reason.to_owned() }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            ClosedBy::Local => "here",
            ClosedBy::Peer => "by the peer",
        };
        write!(f, "{} {by}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

/// What happens to a connection underneath.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// A path carries data, for the first time or again after it was suspect.
    PathUp {
        /// Its number.
        path: u64,
        /// Our end.
        local: SocketAddr,
        /// The peer's end: where it was dialled, or where it dialled from.
        remote: Locator,
        /// How long the connection had no working path before, if it had none.
        recovery: Option<Duration>,
    },
    /// A path makes no progress.
    PathSuspect {
        /// Its number.
        path: u64,
    },
    /// A path is gone.
    PathDown {
        /// Its number.
        path: u64,
        /// Our end.
        local: SocketAddr,
        /// The peer's end: where it was dialled, or where it dialled from.
        remote: Locator,
        /// Why.
        cause: DownCause,
    },
    /// The Wi-Fi beneath a path is received so weakly that it may be lost soon, or is well again. Told where
    /// somebody [says how it is received](crate::Endpoint::set_signals). The path goes on as before, but is
    /// asked for signs of life more often.
    PathSignal {
        /// Its number.
        path: u64,
        /// How strong the signal is, in dBm. `None` where that is not known any more, which counts as well.
        dbm: Option<i8>,
        /// Whether it is weak from now on.
        is_weak: bool,
    },
    /// No path works, and nothing was heard of the peer for as long as
    /// [`Timeouts::unreachable_after`](crate::Timeouts) says. Said again while it lasts, each second unless
    /// [`Timeouts::unreachable_every`](crate::Timeouts) says otherwise.
    Unreachable {
        /// For how long no path has worked.
        lasts: Duration,
    },
    /// A path works again, after the peer was called unreachable.
    Reachable {
        /// For how long none did.
        after: Duration,
    },
    /// The peer was put to sleep: it has no path, and is not missing, until it is woken.
    PeerSuspended,
    /// The peer is awake again, perhaps on another host.
    PeerResumed,
    /// The peer's end went over to another key, by the signed word of the key before. From now on the peer is
    /// known by the new one.
    PeerHandedOver {
        /// The peer's key until now.
        from: EndpointId,
        /// Its key from now on.
        to: EndpointId,
    },
    /// The peer set another handover mode, which holds for both.
    HandoverChanged(HandoverMode),
    /// The peer set a path's priority, which holds for both.
    PriorityChanged {
        /// Its number.
        path: u64,
        /// Whether it carries data, or stands by.
        priority: Priority,
    },
    /// So many events were missed by a listener that fell behind.
    Missed(u64),
    /// The connection is over.
    Closed {
        /// The code.
        code: CloseCode,
        /// In words.
        reason: String,
    },
}

/// What happens to an endpoint's connections, and to attempts at one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointEvent {
    /// A connection is established: the other side has accepted, or was accepted and has answered.
    Established {
        /// Its id, the same on both sides.
        id: ConnectionId,
        /// Who is at the other end.
        peer: EndpointId,
        /// Which side this is: the client dialled.
        side: Side,
    },
    /// An attempt at a connection failed: the peer refused or was not reached, the name was not found, or
    /// this side refused the peer.
    Failed {
        /// Who is, or would have been, at the other end, where known.
        peer: Option<EndpointId>,
        /// The name that was asked for, where one was.
        name: Option<Name>,
        /// Which side this is: the client dialled.
        side: Side,
        /// Why, in words; some of it may be the peer's.
        reason: String,
    },
    /// Something happened to a connection that was established.
    Connection {
        /// Its id, the same on both sides.
        id: ConnectionId,
        /// Who is at the other end.
        peer: EndpointId,
        /// Which side this is: the client dialled.
        side: Side,
        /// What.
        event: ConnectionEvent,
    },
    /// So many events were missed by a listener that fell behind.
    Missed(u64),
}

/// Where a path stands, and how it does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PathInfo {
    /// Its number.
    pub id: u64,
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end: where it was dialled, or where it dialled from.
    pub remote: Locator,
    /// Where it stands.
    pub state: PathState,
    /// Whether it carries data, or stands by.
    pub priority: Priority,
    /// Bytes a second that it was seen to deliver; `None` before anything was measured.
    pub rate: Option<u64>,
    /// Smoothed round-trip time, as the engine measures it.
    pub srtt: Duration,
    /// Bytes sent over it.
    pub bytes_sent: u64,
    /// Bytes received over it.
    pub bytes_received: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// For how long it has existed.
    pub age: Duration,
    /// How well the Wi-Fi beneath it is received; `None` if it is none, or nobody
    /// [tells](crate::Endpoint::set_signals).
    pub signal: Option<Signal>,
    /// What it runs on.
    pub carrier: CarrierKind,
    /// What the carrier knows of it.
    pub carrier_stats: Option<CarrierStats>,
}

/// One of an endpoint's connections, at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Its id, the same on both sides.
    pub id: ConnectionId,
    /// Who is at the other end.
    pub peer: EndpointId,
    /// Which side this is: the client dialled.
    pub side: Side,
    /// Its counters and paths.
    pub stats: ConnectionStats,
}

/// Counters of a connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Stream bytes sent, each counted once.
    pub bytes_sent: u64,
    /// Stream bytes sent again, for whatever reason.
    pub bytes_resent: u64,
    /// Of these, bytes sent twice although their path was not lost: because another would bring them sooner,
    /// or because everything goes everywhere.
    pub bytes_reinjected: u64,
    /// Stream bytes received, each counted once.
    pub bytes_received: u64,
    /// Stream bytes that arrived although they were there already.
    pub bytes_duplicate: u64,
    /// What became of messages.
    pub messages: MessageStats,
    /// How long the messages took that the peer has.
    pub message_delays: Delays,
    /// The same for each flow of this side, by number.
    pub flows: Vec<FlowStats>,
    /// How the connection uses its paths.
    pub handover: HandoverMode,
    /// How this side shares its data out among them.
    pub scheduler: SchedulerKind,
    /// Times that the connection went over to another path.
    pub moves: u64,
    /// How long the last outage lasted.
    pub last_recovery: Option<Duration>,
    /// For how long no path has worked, if none does.
    pub unreachable: Option<Duration>,
    /// A direct path is being looked for at this moment, while one through a relay carries: this side sends
    /// or dials for it.
    pub looks_for_direct: bool,
    /// The paths.
    pub paths: Vec<PathInfo>,
}
