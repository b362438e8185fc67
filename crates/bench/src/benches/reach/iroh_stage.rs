//! iroh with a relay of its own in the lab.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use iroh::{Endpoint, EndpointAddr};
use iroh_relay::server::Server;

use super::stage::{Connected, Stage};
use super::talk;
use crate::lab::Homes;
use crate::system::iroh_relay::{RelayPlace, accept, relay};
use crate::system::{Channel, crypto};

/// After an endpoint has a relay: by then it has asked for its own address.
const SETTLE: Duration = Duration::from_secs(1);

/// Fields are dropped in this order.
pub(super) struct Iroh {
    server: Endpoint,
    place: RelayPlace,
    _relay: Server,
}

/// A client's endpoint, which is closed where it ran.
struct Closing {
    endpoint: Endpoint,
    runtime: tokio::runtime::Handle,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let endpoint = self.endpoint.clone();
        self.runtime.spawn(async move { endpoint.close().await });
    }
}

impl Iroh {
    pub(super) fn start(homes: &Homes) -> Result<Self> {
        let node = homes.relays.last().context("there is no host for a relay")?;
        let (place, relay) = node.wait("relay", relay(node.ip()))??;
        let starting = async {
            let endpoint = place.builder().alpns(vec![crypto::ALPN.to_vec()]).bind().await?;
            endpoint.online().await;
            anyhow::Ok(endpoint)
        };
        let server = homes.server.wait("serve", starting)?.context("iroh's server has no relay")?;
        homes.server.runtime.spawn(accept(server.clone(), talk::speaker()));
        std::thread::sleep(SETTLE);
        Ok(Self { server, place, _relay: relay })
    }
}

impl Stage for Iroh {
    fn connect(&self, homes: &Homes) -> Result<Connected> {
        let server = EndpointAddr::new(self.server.id()).with_relay_url(self.place.url.clone());
        let place = self.place.clone();
        let connecting = async {
            let endpoint = place.builder().bind().await?;
            endpoint.online().await;
            tokio::time::sleep(SETTLE).await;
            let began = Instant::now();
            let connection = endpoint.connect(server, crypto::ALPN).await?;
            let since = Instant::now();
            let (send, receive) = connection.open_bi().await?;
            let mut channel = Channel::new(tokio::io::join(receive, send));
            talk::begin(&mut channel).await?;
            anyhow::Ok((endpoint, connection, channel, [began, since]))
        };
        let (endpoint, connection, channel, times) = homes.client.wait("connect", connecting)??;
        let watched = connection.clone();
        let looks = move || {
            let paths = watched.paths();
            paths.iter().any(|path| path.is_ip() && path.is_selected())
        };
        let closing = Closing { endpoint, runtime: homes.client.runtime.handle().clone() };
        Ok(Connected::new(channel, times, looks, (connection, closing)))
    }
}
