//! Answers about what is between users: proposals and decisions, and which devices somebody has.

use whimbrel_base::{EndpointId, Name};

use super::answers::{accepted, seconds_until};
use crate::clock::now;
use crate::error::NamesError;
use crate::protocol::{Living, MAX_HEARTBEAT_NAMES, Proposed, Request, Response};
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
        // A list in a message has no more items.
        if bytes > BYTES || proposals.len() == MAX_HEARTBEAT_NAMES {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::ProposalId;
    use crate::protocol::{Decoder, Reply, encode};

    /// Short ones, of which more would fit into a message's bytes than a list in it may have.
    #[test]
    fn a_page_is_one_that_a_client_reads() {
        let key = EndpointId::from_bytes(&[7; 32]);
        let short = |number: u8| Kept {
            id: ProposalId::of(&[number]),
            from: key,
            to: key,
            is_of_device: true,
            expires: now(),
            bytes: vec![number; 150],
            decided: None,
            withdrawn: false,
        };
        let response = page((0..100).map(short).collect());
        let mut decoder = Decoder::<Reply>::new();
        decoder.push(&encode(&Reply::Response { request: 1, response }).unwrap_or_default());
        let Ok(Some(Reply::Response { response: Response::Proposals { proposals, more }, .. })) =
            decoder.next_message()
        else {
            panic!("it is not read")
        };
        assert!(more && proposals.len() == MAX_HEARTBEAT_NAMES, "{}", proposals.len());
    }
}
