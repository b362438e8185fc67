//! The addresses of names.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
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
    turns: Semaphore,
}

impl Default for SystemLookup {
    fn default() -> Self {
        Self { turns: Semaphore::new(AT_ONCE) }
    }
}

impl Lookup for SystemLookup {
    fn lookup<'a>(&'a self, host: &'a str) -> Looking<'a> {
        Box::pin(async move {
            let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
            // The port is not looked at.
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}
