//! Connections of Multipath TCP whose subflows the manager chooses.

use super::is_default;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use whimbrel_access::Intents;

/// A connection of Multipath TCP of the client's user. The manager chooses its subflows from now on, until
/// the client is gone; the newest word counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steer {
    /// Where it begins, as it was made.
    pub local: SocketAddr,
    /// Where it leads.
    pub remote: SocketAddr,
    /// What is known of its traffic.
    #[serde(default)]
    pub intents: Intents,
}

/// A subflow that a connection is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steered {
    /// The interface that it leaves by.
    pub interface: String,
    /// The address that it comes from.
    pub source: IpAddr,
    /// Whether data flows over it only while no other works.
    #[serde(default, skip_serializing_if = "is_default")]
    pub backup: bool,
}
