//! A server's memory of TLS sessions: bounded, each used once, and kept only for peers that were let in.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;
use whimbrel_base::EndpointId;

use super::TICKETS;
use whimbrel_base::order;

/// Sessions that a server remembers, of some 350 bytes each.
const MAX_SESSIONS: usize = 32 * 1024;
/// Of these, sessions of one peer: as many as a client keeps tickets for.
const MAX_SESSIONS_PER_PEER: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a server takes handshakes of one kind of carrier.
#[derive(Debug, Clone)]
pub(crate) struct ServerTls {
    config: ServerConfig,
    sessions: Arc<ServerSessions>,
}

impl ServerTls {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self { config, sessions: Arc::default() }
    }

    /// For one handshake that comes in. Its sessions are remembered once its peer was
    /// [let in](ArrivingSessions::admit), so that those who are refused take no room.
    pub(crate) fn arriving(&self) -> (Arc<ServerConfig>, Arc<ArrivingSessions>) {
        let sessions = Arc::new(ArrivingSessions::new(&self.sessions));
        let mut config = self.config.clone();
        let (keys, of) = (config.cert_resolver.clone(), sessions.clone());
        config.cert_resolver = Arc::new(Called { keys, of });
        // A session is taken out when its ticket is used, so a replayed first flight finds none (RFC 8446
        // §8.1).
        config.session_storage = sessions.clone();
        (Arc::new(config), sessions)
    }

    /// Takes all sessions out, those first that would be forgotten first: whose they are, their tickets, and
    /// what these stand for.
    pub(super) fn take_all(&self) -> Vec<(EndpointId, Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut *lock(&self.sessions.0)).list()
    }

    /// Remembers a session of another endpoint with the same key.
    pub(super) fn put(&self, peer: EndpointId, ticket: Vec<u8>, value: Vec<u8>) {
        self.sessions.put(peer, (ticket, value));
    }

    /// For a handshake of somebody who is let in at once.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn admitting(&self) -> Arc<ServerConfig> {
        let (config, sessions) = self.arriving();
        sessions.admit(whimbrel_base::SecretKey::generate().id());
        config
    }
}

/// The sessions of one handshake.
pub(crate) struct ArrivingSessions {
    all: Arc<ServerSessions>,
    stage: Mutex<Stage>,
    came_in_vain: AtomicBool,
    /// The server name that the client asks for.
    name: OnceLock<Box<str>>,
}

/// One session: its ticket, and what it stands for.
type Session = (Vec<u8>, Vec<u8>);

enum Stage {
    /// The peer was not let in yet.
    Waiting(Vec<Session>),
    Admitted(EndpointId),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl ArrivingSessions {
    fn new(all: &Arc<ServerSessions>) -> Self {
        let (stage, came_in_vain, name) = (Mutex::default(), AtomicBool::new(false), OnceLock::new());
        Self { all: all.clone(), stage, came_in_vain, name }
    }

    /// The handshake's peer was let in: its sessions are remembered, those that are made later too.
    pub(crate) fn admit(&self, peer: EndpointId) {
        let before = std::mem::replace(&mut *lock(&self.stage), Stage::Admitted(peer));
        if let Stage::Waiting(sessions) = before {
            for session in sessions {
                self.all.put(peer, session);
            }
        }
    }

    /// The handshake came with a ticket that is unknown, or was used before.
    pub(crate) fn came_in_vain(&self) -> bool {
        self.came_in_vain.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for ArrivingSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrivingSessions")
    }
}

impl StoresServerSessions for ArrivingSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        match &mut *lock(&self.stage) {
            Stage::Waiting(sessions) if sessions.len() < TICKETS => sessions.push((key, value)),
            Stage::Waiting(_) => return false,
            Stage::Admitted(peer) => self.all.put(*peer, (key, value)),
        }
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        lock(&self.all.0).sessions.get(key).map(|kept| kept.value.to_vec())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let taken = lock(&self.all.0).take(key);
        if taken.is_none() {
            self.came_in_vain.store(true, Ordering::Relaxed);
        }
        taken.map(|kept| renamed(kept.value.into_vec(), self.name.get().map(|name| &**name)))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// What `value` stands for, as if it had been made under this server name. TLS 1.3 ties no session to a name
/// (RFC 8446 §4.2.11), but rustls takes a ticket under that of its first handshake only. To this server a
/// name is what a relay reads: a token, which is another one each time, and nothing on direct paths. Whom a
/// session is with, its keys say.
///
/// rustls writes the name first: 0 for none, or 1, its length (1 byte), and the name. What begins otherwise
/// stays as it is, and costs a full handshake.
fn renamed(value: Vec<u8>, name: Option<&str>) -> Vec<u8> {
    let rest = match value.split_first() {
        Some((0, rest)) => Some(rest),
        Some((1, rest)) => rest.split_first().and_then(|(length, rest)| rest.get(usize::from(*length)..)),
        _ => None,
    };
    let now = match name {
        None => Some(vec![0]),
        Some(name) => {
            u8::try_from(name.len()).ok().map(|length| [&[1, length][..], name.as_bytes()].concat())
        }
    };
    let renamed = rest.zip(now).map(|(rest, now)| [&now[..], rest].concat());
    renamed.unwrap_or(value)
}

/// The server's key, and which name was asked for: rustls says that before it asks for the session.
#[derive(Debug)]
struct Called {
    keys: Arc<dyn ResolvesServerCert>,
    of: Arc<ArrivingSessions>,
}

impl ResolvesServerCert for Called {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(name) = hello.server_name() {
            // The same in a second ClientHello.
            let _ = self.of.name.set(name.into());
        }
        self.keys.resolve(hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.keys.only_raw_public_keys()
    }
}

/// All sessions of a server. When there are too many, the peer that has most of them loses its oldest.
#[derive(Default)]
struct ServerSessions(Mutex<Remembered>);

impl fmt::Debug for ServerSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerSessions")
    }
}

