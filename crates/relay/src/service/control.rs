//! Control connections: reservations, and what servers and relay tell each other.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_base::{ConnectionId, RelayToken, random_bytes};
use whimbrel_transport::{CloseCode, Connection, Listener};

use self::proved::{Due, Proved, due};
use self::talk::Talk;
use super::{ORDERS, Server, Shared, lock};
use crate::estate::{self, Head, Piece};
use crate::gate::Gate;
use crate::reservations::Holding;
use crate::spare::Key;
use crate::token::{Salt, token_of};
use crate::udp::ids::Ids;
use crate::wire::{MAX_ALIASES, Message, Reserved};

mod proved;
mod talk;

/// A server says what it wants within this.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// A server takes the last words within this.
const FAREWELL: Duration = Duration::from_secs(5);

static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// Serves the servers that come, and those that were served before. Returns those that are halted.
pub(super) async fn accept(
    mut listener: Listener,
    shared: Arc<Shared>,
    before: Vec<Session>,
) -> Vec<Session> {
    let mut sessions = JoinSet::new();
    for session in before {
        sessions.spawn(FutureExt::boxed(session.serve()));
    }
    let (mut halt, mut halted) = (shared.halting.subscribe(), Vec::new());
    loop {
        tokio::select! {
            biased;
            _ = halt.wait_for(|halt| *halt) => break,
            accepted = listener.accept() => match accepted {
                Some(connection) => {
                    lock(&shared.table).connected();
                    sessions.spawn(FutureExt::boxed(Session::new(connection, &shared).serve()));
                }
                None => break,
            },
            // Sessions may hear of the halt before this task does.
            Some(ended) = sessions.join_next() => halted.extend(ended.ok().flatten()),
        }
    }
    while let Some(ended) = sessions.join_next().await {
        halted.extend(ended.ok().flatten());
    }
    // Those that wait to be accepted.
    while let Ok(Some(connection)) = tokio::time::timeout(Duration::ZERO, listener.accept()).await {
        halted.push(Session::new(connection, &shared));
    }
    halted
}

/// The number of another session.
pub(super) fn number() -> u64 {
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}

/// A reservation, for as long as its session lasts.
struct Seat {
    shared: Arc<Shared>,
    holding: Holding,
    token: RelayToken,
    session: u64,
    /// Another relay goes on with it.
    is_left: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        lock(&self.shared.table).release(self.holding);
        self.shared.ferry.release(self.token, self.session);
        let mut servers = lock(&self.shared.servers);
        if servers.get(&self.token).is_some_and(|server| server.session == self.session) {
            servers.remove(&self.token);
            self.shared.aliases.release(self.token);
        }
    }
}

/// A reservation, and what its server is to be told.
struct Held {
    seat: Seat,
    orders: mpsc::Receiver<Message>,
}

/// A server that is connected.
pub(super) struct Session {
    connection: Connection,
    shared: Arc<Shared>,
    /// Once it has begun.
    talk: Option<Talk>,
    held: Option<Held>,
    /// Until when it may hold it, if it has to prove that it may.
    proved: Option<Proved>,
}

impl Session {
    fn new(connection: Connection, shared: &Arc<Shared>) -> Self {
        Self { connection, shared: shared.clone(), talk: None, held: None, proved: None }
    }

