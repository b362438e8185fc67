//! What becomes of a request.

use super::body::Body;
use super::download::{Download, is_for_all};
use super::exchange::{Outgoing, exchange};
use super::pages::{close, options, page};
use super::problem::Problem;
use super::target::{self, Target};
use super::tunnel::{Agreed, Asked, CONNECT, Far, Slot, Tunnel};
use super::{Counts, Proxy, fields, own_key, passing};
use crate::{Destination, Upstream};
use bytes::Bytes;
use http_body_util::{Either, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, HeaderValue, MAX_FORWARDS, TRANSFER_ENCODING,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use whimbrel_access::Intents;

/// Answers a request. The tunnel that it asks for is left in the slot. The request is on the heap: else each
/// function that waits for another would hold a copy of it, and what waits is itself copied once.
pub(super) async fn answer(
    proxy: Arc<Proxy>,
    slot: Arc<Slot<Agreed>>,
    request: Box<Request<Incoming>>,
) -> Response<Body> {
    proxy.counts.requests.fetch_add(1, Ordering::Relaxed);
    let is_connect = *request.method() == Method::CONNECT;
    let may_change = is_connect || fields::wants_websocket(request.headers());
    let answered = match is_connect {
        // On the heap: other requests have no need of the memory.
        true => Box::pin(connect(&proxy, &slot, request)).await,
        false => match read(&proxy, request) {
            Ok(wanted) => wanted.answer(&proxy, &slot).await,
            Err(problem) => Err(problem),
        },
    };
    let mut answer = told(&proxy.counts, answered);
    let has_changed = match is_connect {
        true => answer.status().is_success(),
        false => answer.status() == StatusCode::SWITCHING_PROTOCOLS,
    };
    if may_change && !has_changed {
        // What the client has sent behind it was not meant for HTTP, and could be read as requests.
        close(&mut answer);
    }
    answer
}

/// Answers a request that came inside of a tunnel to `to`, in TLS that ends here. `proxy` speaks TLS to servers.
pub(super) async fn answer_inside(
    proxy: Arc<Proxy>,
    slot: Arc<Slot<Agreed>>,
    to: Destination,
    request: Box<Request<Incoming>>,
) -> Response<Body> {
    proxy.counts.requests.fetch_add(1, Ordering::Relaxed);
    let may_change = fields::wants_websocket(request.headers());
    let wanted = inside(&to, &request).and_then(|target| want(&proxy, target, request));
    let answered = match wanted {
        Ok(wanted) => wanted.answer(&proxy, &slot).await,
        Err(problem) => Err(problem),
    };
    let failed = answered.is_err();
    let mut answer = told(&proxy.counts, answered);
    if failed || (may_change && answer.status() != StatusCode::SWITCHING_PROTOCOLS) {
        // What the client has sent behind it was not meant for HTTP, or is of a request that was not read.
        close(&mut answer);
    }
    answer
}

/// Where such a request leads.
fn inside(to: &Destination, request: &Request<Incoming>) -> Result<Target, Problem> {
    if *request.method() == Method::CONNECT {
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "there is no tunnel in a tunnel"));
    }
    fields::check_request(request.headers(), request.version())?;
    let host = request.headers().get(HOST);
    if request.version() == Version::HTTP_2 && host.is_none() && request.uri().authority().is_none() {
        return Err(Problem::bad("the request names no host"));
    }
    Target::inside(request.uri(), host, to)
}

/// The answer, or what is wrong.
fn told(counts: &Counts, answered: Result<Response<Body>, Problem>) -> Response<Body> {
    answered.unwrap_or_else(|problem| {
        counts.failed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(?problem, "a request was not passed on");
        problem.answer()
    })
}

async fn connect(
    proxy: &Arc<Proxy>,
    slot: &Slot<Agreed>,
    mut request: Box<Request<Incoming>>,
) -> Result<Response<Body>, Problem> {
    fields::check_request(request.headers(), request.version())?;
    if [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| request.headers().contains_key(name)) {
        return Err(Problem::bad("CONNECT has no body"));
    }
    let to = target::tunnel(request.uri())?;
    own_key::check_tunnel(&to, request.headers())?;
    let client = hyper::upgrade::on(&mut *request);
    if proxy.intercepting.as_ref().is_some_and(|intercepting| intercepting.wants(&to)) {
        let intents = expected(proxy, &to);
        slot.put(Agreed::Asked(Asked { to, client, intents }));
        return Ok(Response::new(Body::empty()));
    }
    let tunnel = open(proxy, to, client).await?;
    proxy.counts.tunnels.fetch_add(1, Ordering::Relaxed);
    slot.put(Agreed::Tunnel(tunnel));
    Ok(Response::new(Body::empty()))
}

