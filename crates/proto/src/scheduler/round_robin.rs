//! `round-robin`: chunk by chunk, the path with room that has waited longest.

use super::{CHUNK, Choice, Input, Scheduler};

#[derive(Debug)]
pub(super) struct RoundRobin;

impl Scheduler for RoundRobin {
    fn choose(&self, input: &Input<'_>) -> Choice {
        let here = (input.here.last_used, input.here.id);
        match input.others().any(|other| other.room && (other.last_used, other.id) < here) {
            true => Choice::Leave,
            false => Choice::Send(CHUNK),
        }
    }
}
