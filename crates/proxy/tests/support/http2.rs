//! A server that speaks HTTP/2 over TLS, and a client that does in a tunnel of a proxy, made of hyper.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::secure::roots;
use crate::support::read_head;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, ETAG, RANGE};
use hyper::http::request::Parts;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::convert::Infallible;
use std::io::Write as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What is posted there is taken, and never answered.
pub const HELD: &str = "/held";

/// It has objects, of which it has ranges, and sends back what is posted.
pub struct Http2Origin {
    pub port: u16,
    state: Arc<State>,
    _runtime: tokio::runtime::Runtime,
}

struct State {
    /// What is at a path.
    content: Box<dyn Fn(&str) -> Bytes + Send + Sync>,
    seen: Mutex<Vec<(IpAddr, Parts)>>,
    connections: AtomicUsize,
}

impl Http2Origin {
    pub fn start(config: ServerConfig, content: Vec<u8>) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), config, content)
    }

    /// The same object is at every path.
    pub fn on(listener: TcpListener, config: ServerConfig, content: Vec<u8>) -> Self {
        let content = Bytes::from(content);
        Self::serving(listener, config, move |_| content.clone())
    }

    /// It speaks nothing but HTTP/2.
    pub fn serving(
        listener: TcpListener,
        config: ServerConfig,
        content: impl Fn(&str) -> Bytes + Send + Sync + 'static,
    ) -> Self {
        let mut config = config;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let port = listener.local_addr().unwrap().port();
        let (seen, connections) = (Mutex::default(), AtomicUsize::new(0));
        let state = Arc::new(State { content: Box::new(content), seen, connections });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        listener.set_nonblocking(true).unwrap();
        let serving = Arc::clone(&state);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&serving));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    state.connections.fetch_add(1, Ordering::Relaxed);
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (state, from) = (Arc::clone(&state), from.ip());
                        async move { Ok::<_, Infallible>(state.answer(from, request).await) }
                    });
                    let serving = http2::Builder::new(TokioExecutor::new());
                    // A client that has left needs no more.
                    let _ = serving.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, state, _runtime: runtime }
    }

    /// The heads of the requests so far, and where they came from.
    pub fn seen(&self) -> Vec<(IpAddr, Parts)> {
        self.state.seen.lock().unwrap().clone()
    }

    /// How many connections have come.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }
}

/// A client that says exactly what it is told to, in a tunnel of the proxy behind this connection, to this
/// host and port. It trusts this authority.
pub async fn client(
    stream: TcpStream,
    (host, port): (&str, u16),
    authority: &Path,
) -> SendRequest<Full<Bytes>> {
    let mut stream = stream;
    let words = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    stream.write_all(words.as_bytes()).unwrap();
    let head = read_head(&mut stream).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots(authority))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) =
        Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

impl State {
    async fn answer(&self, from: IpAddr, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        self.seen.lock().unwrap().push((from, head.clone()));
        if head.method == Method::POST {
            let Ok(body) = body.collect().await else {
                let mut refused = Response::new(Full::default());
                *refused.status_mut() = StatusCode::BAD_REQUEST;
                return refused;
            };
            if head.uri.path() == HELD {
                std::future::pending::<()>().await;
            }
            return Response::new(Full::new(body.to_bytes()));
        }
        let content = (self.content)(head.uri.path());
        let total = content.len();
        let range = head.headers.get(RANGE).and_then(|range| {
            let (first, last) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
        });
        let (first, last) = range.unwrap_or((0, total - 1));
        let last = last.min(total - 1);
        let mut answer = Response::new(Full::new(content.slice(first..=last)));
        let headers = answer.headers_mut();
        headers.insert(ETAG, "\"a\"".parse().unwrap());
        headers.insert(ACCEPT_RANGES, "bytes".parse().unwrap());
        if range.is_some() {
            headers.insert(CONTENT_RANGE, format!("bytes {first}-{last}/{total}").parse().unwrap());
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        answer
    }
}
