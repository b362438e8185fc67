//! Names, looked up by each interface for itself (*Socket Intents*, §V-E2): from its own servers, over sockets
//! bound to it, into a cache of its own. What one interface's DNS answered is used on that interface alone.

mod bound;
mod servers;

use crate::decide::Candidate;
use crate::paths::KnownPath;
use crate::{Paths, Settings};
use bound::Bound;
use hickory_resolver::Resolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::Name;
use servers::Known;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How long a server may take to answer, before it or another one is asked once more.
const ANSWER: Duration = Duration::from_millis(1500);
/// How long a look-up may take altogether, search domains included.
const LIMIT: Duration = Duration::from_secs(5);
/// When one interface has an answer, others are waited for as long again, and at least this long: the
/// resolution delay of RFC 8305. What comes later is in the cache for the next question.
const DELAY: Duration = Duration::from_millis(50);
/// An interface whose DNS did not answer is not waited for during this time.
const DEAD: Duration = Duration::from_secs(30);
/// Look-ups under way.
const MOST: usize = 512;
/// Answers in the cache of an interface.
const CACHED: u64 = 1024;
/// Addresses of one name that count.
const ADDRESSES: usize = 8;

/// The resolvers of all interfaces.
pub(crate) struct Names {
    resolvers: Arc<Mutex<HashMap<u32, Entry>>>,
    under_way: Arc<Semaphore>,
}

struct Entry {
    interface: Arc<str>,
    /// What it was made of. When that changes, so does the network behind the interface.
    known: Known,
    addresses: Vec<IpAddr>,
    resolver: Arc<Resolver<Bound>>,
    failed: Option<Instant>,
}

/// What one interface said.
struct Heard {
    index: u32,
    interface: Arc<str>,
    result: Result<Vec<IpAddr>, Failure>,
}

/// Why an interface has no address for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// Its servers say that there is none.
    Nothing,
    /// Its servers do not answer, or with errors only.
    Dead,
    /// It has no servers.
    NoServer,
    /// Too many look-ups are under way.
    Busy,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self { resolvers: Arc::default(), under_way: Arc::new(Semaphore::new(MOST)) }
    }

    /// Looks a name up by all interfaces at once. Returns the addresses, each with its interface, and what went
    /// wrong on others.
    ///
    /// # Errors
    /// What went wrong, where no interface has an address.
    pub(crate) async fn look_up(
        &self,
        paths: &Paths,
        settings: &Settings,
        host: &str,
        port: u16,
    ) -> Result<(Vec<Candidate>, Vec<String>), String> {
        let mut asking = JoinSet::new();
        let mut waited_for = 0;
        let began = Instant::now();
        let mut problems = Vec::new();
        for (_, path) in paths.present() {
            let (index, interface) = (path.index, Arc::clone(&path.interface));
            let Some((resolver, is_dead)) = self.resolver(path, settings) else {
                problems.push(words(host, &interface, "", &Failure::NoServer));
                continue;
            };
            let Ok(permit) = Arc::clone(&self.under_way).try_acquire_owned() else {
                problems.push(words(host, &interface, "", &Failure::Busy));
                continue;
            };
            waited_for += usize::from(!is_dead);
            let (host, resolvers) = (host.to_owned(), Arc::clone(&self.resolvers));
            asking.spawn(async move {
                let result = ask(&resolver, &host).await;
                drop(permit);
                // Also when nobody waits for it any more.
                note(&resolvers, index, &result);
                (Heard { index, interface, result }, is_dead)
            });
        }
        let waits_for_dead = waited_for == 0;
        let mut found: Vec<Candidate> = Vec::new();
        let mut patience = None;
        while !asking.is_empty() {
            if !found.is_empty() && waited_for == 0 {
                break;
            }
            let next = match patience {
                Some(until) => tokio::time::timeout_at(until, asking.join_next()).await,
                None => Ok(asking.join_next().await),
            };
            let Ok(Some(Ok((heard, was_dead)))) = next else { break };
            if !was_dead || waits_for_dead {
                waited_for = waited_for.saturating_sub(1);
            }
            match heard.result {
                Ok(addresses) => {
                    let of =
                        |ip| Candidate { address: SocketAddr::new(ip, port), interface: Some(heard.index) };
                    found.extend(addresses.into_iter().map(of));
                    let wait = began.elapsed().max(DELAY);
                    patience.get_or_insert_with(|| tokio::time::Instant::now() + wait);
                }
                Err(failure) => {
                    let servers = self.servers_of(heard.index);
                    problems.push(words(host, &heard.interface, &servers, &failure));
                }
            }
        }
        self.leave(asking, host, &found, paths, &mut problems);
        if found.is_empty() {
            if problems.is_empty() {
                problems.push("no interface is up and has an address".to_owned());
            }
            // In the order of the interfaces, not of their answers.
            problems.sort();
            return Err(problems.join("; "));
        }
        Ok((found, problems))
    }

    /// Says which interfaces are not waited for, and lets their look-ups go on into their caches.
    fn leave(
        &self,
        mut asking: JoinSet<(Heard, bool)>,
        host: &str,
        found: &[Candidate],
        paths: &Paths,
        problems: &mut Vec<String>,
    ) {
        if asking.is_empty() {
            return;
        }
        asking.detach_all();
        for (_, path) in paths.present() {
            let has_answer = found.iter().any(|candidate| candidate.interface == Some(path.index));
            let is_told = problems.iter().any(|problem| problem.starts_with(&prefix(&path.interface)));
            if has_answer || is_told {
                continue;
            }
            let is_dead = self.resolvers().get(&path.index).is_some_and(|entry| entry.failed.is_some());
            let servers = self.servers_of(path.index);
            problems.push(if is_dead {
                words(host, &path.interface, &servers, &Failure::Dead)
            } else {
                format!("{}{servers} is slow to say where {host} is", prefix(&path.interface))
            });
            // It may be late once; whoever is late again and again finds its answer in the cache.
            if !is_dead {
                self.suspect(path.index);
            }
        }
    }

    /// An interface that did not answer in time is dead until it answers.
    fn suspect(&self, index: u32) {
        if let Some(entry) = self.resolvers().get_mut(&index) {
            entry.failed.get_or_insert_with(Instant::now);
        }
    }

    fn servers_of(&self, index: u32) -> String {
        let resolvers = self.resolvers();
        let servers = resolvers.get(&index).map(|entry| entry.known.shown());
        servers.unwrap_or_default()
    }

    /// The resolver of an interface, and whether it is known not to answer.
    fn resolver(&self, path: &KnownPath, settings: &Settings) -> Option<(Arc<Resolver<Bound>>, bool)> {
        let mut resolvers = self.resolvers();
        if let Some(entry) = resolvers.get(&path.index)
            && *entry.interface == *path.interface
            && entry.addresses == path.addresses
            && !entry.known.is_old()
        {
            let is_dead = entry.failed.is_some_and(|at| at.elapsed() < DEAD);
            return Some((Arc::clone(&entry.resolver), is_dead));
        }
        let known = Known::of(path, settings.interface(&path.interface));
        if let Some(entry) = resolvers.get_mut(&path.index)
            && *entry.interface == *path.interface
            && entry.addresses == path.addresses
            && entry.known.is_same_as(&known)
        {
            entry.known = known;
            let is_dead = entry.failed.is_some_and(|at| at.elapsed() < DEAD);
            return Some((Arc::clone(&entry.resolver), is_dead));
        }
        // The cache of another network goes with its resolver.
        resolvers.remove(&path.index);
        let resolver = Arc::new(build(&path.interface, &known)?);
        let entry = Entry {
            interface: Arc::clone(&path.interface),
            known,
            addresses: path.addresses.clone(),
            resolver: Arc::clone(&resolver),
            failed: None,
        };
        resolvers.insert(path.index, entry);
        Some((resolver, false))
    }

    /// Forgets interfaces that are gone, and what their DNS said.
    pub(crate) fn keep(&self, paths: &Paths) {
        self.resolvers().retain(|index, _| paths.present().any(|(_, path)| path.index == *index));
    }

    fn resolvers(&self) -> MutexGuard<'_, HashMap<u32, Entry>> {
        lock(&self.resolvers)
    }
}

