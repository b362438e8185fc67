//! The kernel's MPTCP inside a host: which addresses its path manager may use, and how (ip-mptcp(8)).
//!
//! Sockets speak it if they were made with the protocol `IPPROTO_MPTCP`.

use std::net::IpAddr;

use crate::{Host, Result, agent};

/// What the kernel's path manager does with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MptcpUse {
    /// Opens a subflow from it to the peer.
    Subflow,
    /// The same, but data flows over it only while there is no other.
    Backup,
    /// Tells the peer that it may open subflows to it.
    Signal,
}

impl MptcpUse {
    fn flags(self) -> &'static str {
        match self {
            Self::Subflow => "subflow",
            Self::Backup => "subflow backup",
            Self::Signal => "signal",
        }
    }
}

impl Host {
    /// Lets connections of this host have so many subflows besides the first one, opened from here or by the
    /// peer. Fails if the kernel has no MPTCP.
    pub fn allow_mptcp(&self, subflows: u8) -> Result<()> {
        self.call(|| agent::set_sysctl("mptcp/enabled", "1"))??;
        self.ip(format!("mptcp limits set subflows {subflows} add_addr_accepted {subflows}\n"))
    }

    /// Gives the path manager an address, under a number of its own from 1 to 255. Subflows from it leave
    /// through that interface.
    pub fn add_mptcp_endpoint(&self, id: u8, ip: IpAddr, interface: &str, for_what: MptcpUse) -> Result<()> {
        self.ip(format!("mptcp endpoint add {ip} dev {interface} id {id} {}\n", for_what.flags()))
    }

    /// Takes an address away from the path manager, which closes the subflows from it and tells the peer.
    pub fn del_mptcp_endpoint(&self, id: u8) -> Result<()> {
        self.ip(format!("mptcp endpoint delete id {id}\n"))
    }

    /// Makes the subflows from an address backup ones, or ordinary ones again, on living connections too.
    pub fn set_mptcp_backup(&self, id: u8, backup: bool) -> Result<()> {
        let flag = if backup { "backup" } else { "nobackup" };
        self.ip(format!("mptcp endpoint change id {id} {flag}\n"))
    }
}
