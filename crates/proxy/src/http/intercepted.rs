//! HTTPS that ends here: what a client says first in its tunnel decides, and whatever is not meant for this
//! passes through untouched. Inside, each request is one as over plain HTTP, to the server of the tunnel
//! alone.

use super::Proxy;
use super::answer::answer_inside;
use super::body::Body;
use super::recent::Recent;
use super::rewound::Rewound;
use super::secured::Secured;
use super::speaking::{self, Limits};
use super::transfer::{self, WebTransfer};
use super::tunnel::{self, AGREED, Agreed, Asked, CONNECT, Far, Passed, Slot};
use super::watched::{Traffic, Watched};
use crate::intercept::{HTTP2, Hello, InterceptAuthority, InterceptError, InterceptHosts, MAX_HELLO, judge};
use crate::{Destination, UpstreamError};
use bytes::BytesMut;
use futures_util::FutureExt;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::{AlertDescription, Error, ServerConfig};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use whimbrel_access::Intents;

/// For a client's first words. Who says nothing waits for its server to speak, which TLS never does.
const HELLO: Duration = Duration::from_secs(10);
/// For a handshake with a client, once its server is known.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once; further ones wait, within that.
const HANDSHAKES: usize = 64;
/// What is read at once of a client's first words: most have less.
const PIECE: usize = 4 << 10;
/// The largest head of a request inside; what is read and written at once.
const BUFFER: usize = 64 << 10;
/// Certificates that are kept, each for so long. They are valid for longer.
const CERTIFICATES: usize = 512;
const CERTIFICATE_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Answers that were told, and that nobody has looked at yet.
const TOLD: usize = 64;

/// What intercepts.
pub(super) struct Intercepting {
    hosts: InterceptHosts,
    authority: InterceptAuthority,
    certificates: Recent<Arc<ServerConfig>>,
    secured: Arc<Secured>,
    /// The proxy for what is asked for inside, whose connections to servers are secured.
    inside: Arc<Proxy>,
    handshakes: Semaphore,
    /// Who hears of answers that are under way to programs.
    told: OnceLock<mpsc::Sender<WebTransfer>>,
}

impl Intercepting {
    pub(super) fn new(
        hosts: InterceptHosts,
        authority: InterceptAuthority,
        secured: Arc<Secured>,
        inside: Arc<Proxy>,
    ) -> Self {
        Self {
            hosts,
            authority,
            certificates: Recent::new(CERTIFICATES, CERTIFICATE_LASTS),
            secured,
            inside,
            handshakes: Semaphore::new(HANDSHAKES),
            told: OnceLock::new(),
        }
    }

    /// Answers that are under way to programs, from now on. `None`: they are told already.
    pub(super) fn transfers(&self) -> Option<mpsc::Receiver<WebTransfer>> {
        let (told, transfers) = mpsc::channel(TOLD);
        self.told.set(told).is_ok().then_some(transfers)
    }

    /// Whether a tunnel to this destination may end here.
    pub(super) fn wants(&self, to: &Destination) -> bool {
        self.hosts.has(to) && !self.secured.leaves_untouched(to)
    }

    /// Closes what has been idle for too long.
    pub(super) fn tidy(&self) {
        self.inside.origins.tidy();
    }

    /// Serves a client that was told that it has its tunnel. Returns what passed in it, if it was one.
    pub(super) async fn serve(
        &self,
        outside: &Proxy,
        asked: Asked,
        traffic: &Arc<Traffic>,
    ) -> Option<Passed> {
        let before = traffic.bytes();
        let Asked { to, client, intents } = asked;
        let Ok(Ok(client)) = tokio::time::timeout(AGREED, client).await else { return None };
        let (mut client, mut first) = (TokioIo::new(client), BytesMut::new());
        let is_ours = tokio::time::timeout(HELLO, is_ours(&mut client, &mut first, &to)).await;
        let config = match is_ours {
            Ok(Ok(true)) => self.prepare(&to).await,
            Ok(Ok(false)) | Err(_) => None,
            Ok(Err(error)) => {
                tracing::debug!(%error, %to, "a client left its tunnel");
                return None;
            }
        };
        let client = Rewound::new(first.freeze(), client);
        if let Some(config) = config {
            self.speak(client, config, &to, traffic).await;
            return None;
        }
        pass(outside, client, &to, &intents, traffic).await;
        Some(Passed::since(before, traffic))
    }

    /// What to speak with the client as this host. `None`: it is better left untouched.
    async fn prepare(&self, to: &Destination) -> Option<Arc<ServerConfig>> {
        let config = match self.certificate(to) {
            Ok(config) => config,
            Err(error) => {
                tracing::info!(%error, %to, "a host is left untouched");
                self.secured.leave_untouched(to);
                return None;
            }
        };
        // The client is answered as its server only once that is known. Where it is refused or not reached,
        // each request inside is told so.
        if let Err(error) = self.try_server(to).await {
            tracing::debug!(%error, "the server of a tunnel");
        }
        (!self.secured.leaves_untouched(to)).then_some(config)
    }

    fn certificate(&self, to: &Destination) -> Result<Arc<ServerConfig>, InterceptError> {
        if let Some(config) = self.certificates.of(to) {
            return Ok(config);
        }
        let config = self.authority.server_for(to.host())?;
        self.certificates.put(to, Arc::clone(&config));
        Ok(config)
    }

