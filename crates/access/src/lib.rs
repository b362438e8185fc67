//! Intents, path estimates and policies: what an application knows about its traffic chooses the network it
//! travels on.
//!
//! Pure: no sockets, no clock, no randomness that is not seeded by the caller. The same policies drive the
//! page-load simulator and live traffic. After *Socket Intents: OS Support for Using Multiple Access
//! Networks* (IFIP Networking 2018).

mod analytic;
mod choice;
mod decision;
mod estimate;
mod forecast;
mod intents;
mod policies;
mod policy;
mod registry;
mod units;

pub use analytic::Analytic;
pub use choice::{Choice, ConnectionId, MAX_PATHS, PathId, PathList};
pub use decision::{Decision, Estimate, Part, Ranked, Reason, Rule};
pub use estimate::{PathEstimate, STALE};
pub use forecast::Forecast;
pub use intents::{Burstiness, Category, Cost, IntentError, Intents, Key, Resilience, Timeliness};
pub use policy::{Connection, Destination, Policy, Situation, UnderWay};
pub use registry::{NAMES, PolicyError, PolicySpec};
pub use units::{BytesPerSecond, Seconds};
