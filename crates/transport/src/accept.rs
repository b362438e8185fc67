//! From a TCP connection that came in to a path of a connection. Until the peer has shown who it
//! is and what it wants, it costs bounded memory and time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use whimbrel_base::{EndpointId, Name};
use whimbrel_proto::frame::{Join, Open};
use whimbrel_proto::{CloseCode, Connection as Engine, FirstFlight, JoinError, PathId, refusal, segment};

use crate::connection::Connection;
use crate::driver::Driver;
use crate::endpoint::EndpointInner;
use crate::path_io::PathIo;
use crate::shared::Shared;
use crate::tls::TlsChannel;

/// Enough for a handshake and a first flight.
const READ_SIZE: usize = 20 * 1024;
/// A first flight may bring this much behind its first segment.
const MAX_FIRST_PLAINTEXT: usize = 64 * 1024;
/// After an error of accept(2), such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// As long as notices are repeated.
const AFTERLIFE: Duration = Duration::from_secs(60);

/// Accepts until the listener's task is aborted.
pub(crate) async fn accept_loop(endpoint: Arc<EndpointInner>, listener: Arc<TcpListener>) {
    loop {
        match listener.accept().await {
            Ok((socket, remote)) => {
                let task = tokio::spawn(handshake(endpoint.clone(), socket, remote));
                endpoint.half_open.add(remote.ip(), task.abort_handle(), endpoint.config.max_half_open);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn handshake(endpoint: Arc<EndpointInner>, socket: TcpStream, remote: SocketAddr) {
    let limit = endpoint.config.handshake_timeout;
    let Ok(tls) = TlsChannel::server(endpoint.tls.server.clone()) else {
        return;
    };
    let mut incoming = Incoming { socket, remote, tls, ciphertext: Vec::new(), plaintext: Vec::new() };
    match tokio::time::timeout(limit, incoming.first_segment()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "handshake failed");
            // The peer may learn why from the alert.
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, incoming.write_out()).await;
            return;
        }
        Err(_) => return,
    }
    if let Err(refused) = dispatch(&endpoint, incoming) {
        let (incoming, code, reason) = *refused;
        tracing::debug!(%code, reason, "path refused");
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, incoming.refuse(code, reason)).await;
    }
}

/// A peer that has not shown yet what it wants.
struct Incoming {
    socket: TcpStream,
    remote: SocketAddr,
    tls: TlsChannel,
    ciphertext: Vec<u8>,
    plaintext: Vec<u8>,
}

