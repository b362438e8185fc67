//! Which connections make room for which others, and what that costs.

use std::time::Duration;

use whimbrel_base::SecretKey;
use whimbrel_proto::{Config, Connection as Engine, Event, FirstFlight, Open, Params, PathId, segment};

use super::*;

const PATH: PathId = PathId(0);

fn carry(from: &mut Engine, to: &mut Engine, now: Instant) {
    let mut wire = Vec::new();
    while from.poll_transmit(now, PATH, &mut wire) {}
    let mut rest = &wire[..];
    while let Some((body, used)) = segment::split(rest).unwrap() {
        to.handle_segment(now, PATH, body).unwrap();
        rest = &rest[used..];
    }
}

/// A connection that was accepted at `now` and has lost its path, before or after the client
/// confirmed it.
fn detached_at(now: Instant, confirmed: bool) -> Arc<Shared> {
    detached_of(SecretKey::generate().id(), now, confirmed)
}

fn detached_of(client: EndpointId, now: Instant, confirmed: bool) -> Arc<Shared> {
    detached_with(ConnectionId::random(), client, now, confirmed)
}

fn detached_with(id: ConnectionId, client: EndpointId, now: Instant, confirmed: bool) -> Arc<Shared> {
    let (_, accepted) = connected(id, client, now, confirmed);
    detached(accepted, now)
}

fn detached(mut accepted: Engine, now: Instant) -> Arc<Shared> {
    accepted.path_lost(now, PATH);
    Shared::new(accepted, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default())
}

/// Its client has said that it leaves.
fn suspended_of(client: EndpointId, now: Instant) -> Arc<Shared> {
    let (mut dialling, mut accepted) = connected(ConnectionId::random(), client, now, true);
    dialling.suspend();
    carry(&mut dialling, &mut accepted, now + Duration::from_secs(1));
    let mut told = std::iter::from_fn(|| accepted.poll_event());
    assert!(told.any(|event| event == Event::PeerSuspended));
    detached(accepted, now)
}

/// Both ends of a connection that was accepted at `now`: the client's, then the server's.
fn connected(id: ConnectionId, client: EndpointId, now: Instant, confirmed: bool) -> (Engine, Engine) {
    let server = SecretKey::from_bytes(&[9; 32]).id();
    let mut dialling = Engine::client(Config::default(), id, client, server, [1; 32], now);
    dialling.open_path(now, None, u64::MAX).unwrap();
    let mut wire = Vec::new();
    assert!(dialling.poll_transmit(now, PATH, &mut wire));
    let (body, _) = segment::split(&wire).unwrap().unwrap();
    let Ok(FirstFlight::Open(open)) = FirstFlight::decode(body) else { panic!("no OPEN") };
    let mut accepted = Engine::server(Config::default(), &open, server, client, [2; 32], now);
    accepted.handle_segment(now, PATH, body).unwrap();
    carry(&mut accepted, &mut dialling, now);
    if confirmed {
        let late = now + Duration::from_secs(1);
        dialling.handle_timeout(late);
        carry(&mut dialling, &mut accepted, late);
    }
    assert_eq!(accepted.is_confirmed(), confirmed);
    (dialling, accepted)
}

fn registry(limits: impl FnOnce(&mut Limits)) -> Registry {
    let mut all = Limits {
        max_connections: usize::MAX,
        max_connections_per_peer: usize::MAX,
        max_bytes_per_peer: u64::MAX,
        max_detached_bytes: u64::MAX,
    };
    limits(&mut all);
    Registry::new(all)
}

fn add(registry: &Registry, shared: &Arc<Shared>) -> bool {
    matches!(registry.add_accepted(shared), Added::Yes)
}

#[test]
fn whoever_never_confirmed_makes_room_first_then_the_longest_detached() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let kept = [(10, true), (40, true), (30, false), (20, true)];
    let kept = kept.map(|(seconds, confirmed)| detached_at(at(seconds), confirmed));
    let registry = registry(|limits| limits.max_connections = kept.len());
    for shared in &kept {
        assert!(add(&registry, shared));
    }
    let mut order = Vec::new();
    for _ in 0..kept.len() {
        // Younger than all of them.
        assert!(add(&registry, &detached_at(at(50), true)));
        let gone =
            kept.iter().position(|s| registry.find_accepted(&s.id).is_none() && !order.contains(&s.id));
        order.push(kept[gone.unwrap()].id);
    }
    assert_eq!(order, [2, 0, 3, 1].map(|index: usize| kept[index].id));
}

