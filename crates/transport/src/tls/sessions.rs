//! Bounded memories of TLS sessions, on either side.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::server::StoresServerSessions;

/// Sessions that a server remembers; two are made by each handshake.
const MAX_SESSIONS: usize = 16 * 1024;
/// Tickets that a client keeps for one server. Each of its connections there may need one at the
/// same moment, when the server moves.
const MAX_TICKETS_PER_SERVER: usize = 4096;
const MAX_TICKETS: usize = 16 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sessions of a server: each can be taken once, the oldest make room.
#[derive(Default)]
pub(super) struct ServerSessions(Mutex<SessionsInner>);

#[derive(Default)]
struct SessionsInner {
    sessions: HashMap<Vec<u8>, Vec<u8>>,
    /// Keys in order of arrival; may name sessions that were taken.
    order: VecDeque<Vec<u8>>,
}

impl std::fmt::Debug for ServerSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerSessions")
    }
}

impl StoresServerSessions for ServerSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut inner = lock(&self.0);
        while inner.order.len() >= MAX_SESSIONS {
            if let Some(oldest) = inner.order.pop_front() {
                inner.sessions.remove(&oldest);
            }
        }
        inner.order.push_back(key.clone());
        inner.sessions.insert(key, value);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        lock(&self.0).sessions.get(key).cloned()
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        lock(&self.0).sessions.remove(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Tickets of a client, by server; each is used once.
#[derive(Default)]
pub(super) struct Tickets(Mutex<TicketsInner>);

#[derive(Default)]
struct TicketsInner {
    by_server: HashMap<ServerName<'static>, VecDeque<Tls13ClientSessionValue>>,
    total: usize,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, server: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut inner = lock(&self.0);
        if inner.total >= MAX_TICKETS {
            inner.by_server.clear();
            inner.total = 0;
        }
        let tickets = inner.by_server.entry(server).or_default();
        tickets.push_back(value);
        let full = tickets.len() > MAX_TICKETS_PER_SERVER;
        if full {
            tickets.pop_front();
        } else {
            inner.total += 1;
        }
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut inner = lock(&self.0);
        // The newest is the least likely to have been forgotten by the server.
        let ticket = inner.by_server.get_mut(server)?.pop_back()?;
        inner.total -= 1;
        Some(ticket)
    }
}
