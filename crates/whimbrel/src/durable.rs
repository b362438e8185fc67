//! Messages that outlive the process that sent them.
//!
//! A durable flow is a journal: messages from one endpoint to another, with a label, numbered from 1 on. The
//! sender keeps each in its [store](store) until the receiver's application has acknowledged it and the
//! receiver's disk has that. Connections come and go beneath it: on each, the sender offers its journals, and
//! the receiver says how far it has acknowledged them. So nothing else of a connection has to survive a
//! crash.
//!
//! | what | where |
//! | --- | --- |
//! | the file, and the one thread that writes it | `store` |
//! | what is known in memory, from when the disk has it | `ledger` |
//! | a peer's journal, as its reader sees it | `inbox` |
//! | what is said on one connection, without I/O | `session`, `outgoing`, `wire` |
//! | the task of a connection | `link` |
//! | the task that dials a peer for as long as the state is open | `keeper` |
//! | what an application sees | `state`, `flow`, `message` |

#[cfg(feature = "fuzzing")]
mod anything;
mod change;
mod error;
mod flow;
mod hub;
mod inbox;
mod keeper;
mod ledger;
mod link;
mod message;
mod outgoing;
mod session;
mod state;
mod store;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "fuzzing")]
pub(crate) use anything::hear_anything;
pub use error::StateError;
pub use flow::{DurableFlow, Receipt};
pub use message::DurableMessage;
pub use state::{DurablePeer, State};

/// Longest label of a durable flow, in bytes.
const MAX_LABEL: usize = 64;
/// Largest durable message, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
/// Durable flows to one peer.
const MAX_FLOWS: usize = 16;
/// Peers that a state knows.
const MAX_PEERS: usize = 4096;
/// Messages of a journal that may be under way, or unacknowledged by the application.
const WINDOW_MESSAGES: u64 = 1024;
/// Bytes of these, each message's content and 256 bytes. One message may be larger.
const WINDOW_BYTES: u64 = 1 << 20;
/// What a message takes beside its bytes, of which its stamp is a part: 256 beside its content.
const MESSAGE_COST: u64 = 256 - wire::STAMP as u64;

/// How much may wait for one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Messages, of all durable flows to it.
    pub messages: u64,
    /// Bytes that these take, each message counted with 256 bytes more.
    pub bytes: u64,
}

/// 65 536 messages, 64 MiB.
impl Default for StateLimits {
    fn default() -> Self {
        Self { messages: 65_536, bytes: 64 << 20 }
    }
}

/// What waits for a peer: it is on this side's disk, and the peer has not acknowledged it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owed {
    /// Messages, of all durable flows to it.
    pub messages: u64,
    /// Bytes that these take, each message counted with 256 bytes more.
    pub bytes: u64,
}

/// What a message of a size, its stamp included, takes of limits and windows.
fn cost(size: usize) -> u64 {
    size as u64 + MESSAGE_COST
}

/// Nothing under these locks panics half-way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
