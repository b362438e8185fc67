//! The switches of the modern model.

use super::trace::Trace;
use crate::scenario::Link;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How requests share a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1: one request at a time on each connection.
    H1,
    /// HTTP/2: many requests over one TCP connection for each host and path; a lost segment holds all of them
    /// up.
    H2,
    /// HTTP/3: many requests over one QUIC connection; a lost packet holds up one of them.
    H3,
}

/// The TLS handshake of a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tls {
    /// No encryption: no round trip. (HTTP/3 has no such thing, and takes TLS 1.3.)
    #[serde(rename = "none")]
    Off,
    /// TLS 1.2: two round trips.
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3: one round trip, which HTTP/3 has in common with the transport's.
    #[serde(rename = "1.3")]
    V13,
    /// TLS 1.3 resumed with early data: the request goes with the first flight.
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

/// Every effect by itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// How requests share a connection. Objects without TLS always go by HTTP/1.1.
    pub protocol: Protocol,
    /// The handshake of objects with TLS.
    pub tls: Tls,
    /// Fetch everything over TLS, whatever the recording says.
    pub upgrade: bool,
    /// HTTP/2 and 3: documents before styles before scripts before the rest, and one after the other in each
    /// class. Without it all streams of a connection share its rate evenly.
    pub priorities: bool,
    /// A request on a connection that is already there takes a round trip before the first byte comes.
    pub request_rtt: bool,
    /// The window starts afresh when a connection was idle for longer than its retransmission timeout.
    pub idle_restart: bool,
    /// Servers think before they answer, as long as in the recording.
    pub think: bool,
    /// A host's name is looked up on each path before it is first used there, in one round trip of that path.
    pub dns: bool,
    /// Initial window in segments of 1460 bytes.
    pub initial_window: u32,
    /// HTTP/1.1: busy connections to one host.
    pub max_per_host: u32,
    /// Connections in total.
    pub max_total: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            protocol: Protocol::H2,
            tls: Tls::V13,
            upgrade: true,
            priorities: true,
            request_rtt: true,
            idle_restart: true,
            think: true,
            dns: true,
            initial_window: 10,
            max_per_host: 6,
            max_total: 256,
        }
    }
}

impl Settings {
    /// Every effect switched off: HTTP/1.1 over connections that cost one round trip, and answers at once.
    pub fn bare() -> Self {
        Self {
            protocol: Protocol::H1,
            tls: Tls::Off,
            upgrade: false,
            priorities: false,
            request_rtt: false,
            idle_restart: false,
            think: false,
            dns: false,
            ..Self::default()
        }
    }

    pub(super) fn protocol_of(&self, tls: bool) -> Protocol {
        if tls { self.protocol } else { Protocol::H1 }
    }

    /// Round trips until the first request can leave.
    pub(super) fn setup_rtts(&self, tls: bool) -> f64 {
        let handshake = match (tls, self.tls) {
            (false, _) | (true, Tls::Off | Tls::ZeroRtt) => 0.0,
            (true, Tls::V13) => 1.0,
            (true, Tls::V12) => 2.0,
        };
        if self.protocol_of(tls) == Protocol::H3 {
            return if self.tls == Tls::ZeroRtt { 0.0 } else { 1.0 };
        }
        1.0 + handshake
    }
}

/// An access network with what the modern model adds to it.
#[derive(Debug, Clone)]
pub struct Network {
    /// Round-trip time and (mean) rate.
    pub link: Link,
    /// The share of segments that is lost, 0 to 1.
    pub loss: f64,
    /// What the rate really is at each time.
    pub trace: Option<Arc<Trace>>,
}

impl Network {
    /// A network of constant rate, without loss.
    pub fn plain(link: Link) -> Self {
        Self { link, loss: 0.0, trace: None }
    }

    /// A network whose rate follows a trace.
    pub fn traced(rtt: f64, trace: Arc<Trace>) -> Self {
        Self { link: Link { rtt, rate: trace.mean_rate() }, loss: 0.0, trace: Some(trace) }
    }
}
