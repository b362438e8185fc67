//! Connections of Whimbrel in decisions.

use super::Way;
use serde::{Deserialize, Serialize};

/// A connection of Whimbrel, where that is right for what was asked about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ByWhimbrel {
    /// The name of the endpoint to connect to.
    pub endpoint: String,
    /// The endpoint is a gateway, which then connects to the destination.
    #[serde(skip_serializing_if = "super::is_default")]
    pub gateway: bool,
    /// The networks for it, best first: one carries, those in `also` with it, and the others stand by.
    pub ways: Vec<Way>,
    /// Why, in words.
    pub why: String,
}
