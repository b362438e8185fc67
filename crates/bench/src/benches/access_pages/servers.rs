//! How the web server's TCP is set.

use std::fs;

/// Servers as in the paper, or as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Servers {
    /// Reno, for the paper's figures.
    #[default]
    Paper,
    /// Whatever this host's kernel has by itself.
    Shipped,
}

/// What new connections have, unless a route says something else. The lab's hosts have the same.
const OF_THE_HOST: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// As the paper has it on its servers.
const OF_THE_PAPER: &str = "reno";

impl Servers {
    /// What their routes are to have. `None`: nothing, and the host's default counts.
    pub(super) fn congestion_control(self) -> Option<&'static str> {
        (self == Self::Paper).then_some(OF_THE_PAPER)
    }

    /// As a result names them.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Shipped => "shipped",
        }
    }

    /// What their connections have, for the result.
    pub(super) fn effective(self) -> String {
        match self.congestion_control() {
            Some(name) => name.to_owned(),
            None => fs::read_to_string(OF_THE_HOST)
                .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
        }
    }
}
