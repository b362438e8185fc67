//! Two devices bring each other up to date.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use whimbrel::{Allow, CloseCode, Connection, ListenOptions};
use whimbrel_devices::{Met, SyncError, answer, call};

use crate::failure::{self, Failure};
use crate::manager::Ready;
use crate::network::{Network, Peer, Wish, connect};
use crate::options::Globals;
use crate::own_group::{OwnGroup, is_member, warn_of_forks};
use crate::shutdown::Shutdown;
use crate::{output, serving};

/// How long a connection may take to end.
const CLOSE_LIMIT: Duration = Duration::from_millis(1500);

/// Answers this user's other devices until stopped.
pub(super) async fn serve(globals: &Globals, as_json: bool) -> Result<()> {
    serving::until_stopped(globals, Wish::default(), None, async |network| {
        let own = OwnGroup::of(network.key.clone())?;
        own.look(|log| warn_of_forks(globals.quiet, log))?;
        let replica = own.replica.clone();
        let allow = Allow::check(move |peer| is_member(replica.clone(), peer));
        let mut listener = network.endpoint.listen(ListenOptions::unnamed().allow(allow)).await?;
        let ticket = network.ticket(None, None);
        let ready = "this user's devices can be brought up to date here";
        let _ready = Ready::tell(ready);
        if as_json {
            output::json(&json!({ "ticket": ticket.to_string(), "port": network.endpoint.port() }))?;
        } else {
            output::note(globals.quiet, ready);
            output::line(ticket.to_string())?;
        }
        while let Some(connection) = listener.accept().await {
            let (replica, key) = (own.replica.clone(), own.key.clone());
            tokio::spawn(async move {
                let peer = connection.peer_id();
                let met = match connection.accept_stream().await {
                    Ok(stream) => answer(replica, &key, peer, stream).await,
                    Err(error) => Err(SyncError::Io(std::io::Error::other(error))),
                };
                match met {
                    Ok(met) => {
                        tracing::info!(%peer, entries = met.entries, agree = met.agree, "met a device")
                    }
                    Err(error) => tracing::warn!(%peer, %error, "could not bring a device up to date"),
                }
            });
        }
        Ok(())
    })
    .await
}

/// Brings this device and another one up to date.
pub(super) async fn sync(globals: &Globals, peer: &Peer, as_json: bool) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Network::of_user(globals, Wish::default()).await?;
    let result = tokio::select! {
        result = meet(globals, &network, peer) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    let met = result?;
    if as_json {
        let refused =
            met.refused.iter().map(|(id, why)| json!({ "id": id.to_string(), "why": why.to_string() }));
        return output::json(&json!({
            "agree": met.agree, "new": met.entries, "sent": met.sent, "received": met.received,
            "refused": refused.collect::<Vec<_>>(),
        }));
    }
    for (id, why) in &met.refused {
        output::note(globals.quiet, format!("warning: not taken of {id}: {why}"));
    }
    let state = if met.agree { "both devices are up to date" } else { "the devices differ still" };
    output::line(format!("{state}; new here: {}", met.entries))
}

async fn meet(globals: &Globals, network: &Network, peer: &Peer) -> Result<Met> {
    let own = OwnGroup::of(network.key.clone())?;
    let connection: Connection = connect(network, peer).await?;
    let stream = connection.open_stream().await?;
    let met = call(own.replica.clone(), &own.key, connection.peer_id(), stream).await;
    let met = met.map_err(|error| match error {
        SyncError::Stranger(_) => Failure::new(Failure::REFUSED, error.to_string()).into(),
        error => anyhow::Error::from(error),
    });
    let met = met.with_context(|| format!("cannot bring this device and {peer} up to date"));
    if let Err(error) = connection.close(CloseCode::NONE, "", CLOSE_LIMIT).await {
        tracing::debug!(error = failure::line(&error.into()), "the connection did not end in order");
    }
    own.look(|log| warn_of_forks(globals.quiet, log))?;
    met
}
