//! Connections that survive every move.
//!
//! A program connects to a *name* (or to a ticket, which needs no name service), and the connection lives
//! until somebody closes it, whatever happens to addresses, interfaces and networks underneath: both sides
//! may move, at the same time, or sleep for hours.
//!
//! ```no_run
//! # async fn run(key: whimbrel::SecretKey) -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::io::AsyncWriteExt as _;
//!
//! let endpoint = whimbrel::Endpoint::builder()
//!     .identity(key)
//!     .names("whimbrel:…/192.0.2.1:4480") // the name service's ticket, or ID@names.example.org:4480
//!     .bind()
//!     .await?;
//! let connection = endpoint.connect("ssh.laptop.user@example.org").await?;
//! let mut stream = connection.open_stream().await?; // tokio's AsyncRead and AsyncWrite
//! stream.write_all(b"hello").await?;
//!
//! let mut listener = endpoint.listen("web.desk.user@example.org").await?;
//! while let Some(connection) = listener.accept().await {
//!     println!("{} is here", connection.peer_id());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Programs without an async runtime use [`blocking`], which is used like [`std::net`].
//!
//! | | |
//! | --- | --- |
//! | [`Endpoint`] | a process's presence: a key, its sockets, its connections |
//! | [`Connection`] | the lasting thing between two endpoints: streams, [events](Connection::events), [counters](Connection::stats) |
//! | [`Stream`] | an ordered, reliable stream of bytes in a connection |
//! | [`Listener`] | takes the connections that others make |
//! | [`Name`], [`Ticket`], [`EndpointAddr`] | whom to [connect](Endpoint::connect) to |
//! | [`SecretKey`], [`EndpointId`] | who somebody is: an Ed25519 key pair |
//!
//! What is not named here is in [`base`], [`names`] and [`transport`], whose items the ones here are.

pub mod blocking;
mod endpoint;
mod error;
mod target;

pub use endpoint::{Builder, Endpoint};
pub use error::{BindError, ConnectError, ListenError, TargetError};
pub use target::{IntoName, IntoTarget};

pub use whimbrel_base::{
    ConnectionId, Delegation, EndpointAddr, EndpointId, Name, NameError, NameKind, SecretKey, Ticket,
    TicketError, UnixTime,
};
pub use whimbrel_names::{KnownPeers, NameResolver, Origin, Pin, ServiceAddress, ServiceAddressError};
#[cfg(target_os = "linux")]
pub use whimbrel_transport::NetlinkMonitor;
pub use whimbrel_transport::{
    AddressMonitor, Allow, CloseCode, CloseReason, Config, Connection, ConnectionError, ConnectionEvent,
    ConnectionStats, HandoverMode, InterfaceKind, InterfaceRule, ListenOptions, Listener, Locator,
    ManualMonitor, PathControl, PathInfo, PathPolicy, PathState, Policy, Priority, RecvHalf, ResolveError,
    Resolver, SchedulerKind, SendHalf, Side, Stream, Target,
};

pub use whimbrel_base as base;
pub use whimbrel_names as names;
pub use whimbrel_transport as transport;
