//! The subject: relays, and a server with reservations at them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_relay::{Directory, Keeper, Limits, Relay};
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions, Listener, Locator, PathState};

use super::stage::{Connected, Stage};
use super::talk;
use crate::lab::{Homes, Node};
use crate::system::{Channel, Handler};

/// Where relays listen: where they are reached from everywhere.
const HTTPS: u16 = 443;
/// What the server needs to be known to its relay, and its gateway to it.
const SETTLE: Duration = Duration::from_secs(1);

/// A relay on that host, with limits that hold up nobody who measures.
pub(super) fn relay(node: &Node) -> Result<Relay> {
    let starting = async {
        let endpoint = Endpoint::builder().config(Relay::config()).port(HTTPS).bind().await?;
        let mut limits = Limits::default();
        (limits.clients_per_second, limits.clients_per_address) = (1e6, 1e6);
        anyhow::Ok(Relay::start(endpoint, Allow::Any, limits, Vec::new()).await?)
    };
    node.wait("relay", starting)?
}

/// A server with reservations at all of these.
pub(super) fn serve(node: &Node, relays: &[Relay]) -> Result<(Endpoint, Listener, Keeper)> {
    let places: Vec<EndpointAddr> = relays.iter().map(|relay| relay.endpoint().addr()).collect();
    let serving = async {
        let key = SecretKey::generate();
        let endpoint = Endpoint::builder().secret_key(key.clone()).bind().await?;
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
        let count = places.len();
        let directories = places.into_iter().map(|place| Arc::new(place) as Arc<dyn Directory>).collect();
        let keeper = Keeper::start(endpoint.clone(), &key, directories);
        keeper.news().wait_for(|now| now.held == count).await.context("no reservation")?;
        anyhow::Ok((endpoint, listener, keeper))
    };
    node.wait("serve", serving)?
}

/// Whether a path that is not through a relay carries, or could.
pub(super) fn is_direct(connection: &Connection) -> bool {
    let paths = connection.stats().paths;
    paths.iter().any(|path| matches!(path.remote, Locator::Direct(_)) && path.state == PathState::Active)
}

/// Has `handler` serve each stream of each connection.
pub(super) async fn accept(mut listener: Listener, handler: Handler) {
    while let Some(connection) = listener.accept().await {
        let handler = handler.clone();
        tokio::spawn(async move {
            while let Ok(stream) = connection.accept_stream().await {
                tokio::spawn(handler(Channel::new(stream)));
            }
        });
    }
}

/// Fields are dropped in this order.
pub(super) struct Whimbrel {
    server: Endpoint,
    _keeper: Keeper,
    _relays: Vec<Relay>,
}

impl Whimbrel {
    pub(super) fn start(homes: &Homes) -> Result<Self> {
        let relays = vec![relay(&homes.relays[0])?];
        let (server, listener, keeper) = serve(&homes.server, &relays)?;
        homes.server.runtime.spawn(accept(listener, talk::speaker()));
        std::thread::sleep(SETTLE);
        Ok(Self { server, _keeper: keeper, _relays: relays })
    }
}

impl Stage for Whimbrel {
    fn connect(&self, homes: &Homes) -> Result<Connected> {
        let server = self.server.addr();
        let connecting = async {
            let endpoint = Endpoint::builder().bind().await?;
            let began = Instant::now();
            let connection = endpoint.connect(server).await?;
            let since = Instant::now();
            let mut channel = Channel::new(connection.open_stream().await?);
            talk::begin(&mut channel).await?;
            anyhow::Ok((endpoint, connection, channel, [began, since]))
        };
        let (endpoint, connection, channel, times) = homes.client.wait("connect", connecting)??;
        let watched = connection.clone();
        let looks = move || is_direct(&watched);
        Ok(Connected::new(channel, times, looks, (connection, endpoint)))
    }
}
