//! What the engine tells its driver, and what it counts.

mod queue;

use std::net::SocketAddr;
use std::time::Duration;

use whimbrel_base::EndpointId;

use crate::error::CloseCode;
use crate::flow::{FlowId, MessageId, Outcome};
use crate::handover::{HandoverMode, Priority};
use crate::ids::{PathId, StreamId};
use crate::path::PathState;

pub(crate) use queue::Events;

/// Who ended the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// This side.
    Local,
    /// The other side.
    Peer,
}

/// Why a path was given up, as far as the engine knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathEnd {
    /// The driver said so, of a path that worked or was not answered yet: it knows why.
    Here,
    /// It made no progress any more.
    Silent,
    /// It was retired, or another one took its place.
    Retired,
    /// The peer gave it up.
    ByPeer,
    /// The peer did not let it in.
    Refused,
}

/// Something that the driver or the application should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer accepted; parameters are known.
    Established,
    /// The peer opened a stream; take it with `accept_stream`.
    StreamOpened(StreamId),
    /// A read would make progress.
    Readable(StreamId),
    /// A write would make progress, or the stream's sending half ended.
    Writable(StreamId),
    /// Everything written, and the end, has reached the peer.
    Drained(StreamId),
    /// Messages wait to be taken, where none did before.
    MessageReadable,
    /// Messages of journals wait to be taken, where none did before.
    JournalReadable,
    /// A flow whose queue was full has room for messages again.
    FlowWritable(FlowId),
    /// What became of a message of this side.
    MessageDone(MessageId, Outcome),
    /// A new stream may be opened again.
    StreamsAvailable,
    /// A path answered and carries data.
    PathUp(PathId),
    /// No progress on a path; new ones should be tried.
    PathSuspect(PathId),
    /// A suspect path made progress again.
    PathRevived(PathId),
    /// A path is given up, for this reason; its carrier should be closed.
    PathDown(PathId, PathEnd),
    /// No path works, and nothing was heard of the peer for as long as
    /// [`unreachable_after`](crate::Timeouts::unreachable_after) says. Said again while it lasts, if somebody
    /// [follows](crate::Connection::follow_outages) it.
    Unreachable {
        /// For how long no path has worked.
        lasts: Duration,
    },
    /// A path works again, after the peer was called unreachable.
    Reachable {
        /// For how long none did.
        after: Duration,
    },
    /// The peer told where it hears notices.
    PeerAddresses(Vec<SocketAddr>),
    /// The peer stated candidates, and asks to punch towards them.
    PeerCandidates,
    /// The peer announced an address where it can be reached, or withdrew it (`None`).
    PeerAddress {
        /// Which of the peer's addresses this is.
        id: u8,
        /// Where, and whether paths to it should be backup ones.
        address: Option<(SocketAddr, Priority)>,
    },
    /// The peer set another handover mode, which holds for both.
    HandoverChanged(HandoverMode),
    /// A path's priority changed by the peer's word.
    PriorityChanged(PathId, Priority),
    /// The peer was written down: it has no path, and is not missing, until it is read back.
    PeerSuspended,
    /// The peer is back, perhaps as another copy somewhere else.
    PeerResumed,
    /// The peer knows that this side leaves.
    SuspendHeard,
    /// Client: the server's owner has signed that its end goes to another key. If that is welcome,
    /// [`expect_peer`](crate::Connection::expect_peer) it.
    PeerAssigned {
        /// The new owner.
        to: EndpointId,
        /// Where it can be reached, if that is known.
        addresses: Vec<SocketAddr>,
    },
    /// The peer knows to whom this side's end goes.
    AssignHeard,
    /// The peer's end went over to another key, by the word of the key before.
    PeerHandedOver {
        /// The peer's key until now.
        from: EndpointId,
        /// Its key from now on.
        to: EndpointId,
    },
    /// The connection is over.
    Closed {
        /// By whom.
        by: ClosedBy,
        /// Why.
        code: CloseCode,
        /// Why, for people.
        reason: String,
    },
}

/// Counters of one connection, all 64-bit (`docs/lessons.md`, 13).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Stream bytes sent for the first time.
    pub stream_bytes_sent: u64,
    /// Stream bytes sent again.
    pub stream_bytes_resent: u64,
    /// Of these, those that went again although their path was not lost: because another would bring them
    /// sooner, or because everything goes everywhere (`redundant`).
    pub stream_bytes_reinjected: u64,
    /// New stream bytes received.
    pub stream_bytes_received: u64,
    /// Stream bytes that arrived although they were there already.
    pub stream_bytes_duplicate: u64,
    /// Paths that were added after the first.
    pub paths_joined: u64,
}

/// A snapshot of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// The path.
    pub id: PathId,
    /// Where it stands.
    pub state: PathState,
    /// Whether it is a backup path.
    pub priority: Priority,
    /// Smoothed round-trip time as the engine sees it.
    pub srtt: Duration,
    /// Smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Bytes handed to the carrier.
    pub bytes_sent: u64,
    /// Bytes taken from the carrier.
    pub bytes_received: u64,
    /// Bytes not acknowledged yet.
    pub in_flight: u64,
    /// Bytes a second that the path was seen to deliver; `None` before anything was measured.
    pub rate: Option<u64>,
}

/// How many things a connection keeps: what its peer could make it spend memory on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Paths, live or lost and not settled.
    pub paths: usize,
    /// Answers about paths that were never seen, waiting for their acknowledgement.
    pub unseen_reports: usize,
    /// Records of segments sent and not acknowledged.
    pub segments: usize,
    /// Streams that are not over in both directions.
    pub streams: usize,
    /// Pieces of stream data that wait for others before them.
    pub pieces: usize,
    /// Messages that have no end yet, or were not taken.
    pub messages: usize,
    /// Events that were not polled.
    pub events: usize,
}
