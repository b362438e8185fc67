//! Another network for an object that is passed on whole, because one alone led to its server when it was
//! asked for. The connection that brings it is not given up before the server has shown over the other
//! network that it has ranges.

use crate::http::decided::{Decided, Route};
use crate::http::exchange::{Outgoing, exchange};
use crate::http::fields;
use crate::http::late::{Found, Late};
use crate::http::moving::Sent;
use crate::http::object::{Described, Object};
use crate::http::origins::Lease;
use crate::http::speaker::Coming;
use crate::http::validator::Span;
use futures_util::FutureExt;
use http_body_util::{BodyExt as _, Either, Empty};
use hyper::header::{HeaderValue, IF_RANGE, RANGE};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use whimbrel_access::Intents;

/// How often the manager is asked.
const LOOK: Duration = Duration::from_secs(2);
/// The pause doubles up to this where a server could not answer: it may have too much to do.
const LONGEST_LOOK: Duration = Duration::from_secs(64);

/// What the answer of a server shows that was asked for the last byte of an object.
enum Shown {
    /// It has ranges of this very object.
    Ranges,
    /// It has none.
    NoRanges,
    /// It does not give this object twice, or has another one by now.
    OnceAlone,
    /// That cannot be told now.
    Nothing,
}

/// Begins to look, if the object is so large that it is worth it, and came over a network that was chosen.
pub(super) fn begin(object: &Object, lease: &Lease) -> Option<Late> {
    let object = &object.0;
    let network = lease.by()?.interface.clone()?;
    if !object.may_split || object.total <= object.window {
        return None;
    }
    let found = Arc::<Found>::default();
    let looking = look(Arc::clone(object), network, lease.unit(), Arc::clone(&found));
    let task = tokio::spawn(FutureExt::boxed(looking));
    Some(Late::new(found, task.abort_handle()))
}

/// Asks the manager until it wants the rest in parts over several networks, or too little is left.
async fn look(object: Arc<Described>, network: String, unit: Option<u64>, found: Arc<Found>) {
    let mut pause = LOOK;
    loop {
        tokio::time::sleep(pause).await;
        let left = object.total.saturating_sub(found.passed());
        if left <= object.window || object.without_ranges.of(&object.to).is_some() {
            return;
        }
        // Without memory nothing is put together.
        if !object.budget.has(object.window) {
            continue;
        }
        let decided = object.origins.decide_rest(&object.to, left, unit).await;
        let Ok(decided) = decided else { continue };
        let other = decided.parts.iter().map(|part| &part.route).find(|route| route.way.interface != network);
        let Some(other) = other.filter(|_| decided.parts.len() > 1).cloned() else { continue };
        match probe(&object, other).await {
            Shown::Ranges => return found.put(decided),
            Shown::NoRanges => return object.without_ranges.put(&object.to, ()),
            Shown::OnceAlone => return,
            Shown::Nothing => pause = (2 * pause).min(LONGEST_LOOK),
        }
    }
}

/// Asks for the last byte of an object over this route.
async fn probe(object: &Arc<Described>, route: Route) -> Shown {
    let last = object.total - 1;
    let Ok(range) = HeaderValue::from_str(&format!("bytes={last}-{last}")) else { return Shown::Nothing };
    let mut request = || -> Request<Sent> {
        let mut head = object.head.clone();
        head.headers.insert(RANGE, range.clone());
        head.headers.insert(IF_RANGE, object.validator.value().clone());
        Request::from_parts(head, Either::Right(Empty::new()))
    };
    let (origins, to) = (&object.origins, &object.to);
    let network = route.way.interface.clone();
    let turn = origins.turn(to, &network, true).await;
    let (by, outgoing) = ((Decided::by(route), turn), Outgoing::made_by(&mut request));
    let asked = exchange(origins, to, Intents::receive(1), by, outgoing, object.stall);
    let Ok((answer, lease)) = Box::pin(asked).await else { return Shown::Nothing };
    // Where that network failed the request may have gone over the one that is there already.
    if lease.by().and_then(|by| by.interface.as_deref()) != Some(&network[..]) {
        return Shown::Nothing;
    }
    let shown = judge(object, &answer, Span { first: last, last, total: object.total });
    if !matches!(shown, Shown::Ranges) {
        return shown;
    }
    let read = tokio::time::timeout(object.stall, answer.into_body().collect()).await;
    if !read.is_ok_and(|read| read.is_ok()) {
        return Shown::Nothing;
    }
    lease.release();
    Shown::Ranges
}

/// What the head of an answer shows.
fn judge(object: &Described, answer: &Response<Coming>, wanted: Span) -> Shown {
    let (status, headers) = (answer.status(), answer.headers());
    let is_same = object.validator.is_of(headers);
    let is_right = is_same
        && status == StatusCode::PARTIAL_CONTENT
        && Span::of(headers) == Some(wanted)
        // With a length nothing endless is read for it.
        && matches!(fields::check_answer(headers), Ok(Some(1)));
    if is_right {
        return Shown::Ranges;
    }
    let is_unsaid = status.is_success() && !object.validator.is_said(headers);
    let is_refused = matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED);
    if is_unsaid || is_refused || (is_same && status == StatusCode::OK) {
        return Shown::NoRanges;
    }
    match status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        true => Shown::Nothing,
        false => Shown::OnceAlone,
    }
}
