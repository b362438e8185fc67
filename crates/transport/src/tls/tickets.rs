//! A client's TLS tickets: bounded in bytes, for each server and for all.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// The largest ticket that is kept, in bytes. Ours have 32; a server may send 64 KiB.
const MAX_TICKET: usize = 1024;
/// What one costs beside its own bytes: secrets, the server's key, allocations.
const OVERHEAD: usize = 512;
/// Bytes kept for one server: some 3800 of our tickets. Each of the connections there may need one at the
/// same moment, when the server moves.
const MAX_BYTES_PER_SERVER: usize = 2 << 20;
/// Bytes kept for all servers. Beyond that, the one that has most loses its oldest ticket.
const MAX_BYTES: usize = 8 << 20;

/// Tickets by server. Each is used once (RFC 8446 §C.4).
#[derive(Default)]
pub(super) struct Tickets(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_server: HashMap<ServerName<'static>, OfServer>,
    bytes: usize,
}

#[derive(Default)]
struct OfServer {
    /// Oldest first, with what they cost.
    tickets: VecDeque<(Tls13ClientSessionValue, usize)>,
    bytes: usize,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

impl Tickets {
    /// How many are there for a server.
    pub(super) fn count(&self, server: &ServerName<'static>) -> usize {
        self.lock().by_server.get(server).map_or(0, |of| of.tickets.len())
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn drop_oldest(&mut self, server: &ServerName<'static>) {
        let Some(of) = self.by_server.get_mut(server) else { return };
        if let Some((_, cost)) = of.tickets.pop_front() {
            of.bytes -= cost;
            self.bytes -= cost;
        }
        if of.tickets.is_empty() {
            self.by_server.remove(server);
        }
    }

    fn greediest(&self) -> Option<ServerName<'static>> {
        self.by_server.iter().max_by_key(|(_, of)| of.bytes).map(|(server, _)| server.clone())
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
        let Some(size) = size(&value) else { return };
        let cost = size + OVERHEAD;
        let mut kept = self.lock();
        kept.bytes += cost;
        let of = kept.by_server.entry(server.clone()).or_default();
        of.bytes += cost;
        of.tickets.push_back((value, cost));
        if of.bytes > MAX_BYTES_PER_SERVER {
            kept.drop_oldest(&server);
        }
        while kept.bytes > MAX_BYTES {
            let Some(greediest) = kept.greediest() else { break };
            kept.drop_oldest(&greediest);
        }
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let mut kept = self.lock();
        let of = kept.by_server.get_mut(server)?;
        // The newest is the least likely to have been forgotten by the server.
        let (value, cost) = of.tickets.pop_back()?;
        of.bytes -= cost;
        if of.tickets.is_empty() {
            kept.by_server.remove(server);
        }
        kept.bytes -= cost;
        Some(value)
    }
}

thread_local! {
    /// The size of the message that is being taken in.
    static MESSAGE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Has `take` take in a NewSessionTicket message of so many bytes, which bound the ticket's.
pub(super) fn of_size<R>(bytes: usize, take: impl FnOnce() -> R) -> R {
    MESSAGE.set(Some(bytes));
    let result = take();
    MESSAGE.set(None);
    result
}

/// Bytes that the server chose, or a little more; `None` if they are too many.
fn size(value: &Tls13ClientSessionValue) -> Option<usize> {
    if let Some(size) = MESSAGE.get() {
        return Some(size).filter(|size| *size <= MAX_TICKET);
    }
    let transport = value.quic_params().len();
    // Where the message is not seen, what it looks like is the only way to a ticket's length. It is shown in
    // hexadecimal digits, with little beside.
    let mut shown = Counter { characters: 0, most: 2 * MAX_TICKET };
    write!(shown, "{value:?}").ok()?;
    Some(transport + shown.characters / 2).filter(|size| *size <= MAX_TICKET)
}

/// Counts what is written, and fails when that is too much.
struct Counter {
    characters: usize,
    most: usize,
}

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.characters += text.len();
        if self.characters > self.most { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::sync::Arc;

    use rustls::client::Resumption;
    use rustls::server::ProducesTickets;
    use rustls::{ClientConfig, ServerConfig, quic};
    use whimbrel_base::{EndpointId, SecretKey};

    use super::*;
    use crate::tls::{TICKETS, TlsChannel, TlsIdentity};

    /// Tickets of one handshake.
    const FROM_HOSTILE: usize = 50;

    /// Gives tickets of any size.
    #[derive(Debug)]
    struct Hostile(usize);

    impl ProducesTickets for Hostile {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            3600
        }

        fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            Some(vec![7; self.0])
        }

        fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }

    fn hostile(size: usize, key: &SecretKey) -> ServerConfig {
        hostile_to(TlsIdentity::new(key).unwrap().server.admitting(), size)
    }

    fn hostile_to(config: Arc<ServerConfig>, size: usize) -> ServerConfig {
        let mut config = Arc::unwrap_or_clone(config);
        config.ticketer = Arc::new(Hostile(size));
        // Early data needs sessions that are kept.
        config.max_early_data_size = 0;
        config.send_tls13_tickets = FROM_HOSTILE;
        config
    }

