use whimbrel_base::routing::routed_id;

use super::*;
use crate::token::Salt;

const TOKEN: RelayToken = RelayToken::from_bytes([1; 10]);
const OTHER: RelayToken = RelayToken::from_bytes([2; 10]);
/// The relay's sockets.
const OUTSIDE: u8 = 4;
const INSIDE: u8 = 6;

type Table = Flows<u8>;

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], port))
}

fn key(n: u8) -> Key {
    Key::new(&[n; 32])
}

fn ids() -> Ids {
    Ids::of(&Salt([9; 32]))
}

/// What the server of a flow wants to be called by.
fn name() -> [u8; ROUTED_ID] {
    ids().fresh(TOKEN)
}

/// A packet of the handshake that names the server so.
fn answer(name: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xc0, 0, 0, 0, 1, 0, name.len() as u8];
    packet.extend(name);
    packet.resize(1200, 0);
    packet
}

/// A packet with a short header, as far as a relay can tell.
const SHORT: [u8; 1200] = [0x40; 1200];

/// What the relay answers to an `open`: the nonce.
fn claim(
    table: &mut Table,
    of: u8,
    token: RelayToken,
    number: u64,
    from: SocketAddr,
    now: Instant,
) -> Option<u64> {
    let datagram = wire::open(&key(of), token, number);
    let answer = table.open(&datagram, token, number, &INSIDE, from, now).ok()?;
    match wire::read_from_relay(&key(of), &answer) {
        Some(wire::FromRelay::Opened { number: answered, nonce }) if answered == number => Some(nonce),
        answer => panic!("{answer:?}"),
    }
}

fn open(table: &mut Table, of: u8, token: RelayToken, number: u64, from: SocketAddr, now: Instant) -> bool {
    match claim(table, of, token, number, from, now) {
        None => false,
        Some(0) => true,
        Some(nonce) => table.confirm(token, nonce, from, now).is_ok(),
    }
}

/// Grows, so that a test is the same each time.
fn numbers() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(u32::MAX as u64);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A server at host 1 with an open flow.
fn table(limits: Limits) -> (Table, Instant) {
    let (mut table, now) = (Table::new(limits, numbers), Instant::now());
    table.reserve(TOKEN, 1, key(1), ids());
    assert!(open(&mut table, 1, TOKEN, 5, at(1, 1), now));
    (table, now)
}

/// A client's first packet, to an id of its own making.
fn hello(table: &mut Table, from: SocketAddr, now: Instant) -> Result<Forward<u8>, Dropped> {
    let id = routed_id(TOKEN, [7; ROUTED_ID]);
    table.from_client(Routed { token: TOKEN, id }, 1200, &OUTSIDE, from, now)
}

/// A packet of a client that was told `name`.
fn reply(
    table: &mut Table,
    name: [u8; ROUTED_ID],
    from: SocketAddr,
    now: Instant,
) -> Result<Forward<u8>, Dropped> {
    table.from_client(Routed { token: TOKEN, id: name }, 50, &OUTSIDE, from, now)
}

/// The number of the flow that a packet is of.
fn number(forward: &Forward<u8>) -> u32 {
    u32::from_be_bytes(forward.header.as_ref()[1..5].try_into().unwrap())
}

#[test]
fn packets_go_there_and_back_and_the_server_is_told_where_the_client_is_until_it_answers() {
    let (mut table, now) = table(Limits::default());
    let there = hello(&mut table, at(9, 9), now).unwrap();
    assert_eq!((there.out, there.to), (INSIDE, at(1, 1)));
    let flow = number(&there);
    assert_eq!(there.header.as_ref(), wire::first_header(&key(1), flow, at(9, 9)));
    assert_eq!(hello(&mut table, at(9, 9), now), Ok(there), "the same flow");
    let name = name();
    let back = table.from_server(flow, &answer(&name), at(1, 1), now).unwrap();
    assert_eq!(back, Forward { out: OUTSIDE, to: at(9, 9), header: Header::None });
    let there = reply(&mut table, name, at(9, 9), now).unwrap();
    assert_eq!(there.header, Header::Data(wire::data_header(flow)));
    table.unknown(flow, at(1, 1));
    let there = reply(&mut table, name, at(9, 9), now).unwrap();
    assert!(matches!(there.header, Header::First(_)), "it is told again");
    let stats = table.stats();
    assert_eq!((stats.flows, stats.flowed, stats.dropped), (1, 1, 0));
    assert_eq!(stats.bytes, 1200 + 1200 + 1200 + 50 + 50);
}

