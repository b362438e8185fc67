//! Where others see this endpoint's UDP sockets: asked by STUN of relays, from the sockets themselves,
//! because a NAT gateway gives each socket an address of its own.

mod lifetime;
mod openness;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use self::lifetime::Lifetimes;
use self::openness::Openness;
use crate::locator::canonical;
use crate::stun::{self, Transaction, answer};

/// Servers that are asked, at most.
const MAX_SERVERS: usize = 8;
/// A request that was not answered is sent again after this, then after twice as long, …
const FIRST_REPEAT: Duration = Duration::from_millis(100);
const REPEATS: u32 = 6;
/// NAT gateways forget UDP mappings after 30 s and more (RFC 4787 REQ-5 asks for two minutes). Used until it
/// is measured.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// An answer that is no older need not be asked for again.
const FRESH: Duration = Duration::from_secs(1);

/// What servers have seen, and what they are asked.
#[derive(Debug)]
pub(crate) struct Observed {
    servers: Mutex<Vec<Server>>,
    seen: watch::Sender<Vec<SocketAddr>>,
    wake: Notify,
    /// For how long gateways keep idle mappings.
    lifetimes: Mutex<Lifetimes>,
    /// Whether they let in what anybody sends.
    openness: Mutex<Openness>,
    /// A server has said something new.
    heard: Notify,
}

/// One that answers STUN.
#[derive(Debug)]
struct Server {
    at: SocketAddr,
    /// Asked again and again, so that the gateway keeps the mapping.
    kept: bool,
    /// What the newest request is told by.
    transaction: Transaction,
    /// Requests in a row without an answer.
    tries: u32,
    /// When to ask next.
    due: Option<Instant>,
    seen: Option<(SocketAddr, Instant)>,
}

impl Server {
    fn new(at: SocketAddr) -> Self {
        Self { at, kept: false, transaction: [0; 12], tries: 0, due: None, seen: None }
    }

    fn ask(&mut self, now: Instant) {
        (self.tries, self.due) = (0, Some(now));
    }

    /// The request that is due, if one is.
    fn next(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.due.filter(|due| *due <= now)?;
        if self.tries >= REPEATS {
            // It does not answer any more: where it saw us is worth nothing.
            self.seen = None;
            (self.tries, self.due) = (0, self.kept.then_some(now + KEEP_ALIVE));
            return None;
        }
        self.transaction = rand::random();
        self.due = Some(now + FIRST_REPEAT * 2u32.pow(self.tries));
        self.tries += 1;
        Some(stun::request(&self.transaction))
    }

    /// An answer came from it. Tells whether it says something new; `None` if it is to no request of ours.
    fn hear(&mut self, transaction: Transaction, seen: SocketAddr, now: Instant) -> Option<bool> {
        if self.tries == 0 || transaction != self.transaction {
            return None;
        }
        let before = self.seen.replace((seen, now));
        (self.tries, self.due) = (0, self.kept.then_some(now + KEEP_ALIVE));
        Some(before.is_none_or(|(before, _)| before != seen))
    }
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            servers: Mutex::default(),
            seen: watch::Sender::new(Vec::new()),
            wake: Notify::new(),
            lifetimes: Mutex::default(),
            openness: Mutex::default(),
            heard: Notify::new(),
        }
    }
}

impl Observed {
    /// Asks a server once, unless it has answered just now.
    pub(crate) fn ask(&self, server: SocketAddr) {
        let now = Instant::now();
        let mut servers = self.lock();
        let server = find(&mut servers, canonical(server));
        let is_fresh = server.seen.is_some_and(|(_, at)| now.saturating_duration_since(at) < FRESH);
        if !is_fresh && server.due.is_none_or(|due| due > now + FIRST_REPEAT) {
            server.ask(now);
            self.wake.notify_one();
        }
    }

    /// Asks these servers again and again, and no others.
    pub(crate) fn keep(&self, kept: &[SocketAddr]) {
        let kept: Vec<SocketAddr> = kept.iter().take(MAX_SERVERS).copied().map(canonical).collect();
        let mut servers = self.lock();
        servers.iter_mut().for_each(|server| server.kept = kept.contains(&server.at));
        for at in kept {
            let server = find(&mut servers, at);
            if !std::mem::replace(&mut server.kept, true) || server.due.is_none() {
                server.ask(Instant::now());
            }
        }
        self.wake.notify_one();
    }

    /// This host's addresses have changed: what was seen before counts no more.
    pub(crate) fn start_anew(&self) {
        let mut servers = self.lock();
        servers.retain(|server| server.kept);
        for server in servers.iter_mut() {
            server.seen = None;
            server.ask(Instant::now());
        }
        drop(servers);
        self.publish();
        self.wake.notify_one();
    }

