//! A request to a server and the head of its answer, on a connection that was decided on.

use super::line::{Sent, Unsent};
use super::origins::{Decided, Lease, Origins};
use super::problem::Problem;
use crate::Destination;
use http_body_util::{Either, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request, Response};
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::Intents;

/// Sends a request. It is sent once more on a new connection if nothing of it went out, or if it does no harm
/// to do so and the connection ended before an answer came (RFC 9110, §9.2.2).
pub(super) async fn exchange(
    origins: &Arc<Origins>,
    to: &Destination,
    intents: Intents,
    decided: Decided,
    request: Request<Sent>,
    limit: Duration,
) -> Result<(Response<Incoming>, Lease), Problem> {
    let mut lease = origins.lease(to, &intents, decided).await?;
    let spare = repeated(&request);
    let sent = lease.line().send(request, limit).await;
    if let Err(unsent) = &sent
        && unsent.is_of_the_network()
        && let Some(by) = lease.by()
    {
        origins.failed(to, by).await;
    }
    let request = match (sent, spare) {
        (Ok(answer), _) => return Ok((answer, lease)),
        (Err(Unsent::Returned(request)), _) => *request,
        (Err(Unsent::Ended(error)), Some(spare)) => {
            tracing::debug!(%error, %to, "a request is sent once more");
            spare
        }
        (Err(unsent), _) => return Err(unsent.problem(to)),
    };
    // It may be the network that ended it: the manager is asked anew.
    drop(lease);
    let decided = origins.decide(to, intents).await?;
    let ways = decided.ways.iter().filter_map(|way| origins.candidate(to, way)).collect();
    let mut lease = origins.lease_new(to, &intents, ways).await?;
    let answer = lease.line().send(request, limit).await.map_err(|unsent| unsent.problem(to))?;
    Ok((answer, lease))
}

/// The request again, if it may be repeated: it has the same effect twice as once, and nothing to carry.
fn repeated(request: &Request<Sent>) -> Option<Request<Sent>> {
    let is_idempotent = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    );
    if !is_idempotent || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(Either::Right(Empty::new()));
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.headers_mut() = request.headers().clone();
    Some(again)
}
