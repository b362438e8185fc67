#![allow(clippy::unwrap_used)]

use super::*;
use crate::tls::{TICKETS, TlsIdentity};
use whimbrel_base::SecretKey;

/// Moves all outgoing bytes of one channel to the other; returns the plaintext that came out.
fn pump(from: &mut TlsChannel, to: &mut TlsChannel) -> Vec<u8> {
    pump_with(from, to, &mut Vec::new())
}

/// The same, keeping bytes that could not be used yet.
fn pump_with(from: &mut TlsChannel, to: &mut TlsChannel, wire: &mut Vec<u8>) -> Vec<u8> {
    let out = from.outgoing();
    wire.extend_from_slice(out.waiting());
    out.wrote(out.waiting().len());
    let mut plain = Vec::new();
    let used = to.receive(wire, &mut |data| plain.extend_from_slice(data)).unwrap();
    wire.drain(..used);
    plain
}

fn handshake(client: &mut TlsChannel, server: &mut TlsChannel) {
    for _ in 0..4 {
        pump(client, server);
        pump(server, client);
    }
    assert!(client.is_open() && server.is_open());
}

fn pair() -> (SecretKey, TlsIdentity, SecretKey, TlsIdentity) {
    let (a, b) = (SecretKey::generate(), SecretKey::generate());
    let (ta, tb) = (TlsIdentity::new(&a).unwrap(), TlsIdentity::new(&b).unwrap());
    (a, ta, b, tb)
}

#[test]
fn both_sides_learn_each_others_identity() {
    let (a, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    assert_eq!(client.early_room(), 0);
    handshake(&mut client, &mut server);
    assert_eq!(client.peer(), Some(b.id()));
    assert_eq!(server.peer(), Some(a.id()));
    client.encrypt(b"hello").unwrap();
    assert_eq!(pump(&mut client, &mut server), b"hello");
}

#[test]
fn keys_are_exchanged_in_a_way_that_quantum_computers_do_not_undo() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    pump(&mut client, &mut server);
    pump(&mut server, &mut client);
    let Role::Client(rustls) = &client.role else { panic!("the handshake is not over yet") };
    let group = rustls.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
}

#[test]
fn a_server_with_another_key_is_refused() {
    let (_, ta, _, tb) = pair();
    let other = SecretKey::generate().id();
    let mut client = TlsChannel::client(ta.clients.direct(other).unwrap(), other).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    pump(&mut client, &mut server);
    let mut wire = server.outgoing().waiting().to_vec();
    assert!(client.receive(&mut wire, &mut |_| {}).is_err());
}

#[test]
fn a_ticket_carries_early_data_and_the_answer_needs_no_finished() {
    let (a, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    handshake(&mut client, &mut server);

    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    assert_eq!(client.early_room(), 16384);
    client.encrypt_early(b"join").unwrap();
    assert_eq!(pump(&mut client, &mut server), b"join");
    assert_eq!(server.peer(), Some(a.id()));
    assert!(server.is_open(), "0.5-RTT data is possible");
    server.encrypt(b"joined").unwrap();
    assert_eq!(pump(&mut server, &mut client), b"joined");
    client.encrypt(b"more").unwrap();
    assert_eq!(pump(&mut client, &mut server), b"more");
}

#[test]
fn refused_early_data_is_sent_again_after_the_handshake() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    handshake(&mut client, &mut server);

    // The server was restarted: it knows no session.
    let tb = TlsIdentity::new(&b).unwrap();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    client.encrypt_early(b"join").unwrap();
    let mut wire = Vec::new();
    assert_eq!(pump_with(&mut client, &mut server, &mut wire), b"");
    pump(&mut server, &mut client);
    assert_eq!(pump_with(&mut client, &mut server, &mut wire), b"join");
}

#[test]
fn a_replayed_first_flight_yields_no_data() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    handshake(&mut client, &mut server);

    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    client.encrypt_early(b"once").unwrap();
    let flight = client.outgoing().waiting().to_vec();
    let mut got = Vec::new();
    for _ in 0..2 {
        let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
        let mut plain = Vec::new();
        let _ = server.receive(&mut flight.clone(), &mut |d| plain.extend_from_slice(d));
        got.push(plain);
    }
    assert_eq!(got, [b"once".to_vec(), Vec::new()]);
}

/// Each attempt that reaches nobody uses a ticket up; a handshake brings more than that.
#[test]
fn twenty_moves_with_three_dead_dials_each_stay_resumed_and_early() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    handshake(&mut client, &mut server);
    for number in 0..20 {
        for _ in 0..3 {
            let mut dead = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
            dead.encrypt_early(b"nobody hears this").unwrap();
        }
        let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
        let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
        assert!(client.early_room() > 0, "move {number}");
        client.encrypt_early(b"join").unwrap();
        assert_eq!(pump(&mut client, &mut server), b"join", "move {number}");
        assert!(server.is_resumed());
        handshake(&mut client, &mut server);
    }
}

