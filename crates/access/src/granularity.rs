//! What a decision is about.

use serde::{Deserialize, Serialize};

/// The unit of communication that is decided about (Socket Intents §II, Table I).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// A whole new connection, as `connect` makes one. Nothing is reused.
    Connection,
    /// A flow of bytes in order: on a new connection, or on an open one that takes more streams. It is not
    /// split.
    Stream,
    /// A message and its answer, such as an HTTP request. What it receives may come in parts.
    #[default]
    Message,
}
