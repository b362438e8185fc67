//! A user's group: devices, friends, what they are called and may do; the same on all of the user's devices,
//! after weeks apart, without a server (*A TCP Service Migration Protocol for Single User Multiple Devices*,
//! §V).
//!
//! Each device appends what it changes to a log of its own, a signed hash chain. A device's copy of the group
//! follows from all logs that it has, in whatever order they came: `docs/devices.md` has the rules and why
//! they are safe.
//!
//! ```text
//! op, label        what entries say
//! time             hybrid logical time, which sorts them
//! run, chain       entries, signatures, the log of one device, and proof of two histories
//! rights           whose entries count
//! group            what follows: devices, friends, and unique names
//! checkpoint       what the entries came to that are not kept any more
//! log              all logs: writing, exchanging
//! vector           what somebody has
//! wire             how that is written
//! store            the file of a device
//! replica          a log in a file or in memory
//! sync             two devices over a connection
//! mailbox          devices that are never up at once, by way of a service that cannot read
//! ```

mod chain;
mod checkpoint;
mod group;
mod label;
mod log;
mod mailbox;
mod op;
mod replica;
mod rights;
mod run;
mod store;
mod sync;
mod time;
mod vector;
mod wire;

#[cfg(test)]
mod tests;

pub use chain::{MAX_LOG, MAX_UNTRUSTED};
pub use group::{
    Device, Friend, FriendDevice, Group, MAX_DEVICES, MAX_FRIEND_DEVICES, MAX_FRIENDS, MAX_REMOVED, Stamp,
};
pub use label::{Label, LabelError};
pub use log::{Log, MANY as ENTRIES_TO_CHECKPOINT, MAX_AUTHORS, Refusal, Report, Update, WriteError};
pub use mailbox::{Mailbox, Piece};
pub use op::{Last, Op, Rights, Subject, Visibility};
pub use replica::Replica;
pub use run::{BadRun, MAX_RUN};
pub use store::{Store, StoreError};
pub use sync::{MAX_ROUNDS, Met, SyncError, answer, call};
pub use time::{Hybrid, MAX_AHEAD};
pub use vector::{Digest, Vector};
pub use wire::{MAX_MESSAGE, MAX_UNPACKED, WireError};

/// The decoder of what devices send each other. What is here may change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Decodes bytes as a message between devices, and lets a log take it.
    pub fn message(bytes: &[u8]) {
        crate::sync::hear_anything(bytes);
    }

    /// Takes bytes for pieces of what devices leave for each other, and for what these say.
    pub fn letter(bytes: &[u8]) {
        crate::mailbox::hear_anything(bytes);
    }
}
