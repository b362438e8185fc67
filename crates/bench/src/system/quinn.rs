//! QUIC, by quinn, with its default transport parameters except that idle connections stay.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use quinn::congestion::BbrConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig, TransportConfig};
use tokio::runtime::Handle;

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start, crypto};

fn transport(bbr: bool) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    if bbr {
        transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
    }
    Arc::new(transport)
}

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let (mut tls, identity) = crypto::server()?;
    tls.max_early_data_size = u32::MAX;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport(false));
    let endpoint = Endpoint::server(config, LOCALHOST)?;
    let socket = endpoint.local_addr()?;
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(accept(incoming, handler.clone()));
        }
    });
    Ok(Address { socket, identity })
}

async fn accept(incoming: Incoming, handler: Handler) -> Result<()> {
    let connection = match incoming.accept()?.into_0rtt() {
        Ok((connection, _)) => connection,
        Err(connecting) => connecting.await?,
    };
    while let Ok((send, receive)) = connection.accept_bi().await {
        let channel = Channel::new(tokio::io::join(receive, send)).of(connection.clone());
        tokio::spawn(handler(channel));
    }
    Ok(())
}

/// Two ends of one connection, each in its runtime; the second is at that address. With quinn's BBR instead
/// of its default congestion control, or without.
pub(crate) async fn connections(
    first: &Handle,
    second: &Handle,
    at: IpAddr,
    bbr: bool,
) -> Result<(Connection, Connection)> {
    let transport = transport(bbr);
    let (tls, identity) = crypto::server()?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport.clone());
    let endpoint = second.spawn(async move { Endpoint::server(config, (at, 0).into()) }).await??;
    let server = endpoint.local_addr()?;
    let accepted = second.spawn(async move {
        let incoming = endpoint.accept().await.context("nobody came")?;
        anyhow::Ok((incoming.await?, endpoint))
    });
    let tls = crypto::client(&identity)?;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport);
    let dialled = first.spawn(async move {
        let any = if at.is_loopback() { LOCALHOST } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
        let mut endpoint = Endpoint::client(any)?;
        endpoint.set_default_client_config(config);
        anyhow::Ok(endpoint.connect(server, crypto::SERVER_NAME)?.await?)
    });
    let there = dialled.await??;
    // Endpoints live as long as their connections.
    let (back, _) = accepted.await??;
    Ok((there, back))
}

pub(super) struct Client {
    server: SocketAddr,
    endpoint: Endpoint,
}

impl Client {
    pub(super) fn new(address: &Address) -> Result<Self> {
        let mut tls = crypto::client(&address.identity)?;
        tls.enable_early_data = true;
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(transport(false));
        let mut endpoint = Endpoint::client(LOCALHOST)?;
        endpoint.set_default_client_config(config);
        Ok(Self { server: address.socket, endpoint })
    }

    async fn connection(&self, start: Start) -> Result<Connection> {
        let connecting = self.endpoint.connect(self.server, crypto::SERVER_NAME)?;
        if start == Start::Plain {
            return Ok(connecting.await?);
        }
        match connecting.into_0rtt() {
            Ok((connection, _)) => Ok(connection),
            Err(connecting) => Ok(connecting.await?),
        }
    }
}

impl super::Client for Client {
    fn connect(&self, start: Start) -> BoxFuture<'_, Result<Channel>> {
        Box::pin(async move {
            let connection = self.connection(start).await?;
            let (send, receive) = connection.open_bi().await?;
            Ok(Channel::new(tokio::io::join(receive, send)).of(connection))
        })
    }

    fn streams(&self, count: usize) -> BoxFuture<'_, Result<Vec<Channel>>> {
        Box::pin(async move {
            let connection = self.connection(Start::Plain).await?;
            let mut channels = Vec::with_capacity(count);
            for _ in 0..count {
                let (send, receive) = connection.open_bi().await?;
                channels.push(Channel::new(tokio::io::join(receive, send)).of(connection.clone()));
            }
            Ok(channels)
        })
    }
}
