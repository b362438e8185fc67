//! The relay, in a process of its own, for as long as its parent wants it.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use whimbrel_relay::{Limits, Relay};
use whimbrel_transport::{Allow, Endpoint};

use super::super::runtime;
use crate::sys;

/// Spares that may wait: more than connections that begin at the same time.
pub(super) const SPARES: usize = 64;

/// What the child says once it relays.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) id: String,
    pub(super) port: u16,
}

/// Limits that hold up nobody who measures.
pub(super) fn limits(connections: usize) -> Limits {
    let mut limits = Limits::default();
    limits.spares = SPARES;
    (limits.splices, limits.splices_per_reservation) = (connections, connections);
    (limits.clients_per_second, limits.clients_per_address) = (1e6, 1e6);
    limits
}

/// Relays so many connections at most, until standard input ends.
pub(crate) fn run(connections: usize) -> Result<()> {
    sys::raise_file_limit()?;
    let runtime = runtime()?;
    let relay = runtime.block_on(async {
        let endpoint = Endpoint::builder().config(Relay::config()).bind().await?;
        let ready = Ready { id: endpoint.id().to_string(), port: endpoint.port() };
        let relay = Relay::start(endpoint, Allow::Any, limits(connections), Vec::new()).await?;
        println!("{}", serde_json::to_string(&ready)?);
        std::io::stdout().flush().context("the parent is gone")?;
        anyhow::Ok(relay)
    })?;
    // The workers go on meanwhile.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(relay);
    runtime.shutdown_background();
    Ok(())
}
