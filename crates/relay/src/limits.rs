//! What a relay gives at most, to all together and to each.

use std::time::Duration;

/// What a relay gives at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Reservations.
    pub reservations: usize,
    /// Spares of one reservation that wait for clients.
    pub spares: usize,
    /// Spares from one address (IPv4, or /64 of IPv6) that wait for clients, whosever they are. Servers
    /// behind one gateway share them, and one that has none waiting is asked for some when a client comes.
    pub spares_per_address: usize,
    /// Clients of one reservation that wait for spares.
    pub waiting: usize,
    /// Clients that wait, all together: each may have sent some KiB. The reservation with the most makes
    /// room.
    pub waiting_in_all: usize,
    /// Spliced connections, all together. The reservation with the most makes room.
    pub splices: usize,
    /// Spliced connections of one reservation.
    pub splices_per_reservation: usize,
    /// New clients of one reservation in a second; ten times as many at once. Half of these are for addresses
    /// from which no more than one comes each second, and five at once.
    pub clients_per_second: f64,
    /// New clients from one address (IPv4, or /64 of IPv6) in a second; ten times as many at once.
    pub clients_per_address: f64,
    /// How long a client waits for a spare.
    pub patience: Duration,
    /// Bytes of one reservation in a second, both ways and over both carriers together; a second's worth at
    /// once. A quarter is for datagrams where they want it. `None`: as many as the line takes.
    pub bytes_per_second: Option<f64>,
    /// Places that clients send QUIC from, all together.
    pub flows: usize,
    /// Places that clients of one reservation send QUIC from.
    pub flows_per_reservation: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reservations: 10_000,
            spares: 8,
            spares_per_address: 1024,
            waiting: 256,
            waiting_in_all: 4096,
            splices: 50_000,
            splices_per_reservation: 4096,
            clients_per_second: 100.0,
            clients_per_address: 20.0,
            patience: Duration::from_secs(5),
            bytes_per_second: None,
            flows: 50_000,
            flows_per_reservation: 4096,
        }
    }
}
