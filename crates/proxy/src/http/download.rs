//! An object for a client: the two-step download (*Socket Intents*, §VI-B). A first range says how large the
//! object is, then the policy knows which way the rest is to come.

mod beside;
mod first_part;
mod looking;

use super::body::Body;
use super::budget::Share;
use super::decided::Decided;
use super::exchange::{Make, Outgoing, exchange_on};
use super::fields;
use super::moving::Sent;
use super::object::{Described, Object};
use super::origins::Lease;
use super::problem::Problem;
use super::rooms;
use super::speaker::Coming;
use super::validator::Validator;
use super::{Proxy, passing};
use crate::{Destination, UpstreamError};
use beside::Pair;
use http_body_util::{Either, Empty};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, SET_COOKIE, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use whimbrel_access::Intents;

/// What has less than this part of a first step is tiny.
const TINY: u64 = 4;

/// With any of these a client asks for something else than the whole object, whatever it is at present.
static MORE: [HeaderName; 8] = [
    RANGE,
    IF_RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    EXPECT,
    TRANSFER_ENCODING,
];

/// Whether a request that is nobody's alone asks for a whole object and has nothing to say beside, so that it
/// can be asked for in parts.
pub(super) fn is_for_all(head: &Parts) -> bool {
    let says_more = head.headers.keys().any(|name| MORE.contains(name));
    let has_body = head.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    head.method == Method::GET && !says_more && !has_body
}

/// What is asked for first.
struct First {
    bytes: u64,
    /// Of the memory for what waits, where it is more than the first step.
    share: Option<Share>,
}

/// An object that a client asks for.
pub(super) struct Download {
    proxy: Arc<Proxy>,
    to: Destination,
    /// As it goes to the server.
    head: Parts,
    /// The way that it is to come next.
    decided: Decided,
    /// For so many bytes its first part was decided.
    decided_for: u64,
    /// What the two know of each other that ask for it.
    pair: Arc<Mutex<Pair>>,
    /// It is the one of the two that asks because the other is late. What that one counts as is not its own.
    is_second: bool,
    /// Another network is looked for while it is passed on whole: one alone led to the server when it was
    /// asked, or it was taken for tiny.
    looks_for_others: bool,
    /// When it was asked for.
    began: Instant,
}

impl Download {
    /// On the heap: it goes from hand to hand.
    pub(super) fn new(proxy: Arc<Proxy>, to: Destination, head: Parts) -> Box<Self> {
        let (decided, pair, began) = (Decided::default(), Arc::default(), Instant::now());
        let (decided_for, is_second, looks_for_others) = (0, false, false);
        Box::new(Self { proxy, to, head, decided, decided_for, pair, is_second, looks_for_others, began })
    }

    /// Gives the answer for the client.
    pub(super) async fn run(mut self: Box<Self>) -> Result<Response<Body>, Problem> {
        let step = self.proxy.settings.first_step;
        if step == 0 {
            self.decided = self.proxy.origins.decide(&self.to, Intents::default(), false).await?;
            return self.whole().await;
        }
        let first = if self.is_known() { step } else { self.proxy.origins.rooms().least_step(step) };
        self.decided_for = self.expected(first);
        let intents = Intents::receive(self.decided_for);
        self.decided = self.proxy.origins.decide(&self.to, intents, false).await?;
        if !self.proxy.origins.is_there(&self.to, &self.decided) {
            // On the heap: that is rare.
            Box::pin(self.decide_anew()).await;
        }
        if self.may_come_in_parts() {
            self.counts_as(self.decided.unit.as_ref().and_then(|unit| unit.counted(self.decided_for)));
            // On the heap: most objects come whole, and have no need of the memory.
            let (first, beside) = (self.first(), self.beside());
            let asked = Box::pin(self.in_two_steps(first));
            return Box::pin(beside::sooner(asked, beside)).await;
        }
        self.looks_for_others = !self.decided.has_choice();
        self.whole().await
    }

    /// Another message has taken the open connection that was chosen: objects that are asked for at the same
    /// time are told of the same. It is decided once more, since a new one takes round trips that were not
    /// reckoned with.
    async fn decide_anew(&mut self) {
        let intents = Intents::receive(self.decided_for);
        if let Some(unit) = self.decided.unit.take() {
            unit.end().await;
        }
        // Where the manager does not answer any more it goes as it was to.
        if let Ok(decided) = self.proxy.origins.decide(&self.to, intents, false).await
            && !decided.routes.is_empty()
        {
            self.decided = decided;
        }
    }

    /// With one way only there is nothing to learn a size for, and without memory nothing to put together.
    fn may_come_in_parts(&self) -> bool {
        let proxy = &self.proxy;
        let has_room = proxy.budget.has(proxy.settings.window);
        self.decided.has_choice() && has_room && proxy.without_ranges.of(&self.to).is_none()
    }

    /// How many of so many first bytes are to be expected: if each object counted as large, the small ones of
    /// a page would be sent away from a network that they would hardly fill.
    fn expected(&self, step: u64) -> u64 {
        self.proxy.sizes.average(&self.to, step).map_or(step, |average| average.clamp(1, step))
    }

