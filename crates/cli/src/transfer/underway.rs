//! What was halted on its way, to go on in another process or at another device.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use whimbrel_base::EndpointId;
use whimbrel_transport::SendHalf;

use super::batch::{Incoming, Place};
use super::inbox::Running;
use super::message::{Offer, VERSION};
use super::source::Source;

/// What was halted on one stream. The stream must be kept as that of [`Underway`] must.
pub(crate) struct Halted {
    pub(super) read: Source,
    pub(super) write: SendHalf,
    pub(super) stage: Stage,
}

/// What a stream is, and how far.
pub(super) enum Stage {
    /// Nothing was offered on it yet.
    Silent,
    /// A file by itself.
    File(SoFar),
    /// A file of a batch.
    Part(SoFar, PartOf),
    /// A batch, whose end is waited for.
    Batch(Box<Whole>),
}

/// To what a file belongs.
#[derive(Clone)]
pub(super) struct PartOf {
    pub(super) place: Place,
    pub(super) batch: Arc<Incoming>,
}

/// A batch that was agreed to.
pub(super) struct Whole {
    pub(super) offer: Offer,
    /// With whom.
    pub(super) agreed: EndpointId,
    pub(super) running: Running,
}

impl Halted {
    /// The file by itself, if it is one.
    pub(crate) fn into_file(self) -> Option<Underway> {
        match self {
            Self { read, write, stage: Stage::File(so_far) } => Some(Underway { read, write, so_far }),
            _ => None,
        }
    }

    /// Whether it is a file by itself.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.stage, Stage::File(_))
    }

    /// The endpoint that sends it.
    pub(crate) fn peer_id(&self) -> EndpointId {
        self.read.stream().peer_id()
    }

    /// Whether nothing was offered yet.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Silent)
    }
}

impl From<Underway> for Halted {
    fn from(file: Underway) -> Self {
        let Underway { read, write, so_far } = file;
        Self { read, write, stage: Stage::File(so_far) }
    }
}

/// A file by itself that was halted on its way. The stream must be kept until its connection sleeps: dropping
/// it ends it.
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
    /// Of a file with this name and, if that is known, this size, of which `at` bytes are there; `before` of
    /// them were before the sender began.
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

    /// The same of a file of this batch, with these directories above it.
    pub(super) fn part_of(mut self, batch: u64, above: Vec<String>) -> Self {
        (self.offer.part_of, self.offer.above) = (Some(batch), above);
        self
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
