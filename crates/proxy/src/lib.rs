//! Proxies for programs that know nothing of Whimbrel: each connection or object that a program asks for is a
//! unit of traffic with intents, for which the manager chooses a network (*Socket Intents*, IFIP Networking
//! 2018, §VI-B).
//!
//! ```text
//! destination   a host and a port, as a program names them
//! upstream      how a proxy reaches one: by the manager's choice
//! http          the proxy for HTTP
//! ```

mod destination;
mod http;
mod upstream;

pub use destination::{BadDestination, Destination};
pub use http::{HttpProxy, HttpSettings, HttpStats};
pub use upstream::{Duplex, Managed, Reached, Reaching, Upstream, UpstreamError};
