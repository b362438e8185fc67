//! `min-rtt`: the path with the shortest round trip that has room (the default of kernel MPTCP).

use super::{Choice, Input, Scheduler};

#[derive(Debug)]
pub(super) struct MinRtt;

impl Scheduler for MinRtt {
    fn choose(&self, input: &Input<'_>) -> Choice {
        let here = input.here;
        let shorter = |other: &&super::PathSnapshot| (other.srtt, other.id) < (here.srtt, here.id);
        match input.others().filter(|other| other.room).any(|other| shorter(&other)) {
            true => Choice::Leave,
            false => Choice::Send(here.chunk()),
        }
    }
}
