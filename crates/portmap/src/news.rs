//! What an endpoint is told of its routers.

use std::net::SocketAddr;

use crate::mapping::Protocol;

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Where the router is reached for this endpoint: one address, or one for each of TCP and UDP.
    pub places: Vec<SocketAddr>,
    /// How the router was asked.
    pub by: Option<Protocol>,
    /// Why there is none, once that is known.
    pub problem: Option<String>,
    /// What the router's firewall does for the endpoint's own IPv6 addresses.
    pub pinholes: Pinholes,
}

/// Whether peers are let in at the endpoint's own IPv6 addresses. These are told to peers in any case: no
/// place is added by a pinhole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinholes {
    /// The router has not answered yet.
    #[default]
    Unknown,
    /// The host has no global IPv6 address behind a router.
    Needless,
    /// The router says that it lets peers in there, over TCP, UDP or both.
    Open(Vec<SocketAddr>),
    /// It does not say so, and why. Without a firewall peers reach the addresses all the same.
    Closed(String),
}