/// What tunnels to there were like before.
fn expected(proxy: &Proxy, to: &Destination) -> Intents {
    proxy.tunnels.of(to).map_or_else(Intents::default, |passed| passed.intents())
}

/// Opens a tunnel: a session, where there is a gateway that keeps them.
async fn open(proxy: &Proxy, to: Destination, client: OnUpgrade) -> Result<Tunnel, Problem> {
    let late = || Problem::late(format!("{to} is not reached in time"));
    let intents = expected(proxy, &to);
    let chosen = match proxy.origins.upstream().choose(&to, &intents) {
        Some(choosing) => Some(tokio::time::timeout(CONNECT, choosing).await.map_err(|_| late())??),
        None => None,
    };
    let upstream: &dyn Upstream = match &chosen {
        Some(chosen) => &**chosen,
        None => proxy.origins.upstream(),
    };
    let opened = match upstream.session(&to) {
        Some(opening) => tokio::time::timeout(CONNECT, opening).await.map_err(|_| late())??,
        None => None,
    };
    if let Some((session, by)) = opened {
        tracing::debug!(%to, by, session = %session.id(), "a tunnel");
        return Ok(Tunnel::in_session(to, client, session));
    }
    let reached = tokio::time::timeout(CONNECT, upstream.reach(&to, &intents)).await;
    let reached = reached.map_err(|_| late())??;
    tracing::debug!(%to, by = reached.by, "a tunnel");
    let stream = proxy.origins.networks().counted(reached.network.as_deref(), reached.stream);
    Ok(Tunnel::new(to, client, Far::Stream(stream)))
}

/// What a request wants that was read and may be passed on. Small: it is moved into what waits.
enum Wanted {
    /// Answered by this proxy itself.
    Here(Box<Response<Body>>),
    /// The whole of an object.
    Object(Box<Download>),
    /// Anything else.
    Other(Box<Once>),
}

/// A request that is passed on as it is.
struct Once {
    to: Destination,
    request: Request<Incoming>,
    /// The client's connection, if it is to become WebSocket.
    client: Option<OnUpgrade>,
    /// It belongs to an authentication of its connection.
    is_private: bool,
}

/// Reads a request, and judges whether it may be passed on.
fn read(proxy: &Arc<Proxy>, request: Box<Request<Incoming>>) -> Result<Wanted, Problem> {
    if request.uri().scheme().is_none() && request.uri().path() == "/" && *request.method() == Method::GET {
        let text = "this is an HTTP proxy; give your program its address as http_proxy and https_proxy";
        return Ok(Wanted::Here(Box::new(page(StatusCode::OK, text))));
    }
    let target = Target::absolute(request.uri(), request.headers().get(HOST))?;
    fields::check_request(request.headers(), request.version())?;
    if fields::came_through(request.headers(), proxy.pseudonym.name()) {
        let text = "this request came through this proxy before: it leads to itself";
        return Err(Problem::new(StatusCode::LOOP_DETECTED, text));
    }
    own_key::check_request(&target.to, target.host.to_str().unwrap_or_default(), request.headers())?;
    want(proxy, target, request)
}

/// What a request wants that may be passed on.
fn want(proxy: &Arc<Proxy>, target: Target, mut request: Box<Request<Incoming>>) -> Result<Wanted, Problem> {
    if let Some(answer) = last_hop(&mut request)? {
        return Ok(Wanted::Here(Box::new(answer)));
    }
    let websocket = fields::wants_websocket(request.headers());
    let client = websocket.then(|| hyper::upgrade::on(&mut *request));
    let is_private = fields::authenticates_the_connection(request.headers());
    let (mut head, body) = request.into_parts();
    let Target { to, host, path } = target;
    prepare(proxy, &mut head, host, path);
    if !websocket && !is_private && body.is_end_stream() && is_for_all(&head) {
        return Ok(Wanted::Object(Download::new(Arc::clone(proxy), to, head)));
    }
    let request = Request::from_parts(head, body);
    Ok(Wanted::Other(Box::new(Once { to, request, client, is_private })))
}

