//! Connections to servers: those that are open and idle, and new ones, by the manager's choice.

use super::line::{Line, Speaker};
use crate::upstream::unreached;
use crate::{Destination, Upstream, UpstreamError};
use socket2::{SockRef, TcpKeepalive};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use whimbrel_access::Intents;
use whimbrel_multiaccess::protocol::{OpenConnection, PartWay, Report, Tried, Way};
use whimbrel_multiaccess::{Candidate, Client};

/// A connection that nobody used for so long is closed: servers do so too.
const IDLE: Duration = Duration::from_secs(60);
/// A connection fails when its network neither took anything nor gave a sign of life for so long: what waits for
/// an answer may then go over another one. It is longer than what a network recovers from by itself.
const SILENT: Duration = Duration::from_secs(20);
/// After so long without anything a sign of life is asked for, and again.
const ASKED: Duration = Duration::from_secs(8);
const ASKED_AGAIN: Duration = Duration::from_secs(4);
/// How long a report to the manager may hold somebody up.
const REPORT: Duration = Duration::from_millis(100);
/// Idle connections to one server.
const MOST_EACH: usize = 8;
/// Idle connections altogether.
const MOST: usize = 256;

/// All servers.
pub(super) struct Origins {
    upstream: Arc<dyn Upstream>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    next: u32,
    count: usize,
    servers: HashMap<Destination, Vec<(Line, Instant)>>,
}

/// What was decided for a message.
#[derive(Default)]
pub(super) struct Decided {
    /// The ways, best first. None: the system's, or whatever else leads there.
    pub(super) ways: Vec<Way>,
    /// The object is to come in these parts.
    pub(super) parts: Vec<PartWay>,
    /// For as long as this is there, the message counts as scheduled.
    pub(super) unit: Option<Unit>,
}

impl Decided {
    /// Whether more than one network leads there.
    pub(super) fn has_choice(&self) -> bool {
        let mut interfaces = self.ways.iter().map(|way| &way.interface);
        interfaces.next().is_some_and(|first| interfaces.any(|other| other != first))
    }
}

/// A message that counts as scheduled until this is dropped.
pub(super) struct Unit {
    client: Client,
    number: u64,
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.client.ended(self.number);
    }
}

/// A connection that carries a message, and the place that it goes back to.
pub(super) struct Lease {
    line: Line,
    origins: Arc<Origins>,
    _unit: Option<Unit>,
}

impl Lease {
    /// The connection.
    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// The way that it was made by, where the manager chose it.
    pub(super) fn by(&self) -> Option<&Candidate> {
        self.line.by()
    }

    /// Whether it has carried another message before.
    pub(super) fn was_used(&self) -> bool {
        self.line.was_used()
    }

    /// The message and its answer have passed, and the connection may carry another. Else it closes when this
    /// is dropped.
    pub(super) fn release(self) {
        self.origins.keep(self.line);
    }
}

impl Origins {
    pub(super) fn new(upstream: Arc<dyn Upstream>) -> Arc<Self> {
        Arc::new(Self { upstream, idle: Mutex::default() })
    }

    /// How everything else is reached.
    pub(super) fn upstream(&self) -> &dyn Upstream {
        &*self.upstream
    }

    /// Asks which way a message is to go.
    pub(super) async fn decide(&self, to: &Destination, intents: Intents) -> Result<Decided, UpstreamError> {
        let Some(client) = self.upstream.manager(to) else { return Ok(Decided::default()) };
        let offers = self.offers(to);
        let routed = client.route(to.host(), to.port(), intents, offers).await;
        let Some(verdict) = routed.map_err(|error| unreached(to, error))? else {
            return Ok(Decided::default());
        };
        let unit = verdict.unit.map(|number| Unit { client: client.clone(), number });
        Ok(Decided { ways: verdict.ways, parts: verdict.parts, unit })
    }

    /// Gives a connection for a message: an idle one, or a new one, as was decided.
    pub(super) async fn lease(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        decided: Decided,
    ) -> Result<Lease, UpstreamError> {
        let line = match decided.ways.is_empty() {
            true => match self.take(to, None).await {
                Some(line) => line,
                None => self.reach(to, intents).await?,
            },
            false => self.by_ways(to, decided.ways).await?,
        };
        Ok(Lease { line, origins: Arc::clone(self), _unit: decided.unit })
    }

    /// Gives a new connection for a message, by the first of these ways that works; without any, however the
    /// server is reached.
    pub(super) async fn lease_new(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        ways: Vec<Candidate>,
    ) -> Result<Lease, UpstreamError> {
        let line = match ways.is_empty() {
            true => self.reach(to, intents).await?,
            false => self.connect(to, ways).await?,
        };
        Ok(Lease { line, origins: Arc::clone(self), _unit: None })
    }

    /// The way to make a connection like the one that is meant.
    pub(super) fn candidate(&self, to: &Destination, way: &Way) -> Option<Candidate> {
        let Some(id) = way.reuse else { return Candidate::of_way(way.clone()) };
        let idle = self.lock();
        let lines = idle.servers.get(to)?;
        lines.iter().find(|(line, _)| line.id() == id)?.0.by().cloned()
    }

