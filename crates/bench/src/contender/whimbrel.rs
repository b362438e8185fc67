//! The subject.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{Connection, Endpoint, HandoverMode, InterfaceRule, Listener, PathPolicy};

use super::PORT;
use crate::lab::TwoLinks;
use crate::system::{Channel, Handler};

/// Fields are dropped in this order.
pub(super) struct Client {
    pub(super) channel: Channel,
    pub(super) connection: Connection,
    accepted: Arc<Mutex<Option<Connection>>>,
    _endpoint: Endpoint,
}

impl Client {
    /// The server's end of the connection.
    pub(super) fn accepted(&self) -> Result<Connection> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.clone().context("the server has accepted nothing yet")
    }
}

/// With one link, if that is given, else with both.
pub(super) fn start(
    net: &TwoLinks,
    mode: Option<HandoverMode>,
    link: Option<usize>,
    handler: Handler,
) -> Result<Client> {
    let accepted = Arc::new(Mutex::new(None));
    let server = net.server.wait("listen", serve(handler, accepted.clone()))??;
    let address = EndpointAddr::new(server.id(), [net.server_address(PORT)]);
    // The first link is liked better, as the kernel's routes say.
    let links = link.map_or(vec![0, 1], |link| vec![link]);
    let builder = Endpoint::builder().handover(mode.unwrap_or_default()).paths(these(net, &links)?);
    let endpoint = net.client.wait("bind", builder.bind())??;
    let connection = net.client.wait("connect", endpoint.connect(address))??;
    let stream = net.client.wait("open a stream", connection.open_stream())??;
    Ok(Client { channel: Channel::new(stream), connection, accepted, _endpoint: endpoint })
}

/// Only these links, in this order of preference.
fn these(net: &TwoLinks, links: &[usize]) -> Result<PathPolicy> {
    let rule = |link: &usize| -> Result<InterfaceRule> { Ok(net.interface(*link).parse()?) };
    Ok(PathPolicy { interfaces: links.iter().map(rule).collect::<Result<_>>()?, ..PathPolicy::default() })
}

async fn serve(handler: Handler, accepted: Arc<Mutex<Option<Connection>>>) -> Result<Endpoint> {
    let endpoint = Endpoint::builder().port(PORT).bind().await?;
    let listener = endpoint.listen_unnamed().await?;
    tokio::spawn(accept_all(listener, handler, accepted, endpoint.clone()));
    Ok(endpoint)
}

async fn accept_all(
    mut listener: Listener,
    handler: Handler,
    accepted: Arc<Mutex<Option<Connection>>>,
    _endpoint: Endpoint,
) {
    while let Some(connection) = listener.accept().await {
        *accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        let handler = handler.clone();
        tokio::spawn(async move {
            while let Ok(stream) = connection.accept_stream().await {
                tokio::spawn(handler(Channel::new(stream)));
            }
        });
    }
}
