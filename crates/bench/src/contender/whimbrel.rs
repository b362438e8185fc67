//! The subject.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{
    Allow, Carriers, Connection, Endpoint, HandoverMode, InterfaceRule, ListenOptions, Listener, PathPolicy,
    SchedulerKind,
};

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

    /// What is said to run on one carrier does so.
    fn check(&self, carriers: Carriers) -> Result<()> {
        let Carriers::Only(carrier) = carriers else { return Ok(()) };
        let paths = self.connection.stats().paths;
        ensure!(paths.iter().all(|path| path.carrier == carrier), "not every path runs on {carrier}");
        Ok(())
    }
}

/// How the subject is set up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Setup {
    pub(super) mode: HandoverMode,
    /// The only link to be used; without it, both.
    pub(super) link: Option<usize>,
    /// Of both sides.
    pub(super) scheduler: SchedulerKind,
    pub(super) carriers: Carriers,
}

pub(super) fn start(net: &TwoLinks, setup: Setup, handler: Handler) -> Result<Client> {
    let accepted = Arc::new(Mutex::new(None));
    let server = net.server.wait("listen", serve(handler, setup, accepted.clone()))??;
    let address = EndpointAddr::new(server.id(), [net.server_address(PORT)]);
    // The first link is liked better, as the kernel's routes say.
    let links = setup.link.map_or(vec![0, 1], |link| vec![link]);
    let builder = Endpoint::builder().handover(setup.mode).paths(these(net, &links)?);
    let builder = builder.scheduler(setup.scheduler).carriers(setup.carriers);
    let endpoint = net.client.wait("bind", builder.bind())??;
    let connection = net.client.wait("connect", endpoint.connect(address))??;
    let stream = net.client.wait("open a stream", connection.open_stream())??;
    let client = Client { channel: Channel::new(stream), connection, accepted, _endpoint: endpoint };
    client.check(setup.carriers)?;
    Ok(client)
}

/// Only these links, in this order of preference.
fn these(net: &TwoLinks, links: &[usize]) -> Result<PathPolicy> {
    let rule = |link: &usize| -> Result<InterfaceRule> { Ok(net.interface(*link).parse()?) };
    Ok(PathPolicy { interfaces: links.iter().map(rule).collect::<Result<_>>()?, ..PathPolicy::default() })
}

async fn serve(handler: Handler, setup: Setup, accepted: Arc<Mutex<Option<Connection>>>) -> Result<Endpoint> {
    let builder = Endpoint::builder().port(PORT).scheduler(setup.scheduler).carriers(setup.carriers);
    let endpoint = builder.bind().await?;
    let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
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
