//! What goes wrong with durable messages.

use std::path::PathBuf;

use whimbrel_transport::TargetError;

use super::{MAX_FLOWS, MAX_LABEL, MAX_MESSAGE, MAX_PEERS};

/// Why a durable message, or the state that keeps it, is not what was asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another process has the state open, or this one has.
    #[error("{} is open already: end the other process, or give this one a directory of its own", .file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// The file is not what it should be.
    #[error(
        "{} is damaged, or not a file of durable messages: {detail}; restore it, or move it aside, which loses \
         what it owes",
        .file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The file was written by another version.
    #[error("{} has format {found}, and this program reads {expected}: use the newer program", .file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u64,
        /// The one that is read.
        expected: u64,
    },
    /// The disk has no room. What is on it is safe; later calls succeed once there is room.
    #[error("no room on the disk for {}: make some", .file.display())]
    DiskFull {
        /// The file.
        file: PathBuf,
    },
    /// The file cannot be read or written. Later calls open it again.
    #[error("cannot read or write {}: {detail}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system says.
        detail: String,
    },
    /// So much waits for the peer that no more is taken.
    #[error(
        "{messages} messages of {bytes} bytes wait for {peer}, as many as may: wait until it has acknowledged \
         some, or raise the limits"
    )]
    Full {
        /// For whom.
        peer: String,
        /// Messages that wait.
        messages: u64,
        /// What they take, each counted with 256 bytes more.
        bytes: u64,
    },
    /// The message is too large.
    #[error("a durable message of {size} bytes is too large: at most {MAX_MESSAGE} are taken; send parts")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// The label is none.
    #[error("{0:?} is no label of a durable flow: use 1 to {MAX_LABEL} bytes of printable text")]
    Label(String),
    /// The peer has as many durable flows as it may.
    #[error("{peer} has {MAX_FLOWS} durable flows already: use one of them, or forget the peer")]
    TooManyFlows {
        /// Which.
        peer: String,
    },
    /// The state knows as many peers as it may.
    #[error("the state knows {MAX_PEERS} peers, as many as it may: forget some, or use another directory")]
    TooManyPeers,
    /// It is not clear whom to send to.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The peer's side of a connection has no state, or this one's had none when it was made.
    #[error(
        "the connection carries no durable messages: both sides must open their state before it is made, and \
         take messages"
    )]
    Unsupported,
    /// The peer has acknowledged a message that this state has not sent.
    #[error(
        "{peer} has acknowledged messages of {label:?} that were not sent from here: this state is an older \
         copy; bring the newest back, or begin anew with another label"
    )]
    OlderCopy {
        /// Who.
        peer: String,
        /// The flow's label.
        label: String,
    },
    /// The peer was forgotten, and with it what waited for it.
    #[error("the peer was forgotten, and with it what waited for it")]
    Forgotten,
    /// The connection ended meanwhile.
    #[error("the connection is over")]
    Closed,
    /// The state was closed.
    #[error("the state of durable messages was closed: open it again")]
    Stopped,
}
