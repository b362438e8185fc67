//! Whimbrel's flows, as an application has them by default.

use anyhow::{Context as _, Result};
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{
    Allow, Class, Connection, Endpoint, Flow, FlowOptions, ListenOptions, Listener, SendOptions, Side,
    Urgency,
};

use super::{Arrived, End, Letter, Places, pour, take};
use crate::system::BoxFuture;

pub(super) struct Post {
    connection: Connection,
    flow: Flow,
    _endpoint: Endpoint,
    _listener: Option<Listener>,
}

pub(super) async fn pair(places: &Places, class: Class, redundant: bool) -> Result<(Post, Post)> {
    let options = FlowOptions { urgency: Urgency::FIRST, redundant, ..FlowOptions::new(class) };
    let second = places.second.spawn(async {
        let endpoint = Endpoint::builder().bind().await?;
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
        anyhow::Ok((endpoint, listener))
    });
    let (to, mut listener) = second.await??;
    let server = EndpointAddr::new(to.id(), [(places.at, to.port()).into()]);
    let (carriers, handover) = (places.carriers, places.handover);
    let first = places.first.spawn(async move {
        let endpoint = Endpoint::builder().carriers(carriers).handover(handover).bind().await?;
        let connection = endpoint.connect(server).await?;
        let flow = connection.open_flow(options).await?;
        anyhow::Ok(Post { flow, connection, _endpoint: endpoint, _listener: None })
    });
    let second = places.second.spawn(async move {
        let connection = listener.accept().await.context("the listener ended")?;
        let flow = connection.open_flow(options).await?;
        anyhow::Ok(Post { flow, connection, _endpoint: to, _listener: Some(listener) })
    });
    Ok((first.await??, second.await??))
}

impl End for Post {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        let options = SendOptions { silent: true, ..SendOptions::default() };
        drop(self.flow.send(message, options).await?);
        Ok(())
    }

    async fn receive(&mut self) -> Result<Letter> {
        Ok(Letter::of(&self.connection.recv_message().await?.data))
    }

    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        let connection = self.connection.clone();
        Box::pin(async move {
            match connection.side() {
                Side::Client => pour(connection.open_stream().await?).await,
                Side::Server => take(connection.accept_stream().await?, arrived).await,
            }
        })
    }
}
