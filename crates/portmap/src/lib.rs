//! Ports of home routers: one command, and a machine behind NAT can be dialled.
//!
//! A router is asked to pass an endpoint's port on, over TCP and UDP, by PCP (RFC 6887), NAT-PMP (RFC 6886) or UPnP
//! (IGD), whichever it speaks. Where the port leads is a place of the endpoint like any other: it goes into its
//! records and tickets, and its peers are told. Asked again long before the router would forget it, after every
//! move, and given back in the end.
//!
//! What a router says is believed for one thing only, where the endpoint can be reached: a wrong answer leads
//! peers to a machine that does not hold the endpoint's key.
#![warn(clippy::redundant_clone)]

mod keeping;
mod mapping;
mod router;
mod upnp;

pub use keeping::{Mapped, PortMap};
pub use mapping::{MapError, Protocol};
