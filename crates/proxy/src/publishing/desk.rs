//! The gateway's side: what is published just now, and by which connection.

use super::message::Arrival;
use super::rules::PublishRules;
use crate::{Answer, Full, Place, Publication, Quota, Status};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use whimbrel_base::EndpointId;
use whimbrel_transport::{Connection, Stream};

/// Publications of one peer, and of all.
const PUBLICATIONS: (usize, usize) = (16, 1024);
/// Until a stream to the peer is open, and has taken who has come.
const OPEN: Duration = Duration::from_secs(10);
/// For the peer's answer: it may be moving just then.
const ANSWER: Duration = Duration::from_secs(30);
/// A peer that is out of reach for longer is not waited for.
const AWAY: Duration = Duration::from_secs(60);
/// An earlier publication of the same key lets go of its port within this.
const REPLACED: Duration = Duration::from_secs(2);

/// Bounds of what is published.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PublishSettings {
    /// Clients of one publication at once.
    pub each: usize,
    /// Clients of all, with those that have not said yet whom they want.
    pub all: usize,
    /// Clients at one address at once; of IPv6, in one /64.
    pub source: usize,
    /// A client's connection without a byte for so long is broken.
    pub idle: Duration,
}

impl Default for PublishSettings {
    fn default() -> Self {
        Self { each: 256, all: 4096, source: 64, idle: Duration::from_secs(124 * 60) }
    }
}

/// What peers publish at a gateway. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Publications {
    inner: Arc<Inner>,
}

struct Inner {
    rules: PublishRules,
    settings: PublishSettings,
    table: Mutex<Table>,
    publications: Quota<EndpointId>,
    sources: Quota<IpAddr>,
    visits: Quota<Publication>,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: HashMap<Publication, Entry>,
}

/// One publication. Bounded by the quota that its task has a place of.
struct Entry {
    number: u64,
    connection: Connection,
    replace: oneshot::Sender<oneshot::Sender<()>>,
}

/// Why something is not published. The peer is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unpublished {
    /// The operator did not give it to this peer.
    #[error("{0}")]
    NotAllowed(String),
    /// The peer publishes too much.
    #[error("too much is published: {0}")]
    Full(#[from] Full),
    /// The gateway cannot listen there.
    #[error("the gateway cannot listen on port {port}: {source}")]
    Port {
        /// Where.
        port: u16,
        /// What the system says.
        source: io::Error,
    },
}

/// A publication that was granted. It stands as soon as it is held.
pub(super) struct Granted {
    pub(super) what: Publication,
    pub(super) number: u64,
    /// Clients come here, if it is a port.
    pub(super) listener: Option<TcpListener>,
    /// A later one takes its place; it is told when the port is free.
    pub(super) replaced: oneshot::Receiver<oneshot::Sender<()>>,
    pub(super) _place: Place<EndpointId>,
}

/// Why a client does not get to a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    #[error("nothing is published under this name")]
    Unknown,
    #[error("{0}")]
    Full(#[from] Full),
    #[error("the server is not reached: {0}")]
    Away(io::Error),
    /// The peer says so.
    #[error("the server is not reached: {}", .0.plain())]
    Declined(Answer),
}

