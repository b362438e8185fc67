//! The server's part of QUIC through one relay: a UDP flow that it opens through its gateway, keeps open, and
//! opens again when it has moved. The connections on it stay: to them nothing has changed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use whimbrel_base::routing::ROUTED_ID;
use whimbrel_base::{RelayToken, RelayedAddr};
use whimbrel_transport::{AddressSet, Endpoint, Envelope, RelayedQuic, Watch};

use super::is_gone;
use crate::spare::Key;
use crate::token::Salt;
use crate::udp::ids::Ids;
use crate::udp::peers::Peers;
use crate::udp::wire::{self, FromRelay};

/// An `open` that was not answered is sent again after this, then after twice as long, …
const FIRST_REPEAT: Duration = Duration::from_millis(100);
/// So often, before another socket is tried.
const TRIES: u32 = 5;
/// Between sockets that all lead nowhere.
const PAUSE: Duration = Duration::from_secs(5);
/// NAT gateways forget UDP flows after 30 s and more. Used until it is measured.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Tokens for connection ids. Each connection takes a handful.
const MAX_ALIASES: usize = 64;
/// Words of the relay that wait to be looked at; more are lost, as datagrams are.
const BACKLOG: usize = 64;

/// What the relay says of the flow itself.
enum Word {
    /// The `open` of this number has come; the relay asks whether we are there, or believes it (0).
    Opened(u64, u64),
    /// A packet came of a flow that is not known here.
    Unknown(u32),
}

/// What is known of the clients, for those who read and write the socket.
struct Clients {
    /// This side's own ids, and what they lead to.
    ids: Ids,
    token: RelayToken,
    inside: Mutex<Inside>,
    words: mpsc::Sender<Word>,
}

struct Inside {
    key: Key,
    peers: Peers,
    /// Tokens that are used once, so that ids do not tell onlookers whose they are.
    aliases: Vec<RelayToken>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Envelope for Clients {
    fn connection_id(&self) -> [u8; ROUTED_ID] {
        let alias = self.lock().aliases.pop();
        self.ids.fresh(alias.unwrap_or(self.token))
    }

    fn address(&self, peer: SocketAddr, out: &mut Vec<u8>) -> bool {
        let flow = self.lock().peers.flow(peer);
        if let Some(flow) = flow {
            out.extend_from_slice(&wire::data_header(flow));
        }
        flow.is_some()
    }

    fn open(&self, datagram: &[u8]) -> Option<(SocketAddr, usize)> {
        let now = Instant::now();
        let inside = &mut *self.lock();
        match wire::read_from_relay(&inside.key, datagram)? {
            FromRelay::First { flow, client, .. } => {
                inside.peers.meet(flow, client, now).then_some((client, wire::FIRST_HEADER))
            }
            FromRelay::Data { flow, .. } => {
                let client = inside.peers.heard(flow, now);
                if client.is_none() {
                    // A full queue loses it: the next packet asks again.
                    let _ = self.words.try_send(Word::Unknown(flow));
                }
                Some((client?, wire::DATA_HEADER))
            }
            FromRelay::Opened { number, nonce } => {
                let _ = self.words.try_send(Word::Opened(number, nonce));
                None
            }
        }
    }
}

/// QUIC by a reservation at a relay, as far as there is one.
pub(super) struct Crossing {
    endpoint: Endpoint,
    ids: Ids,
    addresses: Watch<Arc<AddressSet>>,
    /// Of the present reservation.
    held: Option<Held>,
    /// Where the relay is reached.
    relay: Option<SocketAddr>,
    /// Of the newest `open`.
    number: u64,
    /// Of the newest one that came from another socket, or was for another reservation.
    before: u64,
    /// The relay has answered by the present reservation.
    is_open: bool,
    /// Since the last answer.
    tries: u32,
    due: Instant,
}

struct Held {
    place: RelayedAddr,
    key: Key,
    clients: Arc<Clients>,
    words: mpsc::Receiver<Word>,
    /// Once the socket could be opened.
    quic: Option<RelayedQuic>,
}

impl Crossing {
    pub(super) fn new(endpoint: Endpoint, salt: &Salt) -> Self {
        Self {
            addresses: endpoint.watch_addresses(),
            endpoint,
            ids: Ids::of(salt),
            held: None,
            relay: None,
            number: 0,
            before: 0,
            is_open: false,
            tries: 0,
            due: Instant::now(),
        }
    }

    /// A new reservation. Connections of one before go on, if clients find this server at the same place.
    pub(super) fn begin(&mut self, key: Key, place: RelayedAddr) {
        match &mut self.held {
            Some(held) if held.place == place => {
                let mut inside = held.clients.lock();
                inside.key = key.clone();
                // It may be another relay, with a key of its own.
                inside.aliases.clear();
                drop(inside);
                held.key = key;
            }
            _ => {
                self.end();
                let (sender, words) = mpsc::channel(BACKLOG);
                let (peers, aliases) = (Peers::default(), Vec::new());
                let inside = Mutex::new(Inside { key: key.clone(), peers, aliases });
                let clients = Clients { ids: self.ids.clone(), token: place.token, inside, words: sender };
                let clients = Arc::new(clients);
                self.held = Some(Held { place, key, clients, words, quic: None });
            }
        }
        self.is_open = false;
        self.before = self.number;
        self.ask_again();
    }