#[test]
fn a_client_is_sent_three_times_what_it_sent_until_it_shows_that_it_hears_the_server() {
    let (mut table, now) = table(Limits::default());
    let name = name();
    // What looks like a reply comes before there was anything to reply to.
    let flow = number(&reply(&mut table, name, at(9, 9), now).unwrap());
    hello(&mut table, at(9, 9), now).unwrap();
    let sent = |table: &mut Table| {
        (0..10).filter(|_| table.from_server(flow, &answer(&name), at(1, 1), now).is_ok()).count()
    };
    assert_eq!(sent(&mut table), 4, "3750 bytes, and the rest of a packet");
    assert_eq!(table.from_server(flow, &SHORT, at(1, 1), now), Err(Dropped::Unproven));
    hello(&mut table, at(9, 9), now).unwrap();
    assert_eq!(sent(&mut table), 3, "its first packet again");
    reply(&mut table, name, at(9, 9), now).unwrap();
    assert_eq!(sent(&mut table), 10);
}

#[test]
fn a_client_that_was_told_nothing_cannot_show_that_it_hears_the_server() {
    let (mut table, now) = table(Limits::default());
    let [told, of_another] = [name(), name()];
    let flow = number(&hello(&mut table, at(66, 6), now).unwrap());
    table.from_server(flow, &answer(&told), at(1, 1), now).unwrap();
    let made_up = routed_id(TOKEN, [3; ROUTED_ID]);
    // The last was told to a client at another place.
    for id in [made_up, routed_id(TOKEN, [7; ROUTED_ID]), of_another] {
        reply(&mut table, id, at(66, 6), now).unwrap();
        assert!(!table.flows[&flow].is_proven, "{id:?}");
    }
    reply(&mut table, told, at(66, 6), now).unwrap();
    assert!(table.flows[&flow].is_proven);
    // Before the handshake, or after it: no packet names the server.
    let flow = number(&reply(&mut table, made_up, at(66, 7), now).unwrap());
    table.from_server(flow, &SHORT, at(1, 1), now).unwrap();
    reply(&mut table, made_up, at(66, 7), now).unwrap();
    assert!(!table.flows[&flow].is_proven);
}

#[test]
fn a_server_that_asks_again_before_the_answer_has_come_is_believed_by_any_answer() {
    let (mut table, now) = table(Limits::default());
    let nonces: Vec<_> = (6..9).map(|number| claim(&mut table, 1, TOKEN, number, at(1, 2), now)).collect();
    assert!(nonces[0].is_some() && nonces.iter().all(|nonce| *nonce == nonces[0]), "{nonces:?}");
    assert!(table.confirm(TOKEN, nonces[0].unwrap(), at(1, 2), now).is_ok());
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, at(1, 2));
    let elsewhere = claim(&mut table, 1, TOKEN, 9, at(1, 3), now);
    assert!(elsewhere.is_some() && elsewhere != nonces[0], "from elsewhere it is asked anew");
}

#[test]
fn a_client_of_which_a_short_packet_came_from_elsewhere_is_sent_a_whole_one_to_validate_its_address() {
    let (mut table, now) = table(Limits::default());
    let name = name();
    let flow = number(&reply(&mut table, name, at(66, 6), now).unwrap());
    assert!(table.from_server(flow, &SHORT, at(1, 1), now).is_ok());
    assert_eq!(table.from_server(flow, &SHORT, at(1, 1), now), Err(Dropped::Unproven));
    reply(&mut table, name, at(66, 6), now).unwrap();
    assert!((0..10).all(|_| table.from_server(flow, &SHORT, at(1, 1), now).is_ok()));
}

#[test]
fn only_who_has_the_key_says_where_a_server_is_and_each_number_counts_once() {
    let (mut table, now) = table(Limits::default());
    table.reserve(OTHER, 2, key(2), ids());
    for (of, token, number) in [(2, TOKEN, 9), (1, OTHER, 9), (1, TOKEN, 5), (1, TOKEN, 4)] {
        assert!(!open(&mut table, of, token, number, at(66, 6), now), "{token:?} {number}");
    }
    assert!(!open(&mut table, 1, RelayToken::from_bytes([3; 10]), 9, at(66, 6), now));
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, at(1, 1));
    assert!(open(&mut table, 1, TOKEN, 6, at(1, 2), now));
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, at(1, 2), "it has moved");
}

