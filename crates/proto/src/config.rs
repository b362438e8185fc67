//! How a connection is set up.

use crate::handover::HandoverMode;
use crate::params::{MAX_GRANT, Params};
use crate::scheduler::SchedulerKind;
use crate::stream::Pool;
use crate::timeouts::Timeouts;

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
    /// How long it waits for what.
    pub timeouts: Timeouts,
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
            timeouts: Timeouts::default(),
            handover: HandoverMode::default(),
            scheduler: SchedulerKind::default(),
            pool: Pool::default(),
        }
    }
}

impl Config {
    /// Brings what an application asked for within what the protocol promises and can express.
    pub(crate) fn keep_promises(&mut self) {
        self.params.keep_promises();
        self.timeouts.clamp();
        self.stream_window = self.stream_window.clamp(self.params.max_stream_data, MAX_GRANT);
        self.unread = self.unread.min(MAX_GRANT);
    }
}