fn lock(resolvers: &Mutex<HashMap<u32, Entry>>) -> MutexGuard<'_, HashMap<u32, Entry>> {
    resolvers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes whether the servers of an interface answer.
fn note(resolvers: &Mutex<HashMap<u32, Entry>>, index: u32, result: &Result<Vec<IpAddr>, Failure>) {
    if let Some(entry) = lock(resolvers).get_mut(&index) {
        entry.failed = match result {
            Ok(_) | Err(Failure::Nothing) => None,
            Err(_) => Some(Instant::now()),
        };
    }
}

fn build(interface: &str, known: &Known) -> Option<Resolver<Bound>> {
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
    let mut builder = Resolver::builder_with_config(config, Bound::to(interface));
    let options = builder.options_mut();
    options.timeout = ANSWER;
    options.attempts = 1;
    options.cache_size = CACHED;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    builder.build().ok()
}

async fn ask(resolver: &Resolver<Bound>, host: &str) -> Result<Vec<IpAddr>, Failure> {
    match tokio::time::timeout(LIMIT, resolver.lookup_ip(host)).await {
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.iter().collect();
            addresses.sort_by_key(IpAddr::is_ipv4);
            addresses.truncate(ADDRESSES);
            if addresses.is_empty() { Err(Failure::Nothing) } else { Ok(addresses) }
        }
        Ok(Err(error)) if is_nothing_there(&error) => Err(Failure::Nothing),
        Ok(Err(_)) | Err(_) => Err(Failure::Dead),
    }
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

fn prefix(interface: &str) -> String {
    format!("DNS of {interface}: ")
}

fn words(host: &str, interface: &str, servers: &str, failure: &Failure) -> String {
    let what = match failure {
        Failure::Nothing => format!("there is no {host}"),
        Failure::Dead => format!("{servers} does not answer; its answers are not waited for meanwhile"),
        Failure::NoServer => "no server is known; name some with `servers` in its [[interface]]".to_owned(),
        Failure::Busy => "too many look-ups are under way; ask again later".to_owned(),
    };
    prefix(interface) + &what
}
