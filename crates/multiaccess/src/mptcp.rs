//! The kernel's Multipath TCP as it is asked for and ordered about, over netlink.
//!
//! ```text
//! connections   which connections there are, whose they are, and over which subflows they go (sock_diag)
//! orders        what the kernel's userspace path manager is told (mptcp_pm of linux/mptcp_pm.h)
//! events        what it tells
//! lookup        asks for connections and subflows
//! ```

mod connections;
mod events;
mod lookup;
mod orders;

pub(crate) use connections::{Connection, ConnectionsMessage, Ends, Subflow, SubflowsMessage};
pub(crate) use events::{What, event};
pub(crate) use lookup::Lookup;
pub(crate) use orders::{Action, Order};

/// The family of generic netlink, and the multicast group that hears of connections.
pub(crate) const FAMILY: &str = "mptcp_pm";
pub(crate) const EVENTS: &str = "mptcp_pm_events";
/// IPPROTO_MPTCP.
pub(crate) const PROTOCOL: u32 = 262;
