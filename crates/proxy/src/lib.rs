//! Proxies for programs that know nothing of Whimbrel: each connection or object that a program asks for is a
//! unit of traffic with intents, for which the manager chooses a network (*Socket Intents*, IFIP Networking
//! 2018, §VI-B).
//!
//! ```text
//! destination     a host and a port, as a program names them
//! error           why a destination is not reached
//! protocol        what is said to a gateway before a stream's bytes
//! streams         streams to one peer
//! networks        how much passes over each network
//! upstream        how a proxy reaches a destination: by the manager's choice
//! http            the proxy for HTTP
//! intercept       HTTPS that ends in that proxy, where its user asks for it
//! socks           a SOCKS proxy
//! gateway         destinations reached through a server in the middle: both sides of that
//! publication     what a peer publishes through a gateway
//! publishing      servers of peers, reached through a gateway: the other way round, both sides
//! sessions        connections through a gateway that move from one device to another: both sides
//! guard           where a gateway may connect to
//! by_answer       a gateway or a network, each connection as the manager answers
//! whimbrel_hosts  endpoints that programs reach by names as hosts
//! cross_site      whether a browser asks for another site's page
//! whole           streams that never look ended when they broke
//! ```

mod by_answer;
mod cross_site;
mod destination;
mod error;
mod gateway;
mod guard;
mod http;
mod intercept;
mod networks;
mod protocol;
mod publication;
mod publishing;
mod sessions;
mod socks;
mod streams;
mod upstream;
mod whimbrel_hosts;
mod whole;

pub use by_answer::ByAnswer;
pub use cross_site::{Origins, is_cross_site};
pub use destination::{BadDestination, Destination};
pub use error::UpstreamError;
pub use gateway::{Declined, Gateway, GatewayServer, GatewayStats, Joined, Served};
pub use guard::{BadPattern, Full, Guard, Looking, Lookup, Pattern, Place, Quota, Rules, SystemLookup, Turn};
pub use http::{HttpProxy, HttpSettings, HttpStats, read_anything_as_part};
pub use intercept::{
    BadInterceptHost, InterceptAuthority, InterceptError, InterceptFiles, InterceptHost, Interception,
};
pub use networks::NetworkTraffic;
pub use protocol::{Answer, BadMessage, Request, Status};
pub use publication::{BadPublication, Publication};
pub use publishing::{
    Arrival, BadRule, Offering, Publications, PublishError, PublishRule, PublishRules, PublishSettings,
    Unpublished, proxy_header,
};
pub use sessions::{
    Anew, Attached, BadSessionId, HaltedSession, Hearing, Listed, MAX_SESSION, May, NoBeginning, NoRest,
    NoSession, Outcome, Rest, SessionError, SessionHead, SessionId, SessionPiece, SessionSettings,
    SessionsAt, Standing, Takers, UnderWay, Word, read_anything as read_anything_as_film,
    read_anything_as_answer, read_request, user_of,
};
pub use socks::{BadCredentials, Credentials, Socks, SocksStats, read_anything as read_anything_as_socks};
pub use streams::{Opening, Streams};
pub use upstream::{Choosing, Duplex, InSession, Managed, Reached, Reaching, Upstream};
pub use whimbrel_base::{host_of_name, is_whimbrel_host, name_of_host};
pub use whimbrel_hosts::{Routed, WhimbrelHosts};
