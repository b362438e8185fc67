//! Clients that come with another key than before, or for whom this endpoint has another one.

use std::sync::Arc;
use std::time::Instant;

use whimbrel_base::{EndpointId, Name, random_bytes};
use whimbrel_proto::{CloseCode, FirstFlight, JoinError, TakeOver};

use super::{Arrival, Refused, attach, find, refuse_join, refused, turn_away};
use crate::allow::Refusal;
use crate::endpoint_core::EndpointCore;
use crate::shared::Shared;

/// Lets the client in if its proof is good and its key is welcome.
pub(super) async fn admit<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
    take_over: TakeOver,
    peer: EndpointId,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    let Some(shared) = find(endpoint, &take_over.connection).await else {
        return Err(refused(arrival, CloseCode::UNKNOWN_CONNECTION, ""));
    };
    let weighed = shared.lock().engine.weigh_take_over(peer, &take_over);
    match weighed {
        Ok(false) => {}
        Ok(true) => {
            if let Err((code, reason)) = welcome(endpoint, &shared, peer).await {
                tracing::info!(connection = %shared.id, peer = %peer.short(), %reason, "hand-over refused");
                return Err(refused(arrival, code, reason));
            }
        }
        Err(JoinError::BadProof) if peer != shared.peer() => {
            return Err(turn_away(arrival, &shared, &FirstFlight::TakeOver(take_over), peer));
        }
        Err(error) => return Err(refuse_join(arrival, shared.peer(), error)),
    }
    let taken = shared.with(|state| state.engine.take_over(Instant::now(), peer, &take_over, random_bytes()));
    if let Err(error) = taken {
        return Err(refuse_join(arrival, shared.peer(), error));
    }
    endpoint.registry.peer_changed(&shared);
    attach(arrival, endpoint, &shared, take_over.path);
    Ok(None)
}

/// Whether a key may have the connection from now on: as one that opens a connection to the same name, unless
/// the application has said otherwise.
async fn welcome(endpoint: &EndpointCore, shared: &Shared, peer: EndpointId) -> Result<(), Refusal> {
    if !endpoint.registry.has_share(&peer) {
        return Err((CloseCode::NOT_ALLOWED, "this key has as many connections as it may have".to_owned()));
    }
    if let Some(heirs) = shared.heirs() {
        return heirs.admit(peer).await;
    }
    let target = shared.lock().engine.target().and_then(|name| name.parse::<Name>().ok());
    match endpoint.listeners.find(target.as_ref()) {
        Some(door) => door.allow().admit(peer).await,
        None => Err((CloseCode::NOT_ALLOWED, "nobody listens any more who could let this key in".to_owned())),
    }
}