    /// How many more [aliases](Self::add_aliases) there is room for.
    pub(super) fn missing_aliases(&self) -> usize {
        let held = self.held.as_ref();
        held.map_or(0, |held| MAX_ALIASES.saturating_sub(held.clients.lock().aliases.len()))
    }

    /// Takes tokens for connection ids, as the relay has made them for the present reservation.
    pub(super) fn add_aliases(&self, aliases: Vec<RelayToken>) {
        if let Some(held) = &self.held {
            let mut inside = held.clients.lock();
            let room = MAX_ALIASES.saturating_sub(inside.aliases.len());
            inside.aliases.extend(aliases.into_iter().take(room));
        }
    }

    /// Where the relay is reached now.
    pub(super) fn dial_from(&mut self, relay: SocketAddr) {
        if self.relay.replace(relay).is_some_and(|before| before != relay) {
            self.reopen();
        }
    }

    /// Tells all peers that their paths through this relay end.
    pub(super) fn end(&mut self) {
        if let Some(quic) = self.held.take().and_then(|held| held.quic) {
            quic.end();
        }
    }

    /// Waits until the relay has said that packets come here. Cancel-safe.
    pub(super) async fn opened(&mut self) {
        while !self.is_open {
            self.step().await;
        }
    }

    /// Keeps the flow open, for as long as this is polled. Cancel-safe.
    pub(super) async fn work(&mut self) -> std::convert::Infallible {
        loop {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        if self.due <= Instant::now() {
            self.ask();
        }
        let words = async {
            match &mut self.held {
                Some(held) => held.words.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(word) = words => self.hear(&word),
            Some(set) = self.addresses.changed() => {
                let local = self.held.as_ref().and_then(|held| held.quic.as_ref()?.local_addr().ok());
                if local.is_none_or(|local| is_gone(&set, local.ip().to_canonical())) {
                    self.reopen();
                } else {
                    self.ask_again();
                }
            }
            () = tokio::time::sleep_until(self.due.into()) => {}
        }
    }

    fn hear(&mut self, word: &Word) {
        match word {
            // The answer to one that was sent again meanwhile is as good.
            Word::Opened(number, _) if *number <= self.before || *number > self.number => {}
            Word::Opened(_, 0) => {
                self.is_open = true;
                let measured = self.relay.and_then(|relay| self.endpoint.refresh_after(relay));
                (self.tries, self.due) = (0, Instant::now() + measured.unwrap_or(KEEP_ALIVE));
            }
            Word::Opened(_, nonce) => {
                if let Some(held) = &self.held {
                    self.send(&wire::confirm(held.place.token, *nonce));
                }
            }
            Word::Unknown(flow) => self.send(&wire::unknown(*flow)),
        }
    }

    /// Says where packets are to go, or says it again.
    fn ask(&mut self) {
        if self.tries >= TRIES {
            tracing::debug!(relay = ?self.relay, "the relay does not answer over UDP");
            self.reopen();
            self.due = Instant::now() + PAUSE;
            return;
        }
        self.due = Instant::now() + FIRST_REPEAT * 2u32.pow(self.tries);
        self.tries += 1;
        self.number += 1;
        let (Some(held), Some(relay)) = (&mut self.held, self.relay) else { return };
        if held.quic.is_none() {
            match self.endpoint.accept_relayed_quic(relay, held.place, held.clients.clone()) {
                Ok(quic) => held.quic = Some(quic),
                Err(error) => return tracing::debug!(%relay, %error, "no QUIC through the relay yet"),
            }
        }
        let open = wire::open(&held.key, held.place.token, self.number);
        self.send(&open);
    }

    fn ask_again(&mut self) {
        (self.tries, self.due) = (0, Instant::now());
    }

    /// Goes on from another socket.
    fn reopen(&mut self) {
        let quic = self.held.as_ref().and_then(|held| held.quic.as_ref());
        if let Some((quic, relay)) = quic.zip(self.relay)
            && let Err(error) = quic.reopen(relay)
        {
            tracing::debug!(%relay, %error, "cannot reach the relay over UDP now");
        }
        self.before = self.number;
        self.ask_again();
    }

    /// What cannot be sent is lost, as datagrams are.
    fn send(&self, datagram: &[u8]) {
        if let Some(quic) = self.held.as_ref().and_then(|held| held.quic.as_ref())
            && let Err(error) = quic.send(datagram)
        {
            tracing::debug!(%error, "cannot send to the relay now");
        }
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        self.end();
    }
}
