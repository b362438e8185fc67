//! The path manager: which paths a connection should have, and getting them.
//!
//! ```text
//! survey   how things are: interfaces, the peer's addresses, paths
//! plan     what should change, given how things are                pure
//! joins    attempts under way, and when to try again
//! attempt  one attempt: from sockets to a path that was answered
//! joining  opening one path over a carrier that stands
//! dialling whom to dial, as whom, and along which ways
//! ahead    carriers for a connection that is about to be handed over
//! pending  paths that wait for their answers
//! relayed  the relayed path that is to become a direct one
//! upgrade  from a relayed path to a direct one
//! exit     from which address a direct path may leave, where the policy chooses
//! ```
//!
//! What is allowed and what is liked is said by a [policy](crate::policy).

mod ahead;
mod attempt;
mod dialling;
mod exit;
mod joining;
mod joins;
mod pending;
mod plan;
mod relayed;
mod survey;
mod upgrade;
mod weighing;

pub(crate) use ahead::{Ahead, Kept};
pub(crate) use joining::{Joiner, Openings};
pub(crate) use joins::Joins;
pub(crate) use plan::plan;
pub(crate) use survey::{first_ways, survey};
pub(crate) use upgrade::upgrade;
