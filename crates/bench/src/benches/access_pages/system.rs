//! Ways to load a page: with no proxy, or through the proxy with a policy of the manager.

use std::fmt;

use whimbrel_access::PolicySpec;

/// One of the ways that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum System {
    /// The browser by itself, which goes where the kernel leads: over the first link.
    NoProxy,
    /// Through the proxy, everything over this link.
    Single(u8),
    RoundRobin,
    Eaf,
    EafMptcp,
    /// All over the kernel's Multipath TCP, the first link first.
    Mptcp,
    Whimbrel,
}

impl System {
    pub(super) const ALL: [Self; 8] = [
        Self::NoProxy,
        Self::Single(1),
        Self::Single(2),
        Self::RoundRobin,
        Self::Eaf,
        Self::EafMptcp,
        Self::Mptcp,
        Self::Whimbrel,
    ];

    /// The manager's policy; without a proxy there is none.
    pub(super) fn policy(self) -> Option<PolicySpec> {
        (self != Self::NoProxy).then(|| self.simulated())
    }

    /// The policy that the simulator loads pages by in its place.
    pub(super) fn simulated(self) -> PolicySpec {
        match self {
            Self::NoProxy => PolicySpec::named("single").on(1),
            Self::Single(link) => PolicySpec::named("single").on(link),
            Self::RoundRobin => PolicySpec::named("round-robin"),
            Self::Eaf => PolicySpec::named("eaf"),
            Self::EafMptcp => PolicySpec::named("eaf-mptcp"),
            Self::Mptcp => PolicySpec::named("mptcp").on(1),
            Self::Whimbrel => PolicySpec::named("whimbrel"),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProxy => f.write_str("no proxy"),
            Self::Single(link) => write!(f, "single {link}"),
            Self::RoundRobin => f.write_str("round-robin"),
            Self::Eaf => f.write_str("eaf"),
            Self::EafMptcp => f.write_str("eaf-mptcp"),
            Self::Mptcp => f.write_str("mptcp"),
            Self::Whimbrel => f.write_str("whimbrel"),
        }
    }
}
