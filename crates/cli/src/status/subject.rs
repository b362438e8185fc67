//! The running command that is told of: its endpoint, and what it is about.

use whimbrel::Endpoint;
use whimbrel_base::{EndpointId, SecretKey, UnixTime};
use whimbrel_transport::{ConnectionInfo, Side};

use super::About;
use super::report::{self, ConnectionReport, RelayReport, Report};
use crate::limits::Limits;

/// A running command.
pub(super) struct Subject {
    pub(super) endpoint: Endpoint,
    /// The endpoint's.
    pub(super) key: SecretKey,
    pub(super) service: Option<EndpointId>,
    pub(super) about: About,
    pub(super) limits: Limits,
    pub(super) started: UnixTime,
}

impl Subject {
    /// The command, and the name that it serves or calls.
    pub(super) fn command(&self) -> (&'static str, Option<&str>) {
        (self.about.command, self.about.name.as_deref())
    }

    /// What a connection is for.
    pub(super) fn name_of(&self, peer: EndpointId, side: Side) -> Option<String> {
        let is_service = self.service == Some(peer) && side == Side::Client;
        if is_service { Some("name service".to_owned()) } else { self.about.name.clone() }
    }

    /// Its state.
    pub(super) fn report(&self) -> Report {
        let mut sessions = self.about.sessions.report().into_iter();
        Report {
            command: self.about.command.to_owned(),
            pid: std::process::id(),
            started_ms: self.started.as_millis(),
            id: self.endpoint.id().to_string(),
            name: self.about.name.clone(),
            addresses: self.endpoint.addr().addrs,
            sockets: self.about.sockets.as_ref().map(|sockets| sockets.report()),
            limits: self.limits.all(),
            relays: self.about.relays.as_ref().map_or_else(Vec::new, |relays| {
                relays.current().relays.iter().map(RelayReport::of).collect()
            }),
            session: sessions.next(),
            more_sessions: sessions.collect(),
            connections: self.endpoint.connections().into_iter().map(|one| self.connection(one)).collect(),
        }
    }

    fn connection(&self, connection: ConnectionInfo) -> ConnectionReport {
        let name = self.name_of(connection.peer, connection.side);
        let limit = self.endpoint.rate_control(connection.id).and_then(|control| control.rate_limit());
        let limit = limit.map(|limit| limit.bytes_per_second());
        let control = self.endpoint.path_control(connection.id);
        let chooses = control.is_some_and(|control| control.policy().is_selective());
        let addresses = self.endpoint.watch_addresses().current();
        report::connection(connection, name, limit, chooses, &addresses)
    }
}