#[test]
fn a_server_that_forges_its_source_has_nothing_sent_there_but_one_short_answer() {
    let (mut table, now) = table(Limits::default());
    let victim = at(66, 6);
    let nonce = claim(&mut table, 1, TOKEN, 6, victim, now).unwrap();
    assert_ne!(nonce, 0);
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, at(1, 1), "it is where it was");
    for (nonce, from) in [(nonce + 1, victim), (nonce, at(1, 1)), (0, victim)] {
        assert_eq!(table.confirm(TOKEN, nonce, from, now), Err(Dropped::Forged));
    }
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, at(1, 1));
    assert_eq!(
        claim(&mut table, 1, TOKEN, 7, at(1, 1), now),
        Some(0),
        "what is known need not be asked again"
    );
    assert!(table.confirm(TOKEN, nonce, victim, now).is_ok());
    assert_eq!(hello(&mut table, at(9, 9), now).unwrap().to, victim);
    assert_eq!(table.confirm(TOKEN, nonce, victim, now), Err(Dropped::Forged), "once");
}

#[test]
fn a_server_reaches_its_own_clients_and_no_others() {
    let (mut table, now) = table(Limits::default());
    table.reserve(OTHER, 2, key(2), ids());
    assert!(open(&mut table, 2, OTHER, 1, at(2, 2), now));
    let flow = number(&hello(&mut table, at(9, 9), now).unwrap());
    for from in [at(2, 2), at(66, 6), at(9, 9)] {
        assert_eq!(table.from_server(flow, &SHORT, from, now), Err(Dropped::NoFlow));
        table.unknown(flow, from);
    }
    assert_eq!(table.from_server(flow.wrapping_add(1), &SHORT, at(1, 1), now), Err(Dropped::NoFlow));
    assert!(table.from_server(flow, &SHORT, at(1, 1), now).is_ok());
}

#[test]
fn a_client_that_is_seen_elsewhere_is_another_flow_and_takes_nothing_of_the_first() {
    let (mut table, now) = table(Limits::default());
    let before = number(&hello(&mut table, at(9, 9), now).unwrap());
    table.from_server(before, &SHORT, at(1, 1), now).unwrap();
    let after = reply(&mut table, name(), at(66, 6), now).unwrap();
    assert_ne!(number(&after), before);
    assert_eq!(after.header.as_ref(), wire::first_header(&key(1), number(&after), at(66, 6)));
    assert_eq!(table.from_server(before, &SHORT, at(1, 1), now).unwrap().to, at(9, 9));
}

#[test]
fn flows_and_new_ones_of_an_address_are_limited() {
    let limits = Limits { flows_per_reservation: 5, ..Limits::default() };
    let (mut table_of_five, now) = table(limits);
    let came = (0..10).filter(|n| hello(&mut table_of_five, at(9, *n), now).is_ok()).count();
    assert_eq!((came, table_of_five.stats().dropped), (5, 5));
    assert!(hello(&mut table_of_five, at(9, 0), now).is_ok(), "it is known");
    let (mut table, now) = table(Limits { clients_per_address: 1.0, ..Limits::default() });
    assert_eq!((0..100).filter(|n| hello(&mut table, at(9, *n), now).is_ok()).count(), 10);
    assert!(hello(&mut table, at(8, 1), now).is_ok(), "another address");
    assert!(hello(&mut table, at(9, 200), now + Duration::from_secs(1)).is_ok());
    table.drain();
    assert_eq!(hello(&mut table, at(7, 1), now), Err(Dropped::TooMany));
    assert!(hello(&mut table, at(8, 1), now).is_ok(), "flows go on until they are ended");
    table.clear();
    assert!(hello(&mut table, at(8, 1), now).is_err());
}

#[test]
fn flows_that_may_be_forged_make_room_and_those_of_clients_that_hear_the_server_do_not() {
    let (mut table, now) = table(Limits { flows: 4, ..Limits::default() });
    let name = name();
    let prove = |table: &mut Table, host: u8| {
        let flow = number(&hello(table, at(host, 1), now).unwrap());
        table.from_server(flow, &answer(&name), at(1, 1), now).unwrap();
        reply(table, name, at(host, 1), now).unwrap();
        flow
    };
    let honest = prove(&mut table, 20);
    for host in 30..50 {
        assert!(hello(&mut table, at(host, 1), now).is_ok());
        assert!(table.stats().flows <= 4);
    }
    // One that comes meanwhile has the time to answer until as many have come as there are places.
    let late = prove(&mut table, 21);
    assert!(table.from_server(honest, &SHORT, at(1, 1), now).is_ok(), "the first is still there");
    assert!(table.from_server(late, &SHORT, at(1, 1), now).is_ok());
    for host in 22..24 {
        prove(&mut table, host);
    }
    assert_eq!(hello(&mut table, at(50, 1), now), Err(Dropped::TooMany), "all hear the server");
    assert_eq!((table.servers[&TOKEN].flows, table.by_client.len(), table.flows.len()), (4, 4, 4));
    assert!(hello(&mut table, at(51, 1), now + IDLE).is_err(), "where the server is was not heard either");
    assert_eq!((table.servers[&TOKEN].flows, table.flows.len()), (1, 1));
}

