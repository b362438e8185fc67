//! Whimbrel's flows, as an application has them by default.

use anyhow::{Context as _, Result};
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{
    Allow, Class, Connection, Endpoint, Flow, FlowOptions, ListenOptions, Listener, SendOptions,
};

use super::End;

pub(super) struct Side {
    connection: Connection,
    flow: Flow,
    _endpoint: Endpoint,
    _listener: Option<Listener>,
}

pub(super) async fn pair(reliable: bool) -> Result<(Side, Side)> {
    let (from, to) = (Endpoint::builder().bind().await?, Endpoint::builder().bind().await?);
    let mut listener = to.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    let place = std::net::SocketAddr::from(([127, 0, 0, 1], to.port()));
    let there = from.connect(EndpointAddr::new(to.id(), [place])).await?;
    let back = listener.accept().await.context("the listener ended")?;
    let class = if reliable { Class::RELIABLE_SEQUENCED } else { Class::UNRELIABLE };
    let flow = |connection: Connection| async move { connection.open_flow(FlowOptions::new(class)).await };
    Ok((
        Side { flow: flow(there.clone()).await?, connection: there, _endpoint: from, _listener: None },
        Side { flow: flow(back.clone()).await?, connection: back, _endpoint: to, _listener: Some(listener) },
    ))
}

impl End for Side {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        let options = SendOptions { silent: true, ..SendOptions::default() };
        drop(self.flow.send(message, options).await?);
        Ok(())
    }

    async fn receive(&mut self) -> Result<usize> {
        Ok(self.connection.recv_message().await?.data.len())
    }
}
