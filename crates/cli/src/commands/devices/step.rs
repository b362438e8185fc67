//! Two devices bring each other up to date.

use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use whimbrel::{Allow, CloseCode, Connection, ListenOptions};
use whimbrel_base::EndpointId;
use whimbrel_devices::{Met, Replica, SyncError, answer, call};

use crate::failure::{self, Failure};
use crate::manager::Ready;
use crate::network::{Network, Peer, Wish, connect};
use crate::options::Globals;
use crate::own_group::{OwnGroup, is_member, warn_of_forks};
use crate::shutdown::Shutdown;
use crate::{output, serving};

/// The most meetings at once.
const MAX_MEETINGS: usize = 8;
/// How long a device may take to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a meeting may take in all: what came until then is kept, and the next one goes on.
const MEETING_LIMIT: Duration = Duration::from_secs(10 * 60);
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
        let meetings = Meetings::default();
        while let Some(connection) = listener.accept().await {
            let peer = connection.peer_id();
            let Some(place) = meetings.begin(peer) else {
                tracing::warn!(%peer, "a device is met already, or {MAX_MEETINGS} are");
                continue;
            };
            tokio::spawn(FutureExt::boxed(receive(own.replica.clone(), connection, place)));
        }
        Ok(())
    })
    .await
}

/// The devices with which a meeting is under way.
#[derive(Clone, Default)]
pub(in crate::commands) struct Meetings(Arc<Mutex<BTreeSet<EndpointId>>>);

/// A place among those who are being met, until it is dropped.
pub(in crate::commands) struct Place {
    meetings: Meetings,
    peer: EndpointId,
}

impl Meetings {
    /// A place for a peer; none if it has one, or too many have.
    pub(in crate::commands) fn begin(&self, peer: EndpointId) -> Option<Place> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_let_in = peers.len() < MAX_MEETINGS && peers.insert(peer);
        is_let_in.then(|| Place { meetings: self.clone(), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.meetings.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.peer);
    }
}

async fn receive(replica: Arc<Replica>, connection: Connection, place: Place) {
    let peer = place.peer;
    let meeting = async {
        let stream = tokio::time::timeout(BEGIN_LIMIT, connection.accept_stream()).await;
        let stream = stream.map_err(io::Error::from)?.map_err(io::Error::other)?;
        answer(replica, peer, stream).await
    };
    let met = tokio::time::timeout(MEETING_LIMIT, meeting).await;
    match met.unwrap_or_else(|error| Err(io::Error::from(error).into())) {
        Ok(met) => tracing::info!(%peer, entries = met.entries, agree = met.agree, "met a device"),
        Err(error) => tracing::warn!(%peer, %error, "could not bring a device up to date"),
    }
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
    let meeting = call(own.replica.clone(), connection.peer_id(), stream);
    let met = tokio::time::timeout(MEETING_LIMIT, meeting).await;
    let met = met.unwrap_or_else(|error| Err(io::Error::from(error).into()));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_device_is_met_once_at_a_time_and_eight_at_most() {
        let meetings = Meetings::default();
        let peer = |number| EndpointId::from_bytes(&[number; 32]);
        let mut places: Vec<Place> = (0..8).map(|number| meetings.begin(peer(number)).unwrap()).collect();
        assert!(meetings.begin(peer(9)).is_none(), "there are eight");
        places.pop();
        assert!(meetings.begin(peer(0)).is_none(), "it is being met");
        assert!(meetings.begin(peer(9)).is_some());
    }
}