    /// Connects to the server, unless a connection is there: the first request takes it.
    async fn try_server(&self, to: &Destination) -> Result<(), UpstreamError> {
        let (origins, intents) = (&self.inside.origins, Intents::default());
        let trying = async {
            let decided = origins.decide(to, intents, false).await?;
            origins.lease(to, &intents, decided).await?.release();
            Ok(())
        };
        let late = |_| {
            let source = io::ErrorKind::TimedOut.into();
            Err(UpstreamError::Unreachable { to: to.to_string(), source })
        };
        tokio::time::timeout(CONNECT, trying).await.unwrap_or_else(late)
    }

    /// Speaks TLS with the client, and HTTP inside.
    async fn speak(
        &self,
        client: Rewound,
        config: Arc<ServerConfig>,
        to: &Destination,
        outer: &Arc<Traffic>,
    ) {
        let accepting = async {
            // It is closed never.
            let _place = self.handshakes.acquire().await;
            TlsAcceptor::from(config).accept(client).await
        };
        let stream = match tokio::time::timeout(HANDSHAKE, accepting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, %to, "a client does not go on with its TLS");
                if cannot_be_ours(&error) {
                    self.secured.leave_untouched(to);
                }
                return;
            }
            Err(_) => {
                tracing::debug!(%to, "a client is too slow with its TLS");
                return;
            }
        };
        let (traffic, slot) = (Arc::new(Traffic::default()), Arc::new(Slot::default()));
        let limits = Limits { head: self.inside.settings.request_limit, buffer: BUFFER };
        let client = self.told.get().zip(outer.ends()).map(|(told, ends)| {
            Arc::new(transfer::Client { told: told.clone(), ends, traffic: Arc::clone(&traffic) })
        });
        let answering = |request: Request<Incoming>| {
            let (inside, slot, request) = (Arc::clone(&self.inside), Arc::clone(&slot), Box::new(request));
            let asked = client.clone().map(|client| transfer::Asked::new(client, to, &request));
            let answer = answer_inside(inside, slot, to.clone(), request);
            match asked {
                Some(asked) => async move { followed(asked, answer.await) }.boxed(),
                None => answer.boxed(),
            }
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        let watched = Watched::secured(Box::new(stream), Arc::clone(&traffic));
        match is_http2 {
            true => speaking::speak_http2(Box::new(watched), limits, &answering).await,
            false => speaking::speak(watched, &traffic, limits, &answering).await,
        }
        if let Some(Agreed::Tunnel(tunnel)) = slot.take() {
            outer.is_tunnel_now();
            Box::pin(tunnel.run(&traffic)).await;
        }
    }
}

/// Follows an answer on its way to the program, if it is large.
fn followed(asked: transfer::Asked, answer: Response<Body>) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let follow = asked.answered((head.status, &head.headers), body.size_hint().exact());
    let body = match follow {
        Some(follow) => body.followed(follow),
        None => body,
    };
    Response::from_parts(head, body)
}

/// Reads the client's first words, until it can be told whether they are for us.
async fn is_ours(client: &mut TokioIo<Upgraded>, first: &mut BytesMut, to: &Destination) -> io::Result<bool> {
    loop {
        match judge(first, to) {
            Hello::Ours => return Ok(true),
            Hello::Other(why) => {
                tracing::debug!(%to, why, "a tunnel is left untouched");
                return Ok(false);
            }
            Hello::More => {}
        }
        // `judge` comes to an end at the latest when there is no more room.
        first.reserve(PIECE.min(MAX_HELLO.saturating_sub(first.len()).max(1)));
        if client.read_buf(first).await? == 0 {
            return Ok(false);
        }
    }
}

/// Passes bytes on to the server, as any tunnel does.
async fn pass(outside: &Proxy, client: Rewound, to: &Destination, intents: &Intents, traffic: &Traffic) {
    let reaching = outside.origins.upstream().reach(to, intents);
    match tokio::time::timeout(CONNECT, reaching).await {
        Ok(Ok(reached)) => {
            tracing::debug!(%to, by = reached.by, "a tunnel");
            outside.counts.tunnels.fetch_add(1, Ordering::Relaxed);
            traffic.is_tunnel_now();
            let networks = outside.origins.networks();
            let stream = networks.counted(reached.network.as_deref(), reached.stream);
            tunnel::pass(to, client, Far::Stream(stream), traffic).await;
        }
        not_reached => {
            // It was told that it has its tunnel: that must not look ended.
            traffic.break_off();
            let error = not_reached.map(|reached| reached.err());
            tracing::debug!(?error, %to, "a tunnel leads nowhere");
        }
    }
}

/// Whether a client took part in a handshake and refused what it was shown: it knows the host's own
/// certificate, or does not trust the key. Or its TLS has nothing in common with ours. It is left untouched
/// then, so that the next attempt works.
fn cannot_be_ours(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    matches!(
        cause,
        Some(
            Error::PeerIncompatible(_)
                | Error::AlertReceived(
                    AlertDescription::BadCertificate
                        | AlertDescription::UnsupportedCertificate
                        | AlertDescription::CertificateRevoked
                        | AlertDescription::CertificateExpired
                        | AlertDescription::CertificateUnknown
                        | AlertDescription::UnknownCA
                        | AlertDescription::AccessDenied
                )
        )
    )
}
