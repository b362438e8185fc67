//! What can be set of `whimbrel`.

use super::Whimbrel;
use crate::Policy;
use crate::policies::settings::{self, sensible};
use serde::Deserialize;

/// What can be set. The defaults were chosen by simulation of every eighth page in the networks of Table IV
/// (`docs/access.md`).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::policies) struct Settings {
    /// Smaller units are never split, bytes.
    pub(super) bytes: u64,
    /// The share of a unit's time that leaving home must save, from 0 to below 1. For a clearly further path
    /// it is a quarter at least of what fits into the first window.
    pub(super) margin: f64,
    /// Whether to open connections before they are needed.
    pub(super) warm: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { bytes: 2_000, margin: 0.03, warm: true }
    }
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        sensible(self.bytes >= 2, || format!("bytes = {}: less than 2 can't be split", self.bytes))?;
        sensible((0.0..1.0).contains(&self.margin), || {
            format!("margin = {}: it is a share of the time, from 0 to below 1", self.margin)
        })?;
        Ok(Box::new(Whimbrel { settings: self }))
    }
}
