//! Ports of home routers: one command, and a machine behind NAT or a firewall can be dialled.
//!
//! A router is asked to pass an endpoint's port on, over TCP and UDP, by PCP (RFC 6887), NAT-PMP (RFC 6886)
//! or UPnP (IGD), whichever it speaks. Where the port leads is a place of the endpoint like any other: it
//! goes into its records and tickets, and its peers are told. Where the host has global IPv6 addresses, which
//! nobody translates but a firewall may guard, the router is asked by PCP or UPnP to let the port in there.
//! Asked again long before the router would forget it, after every move, and given back in the end.
//!
//! What a router says is believed for one thing only, where the endpoint can be reached: a wrong answer leads
//! peers to a machine that does not hold the endpoint's key.
#![warn(clippy::redundant_clone)]

mod device;
mod favour;
mod firewall;
mod keeping;
mod mapping;
mod news;
mod passing;
mod pcp;
mod pinhole;
mod router;
mod upnp;

pub use device::{UpnpError, UpnpRefusal};
pub use keeping::PortMap;
pub use mapping::{MapError, Protocol};
pub use news::{Mapped, Pinholes};
pub use pcp::{PcpError, PcpRefusal};
pub use pinhole::probe;

/// The decoders of what routers answer. What is here may change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Decodes bytes as a router's answer by PCP.
    pub fn answer(bytes: &[u8]) {
        crate::pcp::decode_anything(bytes);
    }

    /// Decodes bytes as what a router says by UPnP.
    pub fn device(bytes: &[u8]) {
        crate::device::decode_anything(bytes);
    }
}
