//! Servers behind one address, told apart by the `Host` of requests. Each connection is for one of them: a
//! request on it that names another is refused (421), so that what stands before this, and gathers requests
//! of several hosts on one connection, never brings one to a server that it is not for.
//!
//! Requests and answers are read and framed anew, as in the proxy: what could be read in two ways is refused,
//! and nothing that one side took for a body is a request to the other.

use super::body::Body;
use super::decided::Decided;
use super::exchange::{Outgoing, exchange};
use super::origins::Origins;
use super::pages::close;
use super::problem::Problem;
use super::pseudonym::Pseudonym;
use super::speaking::{self, Limits};
use super::target::destination;
use super::tunnel::{Far, Slot, Tunnel};
use super::turns::Rules;
use super::watched::{Traffic, Watched};
use super::{fields, passing};
use crate::{Destination, Upstream};
use futures_util::FutureExt;
use http_body_util::{Either, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Version};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use whimbrel_access::Intents;

/// The largest head of a request; what is read and written at once.
const HEAD: usize = 16 << 10;
/// For the head of a request, and for the next one to come.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// For the head of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Where nothing moves for so long between requests and answers, a connection is closed.
const REST_LIMIT: Duration = Duration::from_secs(600);
/// In `Via`.
static PSEUDONYM: LazyLock<Pseudonym> = LazyLock::new(|| Pseudonym::new("whimbrel-gateway"));

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What a client could say of itself that servers take from those before them.
const SAID_BY_CLIENTS: [HeaderName; 4] = [
    FORWARDED,
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-real-ip"),
];

/// Serves a client's connection, whose hosts are reached by this upstream. What a host speaks after HTTP,
/// such as WebSocket, may rest for so long.
pub(crate) async fn serve(upstream: Arc<dyn Upstream>, stream: TcpStream, from: IpAddr, idle: Duration) {
    let traffic = Arc::new(Traffic::default());
    let origins = Origins::new(upstream, Rules::NONE);
    let client = Arc::new(Client { origins, from, host: OnceLock::new() });
    tokio::select! {
        () = speak(&client, stream, &traffic) => {}
        () = traffic.rests(REST_LIMIT, idle) => tracing::debug!(%from, "a client was idle for too long"),
    }
}

/// Speaks HTTP, and then whatever was agreed on.
async fn speak(client: &Arc<Client>, stream: TcpStream, traffic: &Arc<Traffic>) {
    let slot = Arc::new(Slot::default());
    let limits = Limits { head: HEAD_LIMIT, buffer: HEAD };
    let answering = |request| answer(Arc::clone(client), Arc::clone(&slot), request).boxed();
    let watched = Watched::socket(stream, Arc::clone(traffic));
    speaking::speak(watched, traffic, limits, &answering).await;
    if let Some(tunnel) = slot.take() {
        Box::pin(tunnel.run(traffic)).await;
    }
}

/// A client's connection.
struct Client {
    /// Connections to the host, of this client alone.
    origins: Arc<Origins>,
    from: IpAddr,
    /// Whom the first request named.
    host: OnceLock<Destination>,
}

async fn answer(client: Arc<Client>, slot: Arc<Slot<Tunnel>>, request: Request<Incoming>) -> Response<Body> {
    let may_change = fields::wants_websocket(request.headers());
    let mut answer = client.pass(&slot, request).await.unwrap_or_else(|problem| {
        tracing::debug!(?problem, "a request was not passed on");
        let mut answer = problem.answer();
        // Whatever comes behind it is not looked at.
        close(&mut answer);
        answer
    });
    if may_change && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        // What the client has sent behind it was not meant for HTTP, and could be read as requests.
        close(&mut answer);
    }
    answer
}

impl Client {
    async fn pass(
        &self,
        slot: &Slot<Tunnel>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Problem> {
        if *request.method() == Method::CONNECT {
            return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this is no proxy"));
        }
        fields::check_request(request.headers(), request.version())?;
        let to = self.of_this_connection(named(&request)?)?;
        let websocket = fields::wants_websocket(request.headers());
        let upgraded = websocket.then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        prepare(&mut head, self.from)?;
        if websocket {
            fields::upgrade_to_websocket(&mut head.headers);
        }
        let method = head.method.clone();
        let body = if body.is_end_stream() { Either::Right(Empty::new()) } else { Either::Left(body) };
        let request = Outgoing::of(Request::from_parts(head, body));
        let (intents, decided) = (Intents::default(), (Decided::default(), None));
        let (mut answer, lease) =
            exchange(&self.origins, &to, intents, decided, request, ANSWER_LIMIT).await?;
        match upgraded {
            Some(client) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let server = Far::Upgrade(hyper::upgrade::on(&mut answer), Box::new(lease));
                slot.put(Tunnel::new(to, client, server));
                let (mut head, _) = answer.into_parts();
                passing::prepare(&PSEUDONYM, &mut head);
                fields::upgrade_to_websocket(&mut head.headers);
                Ok(Response::from_parts(head, Body::empty()))
            }
            _ => passing::pass(&PSEUDONYM, &method, answer, lease, None),
        }
    }