    /// Tells the manager of a way that does not work any more, so that it is not the next one.
    pub(super) async fn failed(&self, to: &Destination, by: &Candidate) {
        if let (Some(client), Some(report)) = (self.upstream.manager(to), failure(by)) {
            let _ = tokio::time::timeout(REPORT, client.report(report)).await;
        }
    }

    /// The same where nobody can wait.
    pub(super) fn failed_meanwhile(&self, to: &Destination, by: &Candidate) {
        if let (Some(client), Some(report)) = (self.upstream.manager(to), failure(by)) {
            client.tell(report);
        }
    }

    async fn by_ways(&self, to: &Destination, ways: Vec<Way>) -> Result<Line, UpstreamError> {
        let mut candidates = Vec::new();
        for way in ways {
            match way.reuse {
                // One behind a new connection in the ranking is not waited for.
                Some(id) if candidates.is_empty() => {
                    // Another message may have taken it.
                    let Some(by) = self.candidate(to, &way) else { continue };
                    if let Some(line) = self.take(to, Some(id)).await {
                        return Ok(line);
                    }
                    // It has closed meanwhile: another one by the same way is next best.
                    candidates.push(by);
                }
                Some(_) => {}
                None => candidates.extend(Candidate::of_way(way)),
            }
        }
        self.connect(to, candidates).await
    }

    async fn connect(&self, to: &Destination, candidates: Vec<Candidate>) -> Result<Line, UpstreamError> {
        let Some(client) = self.upstream.manager(to).filter(|_| !candidates.is_empty()) else {
            return self.reach(to, &Intents::default()).await;
        };
        let connected = client.connect_by(candidates, &to.to_string()).await;
        let connected = connected.map_err(|error| unreached(to, error))?;
        // What is passed on is not held back until there is more of it.
        let _ = connected.stream.set_nodelay(true);
        watch(&connected.stream);
        let source = connected.stream.local_addr().ok().map(|address| address.ip());
        self.line(to, Box::new(connected.stream), source, Some(connected.by)).await
    }

    async fn reach(&self, to: &Destination, intents: &Intents) -> Result<Line, UpstreamError> {
        let reached = self.upstream.reach(to, intents).await?;
        self.line(to, reached.stream, None, None).await
    }

    async fn line(
        &self,
        to: &Destination,
        stream: Box<dyn crate::Duplex>,
        source: Option<IpAddr>,
        by: Option<Candidate>,
    ) -> Result<Line, UpstreamError> {
        let id = {
            let mut idle = self.lock();
            idle.next = idle.next.wrapping_add(1);
            idle.next
        };
        let speaker = Speaker::start(stream).await;
        let speaker =
            speaker.map_err(|error| UpstreamError::NoWay { to: to.to_string(), why: error.to_string() })?;
        Ok(Line::new(id, to.clone(), speaker, source, by))
    }

    /// The idle connections to this server, for the manager.
    fn offers(&self, to: &Destination) -> Vec<OpenConnection> {
        let mut idle = self.lock();
        idle.tidy();
        let lines = idle.servers.get(to).into_iter().flatten();
        let offers = lines.filter_map(|(line, _)| {
            Some(OpenConnection { id: line.id(), source: line.source()?, scheduled: 0 })
        });
        offers.collect()
    }

    /// Takes an idle connection out that still works: that of this number, or the newest.
    async fn take(&self, to: &Destination, id: Option<u32>) -> Option<Line> {
        loop {
            let mut line = {
                let mut idle = self.lock();
                let lines = idle.servers.get_mut(to)?;
                let at = match id {
                    Some(id) => lines.iter().position(|(line, _)| line.id() == id)?,
                    None => lines.len().checked_sub(1)?,
                };
                let (line, _) = lines.remove(at);
                if lines.is_empty() {
                    idle.servers.remove(to);
                }
                idle.count -= 1;
                line
            };
            if line.is_ready().await {
                return Some(line);
            }
        }
    }

    fn keep(&self, line: Line) {
        let mut idle = self.lock();
        if line.is_closed() {
            return;
        }
        if idle.count >= MOST {
            idle.tidy();
        }
        if idle.count < MOST {
            let lines = idle.servers.entry(line.to().clone()).or_default();
            if lines.len() < MOST_EACH {
                lines.push((line, Instant::now()));
                idle.count += 1;
            }
        }
    }

    /// Closes what has been idle for too long.
    pub(super) fn tidy(&self) {
        self.lock().tidy();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the kernel notice that a network is dead. Where it has no such options, its own limits count.
fn watch(stream: &tokio::net::TcpStream) {
    let socket = SockRef::from(stream);
    let asking = TcpKeepalive::new().with_time(ASKED).with_interval(ASKED_AGAIN);
    let _ = socket.set_tcp_keepalive(&asking);
    let _ = socket.set_tcp_user_timeout(Some(SILENT));
}

fn failure(by: &Candidate) -> Option<Report> {
    let failed = Tried { interface: by.interface.clone()?, destination: by.destination };
    Some(Report { failed: Some(failed), ..Report::default() })
}

impl Idle {
    fn tidy(&mut self) {
        self.servers.retain(|_, lines| {
            lines.retain(|(line, since)| since.elapsed() < IDLE && !line.is_closed());
            !lines.is_empty()
        });
        self.count = self.servers.values().map(Vec::len).sum();
    }
}
