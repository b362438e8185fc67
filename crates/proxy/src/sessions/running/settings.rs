//! Bounds and limits of sessions.

use std::time::Duration;

/// Bounds and limits of a gateway's sessions.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SessionSettings {
    /// The most bytes of a server that are kept because no program has taken them, until it is known how fast
    /// one takes them. Then the server waits. Where more than 64 sessions of its device keep something it is
    /// less: a quarter of its part of what all of them may.
    pub most_kept: usize,
    /// The most that are kept for a program that takes much: up to this, twice what it takes in a round trip.
    /// A device refuses more than 8 MiB.
    pub most_grown: usize,
    /// How long a session is kept that no device has; and one whose server broke it, for a device that takes
    /// nothing.
    pub hold: Duration,
    /// How many such sessions of one device there are.
    pub most_held: usize,
    /// How many bytes are kept for them.
    pub most_held_bytes: u64,
    /// How many bytes all sessions of one device keep, those of programs that wait for a server among them.
    /// Then its servers wait too; each of its sessions has 32 KiB whatever the others keep, or what its
    /// program took in a quarter of a second lately, up to 128 KiB. Those 32 KiB are set aside for each, as
    /// far as they are not more than three quarters of this.
    pub most_bytes_each: u64,
    /// How many bytes all sessions keep, likewise.
    pub most_bytes: u64,
    /// A session without a byte for so long ends.
    pub idle: Duration,
    /// A device that has a session which is to move, says nothing for so long, and cannot be reached for so
    /// long, is given up: its last count holds.
    pub pause: Duration,
    /// A device that can be reached is waited for so long, until all that it sent is here. Then the session
    /// does not move.
    pub most_pause: Duration,
    /// Bytes go ahead to a device that takes a session if a round trip to the device before, which is asked
    /// how far it is, takes as long as so many to the new one. They hold the answer up by about one of those.
    pub ahead_from: u32,
    /// For the device that takes a session to say that its program is there.
    pub confirm: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            most_kept: 1024 * 1024,
            most_grown: 8 * 1024 * 1024,
            hold: Duration::from_secs(60),
            most_held: 32,
            most_held_bytes: 32 * 1024 * 1024,
            most_bytes_each: 32 * 1024 * 1024,
            most_bytes: 512 * 1024 * 1024,
            // As long as NAT gateways must keep theirs (RFC 5382, REQ-5).
            idle: Duration::from_secs(124 * 60),
            // A slow link's round trip, a loss, and the time that a device takes to stop.
            pause: Duration::from_secs(5),
            // The device that takes a session waits for 30 s.
            most_pause: Duration::from_secs(20),
            ahead_from: 8,
            confirm: Duration::from_secs(10),
        }
    }
}
