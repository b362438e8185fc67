//! Whimbrel's transport: endpoints, connections and streams over carriers that come and go.
//!
//! The [engine](whimbrel_proto) decides; this crate moves its bytes: TLS channels over TCP
//! sockets, one driver task a connection, one mover task for each connection that was dialled, a manager
//! of paths by policy, a monitor of the host's addresses, and notices by which a server that moved calls its
//! clients.

mod accept;
mod aliases;
mod allow;
mod announce;
mod attend;
mod bulletin;
mod calls;
mod carrier;
mod cause;
mod coming;
mod config;
mod connection;
mod control;
mod deciding;
mod dial;
mod distance;
mod driver;
mod endpoint;
mod endpoint_core;
mod error;
mod events;
mod flow;
mod front;
mod half_open;
mod handshakes;
mod incoming;
mod journal;
mod life;
mod limits;
mod listener;
mod listeners;
mod locator;
mod locked;
mod manager;
mod monitor;
mod mover;
mod notices;
mod observed;
mod observing;
mod pace;
mod pass_on;
mod path_io;
mod pauses;
mod places;
mod policy;
mod publisher;
mod punch;
mod registry;
mod report;
mod resolver;
mod shared;
mod signal;
mod sockets;
mod stream;
mod stun;
mod supply;
mod suspend;
mod tls;
mod watch;
mod whereabouts;

pub use allow::{Allow, Check};
pub use carrier::quic::{DatagramFront, Envelope, Outlet};
pub use carrier::{CarrierKind, CarrierStats, Carriers, UnknownCarrier, is_delivered};
pub use cause::DownCause;
pub use config::Config;
pub use connection::Connection;
pub use control::PathControl;
pub use dial::HttpProxy;
pub use endpoint::{Builder, Endpoint, IntoTarget, ListenOptions, PlainTcp, RelayedQuic, Target};
pub use error::{
    BindError, ConnectError, ConnectionError, HandOverError, ListenError, NoSuchPath, ResolveError,
    ResumeError, SuspendError, TargetError,
};
pub use events::{EndpointEvents, Events};
pub use flow::{Flow, Sent};
pub use front::{Front, Fronted, Look};
pub use handshakes::HandshakeStats;
pub use incoming::Incoming;
pub use journal::JournalChannel;
pub use limits::RateControl;
pub use listener::Listener;
pub use locator::{Extent, Locator, Proxied};
#[cfg(target_os = "linux")]
pub use monitor::NetlinkMonitor;
pub use monitor::{AddressMonitor, AddressSet, InterfaceKind, LocalAddress, ManualMonitor, UnknownKind};
pub use pass_on::{Leaving, PassedOn};
pub use policy::{BadRule, Interface, InterfaceRule, PathPolicy, Policy, Selector, UnknownPolicy};
pub use report::{CloseReason, ConnectionEvent, ConnectionInfo, ConnectionStats, EndpointEvent, PathInfo};
pub use resolver::{BoxFuture, Resolver};
pub use signal::Signal;
pub use sockets::{OpenSockets, OpenSocketsError};
pub use stream::{RecvHalf, SendHalf, Stream};
pub use suspend::{Suspended, Waking};
pub use tls::{TlsError, TlsSessions};
pub use watch::{Watch, Watched};
pub use whimbrel_proto::{
    Backlog, BadTimeout, Class, CloseCode, ClosedBy, Delays, FlowError, FlowId, FlowOptions, FlowStats,
    HandoverMode, MAX_MESSAGE, Message, MessageId, MessageStats, Outcome, PathState, Priority, RateLimit,
    Refused, SchedulerKind, SendError, SendOptions, Side, StreamError, StreamId, Tag, Timeouts, UnknownMode,
    UnknownScheduler, Urgency,
};

/// The decoders of what peers, other endpoints and other processes hand over. What is here may change at any
/// time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Decodes bytes as a connection that was put to sleep, and as what is sealed in one.
    pub fn suspended(bytes: &[u8]) {
        crate::suspend::decode_anything(bytes);
    }

    /// Takes bytes for the sessions of another endpoint with the same key.
    pub fn sessions(bytes: &[u8]) {
        crate::tls::remember_anything(bytes);
    }

    /// Decodes bytes as a question of STUN and as its answer.
    pub fn stun(bytes: &[u8]) {
        crate::stun::decode_anything(bytes);
    }

    /// Opens bytes as TLS records, and what they say once more under the right keys.
    pub fn tls(bytes: &[u8]) {
        crate::tls::open_anything(bytes);
    }
}
