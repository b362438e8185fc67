//! Flows and channels (5): one plain record for both, since a plain TCP connection is both. Numbers that
//! change as time passes are in [`super::lanes`].

use whimbrel_access::PathList;

/// How far a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Handshakes.
    Setup,
    /// Slow start.
    Ramp,
    /// Congestion avoidance.
    Steady,
}

/// What a channel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Idle,
    Busy,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A plain TCP connection: flow and channel.
    Tcp,
    /// An MPTCP connection: channel only.
    Mptcp,
    /// A flow of an MPTCP connection.
    Subflow,
}

/// The kind of an event; compared when a timer is set, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    SetupDone,
    Round,
    DoneRamp,
    DoneSteady,
    Expire,
}

/// A position in the node table.
pub(super) type At = u16;
/// No node.
pub(super) const NONE: At = At::MAX;

/// A flow, a channel, or both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// Demand: the rate wanted.
    pub(super) demand: f64,
    /// The round-trip time of the flow, or of an MPTCP connection's first path.
    pub(super) rtt: f64,
    /// Since when the channel is idle.
    pub(super) since: f64,
    /// The number of the pending event; 0 if there is none.
    pub(super) serial: u32,
    /// Creation number of a channel.
    pub(super) id: u32,
    /// The place of a flow among those of its path.
    pub(super) order: u32,
    pub(super) kind: Kind,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) mode: Mode,
    pub(super) tls: bool,
    pub(super) gathering: bool,
    /// The path of a flow.
    pub(super) path: u8,
    pub(super) host: u16,
    /// The active transfer, the last queued one, and how many there are.
    pub(super) head: u16,
    pub(super) tail: u16,
    pub(super) length: u16,
    /// A subflow's connection.
    pub(super) owner: At,
    /// An MPTCP connection's first subflow; a subflow's next one.
    pub(super) next: At,
    pub(super) paths: PathList,
}

/// The initial window (2): ten segments of 1460 bytes.
pub(super) const INITIAL_WINDOW: f64 = 14600.0;

impl Node {
    pub(super) fn new(role: Role, path: u8, rtt: f64) -> Self {
        Self {
            demand: 0.0,
            rtt,
            since: 0.0,
            serial: 0,
            id: 0,
            order: 0,
            kind: Kind::SetupDone,
            role,
            phase: Phase::Setup,
            mode: Mode::Idle,
            tls: false,
            gathering: false,
            path,
            host: 0,
            head: 0,
            tail: 0,
            length: 0,
            owner: NONE,
            next: NONE,
            paths: PathList::one(whimbrel_access::PathId(path)),
        }
    }
}
