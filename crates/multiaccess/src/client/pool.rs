//! Connections for messages: the third variant of the paper's API (*Socket Intents*, §V-C). Connections that
//! were released are kept by host and service, and the manager says whether one of them is used again.

use super::connect::{is_local, target};
use super::{Candidate, Client, ClientError, Connected};
use crate::protocol::{Ask, OpenConnection, Report, Verdict};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use whimbrel_access::{Granularity, Intents};

/// A connection that nobody used for so long is closed: servers do so too.
const IDLE: Duration = Duration::from_secs(60);
/// Idle connections to one host and service.
const MOST_EACH: usize = 8;
/// Idle connections altogether.
const MOST: usize = 256;
/// How long a report may hold somebody up.
const REPORT: Duration = Duration::from_millis(100);

/// Keeps idle connections. Clones share them.
#[derive(Clone)]
pub struct Pool {
    client: Client,
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    next: u32,
    count: usize,
    hosts: HashMap<(String, u16), Vec<Resting>>,
}

struct Resting {
    id: u32,
    stream: TcpStream,
    since: Instant,
}

/// A connection for one message and its answer. Say [`Pooled::release`] when both have passed; dropped, it is
/// closed.
pub struct Pooled {
    stream: Option<TcpStream>,
    is_new: bool,
    why: String,
    id: u32,
    key: (String, u16),
    unit: Option<u64>,
    pool: Pool,
}

impl Pool {
    /// An empty pool.
    pub fn new(client: Client) -> Self {
        Self { client, idle: Arc::default() }
    }

    /// Gives a connection to this host and port: one that was released and still works, or a new one, as the
    /// manager says. What it carries counts as scheduled until it is released or closed.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn request(&self, host: &str, port: u16, intents: Intents) -> Result<Pooled, ClientError> {
        let key = (host.to_owned(), port);
        let to = target(host, port);
        let connections = self.offers(&key);
        let ask = Ask {
            intents,
            granularity: Granularity::Message,
            to: Some(to.clone()),
            connections,
            track: true,
            ..Ask::default()
        };
        let asked = match is_local(host) {
            true => Ok(Verdict { local: true, ..Verdict::default() }),
            false => self.client.ask(ask).await,
        };
        let (ways, unit) = match asked {
            Ok(verdict) if verdict.local => return self.by_system(None, key, &to).await,
            Ok(verdict) if verdict.ways.is_empty() => {
                return Err(ClientError::NoWay { to, why: verdict.problems.join("; ") });
            }
            Ok(verdict) => (verdict.ways, verdict.unit),
            Err(error) => return self.by_system(Some(error), key, &to).await,
        };
        // Until it is handed out, the unit has to be taken back if anything fails.
        let scheduled = Scheduled { client: self.client.clone(), unit };
        let mut candidates = Vec::new();
        for way in ways {
            match way.reuse {
                // One behind a new connection in the ranking is not waited for.
                Some(id) if candidates.is_empty() => {
                    if let Some((id, stream)) = self.take(&key, Some(id)) {
                        return Ok(self.pooled(key, id, stream, scheduled.keep(), false, way.why));
                    }
                }
                Some(_) => {}
                None => candidates.extend(Candidate::of_way(way)),
            }
        }
        if candidates.is_empty() {
            // Another one took the open connection meanwhile.
            candidates = self.client.resolve(host, port, intents).await?;
        }
        let Connected { stream, by } = self.client.connect_by(candidates, &to).await?;
        Ok(self.pooled(key, self.number(), stream, scheduled.keep(), true, by.why))
    }

    /// A connection of the system's choice: without a manager's answer, or to this host.
    async fn by_system(
        &self,
        error: Option<ClientError>,
        key: (String, u16),
        to: &str,
    ) -> Result<Pooled, ClientError> {
        let is_refused = matches!(error, Some(ClientError::Refused(_)));
        // The system would use an open one before it looked for another.
        if !is_refused && let Some((id, stream)) = self.take(&key, None) {
            let why = "it is open; the system's choice".to_owned();
            return Ok(self.pooled(key, id, stream, None, false, why));
        }
        let candidates = match error {
            Some(error) => self.client.by_system(error, &key.0, key.1).await?,
            None => self.client.system(&key.0, key.1).await?,
        };
        let Connected { stream, by } = self.client.connect_by(candidates, to).await?;
        Ok(self.pooled(key, self.number(), stream, None, true, by.why))
    }

    fn pooled(
        &self,
        key: (String, u16),
        id: u32,
        stream: TcpStream,
        unit: Option<u64>,
        is_new: bool,
        why: String,
    ) -> Pooled {
        Pooled { stream: Some(stream), is_new, why, id, key, unit, pool: self.clone() }
    }

    /// How many connections are idle.
    pub fn idle(&self) -> usize {
        self.lock().count
    }

    /// The idle connections to this host that still work.
    fn offers(&self, key: &(String, u16)) -> Vec<OpenConnection> {
        let mut idle = self.lock();
        idle.tidy();
        let resting = idle.hosts.get(key).into_iter().flatten();
        let offers = resting.filter_map(|one| {
            let source = one.stream.local_addr().ok()?.ip();
            Some(OpenConnection { id: one.id, source, scheduled: 0 })
        });
        offers.collect()
    }

    /// Takes an idle connection out: that of this number, or the newest. One that the peer has closed, or on
    /// which it said something that nobody asked for, is closed instead.
    fn take(&self, key: &(String, u16), id: Option<u32>) -> Option<(u32, TcpStream)> {
        let mut idle = self.lock();
        idle.tidy();
        let resting = idle.hosts.get_mut(key)?;
        let at = match id {
            Some(id) => resting.iter().position(|one| one.id == id)?,
            None => resting.len().checked_sub(1)?,
        };
        let taken = resting.remove(at);
        if resting.is_empty() {
            idle.hosts.remove(key);
        }
        idle.count -= 1;
        Some((taken.id, taken.stream))
    }

    fn number(&self) -> u32 {
        let mut idle = self.lock();
        idle.next = idle.next.wrapping_add(1);
        idle.next
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    /// Closes what has been idle for too long, and what does not work any more.
    fn tidy(&mut self) {
        self.hosts.retain(|_, resting| {
            resting.retain(|one| one.since.elapsed() < IDLE && is_quiet(&one.stream));
            !resting.is_empty()
        });
        self.count = self.hosts.values().map(Vec::len).sum();
    }
}

