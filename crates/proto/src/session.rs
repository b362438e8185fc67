//! What a connection is without any path: credit, memory, and whatever else must survive the loss of all
//! paths.
//!
//! Nothing here knows a point in time; where a duration matters, it is handed in.

pub(crate) mod credit;
pub(crate) mod send_memory;
pub(crate) mod stream_numbers;
