//! Connections that survive every move.
//!
//! A program connects to a *name* (or to a ticket, which needs no name service), and the connection lives
//! until somebody closes it, whatever happens to addresses, interfaces and networks underneath: both sides
//! may move, at the same time, or sleep for hours.
//!
//! ```
//! # async fn run(service: whimbrel::Ticket, key: whimbrel::SecretKey) -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! use whimbrel::{Allow, Endpoint, ListenOptions};
//!
//! // A desk, somewhere.
//! let desk = Endpoint::builder()
//!     .identity(key) // or identity_file("…"): names need a key that lasts
//!     .names(service.clone()) // "whimbrel:…/192.0.2.1:4480", or "ID@names.example.org:4480"
//!     .bind()
//!     .await?;
//! desk.register_user("user@example.org").await?;
//! let options = ListenOptions::named("echo.desk.user@example.org").allow(Allow::Any);
//! let mut listener = desk.listen(options).await?;
//! tokio::spawn(async move {
//!     while let Some(connection) = listener.accept().await {
//!         let (mut read, mut write) = connection.accept_stream().await?.into_split();
//!         tokio::io::copy(&mut read, &mut write).await?;
//!     }
//!     Ok::<(), std::io::Error>(())
//! });
//!
//! // A laptop, elsewhere. Both may go anywhere from here on.
//! let laptop = Endpoint::builder().names(service).bind().await?;
//! let connection = laptop.connect("echo.desk.user@example.org").await?;
//! let mut stream = connection.open_stream().await?; // tokio's AsyncRead and AsyncWrite
//! stream.write_all(b"hello").await?;
//! stream.finish()?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! assert_eq!(answer, "hello");
//! # Ok(())
//! # }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #     use whimbrel::names::{Admission, Limits, MemoryStore, Service};
//! #     let own = whimbrel::transport::Endpoint::builder().bind().await?;
//! #     let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await?;
//! #     run(service.addr().into(), whimbrel::SecretKey::generate()).await
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
//! | [`Flow`] | messages of one [`Class`] in a connection, with tags, lifetimes and replacement |
//! | [`Group`] | peers that get the same messages, each over its own connection; [a name](Endpoint::group) may stand for them |
//! | [`State`] | durable messages: on the disk when they are sent, delivered once although either side is killed |
//! | [`Listener`] | takes the connections that others make; [`Allow`] and [`Incoming`] say who may |
//! | [`Name`], [`Ticket`], [`EndpointId`], [`EndpointAddr`] | whom to [connect](Endpoint::connect) to |
//! | [`SecretKey`], [`Identity`] | who somebody is: an Ed25519 key pair, which can live in a file |
//!
//! What is not named here is in [`base`], [`names`] and [`transport`], whose items the ones here are. Most
//! enums and structs that may grow are `#[non_exhaustive]`; [`Config`] may grow too: write
//! `..Config::default()`.

pub mod blocking;
mod durable;
mod endpoint;
mod error;
mod group;
mod identity;
mod readers;
mod users;

pub use durable::{DurableFlow, DurableMessage, DurablePeer, Owed, Receipt, State, StateError, StateLimits};
pub use endpoint::{Builder, Endpoint};
pub use error::BindError;
pub use group::{Delivery, Group, GroupChanges, GroupError, GroupOptions, MAX_MEMBERS};
pub use identity::{Identity, IdentityError, private_directory};
pub use readers::{TooManyReaders, only as readers_only};
pub use users::{Registered, UserError};

pub use whimbrel_base::{
    ConnectionId, Delegation, EndpointAddr, EndpointId, IntoName, Member, Name, NameError, NameKind,
    SecretKey, Ticket, TicketError, TicketSecret, UnixTime,
};
pub use whimbrel_names::{
    KnownPeers, NameResolver, Origin, Pin, ServiceAddress, ServiceAddressError, Standing,
};
#[cfg(target_os = "linux")]
pub use whimbrel_transport::NetlinkMonitor;
pub use whimbrel_transport::{
    AddressMonitor, Allow, BadTimeout, CarrierKind, Carriers, Class, CloseCode, CloseReason, Config,
    ConnectError, Connection, ConnectionError, ConnectionEvent, ConnectionInfo, ConnectionStats, Delays,
    DownCause, EndpointEvent, EndpointEvents, Events, Flow, FlowError, FlowId, FlowOptions, FlowStats,
    HandOverError, HandoverMode, Incoming, InterfaceKind, InterfaceRule, IntoTarget, ListenError,
    ListenOptions, Listener, Locator, ManualMonitor, Message, MessageId, MessageStats, OpenSockets,
    OpenSocketsError, Outcome, PathControl, PathInfo, PathPolicy, PathState, Policy, Priority, RateControl,
    RateLimit, RecvHalf, Refused, ResolveError, Resolver, ResumeError, SchedulerKind, SendError, SendHalf,
    SendOptions, Sent, Side, Signal, Stream, StreamError, StreamId, SuspendError, Suspended, Tag, Target,
    TargetError, Timeouts, TlsSessions, Urgency, Watch, Watched,
};

pub use whimbrel_base as base;
pub use whimbrel_names as names;
pub use whimbrel_transport as transport;

/// The decoders of what peers say. What is here may change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Hears bytes as what a peer says of journals.
    pub fn durable(bytes: &[u8]) {
        crate::durable::hear_anything(bytes);
    }
}
