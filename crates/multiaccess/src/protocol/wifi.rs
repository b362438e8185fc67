//! What is told of a network that is Wi-Fi.

use serde::{Deserialize, Serialize};

/// What the driver says of the link to the access point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wifi {
    /// How strong the access point is heard, in dBm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_dbm: Option<i8>,
    /// The rate at which packets come through the air, in bytes per second: above what programs get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<f64>,
    /// The rate at which they are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<f64>,
    /// The share of the time in which the channel is busy, by whomever, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
}