impl Wanted {
    async fn answer(self, proxy: &Proxy, slot: &Slot<Agreed>) -> Result<Response<Body>, Problem> {
        match self {
            Self::Here(answer) => Ok(*answer),
            Self::Object(download) => download.run().await,
            // On the heap: most requests are for whole objects, and have no need of the memory.
            Self::Other(once) => Box::pin(once.pass(proxy, slot)).await,
        }
    }
}

impl Once {
    /// Passes it on, with its body.
    async fn pass(self: Box<Self>, proxy: &Proxy, slot: &Slot<Agreed>) -> Result<Response<Body>, Problem> {
        let Self { to, request, client, is_private } = *self;
        let (mut head, body) = request.into_parts();
        if client.is_some() {
            fields::upgrade_to_websocket(&mut head.headers);
        }
        let method = head.method.clone();
        let size_sent = Some(body.size_hint().lower()).filter(|bytes| *bytes > 0);
        let intents = Intents { size_sent, ..Intents::default() };
        let body = if body.is_end_stream() { Either::Right(Empty::new()) } else { Either::Left(body) };
        let outgoing = Outgoing::of(Request::from_parts(head, body));
        let decided = proxy.origins.decide(&to, intents, false).await?;
        let limit = proxy.settings.answer_limit;
        let waits = client.is_none() && matches!(method, Method::GET | Method::HEAD);
        let turn = match waits {
            true => proxy.origins.turn(&to, decided.network(), false).await,
            // What is sent moves where turns are not counted.
            false => None,
        };
        let exchanged = exchange(&proxy.origins, &to, intents, (decided, turn), outgoing, limit).await;
        let (mut answer, mut lease) = exchanged?;
        if is_private {
            lease.line().make_private();
        }
        match client {
            Some(client) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let server = Far::Upgrade(hyper::upgrade::on(&mut answer), Box::new(lease));
                slot.put(Agreed::Tunnel(Tunnel::new(to, client, server)));
                let (mut head, _) = answer.into_parts();
                passing::prepare(&proxy.pseudonym, &mut head);
                fields::upgrade_to_websocket(&mut head.headers);
                Ok(Response::from_parts(head, Body::empty()))
            }
            _ => passing::pass(&proxy.pseudonym, &method, answer, lease, None),
        }
    }
}

/// Makes the head of a client's request one of ours.
fn prepare(proxy: &Proxy, head: &mut Parts, host: HeaderValue, path: Uri) {
    fields::remove_of_the_connection(&mut head.headers);
    proxy.pseudonym.add_to(&mut head.headers, head.version);
    if head.version == Version::HTTP_2 {
        fields::join_cookies(&mut head.headers);
    }
    head.headers.insert(HOST, host);
    head.uri = path;
    head.version = Version::HTTP_11;
    head.extensions.clear();
}

/// Answers TRACE and OPTIONS that go no further than here (RFC 9110, §7.6.2).
fn last_hop(request: &mut Request<Incoming>) -> Result<Option<Response<Body>>, Problem> {
    let is_trace = *request.method() == Method::TRACE;
    if is_trace && !request.body().is_end_stream() {
        return Err(Problem::bad("TRACE has no body"));
    }
    if !is_trace && *request.method() != Method::OPTIONS {
        return Ok(None);
    }
    match fields::forwards_left(request.headers())? {
        None => Ok(None),
        Some(0) if is_trace => Ok(Some(trace(request))),
        Some(0) => Ok(Some(options())),
        Some(left) => {
            request.headers_mut().insert(MAX_FORWARDS, HeaderValue::from(left - 1));
            Ok(None)
        }
    }
}

/// The request as it came, without what is secret.
fn trace(request: &Request<Incoming>) -> Response<Body> {
    let mut text = format!("TRACE {} HTTP/1.1\r\n", request.uri());
    for (name, value) in request.headers() {
        if ![AUTHORIZATION, COOKIE, hyper::header::PROXY_AUTHORIZATION].contains(name) {
            // To a string it cannot fail.
            let _ = write!(text, "{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()));
        }
    }
    text.push_str("\r\n");
    let mut answer = Response::new(Body::of(Bytes::from(text)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("message/http"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what such a function returns.
    fn size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_waits_for_an_answer_is_small() {
        // It is made and copied for each request. With the request in each of its functions it had 8296
        // bytes. Memory up to a kibibyte has free lists of its own in most allocators.
        let bytes = size(answer);
        assert!(bytes <= 1024, "{bytes}");
    }
}
