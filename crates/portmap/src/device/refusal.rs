//! Why a router does not do by UPnP what it is asked for.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// What came of asking a router by UPnP.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpnpError {
    /// It cannot be asked.
    #[error("it cannot be asked by UPnP: {0}")]
    Socket(#[from] io::Error),
    /// It does not answer.
    #[error("it does not answer to UPnP")]
    Silent,
    /// The device that answered is another one.
    #[error("{0} answered to UPnP, which is not the router")]
    Stranger(IpAddr),
    /// It describes itself, without what is looked for.
    #[error("by UPnP it has no {0}")]
    NoService(&'static str),
    /// What it answers cannot be read.
    #[error("it answers to UPnP what cannot be read")]
    Garbled,
    /// It refuses.
    #[error("it refuses by UPnP: {0}")]
    Refused(UpnpRefusal),
}

/// A router's reason to refuse: an error code of UPnP, of WANIPv6FirewallControl:1 or of WANIPConnection:2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpnpRefusal(pub u16);

impl UpnpRefusal {
    /// It does not know the action.
    pub(crate) const UNKNOWN_ACTION: Self = Self(401);
    /// It could not.
    pub(crate) const FAILED: Self = Self(501);
    /// It knows the action, and has not got it.
    pub(crate) const NOT_IMPLEMENTED: Self = Self(602);
    /// Another host has the port.
    pub(crate) const CONFLICT: Self = Self(718);
    /// The router has it itself.
    pub(crate) const IN_USE: Self = Self(729);
    /// It keeps no time.
    pub(crate) const PERMANENT_ONLY: Self = Self(725);
}

impl fmt::Display for UpnpRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            401 | 602 => "unknown action",
            402 => "invalid arguments",
            501 => "it failed",
            605 => "an argument is too long",
            606 => "not authorized",
            701 => "no room for another pinhole",
            702 => "its firewall is switched off",
            703 => "its owner lets nobody open it",
            704 => "no such pinhole",
            705 => "that protocol is not let in",
            706..=708 => "it wants to know more exactly what to let in",
            714 => "it does not pass that port on",
            718 => "another host has that port",
            724 => "it passes a port on as the same one alone, which is not to be had",
            725 => "it passes a port on for ever alone",
            727 => "it passes on all ports or none",
            728 => "no port is free",
            729 => "the port is in use by the router",
            code => return write!(f, "error code {code}"),
        };
        f.write_str(words)
    }
}
