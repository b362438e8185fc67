//! Units that are under way, of which the end may come another way.

use serde::{Deserialize, Serialize};

/// Says of a unit that it is under way, and asks whether the end of it should come another way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnderWay {
    /// The connection that it comes on: one of those that the question lists.
    pub connection: u32,
    /// When all of it will be there if nothing changes, in milliseconds from now.
    pub completes_ms: f64,
    /// Nothing comes of it at present. Should all of it be asked for over another network too?
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub stands: bool,
}