impl ServerSessions {
    fn put(&self, peer: EndpointId, session: Session) {
        let mut remembered = lock(&self.0);
        remembered.put(peer, session);
        let greedy = remembered.peers.get_key_value(&peer);
        let greedy = greedy.filter(|(_, peer)| peer.keys.len() > MAX_SESSIONS_PER_PEER);
        if let Some(peer) = greedy.map(|(peer, _)| peer.clone()) {
            remembered.drop_oldest_of(&peer);
        }
        while remembered.sessions.len() > MAX_SESSIONS {
            let Some((_, _, crowded)) = remembered.by_count.last() else { break };
            let crowded = crowded.clone();
            remembered.drop_oldest_of(&crowded);
        }
    }
}

/// Tickets and ids of peers are there once, whatever refers to them: a server may keep thousands.
#[derive(Default)]
struct Remembered {
    sessions: HashMap<Arc<[u8]>, Kept>,
    peers: HashMap<Arc<EndpointId>, Peer>,
    /// Who makes room first comes last: who has most sessions, and among equals who was there longest ago.
    by_count: BTreeSet<(usize, Reverse<u64>, Arc<EndpointId>)>,
    /// Counts the sessions that were ever put.
    clock: u64,
}

struct Kept {
    peer: Arc<EndpointId>,
    value: Box<[u8]>,
}

#[derive(Default)]
struct Peer {
    /// Oldest first.
    keys: VecDeque<Arc<[u8]>>,
    /// When its newest session was put.
    newest: u64,
}

impl Remembered {
    fn put(&mut self, peer: EndpointId, (key, value): Session) {
        self.clock += 1;
        let (newest, key) = (self.clock, Arc::<[u8]>::from(key));
        let peer = self.peers.get_key_value(&peer).map_or_else(|| Arc::new(peer), |(known, _)| known.clone());
        self.change(&peer, |of| {
            of.newest = newest;
            of.keys.push_back(key.clone());
        });
        self.sessions.insert(key, Kept { peer, value: value.into_boxed_slice() });
    }

    fn take(&mut self, key: &[u8]) -> Option<Kept> {
        let kept = self.sessions.remove(key)?;
        self.change(&kept.peer, |of| {
            // Mostly one of the newest.
            if let Some(index) = of.keys.iter().rposition(|known| **known == *key) {
                of.keys.remove(index);
            }
        });
        Some(kept)
    }

    fn list(&self) -> Vec<(EndpointId, Vec<u8>, Vec<u8>)> {
        let mut peers: Vec<_> = self.peers.iter().collect();
        order::by_key(&mut peers, |(_, of)| of.newest);
        let keys = peers.into_iter().flat_map(|(peer, of)| of.keys.iter().map(move |key| (**peer, key)));
        keys.filter_map(|(peer, key)| Some((peer, key.to_vec(), self.sessions.get(key)?.value.to_vec())))
            .collect()
    }

