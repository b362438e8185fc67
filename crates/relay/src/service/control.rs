//! Control connections: reservations, and what servers and relay tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_base::{RelayToken, random_bytes};
use whimbrel_transport::{CloseCode, Connection, Listener, RecvHalf, SendHalf};

use super::{ORDERS, Server, Shared, lock};
use crate::reservations::Holding;
use crate::spare::Key;
use crate::token::{Salt, token_of};
use crate::udp::ids::Ids;
use crate::wire::{Message, Reserved};

/// A server says what it wants within this.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// Messages of a server that wait to be looked at.
const READ_AHEAD: usize = 16;

static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// Serves the servers that come.
pub(super) async fn accept(mut listener: Listener, shared: Arc<Shared>) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Some(connection) => drop(sessions.spawn(serve(connection, shared.clone()))),
                None => break,
            },
            Some(_) = sessions.join_next() => {}
        }
    }
    while sessions.join_next().await.is_some() {}
}

async fn serve(connection: Connection, shared: Arc<Shared>) {
    let peer = connection.peer_id().short();
    match session(&connection, &shared).await {
        Ok(()) => tracing::info!(%peer, "reservation given back"),
        Err(error) => tracing::info!(%peer, %error, "reservation over"),
    }
    connection.abort(CloseCode::NONE, "");
}

/// A reservation, for as long as its session lasts.
struct Seat<'a> {
    shared: &'a Shared,
    holding: Holding,
    token: RelayToken,
    session: u64,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        lock(&self.shared.table).release(self.holding);
        self.shared.ferry.release(self.token, self.session);
        let mut servers = lock(&self.shared.servers);
        if servers.get(&self.token).is_some_and(|server| server.session == self.session) {
            servers.remove(&self.token);
        }
    }
}

async fn session(connection: &Connection, shared: &Arc<Shared>) -> std::io::Result<()> {
    let begin = async {
        let (mut read, write) = connection.accept_stream().await?.into_split();
        match Message::read(&mut read).await? {
            Message::Reserve(salt) => Ok((read, write, salt)),
            _ => Err(std::io::Error::from(std::io::ErrorKind::InvalidData)),
        }
    };
    let (read, mut write, salt) = tokio::time::timeout(FIRST_MESSAGE, begin).await??;
    let (mut orders, seat) = match reserve(connection, shared, &salt, &mut write).await? {
        Some(reserved) => reserved,
        None => return Ok(()),
    };
    let (said, mut heard) = mpsc::channel(READ_AHEAD);
    let mut reading = JoinSet::new();
    reading.spawn(read_all(read, said));
    loop {
        tokio::select! {
            message = heard.recv() => match message {
                Some(Message::Left(origin)) => {
                    let dead = lock(&shared.table).left(seat.holding, origin);
                    shared.end(dead);
                }
                Some(Message::Released) => return Ok(()),
                Some(_) => return Err(std::io::ErrorKind::InvalidData.into()),
                None => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            },
            order = orders.recv() => match order {
                Some(order) => write.write_all(&order.encode()).await?,
                // Another session of the same server took its place.
                None => return Ok(()),
            },
            reason = connection.closed() => return Err(std::io::Error::other(reason.to_string())),
        }
    }
}

/// Gives a reservation, or says why not.
async fn reserve<'a>(
    connection: &Connection,
    shared: &'a Arc<Shared>,
    salt: &Salt,
    write: &mut SendHalf,
) -> std::io::Result<Option<(mpsc::Receiver<Message>, Seat<'a>)>> {
    let owner = connection.peer_id();
    let token = token_of(owner, salt);
    let bytes = random_bytes();
    let key = Key::new(&bytes);
    let (reserved, spares) = {
        let mut table = lock(&shared.table);
        (table.reserve(owner, token, key.clone()), table.limits().spares)
    };
    let holding = match reserved {
        Ok(holding) => holding,
        Err(refusal) => {
            tracing::info!(peer = %owner.short(), %refusal, "reservation refused");
            write.write_all(&Message::Refused(refusal.to_string()).encode()).await?;
            let _ = write.stream().drained().await;
            return Ok(None);
        }
    };
    let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
    let (sender, orders) = mpsc::channel(ORDERS);
    lock(&shared.servers).insert(token, Server { orders: sender, session });
    shared.ferry.reserve(token, session, key, Ids::of(salt));
    let seat = Seat { shared, holding, token, session };
    let spares = u16::try_from(spares).unwrap_or(u16::MAX);
    let reserved = Reserved { key: bytes, spares, addresses: shared.addresses.clone() };
    write.write_all(&Message::Reserved(reserved).encode()).await?;
    tracing::info!(peer = %owner.short(), "reserved");
    Ok(Some((orders, seat)))
}

async fn read_all(mut read: RecvHalf, said: mpsc::Sender<Message>) {
    while let Ok(message) = Message::read(&mut read).await {
        if said.send(message).await.is_err() {
            return;
        }
    }
}