    /// The host of this connection, if a request names the same one and it is published.
    fn of_this_connection(&self, named: Destination) -> Result<Destination, Problem> {
        if let Err(error) = self.origins.upstream().knows(&named) {
            return Err(Problem::new(StatusCode::NOT_FOUND, error.to_string()));
        }
        let first = self.host.get_or_init(|| named.clone());
        if first.host() != named.host() {
            let text = format!("this connection is for {}, and no other host", first.host());
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, text));
        }
        Ok(first.clone())
    }
}

/// The host that a request names, in its field and, where it has one, in its target.
fn named<B>(request: &Request<B>) -> Result<Destination, Problem> {
    let field = request.headers().get(HOST).ok_or_else(|| Problem::bad("there is no Host field"))?;
    let field = field.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let named = destination(&field.ok_or_else(|| Problem::bad("Host is no host"))?, Some(80))?;
    let uri = request.uri();
    if let Some(target) = uri.authority() {
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(Problem::bad("only http:// is spoken here"));
        }
        if destination(target, Some(80))?.host() != named.host() {
            return Err(Problem::bad("the target and the Host field name different hosts"));
        }
    }
    Ok(named)
}

/// Makes the head of a client's request one of ours.
fn prepare(head: &mut Parts, from: IpAddr) -> Result<(), Problem> {
    fields::remove_of_the_connection(&mut head.headers);
    PSEUDONYM.add_to(&mut head.headers, head.version);
    tell_client(&mut head.headers, from);
    let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    // `http://example.org?a=b` has no path.
    let path = if path.starts_with('/') || path == "*" { path.to_owned() } else { format!("/{path}") };
    head.uri = path.parse().map_err(|_| Problem::bad("the path cannot be read"))?;
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(())
}

/// Tells the server where the client is, whatever that says of itself.
fn tell_client(headers: &mut HeaderMap, from: IpAddr) {
    for name in SAID_BY_CLIENTS {
        headers.remove(name);
    }
    if let Ok(from) = HeaderValue::from_str(&from.to_string()) {
        headers.insert(FORWARDED_FOR, from);
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn host(target: &str, field: &str) -> Option<String> {
        let request = Request::builder().uri(target).header(HOST, field).body(()).unwrap();
        named(&request).ok().map(|to| to.host().to_owned())
    }

    #[test]
    fn a_request_names_one_host_or_none() {
        for (target, field) in [
            ("/", "www.example.org"),
            ("/", "WWW.example.org.:8080"),
            ("*", "www.example.org"),
            ("http://www.example.org/a", "www.example.org"),
            ("http://WWW.example.org:80/a", "www.example.org:80"),
        ] {
            assert_eq!(host(target, field).as_deref(), Some("www.example.org"), "{target} {field}");
        }
        for (target, field) in [
            ("/", ""),
            ("/", "a b"),
            ("/", "user@www.example.org"),
            ("/", "www.example.org, evil.example"),
            ("http://www.example.org/", "evil.example"),
            ("https://www.example.org/", "www.example.org"),
        ] {
            assert_eq!(host(target, field), None, "{target} {field}");
        }
    }

    #[test]
    fn where_a_client_is_says_the_gateway_and_not_the_client() {
        let (mut head, ()) = Request::builder()
            .uri("http://www.example.org?a=b")
            .header("forwarded", "for=10.0.0.1")
            .header("x-forwarded-for", "10.0.0.1")
            .header("x-real-ip", "10.0.0.1")
            .header("connection", "x-secret")
            .header("x-secret", "1")
            .body(())
            .unwrap()
            .into_parts();
        prepare(&mut head, "192.0.2.7".parse().unwrap()).unwrap();
        assert_eq!(head.uri, "/?a=b");
        let mut left: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["via", "x-forwarded-for", "x-forwarded-proto"]);
        assert_eq!(head.headers["x-forwarded-for"], "192.0.2.7");
    }
}
