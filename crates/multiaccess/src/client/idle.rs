//! Connections that were released, by host and port.

mod ahead;

use crate::protocol::OpenConnection;
use ahead::Ahead;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// A connection that nobody used for so long is closed: servers do so too.
const IDLE: Duration = Duration::from_secs(60);
/// Idle connections to one host and port.
const MOST_EACH: usize = 8;
/// Idle connections altogether.
const MOST: usize = 256;

/// A host and a port.
pub(super) type Key = (String, u16);

/// Idle connections.
#[derive(Default)]
pub(super) struct Idle {
    next: u32,
    hosts: HashMap<Key, Vec<Resting>>,
    /// To which hosts one was opened before anything needed it.
    pub(super) ahead: Ahead,
}

/// One of them.
pub(super) struct Resting {
    pub(super) id: u32,
    pub(super) stream: TcpStream,
    /// Whether a message has passed on it.
    pub(super) has_carried: bool,
    source: IpAddr,
    destination: SocketAddr,
    since: Instant,
}

/// An idle connection as the manager is told of it, and where it leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) open: OpenConnection,
    pub(super) destination: SocketAddr,
}

impl Resting {
    pub(super) fn source(&self) -> IpAddr {
        self.source
    }

    /// Whether it may be handed out: it is open, and nothing has come on it. An end, a reset and words that
    /// nobody asked for all make it readable.
    fn is_good(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let looked = socket2::SockRef::from(&self.stream).peek(&mut byte);
        self.since.elapsed() < IDLE && looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

impl Idle {
    /// A number for a connection: older ones have smaller numbers.
    pub(super) fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.hosts.values().map(Vec::len).sum()
    }

    /// Those to this host that still work.
    pub(super) fn offers(&mut self, key: &Key) -> Vec<Offer> {
        let offer = |one: &Resting| Offer {
            open: OpenConnection { id: one.id, source: one.source, scheduled: 0 },
            destination: one.destination,
        };
        self.good(key).map(|good| good.iter().map(offer).collect()).unwrap_or_default()
    }

    /// Takes the newest one out that still works and passes the test.
    pub(super) fn take(&mut self, key: &Key, test: impl Fn(&Resting) -> bool) -> Option<Resting> {
        let good = self.good(key)?;
        let at = good.iter().rposition(test)?;
        let taken = good.remove(at);
        if good.is_empty() {
            self.hosts.remove(key);
        }
        Some(taken)
    }

    /// Puts one in, if there is room: after a message, or one that has not carried any.
    pub(super) fn put(&mut self, key: Key, id: u32, stream: TcpStream, has_carried: bool) {
        let (Ok(source), Ok(destination)) = (stream.local_addr(), stream.peer_addr()) else { return };
        self.hosts.retain(|_, resting| {
            resting.retain(Resting::is_good);
            !resting.is_empty()
        });
        if self.count() >= MOST {
            return;
        }
        let resting = self.hosts.entry(key).or_default();
        if resting.len() < MOST_EACH {
            let (source, since) = (source.ip(), Instant::now());
            resting.push(Resting { id, stream, has_carried, source, destination, since });
        }
    }

    /// Puts one in that was opened before anything needed it.
    pub(super) fn put_fresh(&mut self, key: Key, stream: TcpStream) {
        let id = self.number();
        self.put(key, id, stream, false);
    }

    /// Those to this host, when the others are closed.
    fn good(&mut self, key: &Key) -> Option<&mut Vec<Resting>> {
        let resting = self.hosts.get_mut(key)?;
        resting.retain(Resting::is_good);
        Some(resting)
    }
}
