//! Figures of a relay.

use std::time::Duration;

/// What a relay has done, and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Reservations now.
    pub reservations: u64,
    /// Spares that wait for clients now.
    pub spares: u64,
    /// Clients that wait for spares now.
    pub waiting: u64,
    /// Spliced connections now.
    pub splices: u64,
    /// Spliced connections so far.
    pub spliced: u64,
    /// Clients that were turned away.
    pub clients_refused: u64,
    /// Spares that were turned away.
    pub spares_refused: u64,
    /// Reservations that were refused.
    pub reservations_refused: u64,
    /// How long clients had waited until they were spliced, together.
    pub wait_time: Duration,
    /// How long splices lasted that have ended, together.
    pub splice_time: Duration,
    /// Connections of servers that were accepted.
    pub servers: u64,
    /// Bytes passed on, in both directions, over TCP and QUIC.
    pub bytes: u64,
    /// Places that clients send QUIC from now.
    pub flows: u64,
    /// Places that clients sent QUIC from so far.
    pub flowed: u64,
    /// Datagrams of QUIC that were not passed on.
    pub dropped: u64,
}
