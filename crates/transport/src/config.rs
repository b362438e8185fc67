//! What an endpoint can be told about how to behave; the defaults suit most.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_proto::{
    EARLY_DATA_WINDOW, HandoverMode, MESSAGE_WINDOW, Params, Pool, SchedulerKind, Timeouts,
};

use crate::carrier::Carriers;
use crate::dial::HttpProxy;
use crate::policy::PathPolicy;
use crate::registry::Limits;

/// Streams that a peer may open before it is allowed more.
const FIRST_STREAMS: u64 = 1024;
/// What streams may hold unread, counted in windows of their connection.
const UNREAD_WINDOWS: u64 = 24;

/// Limits and times of an endpoint and its connections.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long a connection's state is kept without any path. Default 24 h. The shorter of both
    /// sides' counts in practice.
    pub linger: Duration,
    /// How long connections wait for what; what lies outside of its range is brought within. A living
    /// connection's can be changed ([`Connection::set_timeouts`](crate::Connection::set_timeouts)).
    pub timeouts: Timeouts,
    /// How long `connect` tries. Default 20 s.
    pub connect_timeout: Duration,
    /// How long a peer may take from its TCP connection to its first whole segment. Default 10 s.
    pub handshake_timeout: Duration,
    /// Peers that may be in their handshake at once; the oldest from the address (IPv6: the /64 network) that
    /// has the most of them makes room. Default 1024.
    pub max_half_open: usize,
    /// Accepted connections kept at once, with or without a path. Detached ones make room: those that the
    /// client never confirmed first, then the longest detached. Default 65 536.
    pub max_connections: usize,
    /// Of these, connections that one peer may have. Its own detached ones make room; while all of them are
    /// in use, it is told that we are busy. Default 4096, a sixteenth of all.
    pub max_connections_per_peer: usize,
    /// Bytes kept for one peer's accepted connections, written and not acknowledged or received and not read,
    /// with or without a path. Beyond that the peer's longest detached connection is given up, or the one
    /// that holds most. Default 512 MiB: sixteen connections with full windows and buffers, or one with as
    /// much as streams that are not read may hold.
    pub max_bytes_per_peer: u64,
    /// Bytes kept for connections that have no path; the peer that holds most of it gives its longest
    /// detached connection up. Default 256 MiB.
    pub max_detached_bytes: u64,
    /// Bytes that the peer may send on one stream before the application reads. A stream begins with 64 KiB
    /// and grows up to this while its reader keeps up. Default 8 MiB.
    pub stream_window: u64,
    /// Bytes of all streams that the peer may have under way. Streams that the application does not read take
    /// nothing from it: they may hold 24 times as much together. Default 16 MiB.
    pub window: u64,
    /// Bytes of messages that the peer may have under way or unread here, each with 256 bytes more than its
    /// size; a message may have almost half of it. 0 takes no messages. Default 32 MiB and 512 bytes, with
    /// which messages of up to 16 MiB are taken.
    pub message_window: u64,
    /// Bytes kept for one stream until the peer has them. Default 8 MiB.
    pub stream_send_buffer: u64,
    /// Bytes kept for all streams until the peer has them. Default 16 MiB.
    pub send_buffer: u64,
    /// Bytes of one stream that may wait to be sent for the first time while a path is up; a writer
    /// that is further ahead waits. Default 256 KiB.
    pub stream_unsent: u64,
    /// Streams that the peer may have open at once. It begins with 1024, and is allowed more, up to this, as
    /// it uses them. Default 65 536.
    pub max_streams: u64,
    /// How connections use several paths. Unless it is `single`, the peer is told and does the same. Default
    /// `single`: one path at any moment.
    pub handover: HandoverMode,
    /// How this side shares its data out among the paths. Default `earliest-arrival`.
    pub scheduler: SchedulerKind,
    /// Which paths connections should have. Default: one over each interface.
    pub paths: PathPolicy,
    /// Which carriers are dialled with. Default [`Carriers::Auto`].
    pub carriers: Carriers,
    /// Look for a direct path while one through a relay carries. Without, the peer is not told where this
    /// side is seen, and a connection that has begun through a relay stays there until its path is lost.
    /// Default true.
    pub direct_paths: bool,
    /// Tell in records and tickets where this host is in its private networks, and peers where it went there.
    /// Without, only what is [advertised](crate::Builder::advertise), mapped by a router or public is told,
    /// and places behind relays. A peer that was let in through a relay still hears of the others, where a
    /// direct path is looked for. Default true.
    pub private_addresses: bool,
    /// An HTTP proxy that is asked, over TCP, for places that do not answer directly. Default none.
    pub http_proxy: Option<Arc<HttpProxy>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(24 * 3600),
            timeouts: Timeouts::default(),
            connect_timeout: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(10),
            max_half_open: 1024,
            max_connections: 65_536,
            max_connections_per_peer: 4096,
            max_bytes_per_peer: 512 << 20,
            max_detached_bytes: 256 << 20,
            stream_window: 8 << 20,
            window: 16 << 20,
            message_window: MESSAGE_WINDOW,
            stream_send_buffer: 8 << 20,
            send_buffer: 16 << 20,
            stream_unsent: 256 << 10,
            max_streams: 65_536,
            handover: HandoverMode::default(),
            scheduler: SchedulerKind::default(),
            paths: PathPolicy::default(),
            carriers: Carriers::default(),
            direct_paths: true,
            private_addresses: true,
            http_proxy: None,
        }
    }
}

impl Config {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections,
            max_connections_per_peer: self.max_connections_per_peer,
            max_bytes_per_peer: self.max_bytes_per_peer,
            max_detached_bytes: self.max_detached_bytes,
        }
    }

    pub(crate) fn engine(&self, pool: &Pool) -> whimbrel_proto::Config {
        whimbrel_proto::Config {
            params: Params {
                max_data: self.window,
                max_stream_data: self.stream_window.min(EARLY_DATA_WINDOW),
                max_streams: self.max_streams.min(FIRST_STREAMS),
                linger: self.linger,
                messages: self.message_window,
                punch: self.direct_paths,
                search: self.direct_paths,
                observed: self.direct_paths,
                ..Params::default()
            },
            streams: self.max_streams,
            stream_window: self.stream_window,
            unread: self.window.saturating_mul(UNREAD_WINDOWS),
            stream_send_buffer: self.stream_send_buffer,
            send_buffer: self.send_buffer,
            stream_unsent: self.stream_unsent,
            timeouts: self.timeouts,
            handover: self.handover,
            scheduler: self.scheduler,
            pool: pool.clone(),
        }
    }
}
