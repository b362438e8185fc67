//! The path manager: which paths a connection should have, and getting them.
//!
//! ```text
//! policy   what is allowed and what is liked                       pure
//! survey   how things are: interfaces, the peer's addresses, paths
//! plan     what should change, given how things are                pure
//! joins    attempts under way, and when to try again
//! attempt  one attempt: from sockets to a path that was answered
//! joining  opening one path over a carrier that stands
//! pending  paths that wait for their answers
//! takeover  which path takes over from which
//! upgrade  from a relayed path to a direct one
//! ```

mod attempt;
mod joining;
mod joins;
mod pending;
mod plan;
mod policy;
mod survey;
mod takeover;
mod upgrade;

pub(crate) use joining::{Joiner, Openings};
pub(crate) use joins::Joins;
pub(crate) use plan::plan;
pub use policy::{BadRule, Interface, InterfaceRule, PathPolicy, Policy, Selector, UnknownPolicy};
pub(crate) use survey::{first_ways, survey};
pub(crate) use takeover::Takeovers;
pub(crate) use upgrade::upgrade;