    /// Takes an answer in.
    pub(crate) fn hear(&self, datagram: &[u8], from: SocketAddr) {
        let Some(told) = answer(datagram) else { return };
        let (from, now) = (canonical(from), Instant::now());
        {
            let mut servers = self.lock();
            let Some(server) = servers.iter_mut().find(|server| server.at == from) else { return };
            let before = server.seen;
            let Some(is_news) = server.hear(told.transaction, told.seen, now) else { return };
            let (gateway, mut lifetimes) = (told.seen.ip(), self.lifetimes());
            // The mapping is another one, although it was to be kept.
            if is_news && server.kept && before.is_some_and(|(at, _)| at.ip() == gateway) {
                lifetimes.doubt(gateway);
            }
            if let Some(due) = &mut server.due {
                *due = now + lifetimes.refresh(gateway).unwrap_or(KEEP_ALIVE);
            }
            drop(lifetimes);
            let other = told.other.map(|port| SocketAddr::new(from.ip(), port));
            if let Some(other) = other.filter(|other| is_news && *other != from) {
                ask_other(&mut servers, other, now);
            }
        }
        self.publish();
        self.heard.notify_one();
        self.wake.notify_one();
    }

    /// The requests that are to leave now, with where they go, and when the next ones will be due.
    pub(crate) fn due(&self) -> (Vec<(Vec<u8>, SocketAddr)>, Option<Instant>) {
        let (now, mut servers) = (Instant::now(), self.lock());
        let requests = servers.iter_mut().filter_map(|server| Some((server.next(now)?, server.at))).collect();
        (requests, servers.iter().filter_map(|server| server.due).min())
    }

