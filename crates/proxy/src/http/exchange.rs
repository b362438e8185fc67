//! A request to a server and the head of its answer, on a connection that was decided on.

use super::decided::Decided;
use super::line::Unsent;
use super::moving::Sent;
use super::origins::{Lease, Origins};
use super::problem::Problem;
use super::speaker::Coming;
use super::turns::Turn;
use crate::Destination;
use http_body_util::{Either, Empty};
use hyper::body::Body as _;
use hyper::header::UPGRADE;
use hyper::{Method, Request, Response};
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::Intents;

/// A request that does no harm twice, made anew each time.
pub(super) type Make<'a> = &'a mut (dyn FnMut() -> Request<Sent> + Send);

/// A request, and how it is made again.
pub(super) struct Outgoing<'a> {
    kind: Kind<'a>,
    /// Its connection is to become something else than HTTP.
    alone: bool,
}

/// Requests are large: what waits holds none, or one on the heap.
enum Kind<'a> {
    Once(Box<Request<Sent>>),
    Made(Make<'a>),
}

/// How a request is made once more.
enum Again<'a> {
    /// It was copied before, if it may be sent twice.
    Copied(Option<Box<Request<Sent>>>),
    Made(Make<'a>),
}

impl Outgoing<'static> {
    /// A request that cannot be made again.
    pub(super) fn of(request: Request<Sent>) -> Self {
        // What is to become WebSocket is asked for over HTTP/1.1.
        let alone = request.headers().contains_key(UPGRADE);
        Self { kind: Kind::Once(Box::new(request)), alone }
    }
}

impl<'a> Outgoing<'a> {
    /// A request that is made by `make`, which can make it again. It asks for no other protocol.
    pub(super) fn made_by(make: Make<'a>) -> Self {
        Self { kind: Kind::Made(make), alone: false }
    }
}

impl<'a> Kind<'a> {
    /// The request, and how there is another one.
    fn first(self) -> (Request<Sent>, Again<'a>) {
        match self {
            Self::Once(request) => {
                let again = repeated(&request).map(Box::new);
                (*request, Again::Copied(again))
            }
            Self::Made(make) => {
                let request = make();
                (request, Again::Made(make))
            }
        }
    }
}

impl Again<'_> {
    fn request(self) -> Option<Request<Sent>> {
        match self {
            Self::Copied(request) => request.map(|request| *request),
            Self::Made(make) => Some(make()),
        }
    }
}

/// A request that got no answer on its connection.
struct Unanswered<'a> {
    lease: Lease,
    why: Unsent,
    again: Again<'a>,
    alone: bool,
}

/// Sends a request. It is sent once more on a new connection if nothing of it went out, or if it does no harm
/// to do so and the connection ended before an answer came (RFC 9110, §9.2.2). The lease has the turn.
pub(super) async fn exchange(
    origins: &Arc<Origins>,
    to: &Destination,
    intents: Intents,
    (decided, turn): (Decided, Option<Box<Turn>>),
    outgoing: Outgoing<'_>,
    limit: Duration,
) -> Result<(Response<Coming>, Lease), Problem> {
    let decided = Decided { alone: outgoing.alone, ..decided };
    let lease = origins.lease(to, &intents, decided).await?.with(turn);
    exchange_on(lease, origins, to, &intents, outgoing, limit).await
}

/// The same, first on this connection.
pub(super) async fn exchange_on(
    mut lease: Lease,
    origins: &Arc<Origins>,
    to: &Destination,
    intents: &Intents,
    outgoing: Outgoing<'_>,
    limit: Duration,
) -> Result<(Response<Coming>, Lease), Problem> {
    let alone = outgoing.alone;
    let (request, again) = outgoing.kind.first();
    let sent = lease.line().send(request, limit).await;
    match sent {
        Ok(answer) => {
            lease.moved();
            Ok((answer, lease))
        }
        Err(why) => {
            let unanswered = Unanswered { lease, why, again, alone };
            // On the heap: most requests are answered, and have no need of the memory.
            Box::pin(unanswered.once_more(origins, to, intents, limit)).await
        }
    }
}

impl Unanswered<'_> {
    async fn once_more(
        self,
        origins: &Arc<Origins>,
        to: &Destination,
        intents: &Intents,
        limit: Duration,
    ) -> Result<(Response<Coming>, Lease), Problem> {
        let Self { lease, why, again, alone } = self;
        if why.is_of_the_network()
            && let Some(by) = lease.by()
        {
            origins.failed(to, by).await;
        }
        let request = match why {
            Unsent::Returned(request) => *request,
            Unsent::Ended(error) => {
                let Some(request) = again.request() else {
                    return Err(Unsent::Ended(error).problem(to));
                };
                tracing::debug!(%error, %to, "a request is sent once more");
                request
            }
            why => return Err(why.problem(to)),
        };
        // It may be the network that ended it: the manager is asked anew. The turn stays: it is still the
        // same request.
        let turn = lease.close();
        let decided = origins.decide(to, *intents, false).await?;
        let ways = decided.routes.into_iter().filter_map(|route| route.by).collect();
        let mut lease = origins.lease_new(to, intents, ways, alone).await?.with(turn);
        let answer = lease.line().send(request, limit).await.map_err(|unsent| unsent.problem(to))?;
        Ok((answer, lease))
    }
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
