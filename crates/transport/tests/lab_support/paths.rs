//! A connection over several links, and what its paths do.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_lab::{LinkSpec, Rate};
use whimbrel_transport::{Builder, Connection, HandoverMode, PathInfo, PathState, Priority};

use super::net::Multi;
use super::traffic::{Echo, Meter, Server, Transfer, Way};
use super::{ms, secs};

/// So many Mbit/s, and milliseconds one way.
pub(crate) fn link(rate: u64, delay: u64) -> LinkSpec {
    LinkSpec::default().delay(ms(delay)).rate(Rate::mbit(rate))
}

/// TCP is answered a few round trips after QUIC, or not at all.
const CALM: Duration = Duration::from_millis(150);

/// A client's connection to a server.
pub(crate) struct Running {
    pub(crate) net: Multi,
    pub(crate) server: Server,
    pub(crate) connection: Connection,
}

impl Running {
    /// The server is as it is by default: what the client says about paths holds for both.
    pub(crate) fn new(net: Multi, change: impl FnOnce(Builder) -> Builder + Send) -> Self {
        Self::with(net, change, |builder| builder)
    }

    pub(crate) fn with(
        net: Multi,
        client: impl FnOnce(Builder) -> Builder + Send,
        server: impl FnOnce(Builder) -> Builder + Send,
    ) -> Self {
        let server = Server::start(&net.server, net.server.endpoint_with(server));
        let client = net.client.endpoint_with(client);
        let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
        Self { net, server, connection }
    }

    pub(crate) fn in_mode(net: Multi, mode: HandoverMode) -> Self {
        Self::new(net, |builder| builder.handover(mode))
    }

    pub(crate) fn paths(&self) -> Vec<PathInfo> {
        self.connection.stats().paths
    }

    /// Waits until the paths are so.
    pub(crate) fn until(&self, what: &str, are_so: impl Fn(&[PathInfo]) -> bool) {
        let began = Instant::now();
        loop {
            let paths = self.paths();
            if are_so(&paths) {
                return;
            }
            assert!(began.elapsed() < secs(20), "it never came: {what}; {paths:#?}");
            std::thread::sleep(ms(5));
        }
    }

    /// Waits until so many paths work, no others are there, and they stay: TCP has taken over where QUIC was
    /// first.
    pub(crate) fn until_active(&self, count: usize) {
        let began = Instant::now();
        loop {
            self.until("working paths", |paths| paths.len() == count && active(paths).count() == count);
            let ids = || self.paths().iter().map(|path| path.id).collect::<Vec<_>>();
            let before = ids();
            std::thread::sleep(CALM);
            if ids() == before {
                return;
            }
            assert!(began.elapsed() < secs(20), "the paths do not come to rest: {:#?}", self.paths());
        }
    }

    pub(crate) fn until_priority(&self, index: usize, priority: Priority) {
        let ip = self.net.up(index).ip();
        self.until("priority", |paths| over(paths, ip).is_some_and(|path| path.priority == priority));
    }

    /// The path over the client's interface with that number.
    pub(crate) fn over(&self, index: usize) -> Option<PathInfo> {
        over(&self.paths(), self.net.up(index).ip()).cloned()
    }

    /// The path with that number, which must have been there, still is.
    pub(crate) fn keeps(&self, id: Option<u64>) -> bool {
        id.is_some_and(|id| self.paths().iter().any(|path| path.id == id))
    }

    /// Waits until the path over the interface with that number works; it must be the one that it was, if
    /// there was one. A busy machine makes it suspect for a moment; had it been given up, it had another
    /// number.
    pub(crate) fn until_served_by(&self, index: usize, was: Option<u64>) {
        let ip = self.net.up(index).ip();
        self.until("the healthy link in use", |paths| {
            let Some(path) = over(paths, ip) else { return false };
            assert!(was.is_none_or(|id| path.id == id), "path {was:?} was given up: {paths:#?}");
            path.state == PathState::Active
        });
    }

    pub(crate) fn start(&self, way: Way, bytes: u64) -> Transfer {
        Transfer::start(&self.net.client, &self.connection, &self.server, way, bytes)
    }

    pub(crate) fn echo(&self) -> Echo {
        self.net.client.wait(Echo::open(&self.connection))
    }

    /// Breaks something, and tells how long nothing arrived at most until `bytes` more have.
    pub(crate) fn longest_pause(&self, meter: &Meter, bytes: u64, disturb: impl FnOnce(&Multi)) -> Duration {
        let until = meter.get() + bytes;
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        disturb(&self.net);
        let mut seen = meter.get();
        while seen < until {
            self.net.client.wait(meter.reach(seen + 1));
            seen = meter.get();
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        longest
    }
}

pub(crate) fn active(paths: &[PathInfo]) -> impl Iterator<Item = &PathInfo> {
    paths.iter().filter(|path| path.state == PathState::Active)
}

/// The last path that works; others may still be dialled, or be on their way out.
pub(crate) fn newest(connection: &Connection) -> PathInfo {
    active(&connection.stats().paths).last().unwrap().clone()
}

/// What a path carried, in the direction that had more.
pub(crate) fn carried(path: &PathInfo) -> u64 {
    path.bytes_sent.max(path.bytes_received)
}

fn over(paths: &[PathInfo], ip: IpAddr) -> Option<&PathInfo> {
    paths.iter().rev().find(|path| path.local.ip() == ip)
}
