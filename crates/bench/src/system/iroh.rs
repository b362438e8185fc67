//! iroh with direct addresses only: no relay, no lookup, nothing but its connections.

use anyhow::Result;
use iroh::endpoint::{Builder, Incoming, ZeroRttStatus, presets};
use iroh::{Endpoint, EndpointAddr, RelayMode};

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start, crypto};

fn builder() -> Result<Builder> {
    let builder = Endpoint::builder(presets::Empty)
        .crypto_provider(crypto::provider())
        .relay_mode(RelayMode::Disabled)
        .clear_address_lookup()
        .clear_ip_transports()
        .bind_addr(LOCALHOST)?;
    Ok(builder)
}

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let endpoint = builder()?.alpns(vec![crypto::ALPN.to_vec()]).bind().await?;
    let identity = endpoint.id().to_string();
    let socket = *endpoint.bound_sockets().first().unwrap_or(&LOCALHOST);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(accept(incoming, handler.clone()));
        }
    });
    Ok(Address { socket, identity })
}

async fn accept(incoming: Incoming, handler: Handler) -> Result<()> {
    let connection = incoming.accept()?.into_0rtt();
    while let Ok((send, receive)) = connection.accept_bi().await {
        let channel = Channel::new(tokio::io::join(receive, send)).of(connection.clone());
        tokio::spawn(handler(channel));
    }
    Ok(())
}

pub(super) struct Client {
    server: EndpointAddr,
    endpoint: Endpoint,
}

impl Client {
    pub(super) async fn new(address: &Address) -> Result<Self> {
        let server = EndpointAddr::new(address.identity.parse()?).with_ip_addr(address.socket);
        Ok(Self { server, endpoint: builder()?.bind().await? })
    }

    async fn connect_plain(&self) -> Result<Channel> {
        let connection = self.endpoint.connect(self.server.clone(), crypto::ALPN).await?;
        let (send, receive) = connection.open_bi().await?;
        Ok(Channel::new(tokio::io::join(receive, send)).of(connection))
    }

    async fn connect_early(&self) -> Result<Channel> {
        let server = self.server.clone();
        let connecting = self.endpoint.connect_with_opts(server, crypto::ALPN, Default::default()).await?;
        let early = match connecting.into_0rtt() {
            Ok(early) => early,
            Err(connecting) => {
                let connection = connecting.await?;
                let (send, receive) = connection.open_bi().await?;
                return Ok(Channel::new(tokio::io::join(receive, send)).of(connection));
            }
        };
        let (send, receive) = early.open_bi().await?;
        let watched = early.clone();
        // The handshake has to be driven to its end for the connection to become a full one.
        tokio::spawn(async move {
            if let Ok(ZeroRttStatus::Rejected(_)) = watched.handshake_completed().await {
                report_rejection();
            }
        });
        Ok(Channel::new(tokio::io::join(receive, send)).of(early))
    }
}

/// The stream is then dead, which the bench will see.
fn report_rejection() {
    eprintln!("iroh: early data was rejected");
}

impl super::Client for Client {
    fn connect(&self, start: Start) -> BoxFuture<'_, Result<Channel>> {
        Box::pin(async move {
            match start {
                Start::Plain => self.connect_plain().await,
                Start::Early => self.connect_early().await,
            }
        })
    }

    fn streams(&self, count: usize) -> BoxFuture<'_, Result<Vec<Channel>>> {
        Box::pin(async move {
            let connection = self.endpoint.connect(self.server.clone(), crypto::ALPN).await?;
            let mut channels = Vec::with_capacity(count);
            for _ in 0..count {
                let (send, receive) = connection.open_bi().await?;
                channels.push(Channel::new(tokio::io::join(receive, send)).of(connection.clone()));
            }
            Ok(channels)
        })
    }
}
