//! iroh through its own relay: QUIC, with early data once the peer is known.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use iroh::{Endpoint, EndpointAddr};
use iroh_relay::server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{CALM, FAR, NEAR};
use crate::lab::Chain;
use crate::system::iroh_relay::{accept_early, relay};
use crate::system::{Channel, crypto, echo};

/// Fields are dropped in this order.
pub(super) struct World {
    client: Endpoint,
    server: EndpointAddr,
    _serving: Endpoint,
    _relay: Server,
    chain: Chain,
}

impl World {
    pub(super) fn new() -> Result<Self> {
        let chain = Chain::apart([NEAR, FAR])?;
        // Both sides have to know the relay by the same address.
        chain.lead_client_to_relay()?;
        let (place, relay) = chain.relay.wait("relay", relay(chain.relay_ips[1]))??;
        let builders = [place.builder(), place.builder().alpns(vec![crypto::ALPN.to_vec()])];
        let [of_client, of_server] = builders;
        let serving = chain.server.wait("serve", online(of_server))??;
        chain.server.runtime.spawn(accept_early(serving.clone(), echo()));
        let client = chain.client.wait("bind", online(of_client))??;
        let server = EndpointAddr::new(serving.id()).with_relay_url(place.url.clone());
        let world = Self { client, server, _serving: serving, _relay: relay, chain };
        // The first connection makes the peer known.
        world.connect()?;
        Ok(world)
    }

    pub(super) fn connect(&self) -> Result<Duration> {
        std::thread::sleep(CALM);
        let (client, server) = (self.client.clone(), self.server.clone());
        self.chain.client.wait("connect", first_byte(client, server))?
    }
}

/// An endpoint that is connected to its relay.
async fn online(builder: iroh::endpoint::Builder) -> Result<Endpoint> {
    let endpoint = builder.bind().await?;
    endpoint.online().await;
    Ok(endpoint)
}

/// How long it takes to connect and to have a byte echoed.
async fn first_byte(client: Endpoint, server: EndpointAddr) -> Result<Duration> {
    let began = Instant::now();
    let connecting = client.connect_with_opts(server, crypto::ALPN, Default::default()).await?;
    match connecting.into_0rtt() {
        Ok(early) => {
            let (send, receive) = early.open_bi().await?;
            let took = echoed(Channel::new(tokio::io::join(receive, send)), began).await?;
            // The handshake has to be driven to its end, for a ticket to come.
            early.handshake_completed().await?;
            Ok(took)
        }
        Err(connecting) => {
            let connection = connecting.await?;
            let (send, receive) = connection.open_bi().await?;
            echoed(Channel::new(tokio::io::join(receive, send)), began).await
        }
    }
}

async fn echoed(mut channel: Channel, began: Instant) -> Result<Duration> {
    channel.write_u8(1).await?;
    channel.flush().await?;
    channel.read_u8().await.context("no echo")?;
    let took = began.elapsed();
    // Tickets come after the handshake.
    tokio::time::sleep(CALM).await;
    Ok(took)
}