#[test]
fn idle_flows_are_forgotten_and_those_of_forged_addresses_soon() {
    let (mut table, now) = table(Limits { flows_per_reservation: 2, ..Limits::default() });
    let answered = number(&hello(&mut table, at(9, 1), now).unwrap());
    let name = name();
    table.from_server(answered, &answer(&name), at(1, 1), now).unwrap();
    reply(&mut table, name, at(9, 1), now).unwrap();
    let forged = number(&hello(&mut table, at(9, 2), now).unwrap());
    table.from_server(forged, &SHORT, at(1, 1), now).unwrap();
    let later = now + UNPROVEN;
    assert!(hello(&mut table, at(9, 3), later).is_ok(), "there is a place again");
    assert_eq!(table.stats().flows, 2);
    assert!(table.from_server(answered, &SHORT, at(1, 1), later).is_ok());
    assert!(open(&mut table, 1, TOKEN, 6, at(1, 1), now + IDLE));
    assert!(hello(&mut table, at(9, 4), now + IDLE).is_ok());
    assert_eq!(table.stats().flows, 1);
    assert_eq!(table.by_client.len(), 1);
}

#[test]
fn nothing_is_sent_to_where_a_server_was_long_ago_or_that_has_none() {
    let (mut table, now) = table(Limits::default());
    hello(&mut table, at(9, 9), now).unwrap();
    assert_eq!(hello(&mut table, at(9, 9), now + SERVER_IDLE), Err(Dropped::NoServer));
    table.release(TOKEN, 7);
    assert!(hello(&mut table, at(9, 9), now).is_ok(), "of another session");
    table.release(TOKEN, 1);
    assert!(!table.serves(TOKEN));
    assert_eq!(hello(&mut table, at(9, 9), now), Err(Dropped::NoServer));
    // It comes back: its flows are there.
    table.reserve(TOKEN, 2, key(3), ids());
    assert_eq!(hello(&mut table, at(9, 9), now), Err(Dropped::NoServer));
    assert!(open(&mut table, 3, TOKEN, 1, at(1, 7), now));
    let there = hello(&mut table, at(9, 9), now).unwrap();
    assert_eq!(there.to, at(1, 7));
    let flow = number(&there);
    assert_eq!(there.header.as_ref(), wire::first_header(&key(3), flow, at(9, 9)), "under its new key");
}

#[test]
fn a_reservation_that_has_had_its_share_of_the_line_is_passed_over_and_another_one_is_not() {
    let limits = Limits { bytes_per_second: Some(300_000.0), ..Limits::default() };
    let (mut table, now) = table(limits);
    table.reserve(OTHER, 2, key(2), ids());
    assert!(open(&mut table, 2, OTHER, 5, at(2, 2), now));
    let flow = number(&hello(&mut table, at(9, 9), now).unwrap());
    let name = name();
    table.from_server(flow, &answer(&name), at(1, 1), now).unwrap();
    reply(&mut table, name, at(9, 9), now).unwrap();
    let back = |table: &mut Table, now| table.from_server(flow, &SHORT, at(1, 1), now);
    let went = (0..1000).filter(|_| back(&mut table, now).is_ok()).count();
    let (shared, alone) = ((300_000 - 1200 - 1200 - 50) / 1200 + 1, 75_000 / 1200 + 1);
    assert_eq!(went, shared + alone, "a second's worth at once, and the part of datagrams alone");
    assert_eq!(back(&mut table, now), Err(Dropped::TooMuch));
    let id = routed_id(OTHER, [7; ROUTED_ID]);
    assert!(table.from_client(Routed { token: OTHER, id }, 1200, &OUTSIDE, at(8, 8), now).is_ok());
    assert!(back(&mut table, now + Duration::from_millis(10)).is_ok());
}
