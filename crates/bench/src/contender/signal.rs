//! Whether the server has learnt that one of the client's addresses is gone.

use std::fs;

use anyhow::{Context, Result};
use whimbrel_transport::{Connection, PathState};

use crate::lab::TwoLinks;

/// Where a network namespace's MPTCP counters are.
const COUNTERS: &str = "/proc/thread-self/net/netstat";

/// What to look at.
pub(crate) enum Signal {
    /// The subject: how many paths of its connection work.
    Paths { connection: Connection, before: usize },
    /// Kernel MPTCP: how many REMOVE_ADDR it has counted.
    Removals { before: u64 },
}

impl Signal {
    pub(super) fn paths(connection: Connection) -> Self {
        let before = working_paths(&connection);
        Self::Paths { connection, before }
    }

    pub(super) fn removals(net: &TwoLinks) -> Result<Self> {
        Ok(Self::Removals { before: removals(net)? })
    }

    pub(crate) fn has_come(&self, net: &TwoLinks) -> bool {
        match self {
            Self::Paths { connection, before } => working_paths(connection) < *before,
            Self::Removals { before } => removals(net).is_ok_and(|now| now > *before),
        }
    }
}

/// Suspect ones are counted: they are missed, but nobody has said that they are gone.
fn working_paths(connection: &Connection) -> usize {
    let paths = connection.stats().paths;
    paths.iter().filter(|path| matches!(path.state, PathState::Active | PathState::Suspect)).count()
}

fn removals(net: &TwoLinks) -> Result<u64> {
    let text = net.server.host.run(|| fs::read_to_string(COUNTERS)).context("no counters")?;
    counter(&text, "MPTcpExt:", "RmAddr").context("the kernel counts no REMOVE_ADDR")
}

/// A counter of `/proc/net/netstat`: a line of names, then a line of values.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let place = lines.next()?.split_whitespace().position(|found| found == name)?;
    lines.next()?.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "TcpExt: A RmAddr\nTcpExt: 1 2\nMPTcpExt: MPCapableSYNRX RmAddr\nMPTcpExt: 3 4\n";
        assert_eq!(counter(text, "MPTcpExt:", "RmAddr"), Some(4));
        assert_eq!(counter(text, "MPTcpExt:", "AddAddr"), None);
    }
}
