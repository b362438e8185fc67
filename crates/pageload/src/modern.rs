//! `--model modern`: page loads as browsers and servers do them today. Each effect has its own switch in
//! [`Settings`].
//!
//! A fluid model: between events, every stream moves at a constant rate. Flows of a path share it max-min
//! fairly, each capped by its window per round trip while in slow start (or after a loss). Unlike the paper's
//! model it has no oddities to preserve; what it leaves out: upload of requests, queues, jitter, parsing and
//! rendering.

mod flows;
mod parts;
mod predict;
mod rates;
mod run;
mod settings;
mod trace;
mod world;

pub use run::Simulator;
pub use settings::{Network, Protocol, Settings, Tls};
pub use trace::{Trace, TraceError};
