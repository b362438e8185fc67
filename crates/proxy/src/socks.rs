//! A SOCKS proxy: SOCKS5 (RFC 1928) with user names and passwords (RFC 1929), and SOCKS4a.
//!
//! ```text
//! browser      who is kept from names as hosts
//! message      what is said before the bytes, read from buffers: no sockets
//! credentials  who may use the proxy
//! session      one program's connection
//! ```
//!
//! Written here and not taken: `fast-socks5` reads from sockets where these parts are to be fuzzed, and knows
//! neither SOCKS4a nor replies by what went wrong. What is left of the protocol is 200 lines.

mod browser;
mod credentials;
mod message;
mod session;

pub use credentials::{BadCredentials, Credentials};

use crate::{NetworkTraffic, Upstream};
use futures_util::FutureExt;
use session::Session;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at once, if nothing else is said.
const CONNECTIONS: usize = 4096;
/// After an error of accept(2), such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A SOCKS proxy. Cheap to clone.
#[derive(Clone)]
pub struct Socks {
    session: Arc<Session>,
    places: Arc<Semaphore>,
    /// How many places there are.
    most: usize,
}

/// What a SOCKS proxy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocksStats {
    /// Programs' connections that are open.
    pub connections: u64,
    /// Destinations that were reached.
    pub connected: u64,
    /// Destinations that were not.
    pub failed: u64,
}

impl Socks {
    /// Reaches destinations this way. Everybody who reaches the socket may use it, unless there are
    /// credentials.
    pub fn new(upstream: Arc<dyn Upstream>, credentials: Option<Credentials>) -> Self {
        let session = Arc::new(Session::new(upstream, credentials));
        Self { session, places: Arc::new(Semaphore::new(CONNECTIONS)), most: CONNECTIONS }
    }

    /// With another bound of connections at once. More are closed when they come.
    #[must_use]
    pub fn with_connections(self, most: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(most)), most, ..self }
    }

    /// With another limit for a program to say what it wants. Ten seconds by default.
    #[must_use]
    pub fn with_handshake_limit(self, limit: Duration) -> Self {
        Self { session: Arc::new(self.session.with_handshake_limit(limit)), ..self }
    }

    /// What it has done so far.
    pub fn stats(&self) -> SocksStats {
        let open = self.most.saturating_sub(self.places.available_permits());
        let (connected, failed) = self.session.reached();
        SocksStats { connections: open as u64, connected, failed }
    }

    /// What has passed over each network that the manager chose, as [`crate::HttpProxy::networks`] tells it.
    pub fn networks(&self) -> Vec<NetworkTraffic> {
        self.session.traffic()
    }

    /// Serves until it is dropped.
    pub async fn serve(&self, listener: TcpListener) -> Infallible {
        loop {
            let socket = match listener.accept().await {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                tracing::warn!("too many connections; one was closed");
                continue;
            };
            let session = Arc::clone(&self.session);
            tokio::spawn(FutureExt::boxed(async move {
                let _place = place;
                session.serve(socket).await;
            }));
        }
    }
}

/// Reads bytes as everything that a program may say. For fuzzers.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    message::read_anything(bytes);
    browser::judge(bytes);
}
