//! What happens to a command's connections, as it is told to those who follow. The format is described in
//! `docs/operations.md`: fields are added, never changed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use whimbrel_base::{ConnectionId, EndpointId, UnixTime};
use whimbrel_transport::{ConnectionEvent, EndpointEvent, Priority, Side};

use super::Report;
use super::report::millis;
use super::subject::Subject;

/// Something that happened to a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Unix time in milliseconds.
    pub(crate) time_ms: u64,
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) name: Option<String>,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum What {
    /// The command runs: the first line about each.
    Running { version: String, started_ms: u64 },
    /// It ended. Said by the monitor.
    Ended,
    /// It has said nothing for so long although it should have. Said by the monitor.
    Silent { for_ms: f64 },
    /// A connection began.
    Established(Which),
    /// None came about.
    Failed { peer: Option<String>, target: Option<String>, accepted: bool, reason: String },
    /// A path carries data.
    PathUp {
        #[serde(flatten)]
        which: Which,
        path: u64,
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// A path makes no progress.
    PathSuspect {
        #[serde(flatten)]
        which: Which,
        path: u64,
    },
    /// A path is gone. Older commands do not say why.
    PathDown {
        #[serde(flatten)]
        which: Which,
        path: u64,
        local: SocketAddr,
        remote: SocketAddr,
        #[serde(default)]
        cause: Option<String>,
    },
    /// The Wi-Fi beneath a path is weak, or well again; without `dbm`, because nobody tells of it any more.
    PathSignal {
        #[serde(flatten)]
        which: Which,
        path: u64,
        dbm: Option<i8>,
        weak: bool,
    },
    /// No path works, for so long by now. Said again while it lasts.
    Unreachable {
        #[serde(flatten)]
        which: Which,
        elapsed_ms: f64,
    },
    /// A path works again, after so long without.
    Reachable {
        #[serde(flatten)]
        which: Which,
        after_ms: f64,
    },
    /// The connection went over to another path; `took_ms` is how long none worked, if that was so.
    Moved {
        #[serde(flatten)]
        which: Which,
        moves: u64,
        took_ms: Option<f64>,
        local: SocketAddr,
        remote: SocketAddr,
    },
    /// The peer set the handover mode.
    Mode {
        #[serde(flatten)]
        which: Which,
        mode: String,
    },
    /// The peer set a path's priority.
    Priority {
        #[serde(flatten)]
        which: Which,
        path: u64,
        priority: String,
    },
    /// The peer was put to sleep: it is not missing.
    PeerSuspended(Which),
    /// The peer is awake again.
    PeerResumed(Which),
    /// The peer's end went over to another key: `from` that of before, which `peer` still may be.
    PeerHandedOver {
        #[serde(flatten)]
        which: Which,
        from: String,
        to: String,
    },
    /// The connection is over.
    Closed {
        #[serde(flatten)]
        which: Which,
        code: String,
        reason: String,
    },
    /// The command's whole state.
    Statistics {
        #[serde(deserialize_with = "read_report")]
        report: Box<Report>,
    },
    /// So many events are missing here: the one that follows fell behind.
    Missed { count: u64 },
}

/// Reads a report by way of a value, as answers are read: the same code is used then.
fn read_report<'de, D: Deserializer<'de>>(from: D) -> Result<Box<Report>, D::Error> {
    serde_json::from_value(Value::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// Which connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Which {
    pub(crate) connection: String,
    pub(crate) peer: String,
    /// Whether the peer dialled.
    pub(crate) accepted: bool,
    /// What it is for.
    #[serde(rename = "for")]
    pub(crate) purpose: Option<String>,
}

impl Event {
    /// Something that the monitor itself says of a command.
    pub(super) fn about(pid: u32, command: String, name: Option<String>, what: What) -> Self {
        Self { time_ms: UnixTime::from(SystemTime::now()).as_millis(), pid, command, name, what }
    }
}

/// Puts what an endpoint says into the words of events, for one that follows.
pub(super) struct Teller {
    /// How often each connection has moved.
    moves: HashMap<ConnectionId, u64>,
    /// Those that are out of reach, as was told.
    away: HashMap<ConnectionId, Which>,
    begun: bool,
}

impl Teller {
    pub(super) fn new(of: &Subject) -> Self {
        Self { moves: moves(of), away: HashMap::new(), begun: false }
    }

    /// The command's state. The first time, that it runs comes before.
    pub(super) fn statistics(&mut self, of: &Subject) -> Vec<Event> {
        let mut all = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            all.push(event(of, What::Running { version, started_ms: of.started.as_millis() }));
        }
        all.push(event(of, What::Statistics { report: Box::new(of.report()) }));
        all
    }

    pub(super) fn has_outages(&self) -> bool {
        !self.away.is_empty()
    }

    /// Those that are out of reach, and for how long by now.
    pub(super) fn outages(&mut self, of: &Subject) -> Vec<Event> {
        let lasts = |id| of.endpoint.connection(id)?.stats.unreachable.map(millis);
        self.away.retain(|id, _| lasts(*id).is_some());
        let told = self.away.iter().filter_map(|(id, which)| {
            let (which, elapsed_ms) = (which.clone(), lasts(*id)?);
            Some(event(of, What::Unreachable { which, elapsed_ms }))
        });
        told.collect()
    }

    pub(super) fn tell(&mut self, of: &Subject, told: EndpointEvent) -> Vec<Event> {
        let what = match told {
            EndpointEvent::Established { id, peer, side } => {
                self.moves.insert(id, 0);
                vec![What::Established(which(of, id, peer, side))]
            }
            EndpointEvent::Failed { peer, name, side, reason } => vec![What::Failed {
                peer: peer.map(|peer| peer.to_string()),
                target: name.map(|name| name.to_string()),
                accepted: side == Side::Server,
                reason,
            }],
            EndpointEvent::Missed(count) => {
                self.moves = moves(of);
                self.away.clear();
                vec![What::Missed { count }]
            }
            EndpointEvent::Connection { id, peer, side, event } => {
                self.of_connection(of, id, which(of, id, peer, side), event)
            }
            // What a newer transport says has no words yet.
            _ => Vec::new(),
        };
        what.into_iter().map(|what| event(of, what)).collect()
    }

    fn of_connection(
        &mut self,
        of: &Subject,
        id: ConnectionId,
        which: Which,
        event: ConnectionEvent,
    ) -> Vec<What> {
        let ms = |duration: Duration| millis(duration);
        let one = match event {
            ConnectionEvent::PathUp { path, local, remote, recovery } => {
                let remote = remote.address();
                let up = What::PathUp { which: which.clone(), path, local, remote };
                let Some(moves) = self.has_moved(of, id) else { return vec![up] };
                return vec![up, What::Moved { which, moves, took_ms: recovery.map(ms), local, remote }];
            }
            ConnectionEvent::PathSuspect { path } => What::PathSuspect { which, path },
            ConnectionEvent::PathDown { path, local, remote, cause } => {
                let (remote, cause) = (remote.address(), Some(cause.word().to_owned()));
                What::PathDown { which, path, local, remote, cause }
            }
            ConnectionEvent::PathSignal { path, dbm, is_weak } => {
                What::PathSignal { which, path, dbm, weak: is_weak }
            }
            ConnectionEvent::PeerSuspended => What::PeerSuspended(which),
            ConnectionEvent::PeerResumed => What::PeerResumed(which),
            ConnectionEvent::PeerHandedOver { from, to } => {
                What::PeerHandedOver { which, from: from.to_string(), to: to.to_string() }
            }
            ConnectionEvent::Unreachable { lasts } => {
                self.away.insert(id, which.clone());
                What::Unreachable { which, elapsed_ms: ms(lasts) }
            }
            ConnectionEvent::Reachable { after } => {
                self.away.remove(&id);
                What::Reachable { which, after_ms: ms(after) }
            }
            ConnectionEvent::HandoverChanged(mode) => What::Mode { which, mode: mode.to_string() },
            ConnectionEvent::PriorityChanged { path, priority } => {
                let priority = if priority == Priority::Backup { "backup" } else { "normal" };
                What::Priority { which, path, priority: priority.to_owned() }
            }
            ConnectionEvent::Closed { code, reason } => {
                self.moves.remove(&id);
                self.away.remove(&id);
                What::Closed { which, code: code.to_string(), reason }
            }
            _ => return Vec::new(),
        };
        vec![one]
    }

    /// How often a connection has moved, if that is more often than was known.
    fn has_moved(&mut self, of: &Subject, id: ConnectionId) -> Option<u64> {
        let moves = of.endpoint.connection(id)?.stats.moves;
        let known = self.moves.insert(id, moves).unwrap_or(moves);
        (moves > known).then_some(moves)
    }
}

fn moves(of: &Subject) -> HashMap<ConnectionId, u64> {
    of.endpoint.connections().into_iter().map(|one| (one.id, one.stats.moves)).collect()
}

fn event(of: &Subject, what: What) -> Event {
    let (command, name) = of.command();
    Event::about(std::process::id(), command.to_owned(), name.map(str::to_owned), what)
}

fn which(of: &Subject, id: ConnectionId, peer: EndpointId, side: Side) -> Which {
    Which {
        connection: id.to_string(),
        peer: peer.to_string(),
        accepted: side == Side::Server,
        purpose: of.name_of(peer, side),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn statistics_come_back_as_they_were_said() {
        let report = Report { command: "expose".to_owned(), pid: 7, ..Report::default() };
        let what = What::Statistics { report: Box::new(report) };
        let said = serde_json::to_vec(&Event::about(7, "expose".to_owned(), None, what)).unwrap();
        let heard: Event = serde_json::from_slice(&said).unwrap();
        assert_eq!(serde_json::to_vec(&heard).unwrap(), said);
        let What::Statistics { report } = heard.what else { panic!("no statistics") };
        assert_eq!((report.pid, report.command.as_str()), (7, "expose"));
    }

    fn said(what: What) -> Value {
        serde_json::to_value(Event::about(7, "expose".to_owned(), None, what)).unwrap()
    }

    /// As `docs/operations.md` has them.
    #[test]
    fn what_becomes_of_the_peer_and_why_a_path_ended_is_said_in_words() {
        let which =
            || Which { connection: "c".to_owned(), peer: "p".to_owned(), accepted: true, purpose: None };
        assert_eq!(said(What::PeerSuspended(which()))["event"], "peer-suspended");
        assert_eq!(said(What::PeerResumed(which()))["event"], "peer-resumed");
        let (from, to) = ("a".to_owned(), "b".to_owned());
        let over = said(What::PeerHandedOver { which: which(), from, to });
        assert_eq!(
            (&over["event"], &over["from"], &over["to"], &over["peer"]),
            (&"peer-handed-over".into(), &"a".into(), &"b".into(), &"p".into())
        );
        let at: SocketAddr = ([192, 0, 2, 1], 1).into();
        let cause = Some("route-gone".to_owned());
        let down = said(What::PathDown { which: which(), path: 3, local: at, remote: at, cause });
        assert_eq!((&down["event"], &down["cause"]), (&"path-down".into(), &"route-gone".into()));
        let weak = said(What::PathSignal { which: which(), path: 3, dbm: Some(-84), weak: true });
        let fields = ["event", "path", "dbm", "weak"].map(|field| weak[field].clone());
        let expected: [Value; 4] = ["path-signal".into(), 3.into(), Value::from(-84), true.into()];
        assert_eq!(fields, expected);
        // One of an older command.
        let mut older = down;
        older.as_object_mut().unwrap().remove("cause");
        let heard: Event = serde_json::from_value(older).unwrap();
        assert!(matches!(heard.what, What::PathDown { cause: None, path: 3, .. }));
    }
}
