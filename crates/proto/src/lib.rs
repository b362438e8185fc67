//! The Whimbrel connection engine.
//!
//! A pure state machine: no sockets, no clock, no randomness of its own. Bytes of a path go in
//! through [`Connection::handle_segment`], segments to send come out of
//! [`Connection::poll_transmit`], and time is an argument. Drivers pull; the engine never calls
//! down. `docs/protocol.md` specifies what it puts on the wire, `docs/architecture.md` why.
//!
//! ```
//! use std::time::Instant;
//! use whimbrel_proto::{Config, Connection, PathId, segment};
//! use whimbrel_base::{ConnectionId, SecretKey};
//!
//! let (client_key, server_key) = (SecretKey::generate(), SecretKey::generate());
//! let now = Instant::now();
//! let mut client = Connection::client(
//!     Config::default(), ConnectionId::random(), client_key.id(), server_key.id(), [7; 32], now);
//! let path = client.open_path(now, None, 14_000).unwrap();
//! let stream = client.open_stream().unwrap();
//! client.write(stream, b"hello").unwrap();
//!
//! let mut wire = Vec::new();
//! client.poll_transmit(now, path, &mut wire);        // OPEN and "hello" in one flight
//! let (body, _) = segment::split(&wire).unwrap().unwrap();
//! let whimbrel_proto::FirstFlight::Open(open) = whimbrel_proto::FirstFlight::decode(body).unwrap()
//!     else { panic!() };
//! let mut server = Connection::server(
//!     Config::default(), &open, server_key.id(), client_key.id(), [9; 32], now);
//! server.handle_segment(now, PathId(0), body).unwrap();
//! let mut buf = [0; 5];
//! server.read(stream, &mut buf).unwrap();
//! assert_eq!(&buf, b"hello");
//! ```

// Without the feature nobody outside reaches the inner parts.
#![cfg_attr(not(feature = "fuzzing"), allow(unreachable_pub))]

mod assignment;
mod clock;
mod config;
mod connection;
mod content;
mod draft;
mod error;
mod event;
mod first_flight;
mod flow;
mod frame;
mod handover;
mod ids;
mod mac;
mod message;
pub mod notice;
mod pacing;
mod params;
mod path;
mod path_table;
pub mod punching;
mod ranges;
mod rate;
mod rtt;
mod scheduler;
mod secret;
pub mod segment;
mod session;
mod snapshot;
mod stream;
mod ticket;
mod timeouts;
mod varint;

// The engine, how it is set up, and what it says.
pub use config::Config;
pub use connection::{Connection, JoinError, MAX_PATHS, Resting};
pub use error::{CloseCode, DecodeError, ProtocolError, StreamError};
pub use event::{ClosedBy, Event, Footprint, PathEnd, PathStats, Stats};
pub use flow::{Class, FlowId, MAX_FLOWS, MAX_MESSAGE, MessageId, Outcome, Tag, Urgency};
pub use message::{
    Delays, FlowError, FlowOptions, FlowStats, JOURNAL_FLOWS, MAX_BUFFERING, MESSAGE_COST, MESSAGE_WINDOW,
    Message, MessageStats, Refused, SendError, SendOptions,
};
pub use session::Read;
pub use stream::{Backlog, Chunk, Pool};
pub use ticket::{proves_ticket, ticket_proof};
pub use timeouts::{BadTimeout, Timeouts};

// What both sides speak of.
pub use assignment::Assignment;
pub use handover::{HandoverMode, Priority, UnknownMode};
pub use ids::{PathId, Side, StreamId};
pub use pacing::RateLimit;
pub use params::{EARLY_DATA_WINDOW, EARLY_STREAMS, MAX_NOTICE_ADDRESSES, Params};
pub use path::PathState;
pub use scheduler::{SchedulerKind, UnknownScheduler};

// What stands before a connection is found or made.
pub use first_flight::{FirstFlight, refusal};
pub use frame::{Join, MAX_CANDIDATES, Open, PathReport, Resume, Resumed, TakeOver, TakenOver};

/// The protocol's inner parts, for fuzzers and for tests that speak it by hand. What is here may change at
/// any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// What segments consist of.
    pub mod frame {
        pub use crate::frame::*;
    }
    /// Which path carries the next chunk.
    pub mod scheduler {
        pub use crate::scheduler::*;
    }
    /// Numbers of one to eight bytes.
    pub mod varint {
        pub use crate::varint::*;
    }
}
