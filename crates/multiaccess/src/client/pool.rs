//! Connections for messages: the third variant of the paper's API (*Socket Intents*, §V-C). Connections that
//! were released are kept by host and service, and the manager says whether one of them is used again.

use super::connect::{check, is_local, target};
use super::idle::{Idle, Key, Offer, Resting};
use super::message::whole;
use super::{Candidate, Client, ClientError, Connected};
use crate::protocol::{Ask, Report, SocketOptions, Verdict, Way};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::net::TcpStream;
use whimbrel_access::Intents;

/// Keeps idle connections. Clones share them.
#[derive(Clone)]
pub struct Pool {
    client: Client,
    idle: Arc<Mutex<Idle>>,
}

/// A connection for one message and its answer. Say [`Pooled::release`] when both have passed; dropped, it is
/// closed.
pub struct Pooled {
    stream: Option<TcpStream>,
    is_new: bool,
    why: String,
    id: u32,
    key: Key,
    unit: Option<u64>,
    pool: Pool,
}

impl Pool {
    /// An empty pool.
    pub fn new(client: Client) -> Self {
        Self { client, idle: Arc::default() }
    }

    /// Gives a connection to this host and port: one that was released and still works, or a new one, as the
    /// manager says. What it carries counts as scheduled until it is released or closed. Where the manager
    /// says that a connection over another network is worth it for what comes next, that is opened beside.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn request(&self, host: &str, port: u16, intents: Intents) -> Result<Pooled, ClientError> {
        check(host, port)?;
        let key = (host.to_owned(), port);
        let to = target(host, port);
        let offers = self.lock().offers(&key);
        let connections = offers.iter().map(|offer| offer.open).collect();
        let (intents, granularity) = whole(intents);
        let ask =
            Ask { intents, granularity, to: Some(to.clone()), connections, track: true, ..Ask::default() };
        let asked = match is_local(host) {
            true => Ok(Verdict { local: true, ..Verdict::default() }),
            false => self.client.ask(ask).await,
        };
        let (ways, unit) = match asked {
            Ok(verdict) if verdict.local => return self.by_system(None, key, &to).await,
            Ok(verdict) if verdict.ways.is_empty() => {
                return Err(ClientError::NoWay { to, why: verdict.problems.join("; ") });
            }
            Ok(verdict) => {
                self.open_ahead(&key, verdict.warm);
                (verdict.ways, verdict.unit)
            }
            Err(error) => return self.by_system(Some(error), key, &to).await,
        };
        // Until it is handed out, the unit has to be taken back if anything fails.
        let scheduled = Scheduled { client: self.client.clone(), unit };
        let candidates = match self.choose(&key, ways, &offers) {
            Ok((taken, why)) => return Ok(self.reused(key, taken, scheduled.keep(), why)),
            Err(candidates) => candidates,
        };
        let connecting = self.client.connect_by_these_or_others(candidates, &key.0, key.1, intents);
        let connected = connecting.await?;
        self.client.have_steered(&connected, &intents);
        Ok(self.opened(key, connected, scheduled.keep()))
    }

    /// Takes an idle connection out, if the best way is one; else lists the ways to open one.
    ///
    /// Nothing is reserved while the manager is asked, so that another request may have taken it. Then one
    /// that is idle on the same path does as well.
    fn choose(
        &self,
        key: &Key,
        ways: Vec<Way>,
        offers: &[Offer],
    ) -> Result<(Resting, String), Vec<Candidate>> {
        let mut candidates = Vec::new();
        let mut taken_meanwhile = None;
        for way in ways {
            let Some(id) = way.reuse else {
                candidates.extend(Candidate::of_way(way));
                continue;
            };
            // One behind a new connection in the ranking is not waited for.
            if !candidates.is_empty() {
                continue;
            }
            let mut idle = self.lock();
            let exactly = idle.take(key, |one| one.id == id);
            let as_good = || idle.take(key, |one| Some(one.source()) == way.source);
            if let Some(taken) = exactly.or_else(as_good) {
                return Ok((taken, way.why));
            }
            let offer = offers.iter().find(|offer| offer.open.id == id);
            taken_meanwhile = taken_meanwhile.or(offer.map(|offer| beside(way, offer.destination)));
        }
        if candidates.is_empty() {
            candidates.extend(taken_meanwhile);
        }
        Err(candidates)
    }

    /// A connection of the system's choice: without a manager's answer, or to this host.
    async fn by_system(&self, error: Option<ClientError>, key: Key, to: &str) -> Result<Pooled, ClientError> {
        let is_refused = matches!(error, Some(ClientError::Refused(_)));
        // The system would use an open one before it looked for another.
        if !is_refused {
            let taken = self.lock().take(&key, |_| true);
            if let Some(taken) = taken {
                let why = "it is open; the system's choice".to_owned();
                return Ok(self.reused(key, taken, None, why));
            }
        }
        let candidates = match error {
            Some(error) => self.client.by_system(error, &key.0, key.1).await?,
            None => self.client.system(&key.0, key.1).await?,
        };
        let connected = self.client.connect_by(candidates, to).await?;
        Ok(self.opened(key, connected, None))
    }

    fn reused(&self, key: Key, taken: Resting, unit: Option<u64>, why: String) -> Pooled {
        let Resting { id, stream, has_carried, .. } = taken;
        Pooled { stream: Some(stream), is_new: !has_carried, why, id, key, unit, pool: self.clone() }
    }

    fn opened(&self, key: Key, connected: Connected, unit: Option<u64>) -> Pooled {
        let Connected { stream, by } = connected;
        let id = self.lock().number();
        Pooled { stream: Some(stream), is_new: true, why: by.why, id, key, unit, pool: self.clone() }
    }

    /// Opens a connection that is idle then, so that the manager is told of it with the next question: once
    /// for each host in the time for which idle ones are kept. Holds nobody up.
    fn open_ahead(&self, key: &Key, way: Option<Way>) {
        let Some(by) = way.and_then(Candidate::of_way) else { return };
        if !self.lock().ahead.begins(key, Instant::now()) {
            return;
        }
        let (pool, key) = (self.clone(), key.clone());
        self.client.beside(|client| async move {
            match client.connect_by(vec![by], &target(&key.0, key.1)).await {
                Ok(connected) => pool.lock().put_fresh(key, connected.stream),
                Err(error) => tracing::debug!(%error, "no connection is opened ahead"),
            }
        });
    }

    /// How many connections are idle.
    pub fn idle(&self) -> usize {
        self.lock().count()
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new connection on the path of an open one, to the same address.
fn beside(way: Way, destination: SocketAddr) -> Candidate {
    let options = SocketOptions { bind_to_device: Some(way.interface.clone()), ..way.options };
    Candidate {
        destination,
        source: way.source,
        interface: Some(way.interface),
        protocol: way.protocol,
        options,
        why: way.why,
        failed_lately: false,
    }
}

impl Pooled {
    /// Whether no message has passed on it: then it may need what belongs to a connection, such as a
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
        if let Some(stream) = self.stream.take() {
            self.pool.lock().put(self.key.clone(), self.id, stream, true);
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

/// Tells the manager that a unit has ended. Where that is left out, the manager forgets it by itself.
fn end(client: &Client, unit: Option<u64>) {
    if let Some(unit) = unit {
        client.tell(Report { done: Some(unit), ..Report::default() });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    fn reuse(id: u32, source: std::net::IpAddr) -> Way {
        Way { reuse: Some(id), interface: "lo".to_owned(), source: Some(source), ..Way::default() }
    }

    #[tokio::test]
    async fn two_that_are_told_to_reuse_the_same_connection_get_different_ones() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let pool = Pool::new(Client::at(Path::new("/nowhere")));
        let key = ("server".to_owned(), at.port());
        let mut open = Vec::new();
        for _ in 0..2 {
            let stream = TcpStream::connect(at).await.unwrap();
            open.push(listener.accept().await.unwrap());
            let id = pool.lock().number();
            pool.lock().put(key.clone(), id, stream, true);
        }
        let offers = pool.lock().offers(&key);
        let choose = || pool.choose(&key, vec![reuse(1, at.ip())], &offers);
        let taken: Vec<u32> = (0..2).map(|_| choose().ok().unwrap().0.id).collect();
        assert_eq!(taken, [1, 2]);
        // Nothing is left: a new one on the same path, to an address that is known already.
        let opened = choose().err().unwrap();
        assert_eq!(opened.len(), 1);
        assert_eq!((opened[0].destination, opened[0].source), (at, Some(at.ip())));
        assert_eq!(opened[0].options.bind_to_device.as_deref(), Some("lo"));
    }
}
