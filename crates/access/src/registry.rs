//! Policies by name, and their settings in TOML.

use crate::{PathId, Policy, policies::*};
use serde::{Deserialize, Serialize};

/// The names of all policies.
pub const NAMES: &[&str] = &[
    "single",
    "round-robin",
    "eaf",
    "eaf-mptcp",
    "mptcp",
    "threshold",
    "lowest-latency",
    "cheapest",
    "energy",
    "whimbrel",
];

/// A policy by name with its settings: `name = "single"`, `path = 2`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PolicySpec {
    /// One of [`NAMES`].
    pub name: String,
    /// `single`: the path to use. `round-robin`, `mptcp`: the path to start with. Counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<u8>,
    /// `mptcp`: start each connection on a random path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub random: bool,
    /// `threshold`: units of at least so many bytes go by rate (default 100 kB). `whimbrel`: units below are
    /// not split (default 2 kB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// `whimbrel`: the share of a unit's time that leaving home must save, 0 to 1 (default 0.03).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// `whimbrel`: whether to open connections on further paths before they are needed (default true).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<bool>,
    /// `energy`: what waking each path costs relative to the first (default 1 and 5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Vec<f64>>,
    /// `energy`: how many times as long a unit may take for the energy of one (default 0.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<f64>,
}

/// Why a policy can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such name.
    #[error("there is no policy `{0}`; there are: {list}", list = NAMES.join(" "))]
    Name(String),
    /// Paths count from 1.
    #[error("policy {name}: path {path} is out of range; paths count from 1 to 8")]
    Path {
        /// The policy.
        name: String,
        /// The number given.
        path: u8,
    },
    /// Not understood at all.
    #[error("policy settings: {0}")]
    Toml(String),
}

impl PolicySpec {
    /// A policy with default settings.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: None,
            random: false,
            bytes: None,
            margin: None,
            warm: None,
            energy: None,
            patience: None,
        }
    }

    /// The same on or from this path, counted from 1.
    pub fn on(self, path: u8) -> Self {
        Self { path: Some(path), ..self }
    }

    /// # Errors
    /// [`PolicyError`] if the text is not the settings of a policy that exists.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let spec: Self =
            toml::from_str(text).map_err(|error| PolicyError::Toml(error.message().to_owned()))?;
        spec.build()?;
        Ok(spec)
    }

    /// Make the policy.
    ///
    /// # Errors
    /// [`PolicyError::Name`] if there is none of that name, [`PolicyError::Path`] if its path can't exist.
    pub fn build(&self) -> Result<Box<dyn Policy>, PolicyError> {
        let path = self.path()?;
        Ok(match self.name.as_str() {
            "single" => Box::new(Single { path }),
            "round-robin" => Box::new(RoundRobin::new(path.index())),
            "eaf" => Box::new(Eaf),
            "eaf-mptcp" => Box::new(EafMptcp::default()),
            "mptcp" => Box::new(Mptcp::new(if self.random { First::Random } else { First::Path(path) })),
            "threshold" => Box::new(Threshold { bytes: self.bytes.unwrap_or(100_000) }),
            "lowest-latency" => Box::new(LowestLatency),
            "cheapest" => Box::new(Cheapest),
            "energy" => Box::new(Energy {
                cost: self.energy.clone().unwrap_or_else(|| vec![1.0, 5.0]),
                patience: self.patience.unwrap_or(0.2),
            }),
            "whimbrel" => {
                let default = Whimbrel::default();
                Box::new(Whimbrel {
                    split_from: self.bytes.unwrap_or(default.split_from),
                    margin: self.margin.unwrap_or(default.margin),
                    warms: self.warm.unwrap_or(default.warms),
                })
            }
            other => return Err(PolicyError::Name(other.to_owned())),
        })
    }

    fn path(&self) -> Result<PathId, PolicyError> {
        match self.path {
            None => Ok(PathId(0)),
            Some(path) if (1..=crate::MAX_PATHS as u8).contains(&path) => Ok(PathId(path - 1)),
            Some(path) => Err(PolicyError::Path { name: self.name.clone(), path }),
        }
    }
}
