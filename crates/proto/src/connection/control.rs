//! Control frames that wait for the next segment. All are idempotent statements of the newest
//! value, so a lost one is simply marked again.

use std::collections::BTreeSet;

use crate::ids::{PathId, StreamId};
use crate::path::Content;

#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) max_data: bool,
    pub(super) max_streams: bool,
    pub(super) addresses: bool,
    pub(super) close: bool,
    pub(super) handover: bool,
    pub(super) close_ack: bool,
    pub(super) max_stream_data: BTreeSet<StreamId>,
    pub(super) resets: BTreeSet<StreamId>,
    pub(super) stops: BTreeSet<StreamId>,
    pub(super) paths_lost: BTreeSet<PathId>,
    pub(super) retires: BTreeSet<PathId>,
    pub(super) priorities: BTreeSet<PathId>,
    pub(super) addresses_by_id: BTreeSet<u8>,
}

impl Control {
    pub(super) fn is_empty(&self) -> bool {
        let flags =
            [self.max_data, self.max_streams, self.addresses, self.handover, self.close, self.close_ack];
        !flags.contains(&true)
            && self.priorities.is_empty()
            && self.addresses_by_id.is_empty()
            && self.max_stream_data.is_empty()
            && self.resets.is_empty()
            && self.stops.is_empty()
            && self.paths_lost.is_empty()
            && self.retires.is_empty()
    }

    /// Marks what a lost segment carried. Stream data is not control and is left alone.
    pub(super) fn mark(&mut self, content: &Content) {
        match content {
            Content::MaxData => self.max_data = true,
            Content::MaxStreams => self.max_streams = true,
            Content::MaxStreamData(id) => drop(self.max_stream_data.insert(*id)),
            Content::Reset(id) => drop(self.resets.insert(*id)),
            Content::Stop(id) => drop(self.stops.insert(*id)),
            Content::PathLost(path) => drop(self.paths_lost.insert(*path)),
            Content::Retire(path) => drop(self.retires.insert(*path)),
            Content::Addresses(_) => self.addresses = true,
            Content::Address(id) => drop(self.addresses_by_id.insert(*id)),
            Content::Priority(path) => drop(self.priorities.insert(*path)),
            Content::Handover => self.handover = true,
            Content::Close => self.close = true,
            Content::CloseAck => self.close_ack = true,
            Content::Stream { .. } | Content::Accept => {}
        }
    }
}