/// As many as there are connections, because each needs one when the server moves.
#[test]
fn a_client_with_a_stock_of_tickets_asks_for_one_more_with_each_connection_and_no_eight() {
    let (_, ta, b, tb) = pair();
    let name = crate::tls::names::server_name(b.id()).unwrap();
    let mut counts = Vec::new();
    for _ in 0..4 {
        let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
        let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
        handshake(&mut client, &mut server);
        counts.push(ta.tickets.count(&name));
    }
    assert_eq!(counts, [TICKETS, TICKETS + 1, TICKETS + 2, TICKETS + 3]);
}

/// What a channel that was released goes on with.
struct Released {
    sealer: Sealer,
    opener: Opener,
}

impl Released {
    fn of(channel: &mut TlsChannel) -> Self {
        let opener = channel.release(&[]).unwrap().unwrap();
        Self { sealer: channel.take_sealer().unwrap(), opener }
    }

    fn send(&mut self, plain: &[u8], to: &mut TlsChannel) -> Vec<u8> {
        let mut wire = Vec::new();
        self.sealer.record(&mut wire, |out| out.extend_from_slice(plain)).unwrap();
        let mut got = Vec::new();
        assert_eq!(to.receive(&mut wire, &mut |data| got.extend_from_slice(data)).unwrap(), wire.len());
        got
    }

    fn take(&mut self, from: &mut TlsChannel) -> Vec<u8> {
        let mut wire = from.outgoing().waiting().to_vec();
        from.outgoing().wrote(wire.len());
        let mut got = Vec::new();
        assert_eq!(self.opener.open(&mut wire, |data| got.extend_from_slice(data)).unwrap(), wire.len());
        got
    }
}

/// rustls asks for a key update, and changes its own key.
fn refresh(channel: &mut TlsChannel) {
    match &mut channel.role {
        Role::Client(c) => match c.process_tls_records(&mut []).state.unwrap() {
            ConnectionState::WriteTraffic(traffic) => traffic.refresh_traffic_keys().unwrap(),
            _ => panic!("not open"),
        },
        Role::Server(c) => match c.process_tls_records(&mut []).state.unwrap() {
            ConnectionState::WriteTraffic(traffic) => traffic.refresh_traffic_keys().unwrap(),
            _ => panic!("not open"),
        },
        Role::Released(_) => panic!("released"),
    }
}

fn talk(ours: &mut Released, theirs: &mut TlsChannel) {
    for size in [1, 1000, 16_384] {
        assert_eq!(ours.send(&vec![1; size], theirs), vec![1; size]);
        theirs.encrypt(&vec![2; size]).unwrap();
        assert_eq!(ours.take(theirs), vec![2; size]);
    }
}

#[test]
fn a_released_side_talks_with_rustls_through_key_updates_of_either() {
    for released_client in [true, false] {
        let (_, ta, b, tb) = pair();
        let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
        let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
        handshake(&mut client, &mut server);
        let (mut ours, mut theirs) = if released_client {
            (Released::of(&mut client), server)
        } else {
            (Released::of(&mut server), client)
        };
        talk(&mut ours, &mut theirs);
        refresh(&mut theirs);
        talk(&mut ours, &mut theirs);
        refresh(&mut theirs);
        talk(&mut ours, &mut theirs);
        let mut end = Vec::new();
        ours.sealer.close(&mut end).unwrap();
        theirs.receive(&mut end, &mut |_| panic!("no data")).unwrap();
    }
}

#[test]
fn a_released_channel_still_knows_its_peer() {
    let (a, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    handshake(&mut client, &mut server);
    Released::of(&mut client);
    Released::of(&mut server);
    assert_eq!((client.peer(), server.peer()), (Some(b.id()), Some(a.id())));
}

#[test]
fn tickets_that_arrive_after_the_release_are_kept() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    pump(&mut client, &mut server);
    pump(&mut server, &mut client);
    let mut ours = Released::of(&mut client);
    let mut wire = client.outgoing().waiting().to_vec();
    server.receive(&mut wire, &mut |_| {}).unwrap();
    assert_eq!(TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap().early_room(), 0);
    assert_eq!(ours.take(&mut server), b"");
    assert_ne!(TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap().early_room(), 0);
}

#[test]
fn nothing_is_released_before_the_verdict_on_early_data_or_amid_a_message() {
    let (_, ta, b, tb) = pair();
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    pump(&mut client, &mut server);
    assert!(server.release(&[]).unwrap().is_none());
    handshake(&mut client, &mut server);
    assert!(server.release(&[23, 3, 3, 0, 1, 0]).unwrap().is_none(), "a record that rustls holds back");
    assert!(server.release(&[23, 3, 3, 0, 2, 0]).unwrap().is_some());

    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    client.encrypt_early(b"join").unwrap();
    assert!(client.release(&[]).unwrap().is_none());
    assert_eq!(pump(&mut client, &mut server), b"join");
    assert!(server.is_open() && server.release(&[]).unwrap().is_none(), "the client's Finished is missing");
    pump(&mut server, &mut client);
    let mut ours = Released::of(&mut client);
    pump(&mut client, &mut server);
    talk(&mut ours, &mut server);
}
