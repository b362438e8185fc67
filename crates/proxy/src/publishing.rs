//! Servers of peers, reached through a gateway by clients that know nothing of Whimbrel: the other way round.
//!
//! ```text
//! rules           who may publish what (pure)
//! message         what is said: a request to publish, and who has come (pure)
//! desk            the gateway: what is published just now, and by which connection
//! standing        the gateway: one publication, for as long as its stream is open
//! door            the gateway: clients that come, and how many at once
//! tls             the gateway: which host a client's TLS is for, by its ClientHello alone
//! through         the gateway: which host a client's HTTP is for
//! carry           the gateway: bytes between a client and a peer
//! offering        the peer's side
//! proxy_protocol  where a client is, for the peer's server (pure)
//! ```
//!
//! The peer that publishes opens a stream and asks; what it publishes stands for as long as that stream. For
//! each client the gateway opens a stream to it, on the same connection, which says first who has come
//! (docs/protocol.md, §21). TLS passes as it is: the gateway has no keys.

mod carry;
mod desk;
mod door;
mod message;
mod offering;
mod proxy_protocol;
mod rules;
mod standing;
mod through;
mod tls;

pub use desk::{Publications, PublishSettings, Unpublished};
pub use message::Arrival;
pub use offering::{Offering, PublishError};
pub use proxy_protocol::proxy_header;
pub use rules::{BadRule, PublishRule, PublishRules};
