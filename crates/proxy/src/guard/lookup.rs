//! The addresses of names.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use whimbrel_base::EndpointId;

/// Looks are made in threads, of which there must be some left for others.
const AT_ONCE: usize = 64;
/// Of one peer. A look lasts for as long as servers of names that are the peer's own keep it waiting.
const AT_ONCE_EACH: usize = 8;

/// What [`Lookup::lookup`] returns.
pub type Looking<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of names.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name, best first. The turn is to be dropped once nothing more is done for it.
    fn lookup<'a>(&'a self, host: &'a str, turn: Turn) -> Looking<'a>;
}

/// One look-up of a peer: others wait for its end.
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Look-ups at once, for each peer and in all.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// Those of peers that look or wait. As long as they do, they hold their own.
    each: Mutex<HashMap<EndpointId, Weak<Semaphore>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), each: Mutex::default() }
    }
}

impl Turns {
    /// Waits until it is the peer's turn. Nobody waits for those that wait for another peer's. Cancel-safe.
    pub(super) async fn take(&self, peer: EndpointId) -> io::Result<Turn> {
        let own = self.of(peer).acquire_owned().await.map_err(io::Error::other)?;
        let all = Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)?;
        Ok(Turn { _own: own, _all: all })
    }

    fn of(&self, peer: EndpointId) -> Arc<Semaphore> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = each.get(&peer).and_then(Weak::upgrade) {
            return own;
        }
        each.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(AT_ONCE_EACH));
        each.insert(peer, Arc::downgrade(&own));
        own
    }
}

/// As the system does for every program.
#[derive(Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup<'a>(&'a self, host: &'a str, turn: Turn) -> Looking<'a> {
        Box::pin(async move {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use whimbrel_base::SecretKey;

    fn peer(number: u8) -> EndpointId {
        SecretKey::from_bytes(&[number; 32]).id()
    }

    #[tokio::test]
    async fn a_peer_whose_names_are_slow_holds_up_nobody_else() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..AT_ONCE_EACH {
            held.push(turns.take(peer(1)).await.unwrap());
        }
        let mut ninth = Box::pin(turns.take(peer(1)));
        let waits = async |taking: &mut Pin<Box<_>>| {
            tokio::select! { biased; _ = taking => false, () = std::future::ready(()) => true }
        };
        assert!(waits(&mut ninth).await);
        held.push(turns.take(peer(2)).await.unwrap());
        held.remove(0);
        held.push(ninth.await.unwrap());
        let mut tenth = Box::pin(turns.take(peer(1)));
        assert!(waits(&mut tenth).await);
        drop(tenth);
        drop(held);
        drop(turns.take(peer(3)).await.unwrap());
        assert_eq!(turns.each.lock().unwrap().len(), 1, "peers that don't look are forgotten");
        assert_eq!(turns.all.available_permits(), AT_ONCE);
    }
}
