//! The task that has the connection to the service.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_transport::{CloseCode, ConnectError, Connection, Endpoint};

use super::state::Core;
use crate::address::ServiceAddress;
use crate::protocol::{Decoder, Reply};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A new connection on which nothing is answered for so long is given up, and the hosts resolved anew.
const FIRST_ANSWER: Duration = Duration::from_secs(20);
/// After so long without the service, its hosts are resolved anew.
const UNREACHABLE: Duration = Duration::from_secs(30);
/// A resolver whose endpoint is gone ends after so long without a question: longer than between two signs of
/// life of a listener that outlived the endpoint.
const IDLE: Duration = Duration::from_secs(15 * 60);
const READ_SIZE: usize = 16 * 1024;

/// Keeps a connection while it is needed, until the resolver is dropped or its endpoint closed.
pub(super) async fn run(core: Arc<Core>, endpoint: Endpoint, service: ServiceAddress) {
    let link = Link { core, service };
    let mut endpoint = Some(endpoint);
    let mut pause = FIRST_PAUSE;
    loop {
        match link.core.is_wanted() {
            None => return,
            Some(true) => {}
            Some(false) => {
                if link.core.is_released() {
                    break;
                }
                link.core.work.notified().await;
                continue;
            }
        }
        // A connection that is lost can't be made anew without an endpoint.
        let Some(present) = endpoint.take() else { break };
        let mut addresses = present.watch_addresses();
        let (outcome, kept) = link.connect_and_serve(present).await;
        endpoint = kept;
        match outcome {
            Outcome::Over => break,
            Outcome::Lost { why, answered } => {
                tracing::debug!(%why, "the connection to the name service ended");
                link.core.failed(why);
                if answered {
                    pause = FIRST_PAUSE;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            // Another network: the service may be reachable at once.
            Some(_) = addresses.changed() => pause = FIRST_PAUSE,
        }
    }
    link.core.end();
}

/// How a connection ended.
enum Outcome {
    /// It is to be made anew.
    Lost { why: String, answered: bool },
    /// The resolver is no longer needed.
    Over,
}

struct Link {
    core: Arc<Core>,
    service: ServiceAddress,
}

impl Link {
    /// Gives the endpoint back unless it was released.
    async fn connect_and_serve(&self, endpoint: Endpoint) -> (Outcome, Option<Endpoint>) {
        let lost = |why: String| Outcome::Lost { why, answered: false };
        let addr = match self.service.resolve().await {
            Ok(addr) => addr,
            Err(error) => return (lost(format!("its host cannot be resolved: {error}")), Some(endpoint)),
        };
        let addrs = addr.addrs.clone();
        // What is asked first travels with the connection's first flight.
        let connection = match endpoint.connect_early(addr).await {
            Ok(connection) => connection,
            Err(ConnectError::EndpointClosed) => return (Outcome::Over, None),
            Err(error) => return (lost(error.to_string()), Some(endpoint)),
        };
        let mut session = Session {
            link: self,
            connection,
            endpoint: Some(endpoint),
            addrs,
            answered: false,
            started: Instant::now(),
            checked: Instant::now(),
        };
        let outcome = match session.run().await {
            Ok(outcome) => outcome,
            Err(error) => {
                let reason = session.connection.close_reason();
                if reason.as_ref().is_some_and(|reason| reason.code == CloseCode::PROTOCOL) {
                    self.core.broken_off();
                }
                let why = reason.map_or_else(|| error.to_string(), |reason| reason.to_string());
                Outcome::Lost { why, answered: session.answered }
            }
        };
        self.core.connected(None);
        // Whatever was not answered is asked again elsewhere.
        session.connection.abort(CloseCode::NONE, "");
        (outcome, session.endpoint)
    }
}

/// One connection to the service.
struct Session<'a> {
    link: &'a Link,
    connection: Connection,
    endpoint: Option<Endpoint>,
    addrs: Vec<std::net::SocketAddr>,
    answered: bool,
    started: Instant,
    /// When it was last looked whether the service is still where it was.
    checked: Instant,
}

impl Session<'_> {
    async fn run(&mut self) -> io::Result<Outcome> {
        let core = &self.link.core;
        let stream = tokio::time::timeout(FIRST_ANSWER, self.connection.open_stream())
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        core.begin_session();
        core.connected(Some(self.connection.clone()));
        let (mut read, mut write) = stream.into_split();
        let mut decoder = Decoder::<Reply>::new();
        let mut piece = vec![0; READ_SIZE];
        let (mut out, mut written) = (Vec::new(), 0);
        loop {
            if written == out.len() {
                out.clear();
                written = 0;
            }
            let has_more = core.fill(&mut out);
            let wake_at = self.wake_at();
            tokio::select! {
                n = read.read(&mut piece) => {
                    let n = n?;
                    if n == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    decoder.push(&piece[..n]);
                    while let Some(reply) = decoder.next_message().map_err(io::Error::other)? {
                        self.answered = true;
                        core.take(reply).await;
                    }
                }
                n = write.write(&out[written..]), if has_more => written += n?,
                () = core.work.notified() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {
                    if let Some(outcome) = self.look_around().await {
                        return Ok(outcome);
                    }
                }
            }
            // An answer on a stream of its own counts as an answer of the service, too.
            self.answered |= core.was_heard();
            if core.is_wanted().is_none() {
                return Ok(Outcome::Over);
            }
            if core.is_released() {
                self.endpoint = None;
            }
        }
    }

    /// When something is to be done although nothing happens.
    fn wake_at(&self) -> Instant {
        let core = &self.link.core;
        let first = (!self.answered).then_some(self.started + FIRST_ANSWER);
        let moved = (self.link.service.has_hosts() && core.waits()).then_some(self.checked + UNREACHABLE);
        let idle = Some(Instant::now() + IDLE);
        [first, moved, idle, core.retry_at()].into_iter().flatten().min().unwrap_or(self.started)
    }

    async fn look_around(&mut self) -> Option<Outcome> {
        let core = &self.link.core;
        core.retry();
        if core.is_released() && core.is_idle_for(IDLE) {
            return Some(Outcome::Over);
        }
        let lost = |why: &str| Some(Outcome::Lost { why: why.to_owned(), answered: false });
        if !self.answered && self.started.elapsed() >= FIRST_ANSWER {
            return lost("nobody answers there");
        }
        if self.link.service.has_hosts() && self.checked.elapsed() >= UNREACHABLE {
            self.checked = Instant::now();
            let away = self.connection.stats().unreachable.is_some_and(|time| time >= UNREACHABLE);
            if away
                && let Ok(addr) = self.link.service.resolve().await
                && addr.addrs != self.addrs
            {
                return lost("it has another address now");
            }
        }
        None
    }
}
