//! What two devices tell each other of several files that are on their way together.

use serde::{Deserialize, Serialize};

use super::batch::Progress;
use super::message::Batch;

/// Several files that are on their way together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Together {
    /// What people call the peer.
    pub(crate) peer: String,
    /// As the peer has announced them.
    pub(super) announced: Announced,
    /// The stream on which their end is waited for.
    pub(super) whole: Silent,
    /// Files and directories that were not offered yet, and their bytes.
    pub(super) entries_left: u64,
    pub(super) bytes_left: u64,
    /// Files and directories that have arrived.
    pub(super) arrived: u64,
    /// Those on their way.
    pub(super) parts: Vec<Part>,
    /// Streams on which nothing was offered yet.
    pub(super) silent: Vec<Silent>,
    /// Bytes that are fetched before the connection comes.
    pub(crate) length: u64,
    /// No file may become larger.
    pub(crate) most: u64,
}

/// What the peer has said of all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Announced {
    pub(super) id: u64,
    pub(super) entries: u64,
    pub(super) names: u64,
    pub(super) shown: Vec<String>,
    /// Bytes.
    pub(super) size: u64,
}

/// A stream, and what came out of it and was not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Silent {
    pub(super) stream: u64,
    pub(super) waiting: Vec<u8>,
}

/// A file on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) on: Silent,
    pub(super) above: Vec<String>,
    pub(super) name: String,
    /// In bytes; `None` if nobody knows it before the end.
    pub(super) size: Option<u64>,
    /// Bytes that were there before the sender began, and that are there.
    pub(super) before: u64,
    pub(super) at: u64,
    /// The rest comes in chunks.
    pub(super) chunks: bool,
}

/// Several files that are being sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Going {
    /// What people call the peer.
    pub(crate) peer: String,
    /// As they were announced.
    pub(super) announced: Announced,
    /// The stream on which their end is to be said.
    pub(super) stream: u64,
    /// Those that have begun.
    pub(super) parts: Vec<PartGoing>,
    /// Of those that have arrived: their bytes, those that the peer had before, and those that went on the
    /// way.
    pub(super) size: u64,
    pub(super) resumed_from: u64,
    pub(super) carried: u64,
    /// Files that the peer did not take, or that could not be read.
    pub(super) refused: u64,
    /// Bytes that are fetched before the connection comes.
    pub(crate) length: u64,
}

/// A file that is being sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartGoing {
    pub(super) stream: u64,
    pub(super) name: String,
    /// Bytes that the peer had before.
    pub(super) before: u64,
    /// Bytes that are in the stream, or wait to be, and those behind them.
    pub(super) at: u64,
    pub(super) left: u64,
    /// They go in chunks.
    pub(super) chunks: bool,
    /// Bytes that were written into the stream.
    pub(super) carried: u64,
    /// What is to be written into it before what is left.
    pub(super) waiting: Vec<u8>,
}

impl Going {
    /// How many files there are, and directories with nothing in them.
    pub(crate) fn entries(&self) -> u64 {
        self.announced.entries
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        let (name, waiting) = ("f".to_owned(), b"x".to_vec());
        let (before, at, left, carried) = (1, 2, 3, 4);
        let part = PartGoing { stream: 8, name, before, at, left, chunks: true, carried, waiting };
        Self {
            peer: "p".to_owned(),
            announced: Announced { id: 9, entries: 3, names: 1, shown: vec!["d".to_owned()], size: 300 },
            stream: 4,
            parts: vec![part],
            size: 5,
            resumed_from: 6,
            carried: 7,
            refused: 0,
            length: 300,
        }
    }
}

impl Together {
    /// As the peer has announced them.
    pub(crate) fn announced(&self) -> Batch {
        let Announced { id, entries, names, shown, .. } = self.announced.clone();
        Batch { id, entries, names, shown }
    }

    /// How many files there are, and directories with nothing in them.
    pub(crate) fn entries(&self) -> u64 {
        self.announced.entries
    }

    pub(super) fn progress(&self) -> Progress {
        let Self { entries_left, bytes_left, arrived, .. } = *self;
        Progress { entries_left, bytes_left, arrived }
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        let waiting = |stream, bytes: &[u8]| Silent { stream, waiting: bytes.to_vec() };
        let (above, name) = (vec!["d".to_owned()], "f".to_owned());
        let on = waiting(7, b"x");
        let part = Part { on, above, name, size: Some(300), before: 1, at: 2, chunks: true };
        let shown = vec!["d".to_owned()];
        Self {
            peer: "p".to_owned(),
            announced: Announced { id: 9, entries: 3, names: 1, shown, size: 300 },
            whole: waiting(4, b""),
            entries_left: 1,
            bytes_left: 0,
            arrived: 1,
            parts: vec![part],
            silent: vec![waiting(11, b"y")],
            length: 300,
            most: 400,
        }
    }
}
