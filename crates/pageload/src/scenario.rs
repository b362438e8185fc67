//! The networks that a page is loaded over.

use serde::{Deserialize, Serialize};
use whimbrel_access::{BytesPerSecond, PathEstimate, Seconds};

/// One path: what the simulator knows of an access network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The round-trip time in seconds.
    pub rtt: f64,
    /// The rate in bytes per second.
    pub rate: f64,
}

impl Link {
    /// Units as in the paper: milliseconds, and Mbit/s of 2^20 bits.
    pub fn paper(rtt_ms: f64, mbit: f64) -> Self {
        Self { rtt: rtt_ms * 0.001, rate: (mbit * 1024.0 * 1024.0) / 8.0 }
    }

    /// What a policy is told of it.
    pub fn estimate(&self) -> PathEstimate {
        PathEstimate::known(Seconds(self.rtt), BytesPerSecond(self.rate))
    }
}

/// What happened to one object.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Span {
    /// When it could have started.
    pub ready: f64,
    /// When it was given to a connection.
    pub assigned: f64,
    /// When its last byte arrived.
    pub done: f64,
    /// The number of its connection.
    pub connection: u32,
    /// The first path of that connection.
    pub path: u8,
}

/// The outcome of one page load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The page load time in seconds.
    pub plt: f64,
    /// Connections that were opened.
    pub connections: u32,
    /// Bytes that each path carried.
    pub carried: Vec<f64>,
    /// What happened to each object, in the page's order.
    pub spans: Vec<Span>,
}

impl Outcome {
    /// The share of each path's capacity that was used until the page was complete.
    pub fn utilisation<'a>(&'a self, links: &'a [Link]) -> impl Iterator<Item = f64> + 'a {
        self.carried.iter().zip(links).map(|(bytes, link)| bytes / (link.rate * self.plt))
    }
}
