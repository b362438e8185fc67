//! QUIC through a relay: what the relay and a server send each other over UDP, and the relay's rules, without
//! sockets.
//!
//! ```text
//!  client ── QUIC, to an id with the server's token ──► relay ◄── one UDP flow, opened by the server ── server
//! ```
//!
//! The relay forwards packets, and is no end of the QUIC connection. Each place that a server's clients send
//! from is a *flow* with a number. A server sees the client's own address as the other end, so all that QUIC
//! has for addresses that change holds: a client that is seen elsewhere is another flow, and gets nothing of
//! the connection before the server has validated its address.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`wire`] | datagrams between server and relay |
//! | [`ids`] | connection ids that a server gives itself |
//! | [`flows`] | the relay's table of flows |
//! | [`peers`] | the server's table of flows |

pub mod flows;
pub mod ids;
pub mod peers;
pub mod wire;