    /// A handshake, with the tickets that follow it.
    pub(in crate::tls) fn meet(client: &TlsIdentity, server: ServerConfig, id: EndpointId) {
        let mut config = Arc::unwrap_or_clone(client.clients.direct(id).unwrap());
        // All that the server likes to give.
        config.send_ticket_request = None;
        let mut client = TlsChannel::client(Arc::new(config), id).unwrap();
        let mut server = TlsChannel::server(Arc::new(server)).unwrap();
        for _ in 0..3 {
            pump(&mut client, &mut server);
            pump(&mut server, &mut client);
        }
        assert!(client.is_open());
    }

    fn pump(from: &mut TlsChannel, to: &mut TlsChannel) {
        let out = from.outgoing();
        let mut wire = out.waiting().to_vec();
        out.wrote(wire.len());
        let used = to.receive(&mut wire, &mut |_| {}).unwrap();
        assert_eq!(used, wire.len());
    }

    fn tickets(client: &TlsIdentity) -> (usize, usize) {
        let kept = client.tickets.lock();
        let bytes = kept.by_server.values().map(|of| of.bytes).sum::<usize>();
        assert_eq!(kept.bytes, bytes);
        (kept.by_server.values().map(|of| of.tickets.len()).sum(), kept.bytes)
    }

    #[test]
    fn a_ticket_of_ours_is_kept_and_one_that_is_too_large_is_not() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let client = TlsIdentity::new(&ours).unwrap();
        meet(&client, hostile(60_000, &theirs), theirs.id());
        assert_eq!(tickets(&client).0, 0);
        let honest = TlsIdentity::new(&theirs).unwrap().server.admitting();
        meet(&client, Arc::unwrap_or_clone(honest), theirs.id());
        let (count, bytes) = tickets(&client);
        assert_eq!(count, TICKETS);
        assert!(bytes < count * 1024, "{bytes}");
    }

    #[test]
    fn a_server_cannot_have_us_keep_more_than_its_part_nor_flush_those_of_others() {
        let ours = SecretKey::generate();
        let client = TlsIdentity::new(&ours).unwrap();
        let honest = SecretKey::generate();
        let config = TlsIdentity::new(&honest).unwrap().server.admitting();
        meet(&client, Arc::unwrap_or_clone(config), honest.id());
        for _ in 0..6 {
            let theirs = SecretKey::generate();
            let config = hostile(600, &theirs);
            for _ in 0..45 {
                meet(&client, config.clone(), theirs.id());
            }
            let kept = client.tickets.lock();
            let of = &kept.by_server[&crate::tls::names::server_name(theirs.id()).unwrap()];
            assert!(of.tickets.len() > 100 && of.bytes <= MAX_BYTES_PER_SERVER, "{}", of.bytes);
        }
        assert!(tickets(&client).1 <= MAX_BYTES);
        let kept = client.tickets.lock();
        let of = &kept.by_server[&crate::tls::names::server_name(honest.id()).unwrap()];
        assert_eq!(of.tickets.len(), TICKETS);
    }

    /// Hands over handshake messages as QUIC does: those of each level of encryption for themselves.
    fn pass(from: &mut quic::Connection, to: &mut quic::Connection) {
        loop {
            let mut flight = Vec::new();
            let keys = from.write_hs(&mut flight);
            if flight.is_empty() && keys.is_none() {
                return;
            }
            if !flight.is_empty() {
                to.read_hs(&flight).unwrap();
            }
        }
    }

    /// Over QUIC, where messages that bring tickets are not seen. Returns the client's end.
    pub(in crate::tls) fn meet_over_quic(
        client: Arc<ClientConfig>,
        server: ServerConfig,
        id: EndpointId,
    ) -> quic::Connection {
        let (name, params) = (ServerName::try_from(id.to_string()).unwrap(), vec![7; 100]);
        let client = quic::ClientConnection::new(client, quic::Version::V1, name, params.clone());
        let server = quic::ServerConnection::new(Arc::new(server), quic::Version::V1, params);
        let (mut client, mut server): (quic::Connection, quic::Connection) =
            (client.unwrap().into(), server.unwrap().into());
        for _ in 0..4 {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        client
    }

    #[test]
    fn tickets_of_quic_count_with_their_size_and_large_ones_are_not_kept() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let kept_of = |server: ServerConfig| {
            let tickets = Arc::new(Tickets::default());
            let mut client = Arc::unwrap_or_clone(TlsIdentity::new(&ours).unwrap().quic_client);
            client.resumption = Resumption::store(tickets.clone());
            meet_over_quic(Arc::new(client), server, theirs.id());
            let kept = tickets.lock();
            (kept.by_server.values().map(|of| of.tickets.len()).sum::<usize>(), kept.bytes)
        };
        let quic = || TlsIdentity::new(&theirs).unwrap().quic_server.admitting();
        assert_eq!(kept_of(hostile_to(quic(), 60_000)).0, 0);
        assert_eq!(kept_of(hostile_to(quic(), MAX_TICKET + 1)).0, 0);
        let size = 400;
        let (count, bytes) = kept_of(hostile_to(quic(), size));
        assert!(count == FROM_HOSTILE && bytes >= count * (size + OVERHEAD), "{count}, {bytes}");
        let (count, bytes) = kept_of(Arc::unwrap_or_clone(quic()));
        assert!(count == TICKETS && bytes < count * 1024, "{count}, {bytes}");
    }
}
