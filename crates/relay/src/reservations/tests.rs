use whimbrel_base::SecretKey;

use super::*;

const TOKEN: RelayToken = RelayToken::from_bytes([1; 10]);
const OTHER: RelayToken = RelayToken::from_bytes([2; 10]);

type Table = Reservations<&'static str, &'static str>;

fn key(n: u8) -> Key {
    Key::new(&[n; 32])
}

fn id(n: u8) -> EndpointId {
    SecretKey::from_bytes(&[n; 32]).id()
}

fn ip(n: u8) -> IpAddr {
    [192, 0, 2, n].into()
}

fn words(of: u8, origin: u32, number: u64) -> Vec<u8> {
    Offer { token: TOKEN, origin, number }.encode(&key(of))
}

fn table(limits: Limits) -> (Table, Holding) {
    let mut table = Table::new(limits);
    let holding = table.reserve(id(1), TOKEN, key(1)).unwrap();
    (table, holding)
}

fn offer(
    table: &mut Table,
    origin: u32,
    number: u64,
) -> Result<Option<Match<&'static str, &'static str>>, Refusal> {
    table.offer(&words(1, origin, number), "spare", |_| true, |_| true)
}

fn arrive(table: &mut Table, client: &'static str) -> Result<Arrived<&'static str, &'static str>, Refusal> {
    table.arrive(TOKEN, ip(1), client, |_| true, Instant::now())
}

#[test]
fn a_client_gets_a_spare_that_waits_or_waits_for_one() {
    let (mut table, _) = table(Limits::default());
    offer(&mut table, 0, 0).unwrap();
    let Arrived::Matched(matched) = arrive(&mut table, "first").unwrap() else { panic!("a spare waits") };
    assert_eq!((matched.spare, matched.client, matched.splice.number), ("spare", "first", 0));
    let Arrived::Waits(number) = arrive(&mut table, "second").unwrap() else { panic!("there is no spare") };
    let Arrived::Waits(third) = arrive(&mut table, "third").unwrap() else { panic!("there is no spare") };
    assert_eq!(table.waiting(TOKEN), 2);
    assert_eq!(table.expire(TOKEN, third), Some("third"));
    assert_eq!(offer(&mut table, 0, 1).unwrap().unwrap().client, "second");
    assert_eq!(table.expire(TOKEN, number), None, "it was served");
    assert_eq!((table.stats().splices, table.stats().spliced, table.stats().clients_refused), (2, 2, 1));
    table.ended(&matched.splice, 10);
    table.ended(&matched.splice, 10);
    assert_eq!(table.stats().splices, 1);
}

#[test]
fn forged_and_repeated_spares_are_turned_away() {
    let (mut table, _) = table(Limits::default());
    assert_eq!(table.offer(&words(2, 0, 0), "spare", |_| true, |_| true), Err(Refusal::Forged));
    assert_eq!(table.offer(b"WHR1", "spare", |_| true, |_| true), Err(Refusal::Forged));
    let bytes = words(1, 0, 0);
    assert_eq!(table.offer(&bytes, "spare", |_| true, |_| true), Ok(None));
    assert_eq!(table.offer(&bytes, "spare", |_| true, |_| true), Err(Refusal::Forged), "played again");
    let unknown = Offer { token: OTHER, origin: 0, number: 0 }.encode(&key(1));
    assert_eq!(table.offer(&unknown, "spare", |_| true, |_| true), Err(Refusal::UnknownToken));
    assert_eq!(table.stats().spares_refused, 4);
}

#[test]
fn nobody_gets_the_token_of_somebody_else() {
    let (mut table, holding) = table(Limits::default());
    assert!(table.reserve(id(2), TOKEN, key(2)).is_err());
    offer(&mut table, 0, 0).unwrap();
    assert_eq!(table.stats().spares, 1, "the owner has it still");
    // The owner's next one replaces it: its own word on the old one counts no more.
    let newer = table.reserve(id(1), TOKEN, key(1)).unwrap();
    table.release(holding);
    assert_eq!(table.stats().reservations, 1);
    table.release(newer);
    assert_eq!(table.stats().reservations, 0);
}

#[test]
fn spares_that_have_ended_take_no_place() {
    let (mut table, _) = table(Limits { spares: 1, ..Limits::default() });
    offer(&mut table, 0, 0).unwrap();
    assert_eq!(offer(&mut table, 0, 1), Err(Refusal::EnoughSpares));
    assert_eq!(table.offer(&words(1, 0, 2), "spare", |_| true, |_| false), Ok(None));
}

#[test]
fn what_comes_from_an_address_that_the_server_left_is_dead() {
    let (mut table, holding) = table(Limits::default());
    for (origin, number) in [(0, 0), (0, 1), (1, 2)] {
        offer(&mut table, origin, number).unwrap();
    }
    arrive(&mut table, "client").unwrap();
    let dead = table.left(holding, 0);
    assert_eq!(dead.iter().map(|splice| splice.number).collect::<Vec<_>>(), [0]);
    table.ended(&dead[0], 0);
    assert_eq!((table.stats().spares, table.stats().splices), (1, 0));
    let Arrived::Matched(matched) = arrive(&mut table, "client").unwrap() else { panic!("a spare waits") };
    assert_eq!(matched.splice.number, 2);
    assert!(table.left(holding, 0).is_empty());
}

#[test]
fn spares_and_clients_that_are_gone_are_passed_over() {
    let (mut table, _) = table(Limits::default());
    table.offer(&words(1, 0, 0), "gone", |_| true, |_| true).unwrap();
    offer(&mut table, 0, 1).unwrap();
    let now = Instant::now();
    let arrived = table.arrive(TOKEN, ip(1), "client", |spare| *spare != "gone", now).unwrap();
    assert!(matches!(arrived, Arrived::Matched(Match { spare: "spare", .. })));
    arrive(&mut table, "gone").unwrap();
    let offered = table.offer(&words(1, 0, 2), "spare", |client| *client != "gone", |_| true).unwrap();
    assert_eq!((offered, table.stats().spares), (None, 1));
}

