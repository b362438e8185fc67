//! What passes between the state in memory and the file: changes, what became of them, and what was there.

use std::collections::BTreeMap;

use whimbrel_base::EndpointId;

use super::inbox::Mark;
use super::wire::Stamp;

/// One of a peer's journals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InboxKey {
    pub(super) peer: EndpointId,
    pub(super) label: String,
    pub(super) journal: u128,
}

/// Something to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A message with its stamp, behind the last one of its journal.
    Append { journal: u64, data: Vec<u8> },
    /// All up to this were acknowledged by the peer.
    Trim { journal: u64, acked: u64 },
    /// The application acknowledges a message of a peer, whose journal has none up to `low` any more.
    Ack { key: InboxKey, low: u64, number: u64, stamp: Stamp },
    /// A peer, new or known better.
    Peer { key: String, target: Option<String>, id: Option<EndpointId> },
    /// A new journal for a peer.
    Journal { peer: String, label: String, id: u128 },
    /// A peer and all that is for it goes.
    Forget { peer: String },
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Done {
    /// The message has this number.
    Appended(u64),
    /// So much is acknowledged now; the mark of another journal had to go for it.
    Marked { mark: Mark, evicted: Option<InboxKey> },
    /// The new journal's number.
    Opened(u64),
    /// It is as it should be.
    Made,
    /// The journal, or the peer, is not there any more.
    Gone,
    /// Journals of too many peers are remembered.
    NoRoom,
}

/// What was in the file when it was opened.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) store: u128,
    /// How often the file was opened, this time included.
    pub(super) opening: u64,
    /// What names them, whom to dial, and their ids.
    pub(super) peers: Vec<(String, Option<String>, Option<EndpointId>)>,
    pub(super) journals: Vec<LoadedJournal>,
    pub(super) marks: BTreeMap<InboxKey, Mark>,
}

/// A journal of this side, as it was in the file.
#[derive(Debug)]
pub(super) struct LoadedJournal {
    pub(super) number: u64,
    pub(super) peer: String,
    pub(super) label: String,
    pub(super) id: u128,
    /// The number of the last message that was written.
    pub(super) end: u64,
    /// Those that are still there, the oldest first: their sizes, stamps included, and stamps.
    pub(super) messages: Vec<(usize, Stamp)>,
}