#[test]
fn a_peer_that_has_its_share_makes_room_for_itself_and_for_nobody_else() {
    let registry = registry(|limits| limits.max_connections_per_peer = 3);
    let start = Instant::now();
    let honest = detached_at(start, false);
    assert!(add(&registry, &honest));
    let greedy = SecretKey::generate().id();
    let own: Vec<_> = (1..10)
        .map(|second| detached_of(greedy, start + Duration::from_secs(second), true))
        .inspect(|shared| assert!(add(&registry, shared)))
        .collect();
    let left = own.iter().filter(|shared| registry.find_accepted(&shared.id).is_some());
    assert_eq!(left.map(|shared| shared.id).collect::<Vec<_>>(), [6, 7, 8].map(|index| own[index].id));
    assert!(registry.find_accepted(&honest.id).is_some());
    assert_eq!(own[0].close_reason().unwrap().code, CloseCode::EVICTED);
}

/// It says goodbye each time, and is waited for no longer than for others.
#[test]
fn of_ten_thousand_connections_that_a_peer_suspends_the_newest_4096_stay_and_all_of_others() {
    const SUSPENDED: usize = 10_000;
    let registry = Registry::new(crate::config::Config::default().limits());
    let most = registry.limits.max_connections_per_peer;
    assert_eq!(most, 4096);
    let start = Instant::now();
    let (greedy, honest) = (SecretKey::generate().id(), SecretKey::generate().id());
    let of_another: Vec<_> = (0..3).map(|_| suspended_of(honest, start)).collect();
    assert!(of_another.iter().all(|shared| add(&registry, shared)));
    let mut ids = Vec::new();
    let mut first = None;
    for count in 0..SUSPENDED {
        let shared = suspended_of(greedy, start + Duration::from_millis(1 + count as u64));
        assert!(add(&registry, &shared));
        ids.push(shared.id);
        if let Some(gone) = count.checked_sub(most) {
            assert!(registry.find_accepted(&ids[gone]).is_none(), "{gone} is the oldest");
            assert!(registry.find_accepted(&ids[gone + 1]).is_some(), "{gone} makes room enough");
        }
        first.get_or_insert(shared);
    }
    assert!(of_another.iter().all(|shared| registry.find_accepted(&shared.id).is_some()));
    assert_eq!(registry.accepted().len(), most + of_another.len());
    assert_eq!(first.unwrap().close_reason().unwrap().code, CloseCode::EVICTED);
}

#[test]
fn a_connection_that_left_takes_no_other_of_its_id_with_it() {
    let registry = registry(|_| {});
    let first = detached_at(Instant::now(), true);
    assert!(add(&registry, &first));
    assert!(matches!(registry.add_accepted(&first), Added::Exists(_)));
    registry.remove(&first);
    let tag = tag_of(&first).unwrap();
    // Made anew from the same OPEN, as after an eviction: the same id and the same tag.
    let second = detached_with(first.id, first.peer(), Instant::now(), true);
    assert!(add(&registry, &second));
    assert_eq!(tag_of(&second), Some(tag));
    registry.remove(&first);
    assert!(Arc::ptr_eq(&registry.find_accepted(&first.id).unwrap(), &second));
    assert!(Arc::ptr_eq(&registry.find_tag(&tag).unwrap(), &second));
}

/// Accepted just now, with its path or without.
fn fresh(detached: bool) -> Arc<Shared> {
    let (client, server) = (SecretKey::generate().id(), SecretKey::from_bytes(&[9; 32]).id());
    let now = Instant::now();
    let open = Open {
        connection: ConnectionId::random(),
        path: PATH,
        random: [1; 32],
        lost: Vec::new(),
        params: Params::default(),
    };
    let mut engine = Engine::server(Config::default(), &open, server, client, [2; 32], now);
    if detached {
        engine.path_lost(now, PATH);
    }
    Shared::new(engine, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default())
}

/// The time to accept a connection in a full registry, where each takes the place of a detached one.
fn time_to_accept(idle: usize) -> Duration {
    const ACCEPTED: u32 = 1000;
    const DETACHED: usize = 50;
    let registry = registry(|limits| limits.max_connections = idle + DETACHED);
    (0..idle).for_each(|_| assert!(add(&registry, &fresh(false))));
    (0..DETACHED).for_each(|_| assert!(add(&registry, &fresh(true))));
    let new: Vec<_> = (0..ACCEPTED).map(|_| fresh(true)).collect();
    let began = Instant::now();
    for shared in &new {
        assert!(add(&registry, shared));
    }
    began.elapsed() / ACCEPTED
}

/// Looking at each connection would make it a hundred times dearer.
#[test]
fn accepting_costs_the_same_beside_many_idle_connections() {
    let few = time_to_accept(100);
    let many = time_to_accept(50_000);
    println!("accepted in {few:?} beside 100, in {many:?} beside 50000");
    assert!(many < few * 5 + Duration::from_micros(10), "{few:?}, {many:?}");
}
