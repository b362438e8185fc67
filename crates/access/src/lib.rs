//! Intents, path estimates and policies: what an application knows about its traffic chooses the network it
//! travels on.
//!
//! Pure: no sockets, no clock, no randomness that is not seeded by the caller. The same policies drive the
//! page-load simulator and live traffic. After *Socket Intents: OS Support for Using Multiple Access
//! Networks* (IFIP Networking 2018).
//!
//! ```
//! use whimbrel_access::*;
//!
//! // Near and slow; far, fast and metered.
//! let near = PathEstimate::known(Seconds(0.01), BytesPerSecond(1e5));
//! let far = PathEstimate { metered: true, ..PathEstimate::known(Seconds(0.1), BytesPerSecond(1e7)) };
//! let intents: Intents = "size-received=1000000 cost=ignore".parse()?;
//! let situation = Situation {
//!     now: Seconds::ZERO,
//!     granularity: Granularity::Stream,
//!     intents: &intents,
//!     paths: &[near, far],
//!     destinations: &[],
//!     connections: &[],
//! };
//! let mut policy = PolicySpec::named("whimbrel").build()?;
//! let mut forecast = Analytic::new(situation, policy.sharing(), 100_000);
//! let mut decision = Decision::default();
//! policy.decide(&situation, &mut forecast, &mut decision);
//! assert_eq!(decision.best().map(|best| best.choice), Some(Choice::open(PathId(1))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod analytic;
mod choice;
mod decision;
mod estimate;
mod forecast;
mod granularity;
mod intents;
mod module;
mod policies;
mod policy;
mod radio;
mod registry;
mod situation;
mod spec;
mod units;

pub use analytic::{Analytic, Sharing};
pub use choice::{Choice, ConnectionId, DestinationId, MAX_PATHS, PathId, PathList};
pub use decision::{Decision, Estimate, Part, Ranked, Reason, Rule};
pub use estimate::{FIRST_WINDOW, PathEstimate, Rates, STALE};
pub use forecast::Forecast;
pub use granularity::Granularity;
pub use intents::{Burstiness, Category, Cost, IntentError, Intents, Key, Resilience, Timeliness};
pub use module::{Module, PolicyError, settings};
pub use policy::Policy;
pub use radio::Radio;
pub use registry::{NAMES, Registry};
pub use situation::{Connection, Destination, Situation, UnderWay};
pub use spec::PolicySpec;
pub use units::{BytesPerSecond, Seconds};
