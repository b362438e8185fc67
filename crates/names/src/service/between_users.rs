//! Answers about what is between users: proposals and decisions, and which devices somebody has.

use whimbrel_base::{EndpointId, Name};

use super::answers::{accepted, seconds_until};
use crate::clock::now;
use crate::error::NamesError;
use crate::protocol::{Living, Proposed, Request, Response};
use crate::registry::Registry;
use crate::store::Kept;

/// Bytes of proposals and decisions in one answer: far below what a message may have.
const BYTES: usize = 12 * 1024;

/// Answers what is about proposals.
pub(super) async fn answer(
    registry: &Registry,
    peer: EndpointId,
    request: Request,
) -> Result<Response, NamesError> {
    match request {
        Request::Propose { proposal } => registry.propose(peer, &proposal, now()).await.map(accepted),
        Request::Decide { decision } => registry.decide(peer, &decision, now()).await.map(accepted),
        Request::Withdraw { proposal, word } => {
            registry.withdraw(peer, word.as_deref(), proposal, now()).await.map(accepted)
        }
        Request::Proposals { word, after } => {
            let mut known = registry.proposals(peer, word.as_deref(), now()).await?;
            known.retain(|known| after.is_none_or(|after| known.id > after));
            Ok(page(known))
        }
        // The session asks nothing else here.
        _ => Ok(Response::Unwatched),
    }
}

/// As many as fit.
fn page(known: Vec<Kept>) -> Response {
    let (mut proposals, mut bytes) = (Vec::new(), 0);
    for known in known {
        let decision = known.decided.map(|decided| decided.bytes);
        bytes += known.bytes.len() + decision.as_ref().map_or(0, Vec::len);
        if bytes > BYTES {
            return Response::Proposals { proposals, more: true };
        }
        proposals.push(Proposed { proposal: known.bytes, decision });
    }
    Response::Proposals { proposals, more: false }
}

/// What a user has, as far as the peer may see it.
pub(super) async fn devices(
    registry: &Registry,
    peer: EndpointId,
    user: &Name,
    after: Option<&Name>,
) -> Result<Response, NamesError> {
    let devices = registry.devices(user, after, peer, now()).await?;
    let living = |found: crate::registry::Found| Living {
        record: found.record.encode().to_vec(),
        seconds: seconds_until(found.expires),
    };
    Ok(Response::Devices { records: devices.found.into_iter().map(living).collect(), more: devices.more })
}
