//! The policies, one file each.

mod arrival;
mod cheapest;
mod eaf;
mod energy;
mod lowest_latency;
mod mptcp;
mod round_robin;
mod single;
mod threshold;
mod whimbrel;

pub(crate) use cheapest::Cheapest;
pub(crate) use eaf::{Eaf, EafMptcp};
pub(crate) use energy::Energy;
pub(crate) use lowest_latency::LowestLatency;
pub(crate) use mptcp::{First, Mptcp};
pub(crate) use round_robin::RoundRobin;
pub(crate) use single::Single;
pub(crate) use threshold::Threshold;
pub(crate) use whimbrel::Whimbrel;
