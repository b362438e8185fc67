//! A file that was halted on its way, to go on in another process or at another device.

use serde::{Deserialize, Serialize};
use whimbrel_transport::SendHalf;

use super::message::{Offer, VERSION};
use super::source::Source;

/// A file that was halted on its way. The stream must be kept until its connection sleeps: dropping it ends it.
pub(crate) struct Underway {
    pub(crate) read: Source,
    pub(crate) write: SendHalf,
    pub(crate) so_far: SoFar,
}

/// How far a file is that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SoFar {
    pub(super) offer: Offer,
    /// Bytes that were there before the sender began.
    pub(super) resumed_from: u64,
    /// Bytes that are there.
    pub(super) at: u64,
    pub(super) chunks: bool,
}

impl SoFar {
    /// Of a file with this name and, if that is known, this size, of which `at` bytes are there; `before` of them were
    /// before the sender began.
    pub(crate) fn of(name: String, size: Option<u64>, (before, at): (u64, u64), chunks: bool) -> Self {
        let offer = Offer {
            version: VERSION,
            name,
            size: size.unwrap_or_default(),
            open_ended: size.is_none(),
            ..Offer::default()
        };
        Self { offer, resumed_from: before, at, chunks }
    }

    /// What the file is called.
    pub(crate) fn name(&self) -> &str {
        &self.offer.name
    }

    /// Its size in bytes; `None` if nobody knows it before the end.
    pub(crate) fn size(&self) -> Option<u64> {
        (!self.offer.open_ended).then_some(self.offer.size)
    }

    /// Bytes that were there before the sender began.
    pub(crate) fn before(&self) -> u64 {
        self.resumed_from
    }

    /// Bytes that are there.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Whether the rest comes in chunks.
    pub(crate) fn in_chunks(&self) -> bool {
        self.chunks
    }
}
