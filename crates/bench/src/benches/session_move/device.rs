//! A device of the user: its connection to the gateway, and the sessions that it has there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use whimbrel_base::{EndpointAddr, EndpointId};
use whimbrel_proxy::{Gateway, Opening, SessionId, SessionsAt, Streams, Takers, Upstream};
use whimbrel_transport::{Connection, Endpoint};

use super::program::{Ends, Program};
use super::server::Work;

/// How long another device may take what it was given.
const CONSENT: Duration = Duration::from_secs(300);

/// A device that is connected to the gateway.
pub(super) struct Device {
    gateway: Gateway,
    sessions: SessionsAt,
    endpoint: Endpoint,
}

struct On(Connection);

impl Streams for On {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { self.0.open_stream().await.map_err(|error| error.to_string()) })
    }
}

impl Device {
    /// On the host of this runtime.
    pub(super) async fn connect(gateway: EndpointAddr) -> Result<Self> {
        let endpoint = Endpoint::builder().bind().await?;
        let streams = Arc::new(On(endpoint.connect(gateway).await.context("the gateway is not reached")?));
        let gateway = Gateway::new(streams.clone()).with_sessions(Takers::new([]));
        Ok(Self { gateway, sessions: SessionsAt::new(streams), endpoint })
    }

    pub(super) fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// A program of this device connects to a server, and asks for something.
    pub(super) async fn open(&self, to: SocketAddr, work: Work) -> Result<Program> {
        let ends = Ends::new().await?;
        let to = to.to_string().parse()?;
        let opening = self.gateway.session(&to).context("there are no sessions")?;
        let (attached, _) = opening.await?.context("the gateway keeps no sessions")?;
        Ok(Program::start(attached, ends, work.request(), work.is_watched()))
    }

    /// Lets another device take a session that has not moved.
    pub(super) async fn hand_off(&self, id: SessionId, to: EndpointId) -> Result<()> {
        Ok(self.sessions.hand_off((id, 0), to, CONSENT).await?)
    }

    /// Takes a session that has not moved, for a program that is there.
    pub(super) async fn take(&self, id: SessionId, ends: Ends) -> Result<Program> {
        let attached = self.sessions.take(id, 0, Takers::new([])).await?;
        Ok(Program::start(attached, ends, Vec::new(), true))
    }
}