    /// Waits until there may be more to ask than [`due`](Self::due) said. Cancel-safe.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// Where this endpoint's sockets are seen, now and as it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.seen.subscribe()
    }

    /// Where this endpoint's sockets are seen: more than one address of a family where the gateway gives each
    /// destination another.
    pub(crate) fn list(&self) -> Vec<SocketAddr> {
        self.seen.borrow().clone()
    }

    /// How often a flow to there is to be used so that the gateway keeps it, if that was measured.
    pub(crate) fn refresh_after(&self, to: SocketAddr) -> Option<Duration> {
        let is_alike = |server: &&Server| server.kept && server.at.is_ipv4() == canonical(to).is_ipv4();
        let (seen, _) = self.lock().iter().filter(is_alike).find_map(|server| server.seen)?;
        self.lifetimes().refresh(seen.ip())
    }

    /// A server that is kept, the gateway that it sees this endpoint behind, and for how long a mapping there
    /// is to be left idle to learn whether it is kept.
    pub(crate) fn unmeasured(&self) -> Option<(SocketAddr, IpAddr, Duration)> {
        let seen: Vec<_> = {
            let servers = self.lock();
            let kept = servers.iter().filter(|server| server.kept);
            kept.filter_map(|server| Some((server.at, server.seen?.0.ip()))).collect()
        };
        let lifetimes = self.lifetimes();
        seen.into_iter().find_map(|(at, gateway)| Some((at, gateway, lifetimes.next(gateway)?)))
    }

    /// Whether a server that is kept sees this endpoint there.
    pub(crate) fn is_behind(&self, gateway: IpAddr) -> bool {
        let at = |server: &Server| server.kept && server.seen.is_some_and(|(seen, _)| seen.ip() == gateway);
        self.lock().iter().any(at)
    }

    /// A mapping of a gateway was idle for so long, and was kept or not.
    pub(crate) fn note_idle(&self, gateway: IpAddr, idle: Duration, is_kept: bool) {
        self.lifetimes().note(gateway, idle, is_kept);
    }

    fn openness(&self) -> MutexGuard<'_, Openness> {
        self.openness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lifetimes(&self) -> MutexGuard<'_, Lifetimes> {
        self.lifetimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those that [watch](Self::watch) what has changed.
    pub(crate) fn publish(&self) {
        let mut seen: Vec<SocketAddr> = Vec::new();
        for (at, _) in self.lock().iter().filter_map(|server| server.seen) {
            if !seen.contains(&at) {
                seen.push(at);
            }
        }
        self.seen.send_if_modified(|before| {
            let is_news = *before != seen;
            if is_news {
                *before = seen;
            }
            is_news
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(servers: &mut Vec<Server>, at: SocketAddr) -> &mut Server {
    let index = servers.iter().position(|server| server.at == at).unwrap_or_else(|| {
        if servers.len() >= MAX_SERVERS {
            let oldest = servers.iter().position(|server| !server.kept).unwrap_or(0);
            servers.remove(oldest);
        }
        servers.push(Server::new(at));
        servers.len() - 1
    });
    &mut servers[index]
}

/// Asks another socket of a server that has seen us anew: whether the gateway shows us to it at another port.
fn ask_other(servers: &mut Vec<Server>, at: SocketAddr, now: Instant) {
    if servers.len() < MAX_SERVERS || servers.iter().any(|server| server.at == at) {
        let server = find(servers, at);
        // What it saw of a mapping before would make the gateway look as if it gave two.
        server.seen = None;
        server.ask(now);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::stun::observe;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, 5], port))
    }

    /// What the server would answer to the request that is due.
    fn answered(observed: &Observed, server: SocketAddr, from: SocketAddr) -> Vec<u8> {
        let request = find(&mut observed.lock(), server).next(Instant::now()).unwrap();
        observe(&request, from, None).unwrap()
    }

    #[test]
    fn what_the_server_that_was_asked_says_counts_and_nobody_elses_word() {
        let observed = Observed::default();
        observed.ask(at(443));
        let answer = answered(&observed, at(443), at(7));
        observed.hear(&answer, at(444));
        observed.hear(&observe(&stun::request(&[1; 12]), at(6), None).unwrap(), at(443));
        assert!(observed.list().is_empty(), "from elsewhere, and to no request of ours");
        observed.hear(&answer, at(443));
        assert_eq!(observed.list(), [at(7)]);
        observed.hear(&answer, at(443));
        observed.start_anew();
        assert!(observed.list().is_empty());
        observed.hear(&answer, at(443));
        assert!(observed.list().is_empty(), "an answer of before");
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_six_times_and_one_that_is_kept_every_25_seconds() {
        let mut server = Server::new(at(443));
        let begin = Instant::now();
        let asked = |server: &mut Server, seconds: u64| {
            let mut now = begin;
            let mut count = 0;
            while now < begin + Duration::from_secs(seconds) {
                count += u64::from(server.next(now).is_some());
                now += Duration::from_millis(100);
            }
            count
        };
        server.ask(begin);
        assert_eq!(asked(&mut server, 1000), u64::from(REPEATS));
        server.kept = true;
        server.ask(begin);
        // Each time 6 requests in 6.3 s, then a pause.
        assert_eq!(asked(&mut server, 100), 4 * u64::from(REPEATS));
    }

    #[test]
    fn another_port_of_a_server_is_asked_when_the_first_has_seen_us_anew_and_no_other_host() {
        let observed = Observed::default();
        let ask = |seen: u16, other: Option<u16>| {
            observed.lock()[0].ask(Instant::now());
            let request = find(&mut observed.lock(), at(443)).next(Instant::now()).unwrap();
            observed.hear(&observe(&request, at(seen), other).unwrap(), at(443));
        };
        let due = || observed.lock().iter().filter(|server| server.due.is_some()).map(|s| s.at).collect();
        observed.ask(at(443));
        ask(7, Some(444));
        assert_eq!((due(), observed.list()), (vec![at(444)], vec![at(7)]));
        observed.hear(&answered(&observed, at(444), at(8)), at(444));
        assert_eq!(observed.list(), [at(7), at(8)], "the gateway gives each flow a port");
        ask(7, Some(444));
        assert_eq!(due(), Vec::<SocketAddr>::new(), "nothing new");
        ask(9, Some(444));
        assert_eq!((due(), observed.list()), (vec![at(444)], vec![at(9)]), "8 was of a mapping before");
        ask(10, Some(443));
        assert_eq!(due(), [at(444)], "itself");
    }

    #[test]
    fn a_mapping_is_used_as_often_as_was_measured_and_more_often_when_it_is_forgotten_all_the_same() {
        let observed = Observed::default();
        let due = |seen: u16| {
            observed.lock()[0].ask(Instant::now());
            observed.hear(&answered(&observed, at(443), at(seen)), at(443));
            let due = observed.lock()[0].due.unwrap();
            due.saturating_duration_since(Instant::now()).as_secs_f64().round() as u64
        };
        observed.keep(&[at(443)]);
        assert_eq!(due(7), 25, "nothing was measured");
        let (server, gateway, idle) = observed.unmeasured().unwrap();
        assert_eq!((server, gateway), (at(443), at(7).ip()));
        observed.note_idle(gateway, idle, true);
        assert_eq!((due(7), observed.refresh_after(at(443))), (36, Some(Duration::from_secs(36))));
        // Another port: the mapping was forgotten.
        assert_eq!(due(8), 25);
        assert!(observed.is_behind(gateway));
        observed.keep(&[]);
        assert!(!observed.is_behind(gateway) && observed.unmeasured().is_none());
        assert_eq!(observed.refresh_after(at(443)), None);
    }

    #[test]
    fn no_more_servers_are_kept_in_mind_than_eight() {
        let observed = Observed::default();
        (1..100).for_each(|port| observed.ask(at(port)));
        assert_eq!(observed.lock().len(), MAX_SERVERS);
        observed.keep(&(100..200).map(at).collect::<Vec<_>>());
        assert_eq!(observed.lock().len(), MAX_SERVERS);
    }
}
