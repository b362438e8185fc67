//! Ordinary hosts through a server in the middle that speaks Whimbrel with us: a program's TCP connection
//! lives through moves and uses several networks, and its peer needs to know nothing of it.
//!
//! ```text
//! serving   the gateway's side
//! reaching  the client's side, an `Upstream`
//! ```
//!
//! Each connection is a stream of its own. The client sends one request on it and waits for the answer; if
//! that says that the destination was reached, the bytes of the connection follow in both directions, with
//! ends of their own (docs/protocol.md, §21).

mod reaching;
mod serving;

pub use reaching::Gateway;
pub use serving::{Declined, GatewayServer, GatewayStats, Joined, Served};
