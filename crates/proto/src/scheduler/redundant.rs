//! `redundant`: everything goes on every path; the first copy counts.

use super::{CHUNK, Choice, Input, Scheduler};

#[derive(Debug)]
pub(super) struct Redundant;

impl Scheduler for Redundant {
    fn choose(&self, _: &Input<'_>) -> Choice {
        Choice::Send(CHUNK)
    }

    fn is_redundant(&self) -> bool {
        true
    }
}