    /// Whether something is to be expected of this very server's objects.
    fn is_known(&self) -> bool {
        self.proxy.sizes.knows(&self.to)
    }

    /// Whether the server has tiny objects alone, as far as is known: the fields of a range would be a part
    /// of them that counts.
    fn are_tiny(&self) -> bool {
        let largest = self.proxy.sizes.largest_of(&self.to);
        largest.is_some_and(|largest| largest <= self.proxy.settings.first_step / TINY)
    }

    /// Whether it may have more than its first bytes, as far as is known.
    fn may_be_large(&self) -> bool {
        let largest = self.proxy.sizes.largest_of(&self.to);
        largest.is_none_or(|largest| largest > self.proxy.settings.first_step)
    }

    /// What to ask for first, the way that was decided.
    fn first(&self) -> First {
        let (settings, decided) = (&self.proxy.settings, &self.decided);
        let bytes = decided.first_step(settings.first_step, settings.longest_first);
        let is_more = bytes > settings.first_step;
        if let Some(share) = is_more.then(|| self.proxy.budget.take(bytes)).flatten() {
            return First { bytes, share: Some(share) };
        }
        First { bytes: settings.first_step, share: None }
    }

    /// Of an object that may have any size no more is asked for first than others leave room for on the
    /// network of this connection, nor over a new one than comes in its first window.
    fn fits(&self, first: &mut First, lease: &Lease) {
        if !lease.was_used() {
            *first = First { bytes: self.proxy.settings.first_step, share: None };
        }
        let network = lease.by().and_then(|by| by.interface.as_deref());
        if let Some(network) = network.filter(|_| first.share.is_none() && !self.is_known()) {
            first.bytes = self.proxy.origins.rooms().step(network, first.bytes);
        }
    }

    /// Asks for the first bytes, which tell how many there are.
    async fn in_two_steps(mut self: Box<Self>, mut first: First) -> Result<Response<Body>, Problem> {
        self.decided.beside = self.may_be_large();
        let lease = self.lease(first.bytes).await?;
        self.fits(&mut first, &lease);
        let step = first.bytes;
        let range = HeaderValue::from_str(&format!("bytes=0-{}", step - 1));
        let range = range.map_err(|error| Problem::bad(error.to_string()))?;
        let bytes = self.expected(step.min(self.proxy.settings.first_step));
        let mut room = self.proxy.origins.room(&lease, bytes).await;
        if self.is_over() {
            // The connection is left for another object.
            lease.release();
            return Err(over());
        }
        let (expected, are_tiny) = (Intents::receive(self.expected(step)), self.are_tiny());
        let Self { proxy, to, head, .. } = &mut *self;
        let mut request = || {
            let mut request = sent(head);
            if !are_tiny {
                request.headers_mut().insert(RANGE, range.clone());
            }
            request
        };
        let asked = ask(proxy, to, &expected, lease, &mut request);
        let (answer, lease) = rooms::while_it_comes(&mut room, asked).await?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => self.first_part(answer, lease, first, room).await,
            // There is no first byte in an object of none.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                drop((answer, lease));
                self.whole_after_all().await
            }
            // It may be the range that is not wanted: asked for whole the answer is the client's own. A link
            // that works once loses nothing by a refusal.
            StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NOT_IMPLEMENTED if !are_tiny => {
                drop((answer, lease));
                self.proxy.without_ranges.put(&self.to, ());
                self.whole_after_all().await
            }
            // Whole after all.
            StatusCode::OK => {
                let length = fields::check_answer(answer.headers())?;
                self.counts_at_least(length.unwrap_or_default(), &lease);
                if are_tiny {
                    self.has_begun(&lease);
                    // One may be large for once.
                    self.looks_for_others = true;
                }
                self.pass(answer, lease)
            }
            // It says why not.
            _ => self.pass(answer, lease),
        }
    }

    /// It is known by now that so many bytes come: if it counted with less, the manager is told.
    fn counts_at_least(&self, bytes: u64, lease: &Lease) {
        if bytes > self.counts_no_more() {
            lease.resize(bytes);
        }
    }

    /// A connection for so many first bytes. Where a new one had to be made it is decided once more, if the
    /// server has told meanwhile that less is to be expected: what was to leave a network for want of room
    /// there may have room by then. The new connection is idle then.
    async fn lease(&mut self, step: u64) -> Result<Lease, Problem> {
        let expected = Intents::receive(self.decided_for);
        let Self { proxy, to, decided, .. } = self;
        let mut lease = lease_for(proxy, to, &expected, decided).await?;
        let known = self.expected(step);
        // More than the first step was decided on for this way alone.
        if lease.was_used() || known >= self.decided_for || step > self.proxy.settings.first_step {
            return Ok(lease);
        }
        self.counts_no_more();
        let (bytes, known) = (known, Intents::receive(known));
        let again = self.proxy.origins.decide_again(&self.to, known, &mut lease).await;
        let Ok(Some(mut decided)) = again else {
            self.counts_as(lease.counted(bytes));
            return Ok(lease);
        };
        if !self.moves_to(decided.network()) {
            return Ok(lease);
        }
        match lease_for(&self.proxy, &self.to, &known, &mut decided).await {
            Ok(other) => {
                lease.release();
                self.counts_as(other.counted(bytes));
                Ok(other)
            }
            Err(error) => {
                tracing::debug!(%error, to = %self.to, "it stays on the connection that it has");
                Ok(lease)
            }
        }
    }

    /// Asks for the whole object at once, the way that was decided.
    async fn whole(mut self: Box<Self>) -> Result<Response<Body>, Problem> {
        let any = Intents::default();
        let Self { proxy, to, head, decided, .. } = &mut *self;
        let lease = lease_for(proxy, to, &any, decided).await?;
        let (answer, lease) = ask(proxy, to, &any, lease, &mut || sent(head)).await?;
        self.pass(answer, lease)
    }

    /// The same, the way that is best for that.
    async fn whole_after_all(mut self: Box<Self>) -> Result<Response<Body>, Problem> {
        if self.is_over() {
            return Err(over());
        }
        self.counts_no_more();
        self.decided = self.proxy.origins.decide(&self.to, Intents::default(), false).await?;
        self.whole().await
    }

    /// Passes an answer on. If it breaks and can be asked for in ranges, the rest is.
    fn pass(self: Box<Self>, answer: Response<Coming>, lease: Lease) -> Result<Response<Body>, Problem> {
        let (headers, proxy, looks_for_others) =
            (answer.headers(), Arc::clone(&self.proxy), self.looks_for_others);
        if headers.get(ACCEPT_RANGES).is_some_and(|value| value == "none") {
            proxy.without_ranges.put(&self.to, ());
        }
        let length = fields::check_answer(headers)?.filter(|_| answer.status() == StatusCode::OK);
        if let Some(total) = length {
            self.proxy.sizes.learn(&self.to, total);
        }
        let object = match (length, Validator::of(headers)) {
            (Some(total), Some(validator)) if offers_ranges(headers) => {
                Some(self.object(validator, total, !headers.contains_key(SET_COOKIE)))
            }
            _ => None,
        };
        let rest = object.map(|object| {
            let late = if looks_for_others { looking::begin(&object, &lease) } else { None };
            (object, late)
        });
        passing::pass(&proxy.pseudonym, &Method::GET, answer, lease, rest)
    }

    fn object(self: Box<Self>, validator: Validator, total: u64, may_split: bool) -> Object {
        let (late, usual) = (self.late(), self.usual().unwrap_or_default());
        let Self { proxy, to, head, .. } = *self;
        Object::new(Described {
            origins: Arc::clone(&proxy.origins),
            to,
            head,
            validator,
            total,
            window: proxy.settings.window,
            budget: Arc::clone(&proxy.budget),
            without_ranges: Arc::clone(&proxy.without_ranges),
            may_split,
            stall: proxy.settings.stall,
            usual,
            late,
        })
    }
}

