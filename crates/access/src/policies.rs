//! The policies, one file each, and the table of them.

mod arrival;
mod cheapest;
mod eaf;
mod energy;
mod lowest_latency;
mod mptcp;
mod round_robin;
mod settings;
mod single;
mod threshold;
mod whimbrel;

use crate::{Module, Policy, PolicyError};
use settings::{plain, with};

/// Makes the policy of this name.
type Make = fn(&str, &toml::Table) -> Result<Box<dyn Policy>, PolicyError>;

/// A module of ours.
#[derive(Clone, Copy)]
pub(crate) struct Ours {
    pub(crate) name: &'static str,
    about: &'static str,
    make: Make,
}

impl Module for Ours {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn make(&self, table: &toml::Table) -> Result<Box<dyn Policy>, PolicyError> {
        (self.make)(self.name, table)
    }
}

/// All of them, those of the paper first.
pub(crate) const OURS: [Ours; 10] = [
    Ours { name: "single", about: "one path", make: with::<single::Settings> },
    Ours { name: "round-robin", about: "the paths take turns", make: with::<round_robin::Settings> },
    Ours { name: "eaf", about: "earliest arrival first", make: plain::<eaf::Eaf> },
    Ours {
        name: "eaf-mptcp",
        about: "earliest arrival first, multipath connections among the choices",
        make: plain::<eaf::EafMptcp>,
    },
    Ours { name: "mptcp", about: "every connection over all paths", make: with::<mptcp::Settings> },
    Ours {
        name: "threshold",
        about: "small units by round-trip time, large ones by rate",
        make: with::<threshold::Settings>,
    },
    Ours {
        name: "lowest-latency",
        about: "the path that answers fastest",
        make: plain::<lowest_latency::LowestLatency>,
    },
    Ours {
        name: "cheapest",
        about: "earliest arrival over unmetered paths while there are any",
        make: plain::<cheapest::Cheapest>,
    },
    Ours {
        name: "energy",
        about: "trades time for leaving the costlier radio asleep",
        make: with::<energy::Settings>,
    },
    Ours {
        name: "whimbrel",
        about: "earliest arrival with a home, splits what is large, honours every intent",
        make: with::<whimbrel::Settings>,
    },
];
