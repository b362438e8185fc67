//! Names, looked up by each interface for itself (*Socket Intents*, §V-E2): from its own servers, over
//! sockets bound to it, into a cache of its own. What one interface's DNS answered is used on that interface
//! alone.

mod dns;
mod servers;
mod sockets;
mod table;

use crate::decide::Candidate;
use crate::refusal::Refusal;
use crate::{Paths, Settings};
use dns::Dns;
pub use sockets::DnsSockets;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use whimbrel_base::order;

/// When one interface has an answer, others are waited for as long again, and at least this long: the
/// resolution delay of RFC 8305. What comes later is in the cache for the next question.
const DELAY: Duration = Duration::from_millis(50);
/// When the servers of one interface say that there is no such name, those of others may know it, as in a
/// private network. They are waited for so long.
const NEGATIVE: Duration = Duration::from_millis(300);

/// The DNS of all interfaces.
#[derive(Default)]
pub(crate) struct Names {
    table: Table,
}

/// What one interface said.
struct Heard {
    at: usize,
    result: Result<Vec<IpAddr>, Failure>,
}

/// Why an interface has no address for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Its servers say that there is none.
    Nothing,
    /// Its servers do not answer, or with errors only.
    Dead,
    /// It has no servers.
    NoServer,
    /// Too many look-ups are under way.
    Busy,
    /// It is in another network than when it was asked.
    Moved,
}

impl Failure {
    /// Whether it may be otherwise in a moment.
    fn is_passing(self) -> bool {
        matches!(self, Self::Busy | Self::Moved)
    }
}

/// An interface that is asked.
struct Asked {
    index: u32,
    interface: Arc<str>,
    dns: Arc<Dns>,
    /// Whether its answer is waited for. Dead servers are asked whether they answer again.
    is_waited_for: bool,
    is_heard: bool,
}

impl Names {
    /// Looks a name up by all interfaces at once. Returns the addresses, each with its interface, and what
    /// went wrong on others.
    ///
    /// # Errors
    /// What went wrong, where no interface has an address.
    pub(crate) async fn look_up(
        &self,
        paths: &Paths,
        settings: &Settings,
        host: &str,
        port: u16,
    ) -> Result<(Vec<Candidate>, Vec<String>), Refusal> {
        let mut problems = Vec::new();
        let mut asked = self.list(paths, settings, host, &mut problems);
        // Dropped when this has its answer.
        let (_waiting, wanted) = watch::channel(());
        let mut asking = begin(&asked, host, &wanted);
        drop(wanted);
        let began = Instant::now();
        let mut found: Vec<Candidate> = Vec::new();
        let mut until: Option<Instant> = None;
        let mut is_passing = false;
        while found.is_empty() || asked.iter().any(|one| one.is_waited_for && !one.is_heard) {
            let next = match until {
                Some(until) => tokio::time::timeout_at(until, asking.join_next()).await,
                None => Ok(asking.join_next().await),
            };
            let Ok(Some(Ok(heard))) = next else { break };
            let Some(one) = asked.get_mut(heard.at) else { continue };
            one.is_heard = true;
            let result = heard.result.and_then(|addresses| match self.table.has(one.index, &one.dns) {
                true => Ok(addresses),
                false => Err(Failure::Moved),
            });
            let patience = match result {
                Ok(addresses) => {
                    let interface = Some(one.index);
                    let of = |ip| Candidate { address: SocketAddr::new(ip, port), interface };
                    found.extend(addresses.into_iter().map(of));
                    Some(began.elapsed().max(DELAY))
                }
                Err(failure) => {
                    is_passing |= failure.is_passing();
                    problems.push(words(host, &one.interface, one.dns.servers(), failure));
                    (failure == Failure::Nothing).then_some(NEGATIVE)
                }
            };
            let end = patience.map(|patience| Instant::now() + patience);
            until = until.into_iter().chain(end).min();
        }
        problems.extend(asked.iter().filter(|one| !one.is_heard).map(|one| one.is_late(host)));
        // What is under way goes on into the caches.
        asking.detach_all();
        if found.is_empty() {
            return Err(Refusal { why: all(problems), is_busy: is_passing });
        }
        Ok((found, problems))
    }

    /// The interfaces to ask. Those whose servers are dead are waited for only if all are.
    fn list(&self, paths: &Paths, settings: &Settings, host: &str, problems: &mut Vec<String>) -> Vec<Asked> {
        let mut asked = Vec::new();
        for (_, path) in paths.present() {
            let interface = Arc::clone(&path.interface);
            match self.table.of(path, settings) {
                Some(dns) => {
                    let is_waited_for = !dns.is_dead();
                    asked.push(Asked { index: path.index, interface, dns, is_waited_for, is_heard: false });
                }
                None => problems.push(words(host, &interface, "", Failure::NoServer)),
            }
        }
        if asked.iter().all(|one| !one.is_waited_for) {
            asked.iter_mut().for_each(|one| one.is_waited_for = true);
        }
        asked
    }

    /// Forgets interfaces that are gone or in another network, and what their DNS said.
    pub(crate) fn keep(&self, paths: &Paths) {
        self.table.keep(paths);
    }
}

impl Asked {
    /// In words: nothing was heard in time.
    fn is_late(&self, host: &str) -> String {
        match self.dns.is_dead() {
            true => words(host, &self.interface, self.dns.servers(), Failure::Dead),
            false => {
                format!("{}{} is slow to say where {host} is", prefix(&self.interface), self.dns.servers())
            }
        }
    }
}

fn begin(asked: &[Asked], host: &str, wanted: &watch::Receiver<()>) -> JoinSet<Heard> {
    let mut asking = JoinSet::new();
    for (at, one) in asked.iter().enumerate() {
        let (dns, host, wanted) = (Arc::clone(&one.dns), host.to_owned(), wanted.clone());
        let is_waited_for = one.is_waited_for;
        asking.spawn(async move {
            let result = match is_waited_for {
                true => dns.look_up(&host, wanted).await,
                false => dns.probe(&host).await,
            };
            Heard { at, result }
        });
    }
    asking
}

fn prefix(interface: &str) -> String {
    format!("DNS of {interface}: ")
}

fn words(host: &str, interface: &str, servers: &str, failure: Failure) -> String {
    let what = match failure {
        Failure::Nothing => format!("there is no {host}"),
        Failure::Dead => format!("{servers} does not answer; its answers are not waited for meanwhile"),
        Failure::NoServer => "no server is known; name some with `servers` in its [[interface]]".to_owned(),
        Failure::Busy => "too many look-ups are under way; ask again later".to_owned(),
        Failure::Moved => "it is in another network than when it was asked; ask again".to_owned(),
    };
    prefix(interface) + &what
}

/// Why no interface has an address: in the order of the interfaces, not of their answers.
fn all(mut problems: Vec<String>) -> String {
    if problems.is_empty() {
        return "no interface is up and has an address".to_owned();
    }
    order::by(&mut problems, Ord::cmp);
    problems.join("; ")
}
