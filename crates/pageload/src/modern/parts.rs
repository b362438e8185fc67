//! What a world consists of, as plain values: connections, their flows and streams, and the rules for them.

use super::settings::{Network, Protocol, Settings};
use crate::page::Page;
use whimbrel_access::PathList;

/// Never.
pub(super) const NEVER: f64 = f64::INFINITY;
/// Less than this is nothing left: rounding of sums of products.
pub(super) const NOTHING: f64 = 1e-3;

/// A connection. Those that are closed stay in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection {
    pub(super) host: u16,
    pub(super) tls: bool,
    pub(super) open: bool,
    pub(super) protocol: Protocol,
    pub(super) paths: PathList,
    /// Its first flow; those of its further paths follow.
    pub(super) first_flow: u16,
    /// Streams that are queued, asked for, or arriving.
    pub(super) streams: u16,
    /// Those that arrive at present.
    pub(super) arriving: u16,
    /// What all its flows bring at present.
    pub(super) rate: f64,
    /// Streams that want some of it, and the one that comes first.
    pub(super) wanting: u16,
    pub(super) most_urgent: Urgency,
    /// When the first request can leave.
    pub(super) ready: f64,
    /// Since when nothing arrives.
    pub(super) quiet_since: f64,
}

impl Connection {
    pub(super) fn flows(&self) -> std::ops::Range<u16> {
        self.first_flow..self.first_flow + self.paths.as_slice().len() as u16
    }
}

/// Smaller is more urgent: the kind of object before the number of the stream.
pub(super) type Urgency = u64;
/// Less urgent than every stream.
pub(super) const LEAST_URGENT: Urgency = Urgency::MAX;

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// HTTP/1.1: behind others.
    Queued,
    /// Asked for; `timer` is when the first byte comes.
    Asked,
    /// On its way.
    Arriving,
}

/// A transfer, or a part of one, on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    pub(super) transfer: u16,
    pub(super) connection: u16,
    pub(super) number: u32,
    pub(super) urgency: Urgency,
    pub(super) state: State,
    pub(super) timer: f64,
    pub(super) left: f64,
    pub(super) rate: f64,
    pub(super) think: f64,
    /// A loss keeps what arrives from the application until then.
    pub(super) held_until: f64,
}

impl Stream {
    /// Arriving, and not all there.
    pub(super) fn wants(&self) -> bool {
        self.state == State::Arriving && self.left > 0.0
    }
}

/// A stream that is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) number: u32,
    pub(super) transfer: u16,
}

/// What never changes during a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) settings: &'a Settings,
    pub(super) networks: &'a [Network],
    pub(super) page: &'a Page,
    pub(super) think: &'a [f64],
    pub(super) seed: u64,
}

/// How a flow's rate is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Handshakes; the timer says until when.
    Setup,
    /// By its window, which doubles each round trip.
    SlowStart,
    /// By its window, which grows by a segment each round trip.
    Avoidance,
    /// By its share only.
    Full,
}

/// One path of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) connection: u16,
    pub(super) path: u8,
    pub(super) phase: Phase,
    pub(super) active: bool,
    /// When set-up is done, or the present round ends.
    pub(super) timer: f64,
    pub(super) window: f64,
    pub(super) rate: f64,
    pub(super) delivered: f64,
    /// The share of the path was less than the window allows, at some time in this round.
    pub(super) limited: bool,
    pub(super) rounds: u32,
}

/// A flow that wants a share of its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) flow: u16,
    pub(super) path: u8,
    pub(super) wanted: f64,
}
