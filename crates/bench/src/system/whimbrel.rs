//! Whimbrel as an application has it by default: the kernel's address monitor, every move possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, Endpoint, ListenOptions, Listener, ManualMonitor,
};

use super::{Address, BoxFuture, Channel, Handler, LOCALHOST, Start};

pub(super) async fn serve(handler: Handler) -> Result<Address> {
    let (endpoint, mut listener, address) = listen().await?;
    tokio::spawn(async move {
        accept_all(&mut listener, handler).await;
        drop(endpoint);
    });
    Ok(address)
}

pub(super) async fn keep(count: Arc<AtomicUsize>) -> Result<Address> {
    let (endpoint, mut listener, address) = listen().await?;
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(connection) = listener.accept().await {
            kept.push(connection);
            count.store(kept.len(), Ordering::Relaxed);
        }
        drop((endpoint, kept));
    });
    Ok(address)
}

async fn listen() -> Result<(Endpoint, Listener, Address)> {
    let endpoint = Endpoint::builder().bind().await?;
    let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    let mut socket = LOCALHOST;
    socket.set_port(endpoint.port());
    let identity = endpoint.id().to_string();
    Ok((endpoint, listener, Address { socket, identity }))
}

async fn accept_all(listener: &mut Listener, handler: Handler) {
    while let Some(connection) = listener.accept().await {
        tokio::spawn(accept_streams(connection, handler.clone()));
    }
}

async fn accept_streams(connection: Connection, handler: Handler) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(handler(Channel::new(stream)));
    }
}

pub(super) struct Client {
    endpoint: Endpoint,
    server: EndpointAddr,
}

impl Client {
    pub(super) async fn new(address: &Address) -> Result<Self> {
        Self::on(Endpoint::builder().bind().await?, address)
    }

    /// Dials over QUIC alone. It has the server's address, one of this machine's own: each has ports of its
    /// own.
    pub(super) async fn over_quic(address: &Address) -> Result<Self> {
        let monitor = ManualMonitor::new([address.socket.ip()]);
        let carriers = Carriers::Only(CarrierKind::Quic);
        Self::on(Endpoint::builder().monitor(monitor).carriers(carriers).bind().await?, address)
    }

    fn on(endpoint: Endpoint, address: &Address) -> Result<Self> {
        let server = EndpointAddr::new(address.identity.parse()?, [address.socket]);
        Ok(Self { endpoint, server })
    }
}

impl super::Client for Client {
    fn connect(&self, start: Start) -> BoxFuture<'_, Result<Channel>> {
        Box::pin(async move {
            let server = self.server.clone();
            let connection = match start {
                Start::Plain => self.endpoint.connect(server).await?,
                Start::Early => self.endpoint.connect_early(server).await?,
            };
            // The stream keeps its connection.
            Ok(Channel::new(connection.open_stream().await?))
        })
    }

    fn streams(&self, count: usize) -> BoxFuture<'_, Result<Vec<Channel>>> {
        Box::pin(async move {
            let connection = self.endpoint.connect(self.server.clone()).await?;
            let mut channels = Vec::with_capacity(count);
            for _ in 0..count {
                channels.push(Channel::new(connection.open_stream().await?));
            }
            Ok(channels)
        })
    }
}
