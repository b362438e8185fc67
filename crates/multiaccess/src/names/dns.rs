//! The DNS of one interface, for as long as the network behind it is the same.

use super::Failure;
use super::servers::Known;
use super::sockets::DnsSockets;
use hickory_resolver::Resolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::Name;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use whimbrel_base::order;

/// How long a server may take to answer, before it or another one is asked once more.
const ANSWER: Duration = Duration::from_millis(1500);
/// How long a look-up may take, search domains included.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a look-up waits until others have ended.
const QUEUED: Duration = Duration::from_secs(1);
/// A server that did not answer is not waited for during this time.
const DEAD: Duration = Duration::from_secs(30);
/// Look-ups under way: each has up to two sockets.
const MOST: usize = 128;
/// Answers in the cache.
const CACHED: u64 = 1024;
/// Addresses of one name that count.
const ADDRESSES: usize = 8;

/// Servers, a cache, and whether the servers answer. What a look-up finds out is noted here, so that one
/// which outlives the network that it was begun in says nothing of the next.
pub(super) struct Dns {
    resolver: Resolver<DnsSockets>,
    sockets: DnsSockets,
    servers: String,
    under_way: Semaphore,
    /// One look-up at a time finds out whether dead servers answer again.
    probing: Semaphore,
    health: Mutex<Health>,
}

/// Whether servers answer, by what became of look-ups. Pure: the time is the caller's.
#[derive(Debug, Default)]
struct Health {
    answered: Option<Instant>,
    /// They have not answered since.
    failed: Option<Instant>,
}

impl Health {
    fn answered(&mut self, now: Instant) {
        *self = Self { answered: Some(now), failed: None };
    }

    /// A look-up that was begun then has no answer. Where another one has got one meanwhile, that is for the
    /// name and not for the servers.
    fn silent_since(&mut self, began: Instant, now: Instant) {
        if self.answered.is_none_or(|at| at < began) {
            self.failed = Some(now);
        }
    }

    fn is_dead(&self, now: Instant) -> bool {
        self.failed.is_some_and(|at| now.saturating_duration_since(at) < DEAD)
    }
}

/// Ends when nobody waits for the answer any more.
pub(super) type Wanted = watch::Receiver<()>;

impl Dns {
    /// `None` if there are no servers.
    pub(super) fn new(interface: &str, known: &Known) -> Option<Self> {
        let sockets = DnsSockets::bound_to(interface);
        Some(Self {
            resolver: build(sockets.clone(), known)?,
            sockets,
            servers: known.shown(),
            under_way: Semaphore::new(MOST),
            probing: Semaphore::new(1),
            health: Mutex::default(),
        })
    }

    /// The servers, in words.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Whether the servers did not answer lately.
    pub(super) fn is_dead(&self) -> bool {
        self.health().is_dead(Instant::now())
    }

    /// Looks a name up. When nobody waits any more, a look-up that has not begun is given up; another one
    /// goes on into the cache, and the servers count as dead until they answer.
    pub(super) async fn look_up(&self, host: &str, mut wanted: Wanted) -> Result<Vec<IpAddr>, Failure> {
        let _permit = tokio::select! {
            permit = tokio::time::timeout(QUEUED, self.under_way.acquire()) => match permit {
                Ok(Ok(permit)) => permit,
                _ => return Err(Failure::Busy),
            },
            _ = wanted.changed() => return Err(Failure::Busy),
        };
        let began = Instant::now();
        let asking = self.ask(host);
        tokio::pin!(asking);
        tokio::select! {
            result = &mut asking => result,
            _ = wanted.changed() => {
                if !self.is_dead() {
                    self.health().silent_since(began, Instant::now());
                }
                asking.await
            }
        }
    }

    /// Looks a name up to find out whether dead servers answer again, unless another look-up does so.
    pub(super) async fn probe(&self, host: &str) -> Result<Vec<IpAddr>, Failure> {
        let Ok(_permit) = self.probing.try_acquire() else { return Err(Failure::Dead) };
        self.ask(host).await
    }

    async fn ask(&self, host: &str) -> Result<Vec<IpAddr>, Failure> {
        let (began, made) = (Instant::now(), self.sockets.made());
        let result = match tokio::time::timeout(LIMIT, self.resolver.lookup_ip(host)).await {
            Ok(Ok(found)) => {
                let mut addresses: Vec<IpAddr> = found.iter().collect();
                order::by_key(&mut addresses, IpAddr::is_ipv4);
                addresses.truncate(ADDRESSES);
                if addresses.is_empty() { Err(Failure::Nothing) } else { Ok(addresses) }
            }
            Ok(Err(error)) if is_nothing_there(&error) => Err(Failure::Nothing),
            Ok(Err(_)) | Err(_) => Err(Failure::Dead),
        };
        if result == Err(Failure::Dead) {
            self.health().silent_since(began, Instant::now());
        } else if self.sockets.made() != made {
            self.health().answered(Instant::now());
        }
        result
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn build(sockets: DnsSockets, known: &Known) -> Option<Resolver<DnsSockets>> {
    if known.servers.is_empty() {
        return None;
    }
    let servers = known.servers.iter().map(|server| {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        config.connections.iter_mut().for_each(|connection| connection.port = server.port());
        config
    });
    let search = known.search.iter().filter_map(|domain| Name::from_utf8(domain).ok()).collect();
    let config = ResolverConfig::from_parts(None, search, servers.collect());
    let mut builder = Resolver::builder_with_config(config, sockets);
    let options = builder.options_mut();
    options.timeout = ANSWER;
    options.attempts = 1;
    options.cache_size = CACHED;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    builder.build().ok()
}

/// Whether a server answered that there is no such name; one that is broken says something else.
fn is_nothing_there(error: &NetError) -> bool {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_dead_for_a_while_unless_they_answered_for_another_name_meanwhile() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut health = Health::default();
        assert!(!health.is_dead(at(0)));
        health.answered(at(1));
        health.silent_since(at(0), at(5));
        assert!(!health.is_dead(at(5)));
        health.silent_since(at(2), at(7));
        assert!(health.is_dead(at(7)) && !health.is_dead(at(7) + DEAD));
        health.answered(at(8));
        assert!(!health.is_dead(at(8)));
    }
}
