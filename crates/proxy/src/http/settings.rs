//! What can be set of an HTTP proxy.

use std::time::Duration;

/// Limits and sizes of a proxy for HTTP.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpSettings {
    /// How many bytes of an object are asked for first, from which its size is learnt. 0: objects are asked
    /// for whole. It is no more than the window.
    pub first_step: u64,
    /// Where more than the first step comes in a round trip of the network, so much is asked for first over a
    /// connection that is open already, but no more than this. 0: never more than the first step.
    pub longest_first: u64,
    /// How many bytes of an object that comes over several networks may wait for those before them.
    pub window: u64,
    /// The windows of all objects together. Once they are used up, further objects are passed on as they
    /// come.
    pub windows: u64,
    /// How many objects of one server come over one network at a time; further ones wait. 0: none does.
    pub turns: usize,
    /// Whether servers of this host have turns too. There is no network between that could be too full.
    pub turns_here: bool,
    /// An object of which nothing has come for so long does not count among them.
    pub turn_rest: Duration,
    /// An object waits for its turn until nobody's has come for so long, and six times as long at most.
    pub turn_limit: Duration,
    /// Clients' connections at once, tunnels included. Further ones wait.
    pub connections: usize,
    /// For the head of a request, and for the next one on a connection.
    pub request_limit: Duration,
    /// For the head of an answer.
    pub answer_limit: Duration,
    /// A connection of a client on which nothing moves for so long is closed.
    pub idle_limit: Duration,
    /// The same for a tunnel.
    pub tunnel_limit: Duration,
    /// A network on which nothing comes of an object for so long is left, where the object can be asked for
    /// again.
    pub stall: Duration,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            // With its head that is what a server may send at once, ten segments (RFC 6928), of which the
            // head is often one of its own: it takes no longer than less would, and an object that is no
            // larger has no second step to wait for. Segments over IPv6 have 1428 bytes.
            first_step: 12_800,
            // A round trip of 100 ms at 20 Mbit/s. Of a larger object so much is kept until it is there.
            longest_first: 256 << 10,
            window: 8 << 20,
            windows: 256 << 20,
            // As many connections as browsers have to one server, when no proxy is between.
            turns: 6,
            turns_here: false,
            // Longer than a packet takes that was lost once on a network that works: it is sent again after a
            // second (RFC 6298, §2).
            turn_rest: Duration::from_secs(2),
            turn_limit: Duration::from_secs(10),
            connections: 10_000,
            request_limit: Duration::from_secs(30),
            answer_limit: Duration::from_secs(120),
            idle_limit: Duration::from_secs(600),
            tunnel_limit: Duration::from_secs(3600),
            stall: Duration::from_secs(3),
        }
    }
}
