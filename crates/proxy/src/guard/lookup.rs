//! The addresses of names.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Looks are made in threads, of which there must be some left for others.
const AT_ONCE: usize = 64;

/// What [`Lookup::lookup`] returns.
pub type Looking<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of names.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name, best first.
    fn lookup<'a>(&'a self, host: &'a str) -> Looking<'a>;
}

/// As the system does for every program.
pub struct SystemLookup {
    turns: Arc<Semaphore>,
}

impl Default for SystemLookup {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Lookup for SystemLookup {
    fn lookup<'a>(&'a self, host: &'a str) -> Looking<'a> {
        Box::pin(async move {
            let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(io::Error::other)?;
            let host = host.to_owned();
            let looking = tokio::task::spawn_blocking(move || {
                // Given back when the look has ended, also if nobody waits for it any more.
                let _turn = turn;
                // The port is not looked at.
                let found = (host, 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip()).collect())
            });
            looking.await.map_err(io::Error::other)?
        })
    }
}