/// Whether a connection is open and nothing has come on it: an end, a reset and words without a question all
/// make it readable.
fn is_quiet(stream: &TcpStream) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    let looked = socket2::SockRef::from(stream).peek(&mut byte);
    looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

impl Pooled {
    /// Whether it was opened for this message: then it may need what belongs to a connection, such as a
    /// handshake.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Why this one, in words.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The connection.
    pub fn stream(&mut self) -> &mut TcpStream {
        // Only `release` takes it out, and consumes this.
        #[allow(clippy::expect_used)]
        self.stream.as_mut().expect("a connection that was not released")
    }

    /// The message and its answer have passed, and the connection may serve another.
    pub fn release(mut self) {
        let Some(stream) = self.stream.take() else { return };
        let mut idle = self.pool.lock();
        idle.tidy();
        if idle.count < MOST {
            let resting = idle.hosts.entry(self.key.clone()).or_default();
            if resting.len() < MOST_EACH {
                resting.push(Resting { id: self.id, stream, since: Instant::now() });
                idle.count += 1;
            }
        }
    }

    /// Closes it, as dropping does.
    pub fn close(self) {}
}

impl Drop for Pooled {
    fn drop(&mut self) {
        end(&self.pool.client, self.unit.take());
    }
}

/// A unit that counts as scheduled until this is dropped.
struct Scheduled {
    client: Client,
    unit: Option<u64>,
}

impl Scheduled {
    fn keep(mut self) -> Option<u64> {
        self.unit.take()
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        end(&self.client, self.unit.take());
    }
}

/// Tells the manager that a unit has ended, without holding anybody up. Without a runtime the manager forgets
/// it by itself.
fn end(client: &Client, unit: Option<u64>) {
    if let (Some(unit), Ok(runtime)) = (unit, tokio::runtime::Handle::try_current()) {
        let client = client.clone();
        runtime.spawn(async move {
            let report = Report { done: Some(unit), ..Report::default() };
            let _ = tokio::time::timeout(REPORT, client.report(report)).await;
        });
    }
}