    /// Goes on with one that was halted. Bytes are what came and what is still to be said.
    pub(super) fn going_on(
        connection: Connection,
        shared: &Arc<Shared>,
        stream: Option<u64>,
        (came, unsaid): (Vec<u8>, Vec<u8>),
        holds: Option<(Holding, u64)>,
    ) -> Self {
        let found = connection.streams().into_iter().find(|found| Some(found.id()) == stream);
        let talk = found.map(|stream| Talk::going_on(stream, came, unsaid));
        let held = holds.map(|(holding, session)| {
            let (token, _) = holding.to_parts();
            let orders = introduce(shared, token, session);
            Held { seat: Seat { shared: shared.clone(), holding, token, session, is_left: false }, orders }
        });
        let proved = gate(&connection, shared).map(|_| Proved::before());
        Self { connection, shared: shared.clone(), talk, held, proved }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Serves until the session is over. Returns it if it is halted before.
    async fn serve(mut self) -> Option<Self> {
        let peer = self.connection.peer_id().short();
        let mut halt = self.shared.halting.subscribe();
        let result = tokio::select! {
            biased;
            _ = halt.wait_for(|halt| *halt) => None,
            result = self.run() => Some(result),
        };
        match result {
            None => return Some(self),
            Some(Ok(())) => tracing::info!(%peer, "reservation given back"),
            Some(Err(error)) => tracing::info!(%peer, %error, "reservation over"),
        }
        self.connection.abort(CloseCode::NONE, "");
        None
    }

    /// Cancel-safe.
    async fn run(&mut self) -> std::io::Result<()> {
        if !tokio::time::timeout(FIRST_MESSAGE, self.begin()).await?? {
            return Ok(());
        }
        let Self { connection, shared, talk: Some(talk), held: Some(Held { seat, orders }), proved } = self
        else {
            return Ok(());
        };
        loop {
            tokio::select! {
                message = talk.step() => match message? {
                    Some(Message::Left(origin)) => {
                        let dead = lock(&shared.table).left(seat.holding, origin);
                        shared.end(dead);
                    }
                    Some(Message::Released) => return Ok(()),
                    Some(Message::WantAliases(count)) if talk.has_room() => {
                        let count = usize::from(count).min(MAX_ALIASES);
                        let some = shared.aliases.some(seat.token, count, Instant::now());
                        talk.say(&Message::Aliases(some));
                    }
                    Some(Message::WantAliases(_)) => {}
                    Some(Message::Proof(proof)) => prolong(proved, connection, shared, &proof),
                    Some(_) => return Err(std::io::ErrorKind::InvalidData.into()),
                    None => {}
                },
                // While the server reads nothing they wait, or are left out.
                order = orders.recv(), if talk.has_said_all() => match order {
                    Some(order) => talk.say(&order),
                    // Another session of the same server took its place.
                    None => return Ok(()),
                },
                what = due(proved) => match what {
                    Due::Ask => talk.say(&Message::Prove),
                    Due::Over => {
                        talk.say(&Message::Refused("no proof came in time that it may go on".to_owned()));
                        let _ = tokio::time::timeout(FAREWELL, talk.finish()).await;
                        return Err(std::io::Error::other("no proof came in time"));
                    }
                },
                reason = connection.closed() => return Err(std::io::Error::other(reason.to_string())),
            }
        }
    }

    /// Hears what the server wants, and gives it a reservation. False if it gets none. Cancel-safe; but one
    /// that is halted before it has proved what it must has to begin anew.
    async fn begin(&mut self) -> std::io::Result<bool> {
        let Self { connection, shared, talk, held, proved } = self;
        if held.is_some() {
            return Ok(talk.is_some());
        }
        let talk = match talk {
            Some(talk) => talk,
            None => talk.insert(Talk::new(connection.accept_stream().await?)),
        };
        let salt = match talk.next().await? {
            Message::Reserve(salt) => salt,
            _ => return Err(std::io::ErrorKind::InvalidData.into()),
        };
        let admitted = match gate(connection, shared) {
            None => Ok(None),
            Some(gate) => {
                talk.say(&Message::Prove);
                let Message::Proof(proof) = talk.next().await? else {
                    return Err(std::io::ErrorKind::InvalidData.into());
                };
                gate.check(connection.peer_id(), &proof).map(|counts| Some(Proved::lasting(counts)))
            }
        };
        let given = admitted.and_then(|proof| {
            *proved = proof;
            reserve(connection, shared, &salt)
        });
        match given {
            Ok((reserved, given)) => {
                talk.say(&Message::Reserved(reserved));
                *held = Some(given);
                Ok(true)
            }
            Err(reason) => {
                talk.say(&Message::Refused(reason));
                talk.finish().await?;
                Ok(false)
            }
        }
    }

    /// What another relay goes on with, if its connection is among those that were passed on.
    pub(super) fn hand_over(self, places: &HashMap<ConnectionId, usize>) -> Option<Piece> {
        let Self { connection, talk, held, .. } = self;
        let connection = *places.get(&connection.id())?;
        let stream = talk.as_ref().map(Talk::id);
        let (came, mut unsaid) = talk.map(Talk::into_parts).unwrap_or_default();
        let holds = held.map(|Held { mut seat, mut orders }| {
            while let Ok(order) = orders.try_recv() {
                unsaid.extend(order.encode());
            }
            seat.is_left = true;
            let (token, generation) = seat.holding.to_parts();
            (*token.as_bytes(), generation)
        });
        let head = estate::Control { connection, stream, came: came.len(), holds };
        Some(Piece { head: Head::Control(head), body: [came, unsaid].concat(), sockets: Vec::new() })
    }
}

/// What this server has to prove something to, if it has.
fn gate<'a>(connection: &Connection, shared: &'a Shared) -> Option<&'a Arc<dyn Gate>> {
    shared.gate.get().filter(|gate| !gate.is_open_to(connection.peer_id()))
}

/// Lets a server go on for as long as its new proof counts. One that nobody asked for is not looked at.
fn prolong(proved: &mut Option<Proved>, connection: &Connection, shared: &Shared, proof: &[u8]) {
    let Some(gate) = gate(connection, shared) else { return };
    if !proved.as_mut().is_some_and(Proved::takes_another) {
        return;
    }
    match gate.check(connection.peer_id(), proof) {
        Ok(counts) => *proved = Some(Proved::lasting(counts)),
        // What it has shown before counts until its end.
        Err(reason) => tracing::info!(peer = %connection.peer_id().short(), %reason, "not a proof"),
    }
}

/// Orders for this session go to the server from now on.
fn introduce(shared: &Shared, token: RelayToken, session: u64) -> mpsc::Receiver<Message> {
    let (sender, orders) = mpsc::channel(ORDERS);
    let mut servers = lock(&shared.servers);
    servers.insert(token, Server { orders: sender, session });
    // Under the lock, or a session before this one that ends just now releases them.
    shared.aliases.hold(token);
    orders
}

/// Gives a reservation, or says why not.
fn reserve(connection: &Connection, shared: &Arc<Shared>, salt: &Salt) -> Result<(Reserved, Held), String> {
    let owner = connection.peer_id();
    let token = token_of(owner, salt);
    let bytes = random_bytes();
    let key = Key::new(&bytes);
    let (reserved, spares) = {
        let mut table = lock(&shared.table);
        (table.reserve(owner, token, key.clone()), table.limits().spares)
    };
    let holding = reserved.map_err(|refusal| {
        tracing::info!(peer = %owner.short(), %refusal, "reservation refused");
        refusal.to_string()
    })?;
    let session = number();
    let orders = introduce(shared, token, session);
    shared.ferry.reserve(token, session, key, Ids::of(salt));
    let seat = Seat { shared: shared.clone(), holding, token, session, is_left: false };
    let spares = u16::try_from(spares).unwrap_or(u16::MAX);
    let reserved = Reserved { key: bytes, spares, addresses: shared.addresses.clone() };
    tracing::info!(peer = %owner.short(), "reserved");
    Ok((reserved, Held { seat, orders }))
}
