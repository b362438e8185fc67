//! What is told of a running command, its connections, paths and messages.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_relay::Kept;
use whimbrel_transport::{
    AddressSet, ConnectionInfo, ConnectionStats, Delays, FlowStats, Locator, MessageStats, PathState,
    Priority, Side,
};

use crate::limits::Rule;
use crate::moving::Movable;
use crate::sockets::SocketReport;

/// A running command's state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) pid: u32,
    /// Unix time in milliseconds.
    pub(crate) started_ms: u64,
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Local sockets, where the command serves some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sockets: Option<SocketReport>,
    /// Limits that hold, from the file and by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) limits: Vec<Rule>,
    /// Relays through which it is reached, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) relays: Vec<RelayReport>,
    /// What could go on at another device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<Movable>,
    /// And the others, where there is more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more_sessions: Vec<Movable>,
    pub(crate) connections: Vec<ConnectionReport>,
}

/// A relay through which a command is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RelayReport {
    pub(crate) id: String,
    /// Where clients dial it.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) rtt_ms: f64,
    /// Why no client can come through it over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unserved: Option<String>,
}

impl RelayReport {
    pub(super) fn of(kept: &Kept) -> Self {
        Self {
            id: kept.relay.to_string(),
            addresses: kept.places.iter().map(|place| place.relay).collect(),
            rtt_ms: millis(kept.rtt),
            unserved: kept.unserved.clone(),
        }
    }
}

/// A connection's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionReport {
    pub(crate) id: String,
    pub(crate) peer: String,
    /// What it is for: the name that was dialled or is served, or `name service`.
    pub(crate) name: Option<String>,
    /// Whether the peer dialled.
    pub(crate) accepted: bool,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_resent: u64,
    /// Of these, bytes whose path was not lost: another would bring them sooner.
    pub(crate) bytes_twice: u64,
    /// `full`, `backup` or `single`.
    pub(crate) mode: String,
    pub(crate) scheduler: String,
    pub(crate) moves: u64,
    pub(crate) last_recovery_ms: Option<f64>,
    /// For how long no path has worked.
    pub(crate) unreachable_ms: Option<f64>,
    /// Bytes a second that this side may send, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limit: Option<u64>,
    /// What became of messages, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<MessageReport>,
    /// Whether this side chooses which of its networks are used.
    #[serde(default)]
    pub(crate) chooses: bool,
    /// Whether a direct path is being looked for just now, while one through a relay carries.
    #[serde(default)]
    pub(crate) looks_for_direct: bool,
    pub(crate) paths: Vec<PathReport>,
}

/// A path's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PathReport {
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    /// The peer's, or that of the relay that passes on to it.
    pub(crate) remote: SocketAddr,
    /// Whether it goes through a relay.
    #[serde(default)]
    pub(crate) relayed: bool,
    /// Of the local address, where known.
    pub(crate) interface: Option<String>,
    pub(crate) state: String,
    /// `tcp`, `mptcp` or `quic`.
    pub(crate) carrier: String,
    /// `normal` or `backup`.
    pub(crate) priority: String,
    pub(crate) rtt_ms: f64,
    /// What it was seen to deliver.
    pub(crate) rate_mbit: Option<f64>,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) in_flight: u64,
    pub(crate) age_ms: f64,
    /// How well its Wi-Fi is received, where the manager tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<SignalReport>,
}

/// How well a path's Wi-Fi is received.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SignalReport {
    pub(crate) dbm: i8,
    /// Whether the network may be lost soon.
    pub(crate) weak: bool,
}

/// Milliseconds with three digits.
pub(super) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn state(state: PathState) -> String {
    format!("{state:?}").to_lowercase()
}

/// What became of a connection's messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MessageReport {
    #[serde(flatten)]
    pub(crate) counts: MessageCounts,
    /// Messages that arrived.
    pub(crate) received: u64,
    /// Of these, those that were dropped because a newer one was delivered before.
    pub(crate) discarded: u64,
    /// This side's flows.
    pub(crate) flows: Vec<FlowReport>,
}

/// What became of a flow's messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlowReport {
    pub(crate) id: u64,
    pub(crate) open: bool,
    pub(crate) reliable: bool,
    pub(crate) sequenced: bool,
    /// 0 goes first, 7 last.
    pub(crate) urgency: u8,
    #[serde(flatten)]
    pub(crate) counts: MessageCounts,
}

