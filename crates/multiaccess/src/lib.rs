//! What a host knows of its access networks without asking anybody: the round-trip times of its TCP
//! connections and the counters of its interfaces (*Socket Intents*, §V-E1), as estimates for the policies of
//! `whimbrel-access`.
//!
//! [`Survey`] asks the kernel, over netlink, without privileges. What it makes of the answers is pure:
//! [`RoundTrips`] of all connections from an address, and a [`Meter`] for each counter.

#[cfg(target_os = "linux")]
mod diag;
#[cfg(target_os = "linux")]
mod kernel;
mod meter;
mod round_trips;
#[cfg(target_os = "linux")]
mod survey;

pub use meter::Meter;
pub use round_trips::{RoundTrips, TcpConnection};
#[cfg(target_os = "linux")]
pub use survey::{AccessPath, Survey};