/// A stream to a peer on which it was said who has come.
pub(super) struct Opened {
    pub(super) stream: Stream,
    pub(super) place: Place<Publication>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Publications {
    fn default() -> Self {
        Self::new(PublishRules::default(), PublishSettings::default())
    }
}

impl Publications {
    /// By these rules. Without any, nothing is published.
    pub fn new(rules: PublishRules, settings: PublishSettings) -> Self {
        let inner = Inner {
            rules,
            table: Mutex::default(),
            publications: Quota::new(PUBLICATIONS.0, PUBLICATIONS.1),
            sources: Quota::new(settings.source, settings.all),
            visits: Quota::new(settings.each, settings.all),
            settings,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(super) fn settings(&self) -> &PublishSettings {
        &self.inner.settings
    }

    /// A client's place among those that come from near it.
    pub(super) fn come(&self, from: IpAddr) -> Result<Place<IpAddr>, Full> {
        self.inner.sources.take(near(from))
    }

    /// Publishes something for a peer. An earlier publication by the same key ends.
    pub(super) async fn grant(
        &self,
        what: Publication,
        connection: Connection,
    ) -> Result<Granted, Unpublished> {
        let peer = connection.peer_id();
        let at = self.inner.rules.check(&what, peer).map_err(Unpublished::NotAllowed)?;
        let place = self.inner.publications.take(peer);
        if let Some(entry) = self.take_out(&what, peer)? {
            let (free, is_free) = oneshot::channel();
            // One that has ended by itself needs not be told.
            if entry.replace.send(free).is_ok() {
                let _ = tokio::time::timeout(REPLACED, is_free).await;
            }
        }
        let place = match place {
            Ok(place) => place,
            // The one that has ended just now may have made room.
            Err(_) => self.inner.publications.take(peer)?,
        };
        let listener = match what {
            Publication::Port(port) => {
                let bound = bind(at, port).await;
                Some(bound.map_err(|source| Unpublished::Port { port, source })?)
            }
            Publication::Tls(_) | Publication::Http(_) => None,
        };
        let (replace, replaced) = oneshot::channel();
        let mut table = lock(&self.inner.table);
        table.next += 1;
        let number = table.next;
        table.entries.insert(what.clone(), Entry { number, connection, replace });
        Ok(Granted { what, number, listener, replaced, _place: place })
    }

    /// The publication that is to be replaced.
    fn take_out(&self, what: &Publication, peer: EndpointId) -> Result<Option<Entry>, Unpublished> {
        let mut table = lock(&self.inner.table);
        match table.entries.get(what) {
            // The rules give it to one key. Should they ever not, the first one keeps it.
            Some(entry) if entry.connection.peer_id() != peer => {
                Err(Unpublished::NotAllowed(format!("{what} is published by another key")))
            }
            _ => Ok(table.entries.remove(what)),
        }
    }

    /// A publication has ended, unless another one has taken its place.
    pub(super) fn ended(&self, what: &Publication, number: u64) {
        let mut table = lock(&self.inner.table);
        if table.entries.get(what).is_some_and(|entry| entry.number == number) {
            table.entries.remove(what);
        }
    }

    /// Whether this is published just now.
    pub(super) fn has(&self, what: &Publication) -> bool {
        lock(&self.inner.table).entries.contains_key(what)
    }

    /// Tells the peer that publishes this who has come, and what that client has said so far.
    pub(super) async fn open(&self, arrival: Arrival, first: &[u8]) -> Result<Opened, Unreached> {
        let known = lock(&self.inner.table).entries.get(&arrival.to).map(|entry| entry.connection.clone());
        let connection = known.ok_or(Unreached::Unknown)?;
        let place = self.inner.visits.take(arrival.to.clone())?;
        if let Some(lasts) = connection.stats().unreachable.filter(|lasts| *lasts > AWAY) {
            let why = format!("it has been out of reach for {} s", lasts.as_secs());
            return Err(Unreached::Away(io::Error::new(ErrorKind::TimedOut, why)));
        }
        let words = [&arrival.encode()[..], first].concat();
        let opening = async {
            let mut stream = connection.open_stream().await.map_err(io::Error::other)?;
            stream.write_all(&words).await?;
            io::Result::Ok(stream)
        };
        let opened = tokio::time::timeout(OPEN, opening).await;
        let stream = opened.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(Unreached::Away)?;
        Ok(Opened { stream, place })
    }
}

/// Takes the peer's answer to an arrival.
pub(super) async fn answered(from: &mut (impl AsyncRead + Unpin)) -> Result<(), Unreached> {
    let read = tokio::time::timeout(ANSWER, Answer::read(from)).await;
    let read = read.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    match read.map_err(Unreached::Away)? {
        Answer { status: Status::Connected, .. } => Ok(()),
        answer => Err(Unreached::Declined(answer)),
    }
}

/// Those who share an address, or a /64 of IPv6, which is what one subscriber has at least.
fn near(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// Listens on an address; where all are meant, of both families if the system has them.
async fn bind(at: IpAddr, port: u16) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(SocketAddr::new(at, port)).await;
    match bound {
        Err(error) if at == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clients_of_one_subscriber_are_counted_together() {
        let near = |text: &str| near(text.parse().unwrap()).to_string();
        assert_eq!(near("2001:db8:1:2:3:4:5:6"), near("2001:db8:1:2::9"));
        assert_ne!(near("2001:db8:1:2::9"), near("2001:db8:1:3::9"));
        assert_eq!(near("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