#[test]
fn everything_has_a_bound() {
    let limits = Limits {
        reservations: 2,
        spares: 3,
        waiting: 4,
        splices_per_reservation: 3,
        clients_per_second: 1.0,
        clients_per_address: 2.0,
        ..Limits::default()
    };
    let (mut table, _) = table(limits);
    table.reserve(id(2), OTHER, key(2)).unwrap();
    let third = RelayToken::from_bytes([3; 10]);
    assert_eq!(table.reserve(id(3), third, key(3)), Err(Refusal::Full));
    let spares = (0..10).filter(|number| offer(&mut table, 0, *number).is_ok()).count();
    assert_eq!(spares, 3);
    let arrived: Vec<_> = (0..30).map(|_| arrive(&mut table, "client")).collect();
    // Three spliced; then no more, by the number of splices.
    assert_eq!(arrived.iter().filter(|arrived| arrived.is_ok()).count(), 3);
    let now = Instant::now();
    let guesses =
        (0..30).filter(|_| table.arrive(third, ip(9), "guess", |_| true, now) == Err(Refusal::UnknownToken));
    assert_eq!(guesses.count(), 20, "those beyond are not even looked up");
}

#[test]
fn a_crowd_at_one_server_waits_within_bounds() {
    for (waiting, waiting_in_all) in [(4, 100), (100, 4)] {
        let limits = Limits { waiting, waiting_in_all, ..Limits::default() };
        let (mut table, holding) = table(limits);
        let waits = (0..10).filter(|_| arrive(&mut table, "client").is_ok()).count();
        assert_eq!((waits, table.waiting(TOKEN), table.stats().waiting), (4, 4, 4));
        offer(&mut table, 0, 0).unwrap();
        assert!(table.expire(TOKEN, 2).is_some());
        assert_eq!(table.stats().waiting, 2);
        table.release(holding);
        assert_eq!(table.stats().waiting, 0);
    }
}

/// A table in which server 1 holds all that a relay has to give, and server 2 nothing.
fn crowded(limits: Limits) -> Table {
    let (mut table, _) = table(limits);
    table.reserve(id(2), OTHER, key(2)).unwrap();
    table
}

fn arrive_for_other(table: &mut Table) -> Result<Arrived<&'static str, &'static str>, Refusal> {
    table.arrive(OTHER, ip(2), "honest", |_| true, Instant::now())
}

fn offer_of_other(table: &mut Table, number: u64) -> Option<Match<&'static str, &'static str>> {
    let words = Offer { token: OTHER, origin: 0, number }.encode(&key(2));
    table.offer(&words, "spare", |_| true, |_| true).unwrap()
}

#[test]
fn those_who_wait_for_a_server_that_never_comes_make_room_for_those_of_others() {
    let mut table = crowded(Limits { waiting_in_all: 4, ..Limits::default() });
    let first = arrive(&mut table, "first").unwrap();
    for _ in 0..3 {
        arrive(&mut table, "more").unwrap();
    }
    assert_eq!(arrive(&mut table, "fifth"), Err(Refusal::TooMany), "its own do not make room");
    for (waits, left) in [(1, 3), (2, 2)] {
        assert!(matches!(arrive_for_other(&mut table), Ok(Arrived::Waits(_))));
        assert_eq!((table.waiting(OTHER), table.waiting(TOKEN), table.stats().waiting), (waits, left, 4));
    }
    let Arrived::Waits(number) = first else { panic!("there is no spare") };
    assert_eq!(table.expire(TOKEN, number), None, "the oldest went first");
    assert_eq!(arrive_for_other(&mut table), Err(Refusal::TooMany), "it has its half");
    assert_eq!(offer_of_other(&mut table, 0).unwrap().client, "honest");
    assert_eq!(table.stats().clients_refused, 4);
}

#[test]
fn a_server_that_holds_all_splices_makes_room_for_those_of_others() {
    let mut table = crowded(Limits { splices: 4, ..Limits::default() });
    for number in 0..4 {
        offer(&mut table, 0, number).unwrap();
        arrive(&mut table, "client").unwrap();
    }
    offer(&mut table, 0, 4).unwrap();
    assert_eq!(arrive(&mut table, "fifth"), Err(Refusal::TooMany), "its own do not make room");
    for number in 0..2 {
        assert_eq!(offer_of_other(&mut table, number), None);
        let Ok(Arrived::Matched(matched)) = arrive_for_other(&mut table) else { panic!("a spare waits") };
        assert_eq!(matched.displaced.map(|splice| splice.number), Some(number), "the oldest first");
        assert_eq!(table.stats().splices, 4);
        assert!(table.key(&matched.displaced.unwrap()).is_none(), "it has not begun, and never will");
        // Its task tells of its end too.
        table.ended(&matched.displaced.unwrap(), 9);
        assert_eq!(table.stats().splices, 4);
    }
    assert_eq!(offer_of_other(&mut table, 2), None);
    assert_eq!(arrive_for_other(&mut table), Err(Refusal::TooMany), "it has its half");
    assert_eq!(table.stats().bytes, 18);
}

#[test]
fn a_relay_that_drains_takes_nobody_in() {
    let (mut table, _) = table(Limits::default());
    table.drain();
    assert_eq!(arrive(&mut table, "client"), Err(Refusal::Draining));
    assert_eq!(table.reserve(id(2), OTHER, key(2)), Err(Refusal::Draining));
}