/// The request with this head, of which a copy is left. A copy of fields has no room for another one; those
/// that go out do, and the connection reads the fields of the answer into their memory.
fn sent(head: &mut Parts) -> Request<Sent> {
    let left = head.clone();
    Request::from_parts(std::mem::replace(head, left), Either::Right(Empty::new()))
}

/// The object has come over another network. No client gets this answer: the request was the slower of two.
fn over() -> Problem {
    Problem::bad("it has come another way")
}

/// Waits for a turn and a connection, the way that was decided, of which nothing is left.
async fn lease_for(
    proxy: &Proxy,
    to: &Destination,
    intents: &Intents,
    decided: &mut Decided,
) -> Result<Lease, UpstreamError> {
    let origins = &proxy.origins;
    let turn = origins.turn(to, decided.network(), false).await;
    Ok(origins.lease(to, intents, std::mem::take(decided)).await?.with(turn))
}

/// Asks on this connection, and waits for the head of the answer.
async fn ask(
    proxy: &Proxy,
    to: &Destination,
    intents: &Intents,
    lease: Lease,
    request: Make<'_>,
) -> Result<(Response<Coming>, Lease), Problem> {
    let origins = &proxy.origins;
    let outgoing = Outgoing::made_by(request);
    exchange_on(lease, origins, to, intents, outgoing, proxy.settings.answer_limit).await
}

fn offers_ranges(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT_RANGES).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"bytes"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_to_a_request_that_goes_out_is_in_none_that_goes_out_behind_it() {
        let asked = Request::get("/a").header("x-one", "1").body(()).unwrap();
        let (mut head, ()) = asked.into_parts();
        let mut first = sent(&mut head);
        first.headers_mut().insert(RANGE, HeaderValue::from_static("bytes=0-8191"));
        let second = sent(&mut head);
        for headers in [second.headers(), &head.headers] {
            assert_eq!((headers.len(), headers.get("x-one").unwrap().as_bytes()), (1, &b"1"[..]));
        }
        assert_eq!((second.method(), second.uri().path()), (&Method::GET, "/a"));
        assert_eq!((first.headers().len(), first.uri().path()), (2, "/a"));
    }
}