    fn drop_oldest_of(&mut self, peer: &Arc<EndpointId>) {
        let mut oldest = None;
        self.change(peer, |of| oldest = of.keys.pop_front());
        if let Some(key) = oldest {
            self.sessions.remove(&key);
        }
    }

    /// Changes a peer's entry and its place in the order.
    fn change(&mut self, id: &Arc<EndpointId>, change: impl FnOnce(&mut Peer)) {
        let peer = self.peers.entry(id.clone()).or_default();
        self.by_count.remove(&(peer.keys.len(), Reverse(peer.newest), id.clone()));
        change(peer);
        if peer.keys.is_empty() {
            self.peers.remove(id);
        } else {
            self.by_count.insert((peer.keys.len(), Reverse(peer.newest), id.clone()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    fn somebody() -> EndpointId {
        SecretKey::generate().id()
    }

    /// Keys of sessions that `peer` gets with one handshake.
    fn handshake(all: &Arc<ServerSessions>, number: usize, peer: Option<EndpointId>) -> Vec<Vec<u8>> {
        let arriving = ArrivingSessions::new(all);
        let keys = (0..TICKETS).map(|n| format!("{number} {n}").into_bytes()).collect::<Vec<_>>();
        for key in &keys {
            assert!(arriving.put(key.clone(), b"secret".to_vec()));
        }
        if let Some(peer) = peer {
            arriving.admit(peer);
        }
        keys
    }

    fn kept(all: &ServerSessions, keys: &[Vec<u8>]) -> usize {
        let remembered = lock(&all.0);
        keys.iter().filter(|key| remembered.sessions.contains_key(key.as_slice())).count()
    }

    #[test]
    fn strangers_who_are_refused_flush_nobodys_sessions() {
        let all = Arc::default();
        let honest = handshake(&all, 0, Some(somebody()));
        for number in 1..=MAX_SESSIONS {
            handshake(&all, number, None);
        }
        assert_eq!(kept(&all, &honest), TICKETS);
        assert_eq!(lock(&all.0).sessions.len(), TICKETS);
    }

    #[test]
    fn a_peer_that_is_let_in_again_and_again_flushes_only_its_own_sessions() {
        let all = Arc::default();
        let honest = handshake(&all, 0, Some(somebody()));
        let peers: Vec<EndpointId> = (0..20).map(|_| somebody()).collect();
        for number in 1..=MAX_SESSIONS {
            handshake(&all, number, Some(peers[number % peers.len()]));
        }
        assert_eq!(kept(&all, &honest), TICKETS);
        let remembered = lock(&all.0);
        assert_eq!(remembered.sessions.len(), MAX_SESSIONS);
        assert!(remembered.peers.values().all(|peer| peer.keys.len() <= MAX_SESSIONS_PER_PEER));
        assert_eq!(remembered.peers.values().map(|peer| peer.keys.len()).sum::<usize>(), MAX_SESSIONS);
        assert_eq!(remembered.by_count.len(), remembered.peers.len());
    }

    #[test]
    fn a_session_is_of_the_name_that_is_asked_for_and_what_is_not_understood_stays() {
        let (unnamed, named) = (vec![0, 3, 4], b"\x01\x03abc\x03\x04".to_vec());
        for value in [&unnamed, &named] {
            assert_eq!(renamed(value.clone(), None), unnamed);
            assert_eq!(renamed(value.clone(), Some("abc")), named);
            assert_eq!(renamed(value.clone(), Some(&*"x".repeat(256))), *value, "no such name");
        }
        for value in [vec![], vec![1], vec![1, 9, 0], vec![2, 0, 0]] {
            assert_eq!(renamed(value.clone(), Some("abc")), value);
        }
    }

    #[test]
    fn a_session_is_taken_once_and_leaves_nothing_behind() {
        let all: Arc<ServerSessions> = Arc::default();
        let keys = handshake(&all, 0, Some(somebody()));
        let arriving = ArrivingSessions::new(&all);
        for key in &keys {
            assert_eq!(arriving.take(key), Some(b"secret".to_vec()));
            assert_eq!(arriving.take(key), None);
        }
        let remembered = lock(&all.0);
        assert!(remembered.sessions.is_empty() && remembered.peers.is_empty());
        assert!(remembered.by_count.is_empty());
    }
}
