//! Bytes that pass in both directions and are not looked at: CONNECT, and WebSocket once both sides speak it.
//! A tunnel through a gateway that keeps sessions is one, and can move to another device.

use super::origins::Lease;
use super::rewound::Rewound;
use super::watched::{Traffic, Watched};
use crate::whole::keep_alive;
use crate::{Attached, Destination, Duplex};
use bytes::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use whimbrel_access::Intents;

/// What is read at once. Larger is no faster on loopback, and there are two for each tunnel.
const BUFFER: usize = 64 << 10;
/// Both sides have agreed, and have to leave HTTP.
pub(super) const AGREED: Duration = Duration::from_secs(30);
/// For a tunnel to its server, names and all ways there included.
pub(super) const CONNECT: Duration = Duration::from_secs(30);
/// How much the last tunnel counts among those before it.
const WEIGHT: u64 = 4;

/// A tunnel that begins when the answer that agreed to it has gone out.
pub(super) struct Tunnel {
    to: Destination,
    client: OnUpgrade,
    server: Server,
}

/// Where a tunnel leads.
enum Server {
    Far(Far),
    /// To a gateway, which has the server's connection.
    Session(Box<Attached>),
}

/// A tunnel that a client was told it has, and of which its first words decide what becomes.
pub(super) struct Asked {
    pub(super) to: Destination,
    pub(super) client: OnUpgrade,
    pub(super) intents: Intents,
}

/// What a connection of a client becomes.
pub(super) enum Agreed {
    /// A tunnel.
    Tunnel(Tunnel),
    /// One, if it is not intercepted.
    Asked(Asked),
}

/// The far side of a tunnel.
pub(super) enum Far {
    /// A connection of its own.
    Stream(Box<dyn Duplex>),
    /// One that spoke HTTP before.
    Upgrade(OnUpgrade, Box<Lease>),
}

impl Far {
    async fn copy(self, client: &mut Rewound) -> io::Result<()> {
        let (mut stream, mut upgraded);
        let server: &mut dyn Duplex = match self {
            Self::Stream(server) => {
                stream = server;
                &mut stream
            }
            Self::Upgrade(server, lease) => {
                let agreed = tokio::time::timeout(AGREED, server).await?;
                // The connection is no more one that speaks HTTP.
                drop(lease);
                upgraded = TokioIo::new(agreed.map_err(io::Error::other)?);
                &mut upgraded
            }
        };
        let mut server = server;
        tokio::io::copy_bidirectional_with_sizes(client, &mut server, BUFFER, BUFFER).await?;
        Ok(())
    }
}

/// Where a request leaves what its connection becomes.
pub(super) struct Slot<T>(Mutex<Option<T>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Slot<T> {
    pub(super) fn put(&self, agreed: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
    }

    pub(super) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Tunnel {
    /// One that stays on this device.
    pub(super) fn new(to: Destination, client: OnUpgrade, server: Far) -> Self {
        Self { to, client, server: Server::Far(server) }
    }

    /// One that can move to another device.
    pub(super) fn in_session(to: Destination, client: OnUpgrade, session: Attached) -> Self {
        Self { to, client, server: Server::Session(Box::new(session)) }
    }

    /// Where it leads.
    pub(super) fn to(&self) -> &Destination {
        &self.to
    }

    /// Passes bytes on until both sides have ended, or one has failed, or it goes on at another device.
    /// Returns what passed in it, if that was counted.
    pub(super) async fn run(self, traffic: &Traffic) -> Option<Passed> {
        let Self { to, client, server } = self;
        traffic.is_tunnel_now();
        let before = traffic.bytes();
        let client = tokio::time::timeout(AGREED, client).await.ok()?.ok()?;
        match server {
            Server::Far(server) => {
                pass(&to, Rewound::new(Bytes::new(), TokioIo::new(client)), server, traffic).await;
                Some(Passed::since(before, traffic))
            }
            Server::Session(session) => {
                // However it ends before both sides have ended it: not as if they had.
                traffic.break_off();
                if let Err(error) = carry(*session, client, traffic).await {
                    tracing::debug!(%error, %to, "a session broke");
                }
                None
            }
        }
    }
}

/// Passes bytes on until both sides have ended, or one has failed.
pub(super) async fn pass(to: &Destination, client: Rewound, server: Far, traffic: &Traffic) {
    let mut client = client;
    // However it ends before both sides have ended it: not as if they had.
    traffic.break_off();
    match server.copy(&mut client).await {
        Ok(()) => traffic.end(),
        Err(error) => tracing::debug!(%error, %to, "a tunnel broke"),
    }
}

/// Carries a session to and from the client's own socket, of which it is asked how far the client is. The
/// gateway ends one on which nothing moves.
async fn carry(session: Attached, client: Upgraded, traffic: &Traffic) -> io::Result<()> {
    let other = || io::Error::other("the client's connection is not one of this proxy");
    let parts = client.downcast::<TokioIo<Watched>>().map_err(|_| other())?;
    let socket = parts.io.into_inner().into_socket().ok_or_else(other)?;
    traffic.is_elsewhere_now();
    keep_alive(&socket);
    session.carry(socket, parts.read_buf.into()).await.map(drop)
}

/// The bytes that passed in a tunnel, as the client sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Passed {
    /// What has passed since the client's connection had carried so much.
    pub(super) fn since(before: (u64, u64), traffic: &Traffic) -> Self {
        let after = traffic.bytes();
        Self { sent: after.0.saturating_sub(before.0), received: after.1.saturating_sub(before.1) }
    }

    /// What is to be expected of the next tunnel, after this one.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        let Some(before) = before else { return self };
        let mean = |old: u64, new: u64| old - old / WEIGHT + new / WEIGHT;
        Self { sent: mean(before.sent, self.sent), received: mean(before.received, self.received) }
    }

    /// What is said of it.
    pub(super) fn intents(self) -> Intents {
        Intents { size_sent: Some(self.sent), size_received: Some(self.received), ..Intents::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_of_a_tunnel_follows_those_before_it() {
        let passed = |bytes| Passed { sent: bytes, received: 10 * bytes };
        assert_eq!(passed(1000).after(None), passed(1000));
        assert_eq!(passed(2000).after(Some(passed(1000))), passed(1250));
        assert_eq!(passed(u64::MAX / 10).after(Some(passed(u64::MAX / 10))).received, u64::MAX / 10 * 10);
        assert_eq!(passed(1).intents().received(), Some(10));
    }
}
