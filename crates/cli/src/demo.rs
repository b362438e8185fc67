//! The parts of `whimbrel demo`.
//!
//! ```text
//! curl ─tcp→ whimbrel forward ═══whimbrel═══ whimbrel expose ─tcp→ web server
//!                        └──── whimbrel names serve ────┘
//! ```
//!
//! The three `whimbrel` commands and curl are processes of their own, as they would be on three machines.
//! Each machine is an address out of 127.0.0.0/8; it moves when its command is told to use another one. One
//! with two links has two addresses.

pub(crate) mod client;
pub(crate) mod events;
mod gate;
pub(crate) mod links;
pub(crate) mod reach;
pub(crate) mod stage;
mod web;

use std::time::Duration;

use serde::Serialize;

/// How one event went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) event: &'static str,
    /// From the moment that the new address is usable to the first new byte at the HTTP client.
    pub(crate) recovery_ms: Option<f64>,
    /// How long the HTTP client got nothing, altogether.
    pub(crate) silence_ms: Option<f64>,
    pub(crate) bytes_resent: u64,
}

pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}
