//! QUIC, by quinn, with its default transport parameters except that idle connections stay.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig, TransportConfig};

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start, crypto};

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    Arc::new(transport)
}

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let (mut tls, identity) = crypto::server()?;
    tls.max_early_data_size = u32::MAX;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
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

/// Two ends of one connection.
pub(crate) async fn connections() -> Result<(Connection, Connection)> {
    let (tls, identity) = crypto::server()?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    let endpoint = Endpoint::server(config, LOCALHOST)?;
    let address = Address { socket: endpoint.local_addr()?, identity };
    let accepted = tokio::spawn(async move {
        let incoming = endpoint.accept().await.context("nobody came")?;
        Ok::<_, anyhow::Error>((incoming.await?, endpoint))
    });
    let client = Client::new(&address)?;
    let there = client.connection(Start::Plain).await?;
    let (back, endpoint) = accepted.await??;
    // They live as long as their connections.
    drop((client, endpoint));
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
        config.transport_config(transport());
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