/// A peer that is told no, and why.
type Refused = Box<(Incoming, CloseCode, &'static str)>;

fn refused(incoming: Incoming, code: CloseCode, reason: &'static str) -> Refused {
    Box::new((incoming, code, reason))
}

impl Incoming {
    /// Reads and answers until a whole first segment is there.
    async fn first_segment(&mut self) -> io::Result<()> {
        loop {
            // What the handshake still has to say then leaves together with the path's first answer.
            if segment::split(&self.plaintext).map_err(io::Error::other)?.is_some() {
                return Ok(());
            }
            self.write_out().await?;
            if self.plaintext.len() > MAX_FIRST_PLAINTEXT {
                return Err(io::Error::other("first segment too long"));
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        self.socket.readable().await?;
        let held = self.ciphertext.len();
        if held >= READ_SIZE {
            return Err(io::Error::other("record without end"));
        }
        self.ciphertext.resize(READ_SIZE, 0);
        let result = self.socket.try_read(&mut self.ciphertext[held..]);
        let n = match result {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.ciphertext.truncate(held + n);
        let plaintext = &mut self.plaintext;
        let used = self
            .tls
            .receive(&mut self.ciphertext, &mut |plain| plaintext.extend_from_slice(plain))
            .map_err(io::Error::other)?;
        self.ciphertext.drain(..used);
        Ok(())
    }

    async fn write_out(&mut self) -> io::Result<()> {
        let records = self.tls.outgoing();
        while !records.waiting().is_empty() {
            self.socket.ready(Interest::WRITABLE).await?;
            match self.socket.try_write(records.waiting()) {
                Ok(n) => records.wrote(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says no, and waits until the peer has read it.
    async fn refuse(mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        if self.tls.is_open() {
            self.tls.encrypt(&refusal(code, reason)).map_err(io::Error::other)?;
            self.tls.close();
        }
        self.write_out().await?;
        socket2::SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write)?;
        // Closing with unread bytes would reset the connection and take our answer with it.
        let mut sink = [0; 1024];
        loop {
            self.socket.readable().await?;
            match self.socket.try_read(&mut sink) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    /// Turns the peer's socket into a path of `shared`; the first flight goes to the engine.
    fn attach(self, endpoint: &EndpointInner, shared: &Arc<Shared>, id: PathId) {
        let path = match PathIo::new(id, self.socket, self.remote, self.tls, self.ciphertext) {
            Ok(path) => Arc::new(path),
            Err(_) => return shared.with(|state| state.engine.path_lost(Instant::now(), id)),
        };
        shared.lock().paths.push(path.clone());
        if endpoint.has_lost(path.local.ip()) {
            return shared.with(|state| state.engine.path_lost(Instant::now(), id));
        }
        if let Err(error) = path.feed(shared, &self.plaintext) {
            shared.path_closed(&path, &error);
        }
        // Answer at once; the driver learns of the path, and of an error if there is one.
        let _ = path.flush(shared);
        shared.with(|_| ());
    }
}

fn dispatch(endpoint: &Arc<EndpointInner>, incoming: Incoming) -> Result<(), Refused> {
    let Some(peer) = incoming.tls.peer() else {
        return Err(refused(incoming, CloseCode::NOT_ALLOWED, "no identity"));
    };
    let first = match segment::split(&incoming.plaintext) {
        Ok(Some((body, _))) => FirstFlight::decode(body),
        _ => return Err(refused(incoming, CloseCode::PROTOCOL, "no first segment")),
    };
    match first {
        Ok(FirstFlight::Open(open)) => open_connection(endpoint, incoming, &open, peer),
        Ok(FirstFlight::Join(join)) => join_connection(endpoint, incoming, &join, peer),
        Err(error) => {
            tracing::debug!(%error, peer = %peer.short(), "malformed first flight");
            Err(refused(incoming, CloseCode::VERSION, "malformed first flight, or another version"))
        }
    }
}

fn join_connection(
    endpoint: &Arc<EndpointInner>,
    incoming: Incoming,
    join: &Join,
    peer: EndpointId,
) -> Result<(), Refused> {
    let found = endpoint.registry.find_accepted(&join.connection);
    // Another peer learns no more than that it does not have this connection.
    let Some(shared) = found.filter(|shared| shared.peer == peer) else {
        return Err(refused(incoming, CloseCode::UNKNOWN_CONNECTION, ""));
    };
    let joined = shared.with(|state| state.engine.join(Instant::now(), join));
    if let Err(error) = joined {
        return Err(refuse_join(incoming, error));
    }
    incoming.attach(endpoint, &shared, join.path);
    Ok(())
}

fn refuse_join(incoming: Incoming, error: JoinError) -> Refused {
    // Paths that were dialled at the same time may arrive in another order.
    if error == JoinError::PathIdReused {
        tracing::debug!(%error, "path refused");
    } else {
        tracing::warn!(%error, "path refused");
    }
    refused(incoming, error.code(), "")
}

fn open_connection(
    endpoint: &Arc<EndpointInner>,
    incoming: Incoming,
    open: &Open,
    peer: EndpointId,
) -> Result<(), Refused> {
    if let Some(shared) = endpoint.registry.find_accepted(&open.connection) {
        if shared.peer != peer {
            return Err(refused(incoming, CloseCode::UNKNOWN_CONNECTION, ""));
        }
        let reopened = shared.with(|state| state.engine.reopen(Instant::now(), open));
        if let Err(error) = reopened {
            return Err(refuse_join(incoming, error));
        }
        incoming.attach(endpoint, &shared, open.path);
        return Ok(());
    }
    let target = match open.params.target.as_deref().map(str::parse::<Name>) {
        None => None,
        Some(Ok(name)) => Some(name),
        Some(Err(_)) => return Err(refused(incoming, CloseCode::NO_LISTENER, "the name is malformed")),
    };
    let slot = match endpoint.listeners.admit(target.as_ref(), peer) {
        Ok(slot) => slot,
        Err((code, reason)) => return Err(refused(incoming, code, reason)),
    };
    if !endpoint.registry.make_room(endpoint.config.max_connections) {
        return Err(refused(incoming, CloseCode::BUSY, "too many connections"));
    }
    let mut random = [0; 32];
    if getrandom::fill(&mut random).is_err() {
        return Err(refused(incoming, CloseCode::INTERNAL, ""));
    }
    let config = endpoint.engine_config(None);
    let engine = Engine::server(config, open, endpoint.id, peer, random, Instant::now());
    let shared = endpoint.shared(engine, Vec::new());
    if !endpoint.registry.add_accepted(&shared) {
        return Err(refused(incoming, CloseCode::BUSY, "the connection is being opened"));
    }
    // Registered before the first answer leaves, so that a second path finds it (DESIGN §10.4).
    incoming.attach(endpoint, &shared, open.path);
    spawn_driver(endpoint, &shared);
    slot.send(Connection::new(shared, target));
    Ok(())
}

/// Starts the task that moves a connection's bytes; the connection leaves the registry when it ends.
pub(crate) fn spawn_driver(endpoint: &Arc<EndpointInner>, shared: &Arc<Shared>) {
    let driver = Driver::new(shared.clone());
    let (endpoint, shared) = (endpoint.clone(), shared.clone());
    tokio::spawn(async move {
        driver.await;
        if shared.has_cut_farewell() {
            // A client that waits for our last word is called to the new address, and told there.
            tokio::time::sleep(AFTERLIFE).await;
        }
        endpoint.registry.remove(&shared);
        endpoint.stop_if_done();
    });
}
