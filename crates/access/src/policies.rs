//! The policies, one file each.

mod arrival;
mod eaf;
mod mptcp;
mod round_robin;
mod single;

pub(crate) use eaf::{Eaf, EafMptcp};
pub(crate) use mptcp::{First, Mptcp};
pub(crate) use round_robin::RoundRobin;
pub(crate) use single::Single;