/// What is counted of messages that are sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MessageCounts {
    /// Taken, and without an end yet.
    pub(crate) queued: u64,
    pub(crate) bytes_queued: u64,
    pub(crate) sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) delivered: u64,
    pub(crate) expired: u64,
    pub(crate) replaced: u64,
    pub(crate) cancelled: u64,
    pub(crate) lost: u64,
    pub(crate) retransmitted: u64,
    pub(crate) bytes_resent: u64,
    /// How long the delivered ones took: half of them at most so long, ...
    pub(crate) delay_p50_ms: Option<f64>,
    /// ... 99 % at most so long, ...
    pub(crate) delay_p99_ms: Option<f64>,
    /// ... and the slowest.
    pub(crate) delay_max_ms: Option<f64>,
}

impl MessageCounts {
    fn of(stats: &MessageStats, delays: &Delays) -> Self {
        Self {
            queued: stats.queued,
            bytes_queued: stats.bytes_queued,
            sent: stats.sent,
            bytes_sent: stats.bytes_sent,
            delivered: stats.delivered,
            expired: stats.expired,
            replaced: stats.replaced,
            cancelled: stats.cancelled,
            lost: stats.lost,
            retransmitted: stats.retransmitted,
            bytes_resent: stats.bytes_resent,
            delay_p50_ms: delays.percentile(50.0).map(millis),
            delay_p99_ms: delays.percentile(99.0).map(millis),
            delay_max_ms: (delays.count() > 0).then(|| millis(delays.longest())),
        }
    }
}

impl FlowReport {
    fn of(flow: &FlowStats) -> Self {
        Self {
            id: flow.id.0,
            open: flow.open,
            reliable: flow.options.class.reliable,
            sequenced: flow.options.class.sequenced,
            urgency: flow.options.urgency.level(),
            counts: MessageCounts::of(&flow.messages, &flow.delays),
        }
    }
}

fn messages(stats: &ConnectionStats) -> Option<MessageReport> {
    let all = &stats.messages;
    (!stats.flows.is_empty() || all.received > 0).then(|| MessageReport {
        counts: MessageCounts::of(all, &stats.message_delays),
        received: all.received,
        discarded: all.discarded,
        flows: stats.flows.iter().map(FlowReport::of).collect(),
    })
}

/// What is told of a connection that is for `name`, on a host with these addresses.
pub(super) fn connection(
    connection: ConnectionInfo,
    name: Option<String>,
    rate_limit: Option<u64>,
    chooses: bool,
    addresses: &AddressSet,
) -> ConnectionReport {
    let (id, peer, stats) = (connection.id, connection.peer, connection.stats);
    ConnectionReport {
        id: id.to_string(),
        peer: peer.to_string(),
        name,
        accepted: connection.side == Side::Server,
        bytes_sent: stats.bytes_sent,
        bytes_received: stats.bytes_received,
        bytes_resent: stats.bytes_resent,
        bytes_twice: stats.bytes_reinjected,
        mode: stats.handover.to_string(),
        scheduler: stats.scheduler.to_string(),
        moves: stats.moves,
        last_recovery_ms: stats.last_recovery.map(millis),
        unreachable_ms: stats.unreachable.map(millis),
        rate_limit,
        messages: messages(&stats),
        chooses,
        looks_for_direct: stats.looks_for_direct,
        paths: paths(&stats, addresses),
    }
}

fn paths(stats: &ConnectionStats, addresses: &AddressSet) -> Vec<PathReport> {
    let interface = |ip: IpAddr| {
        let address = addresses.addresses.iter().find(|address| address.ip == ip)?;
        address.interface.as_ref().map(ToString::to_string)
    };
    let report = |path: &whimbrel_transport::PathInfo| PathReport {
        id: path.id,
        local: path.local,
        remote: path.remote.address(),
        relayed: matches!(path.remote, Locator::Relayed(_)),
        interface: interface(path.local.ip()),
        state: state(path.state),
        carrier: path.carrier.to_string(),
        priority: if path.priority == Priority::Backup { "backup" } else { "normal" }.to_owned(),
        rtt_ms: millis(path.srtt),
        rate_mbit: path.rate.map(|rate| (rate as f64 * 8.0 / 1e4).round() / 1e2),
        bytes_sent: path.bytes_sent,
        bytes_received: path.bytes_received,
        in_flight: path.in_flight,
        age_ms: millis(path.age),
        signal: path.signal.map(|signal| SignalReport { dbm: signal.dbm, weak: signal.is_weak }),
    };
    stats.paths.iter().map(report).collect()
}
