//! Keeps an endpoint's port open at its routers for as long as it wants it.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use tokio::time::timeout;
use whimbrel_base::SecretKey;
use whimbrel_transport::{Endpoint, Watch, Watched};

use crate::favour::Keeper;
use crate::news::Mapped;
use crate::passing::PassingOn;
use crate::pcp::Nonce;
use crate::pinhole::LettingIn;

/// Giving ports back does not hold up an end for longer.
const PARTING: Duration = Duration::from_secs(1);
/// What the nonce of an endpoint's mappings is derived from, beside its key.
const NONCE: &[u8] = b"whimbrel port map v1";

/// Keeps an endpoint's port open until it is closed or dropped: passed on where a router hides the host, and
/// let in at the host's own IPv6 addresses. Dropped, it leaves the port to the router, which forgets it
/// within an hour.
#[derive(Debug)]
pub struct PortMap {
    news: Watch<Mapped>,
    keepers: Vec<Keeper>,
}

impl PortMap {
    /// Asks this host's routers for the endpoint's port, as the holder of its `key`: a process that comes
    /// after this one may go on with what it left. Must run inside a tokio runtime; asking goes on in the
    /// background.
    ///
    /// ```no_run
    /// # // Not run: it would ask the router of whoever runs the tests for a port.
    /// # async fn example(endpoint: whimbrel_transport::Endpoint, key: whimbrel_base::SecretKey) {
    /// let ports = whimbrel_portmap::PortMap::start(endpoint, &key);
    /// let mapped = ports.news().wait_for(|mapped| !mapped.places.is_empty()).await;
    /// # let _ = mapped;
    /// ports.close().await;
    /// # }
    /// ```
    pub fn start(endpoint: Endpoint, key: &SecretKey) -> Self {
        let mapped = Arc::new(Watched::new(Mapped::default()));
        let news = mapped.watch();
        let mut keepers = Vec::new();
        if let Some(port) = NonZeroU16::new(endpoint.port()) {
            let (nonce, addresses) = (nonce(key), endpoint.watch_addresses());
            let passing_on = PassingOn::new(endpoint.clone(), port, nonce, mapped.clone());
            keepers.push(Keeper::start(passing_on, addresses.clone()));
            keepers.push(Keeper::start(LettingIn::new(endpoint, port, nonce, mapped), addresses));
        }
        Self { news, keepers }
    }

    /// How it stands, now and as it changes.
    pub fn news(&self) -> Watch<Mapped> {
        self.news.clone()
    }

    /// Gives the port back. Waits a second at most.
    pub async fn close(mut self) {
        self.keepers.iter_mut().for_each(Keeper::stop);
        let ended = async {
            for keeper in &mut self.keepers {
                keeper.ended().await;
            }
        };
        if timeout(PARTING, ended).await.is_err() {
            tracing::debug!("the router does not answer: it keeps the port for a while");
        }
    }
}

/// Always the same: a router that has kept a mapping for another nonce refuses to change it.
fn nonce(key: &SecretKey) -> Nonce {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key.to_bytes()), NONCE);
    let mut words =
        tag.as_ref().chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    std::array::from_fn(|_| words.next().unwrap_or_default())
}
