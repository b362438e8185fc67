//! Moves of named endpoints: real hosts around a router, one of them the name service.
#![allow(clippy::unwrap_used)]

mod asleep;
mod far;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Node, Star};
use crate::lab_support::traffic::{Echo, Server, Transfer, Way};
use crate::lab_support::{log, ms, secs};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{Allow, Connection, Endpoint, ListenOptions, SecretKey, transport};
use whimbrel_lab::{Block, Direction, Link, Runtime, require};

const NAME: &str = "anna@example.org";
const TOTAL: u64 = 12_000_000;

/// A client, a server with a name, and the service that knows it.
struct World {
    net: Star,
    names: Option<Names>,
    client: Endpoint,
    server: Server,
    /// Keeps the server's resolver.
    _server_endpoint: Endpoint,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mover {
    Client,
    Server,
    Both,
}

impl World {
    fn new(family: Family) -> Self {
        Self::with(family, ms(5))
    }

    /// With links that delay by so much.
    fn with(family: Family, delay: Duration) -> Self {
        log();
        let net = Star::with(family, ["client", "server", "names"], delay);
        let names = Names::start(&net.nodes[2]);
        let lasting = || Endpoint::builder().identity(SecretKey::generate());
        let bind = |node: &Node| node.wait(lasting().names(names.service.addr()).bind()).unwrap();
        let (client, serving) = (bind(&net.nodes[0]), bind(&net.nodes[1]));
        let listener =
            net.nodes[1].wait(serving.listen(ListenOptions::named(NAME).allow(Allow::Any))).unwrap();
        let server = Server::with(&net.nodes[1], serving.transport().clone(), listener);
        Self { net, names: Some(names), client, server, _server_endpoint: serving }
    }

    fn client_node(&self) -> &Node {
        &self.net.nodes[0]
    }

    fn server_node(&self) -> &Node {
        &self.net.nodes[1]
    }

    fn connect(&self) -> Connection {
        self.client_node().wait(self.client.connect(NAME)).unwrap()
    }

    fn transfer(&self, connection: &Connection, way: Way) -> Transfer {
        Transfer::start(self.client_node(), connection, &self.server, way, TOTAL)
    }

    /// Moves one side, or both at the same moment.
    fn move_on(&self, mover: Mover) {
        let (client, server) = (self.client_node(), self.server_node());
        match mover {
            Mover::Client => _ = client.move_on(),
            Mover::Server => _ = server.move_on(),
            Mover::Both => {
                let start = Barrier::new(2);
                let go = |node: &Node| {
                    start.wait();
                    node.move_on();
                };
                std::thread::scope(|scope| {
                    scope.spawn(|| go(client));
                    scope.spawn(|| go(server));
                });
            }
        }
    }

    /// The connection leads to where both are now.
    fn assert_moved(&self, connection: &Connection) {
        let path = connection.stats().paths.pop().unwrap();
        assert_eq!((path.local.ip(), path.remote.ip()), (self.client_node().ip(), self.server_node().ip()));
    }
}

/// A name service that can be killed: everything of it runs in one runtime.
struct Names {
    service: Service,
    _runtime: Runtime,
}

impl Names {
    /// Each one has the same key and port, and knows nothing at first.
    fn start(node: &Node) -> Self {
        let runtime = node.host.runtime(1).unwrap();
        let builder = transport::Endpoint::builder().secret_key(SecretKey::from_bytes(&[5; 32])).port(4480);
        let service = runtime.block_on(async {
            let endpoint = builder.config(Service::config()).bind().await.unwrap();
            Service::start(endpoint, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
        });
        Self { service, _runtime: runtime }
    }
}

/// Both sides are elsewhere when the client looks the name up.
fn moved_before_lookup(way: Way, family: Family) {
    let world = World::new(family);
    world.move_on(Mover::Both);
    let began = Instant::now();
    let connection = world.connect();
    eprintln!("moved before the lookup, {way:?}, {family:?}: connected within {:?}", began.elapsed());
    world.assert_moved(&connection);
    world.transfer(&connection, way).finish(world.client_node());
}

/// Somebody moves between the lookup and the answer to the first flight: 20 ms for the question, then 60 ms
/// at most.
fn moved_at_connect_time(way: Way, family: Family) {
    let world = World::new(family);
    for mover in [Mover::Client, Mover::Server, Mover::Both] {
        for step in [5, 25, 45, 65] {
            let began = Instant::now();
            let client = world.client.clone();
            let connecting = world.client_node().runtime.spawn(async move { client.connect(NAME).await });
            std::thread::sleep(ms(step));
            world.move_on(mover);
            let connection = world.client_node().wait(connecting).unwrap().unwrap();
            world.client_node().wait(async { Echo::open(&connection).await.say(b"there").await });
            let took = began.elapsed();
            eprintln!("{mover:?} moved {step} ms into connecting, {family:?}: served within {took:?}");
            assert!(took < secs(8), "{took:?}");
        }
    }
    let connection = world.connect();
    let transfer = world.transfer(&connection, way);
    world.move_on(Mover::Both);
    transfer.finish(world.client_node());
}

/// Somebody moves in the middle of a transfer.
fn moved_under_way(mover: Mover, way: Way, family: Family) {
    let world = World::new(family);
    let connection = world.connect();
    let transfer = world.transfer(&connection, way);
    transfer.reach(world.client_node(), TOTAL / 3);
    world.move_on(mover);
    let began = Instant::now();
    let before = transfer.meter.get();
    // More than what was on its way or in the buffers.
    transfer.reach(world.client_node(), before + 600_000);
    eprintln!("{mover:?} moved, {way:?}, {family:?}: flows again after {:?}", began.elapsed());
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    transfer.finish(world.client_node());
    world.assert_moved(&connection);
}

macro_rules! matrix {
    ($($name:ident: $test:ident($($argument:expr),*);)*) => {
        $(#[test]
        fn $name() {
            if require!() {
                $test($($argument),*);
            }
        })*
    };
}

matrix! {
    moved_before_the_lookup_upload_ipv4: moved_before_lookup(Way::Up, Family::V4);
    moved_before_the_lookup_upload_ipv6: moved_before_lookup(Way::Up, Family::V6);
    moved_before_the_lookup_download_ipv4: moved_before_lookup(Way::Down, Family::V4);
    moved_before_the_lookup_download_ipv6: moved_before_lookup(Way::Down, Family::V6);
    moved_at_connect_time_upload_ipv4: moved_at_connect_time(Way::Up, Family::V4);
    moved_at_connect_time_upload_ipv6: moved_at_connect_time(Way::Up, Family::V6);
    moved_at_connect_time_download_ipv4: moved_at_connect_time(Way::Down, Family::V4);
    moved_at_connect_time_download_ipv6: moved_at_connect_time(Way::Down, Family::V6);
    the_client_moved_under_way_upload_ipv4: moved_under_way(Mover::Client, Way::Up, Family::V4);
    the_client_moved_under_way_upload_ipv6: moved_under_way(Mover::Client, Way::Up, Family::V6);
    the_client_moved_under_way_download_ipv4: moved_under_way(Mover::Client, Way::Down, Family::V4);
    the_client_moved_under_way_download_ipv6: moved_under_way(Mover::Client, Way::Down, Family::V6);
    the_server_moved_under_way_upload_ipv4: moved_under_way(Mover::Server, Way::Up, Family::V4);
    the_server_moved_under_way_upload_ipv6: moved_under_way(Mover::Server, Way::Up, Family::V6);
    the_server_moved_under_way_download_ipv4: moved_under_way(Mover::Server, Way::Down, Family::V4);
    the_server_moved_under_way_download_ipv6: moved_under_way(Mover::Server, Way::Down, Family::V6);
    both_moved_at_once_upload_ipv4: moved_under_way(Mover::Both, Way::Up, Family::V4);
    both_moved_at_once_upload_ipv6: moved_under_way(Mover::Both, Way::Up, Family::V6);
    both_moved_at_once_download_ipv4: moved_under_way(Mover::Both, Way::Down, Family::V4);
    both_moved_at_once_download_ipv6: moved_under_way(Mover::Both, Way::Down, Family::V6);
}

/// Says something until it is answered, and tells how long that took.
fn answered(world: &World, echo: &mut Echo) -> Duration {
    world.client_node().wait(echo.say(b"where are you?"))
}

#[test]
fn simultaneous_moves_recover_twenty_times_of_twenty() {
    if !require!() {
        return;
    }
    let world = World::new(Family::V4);
    let connection = world.connect();
    let mut echo = world.client_node().wait(Echo::open(&connection));
    let round = || {
        world.move_on(Mover::Both);
        answered(&world, &mut echo)
    };
    let mut times: Vec<_> = std::iter::repeat_with(round).take(20).collect();
    times.sort();
    eprintln!("20 simultaneous moves: min {:?}, median {:?}, max {:?}", times[0], times[10], times[19]);
    assert!(times[19] < secs(5), "{times:?}");
    world.assert_moved(&connection);
}

/// Without notices the watched record alone brings the client to the server.
#[test]
fn a_server_that_moves_is_found_by_its_record_where_udp_is_blocked() {
    if !require!() {
        return;
    }
    let world = World::new(Family::V4);
    let connection = world.connect();
    let mut echo = world.client_node().wait(Echo::open(&connection));
    world.client_node().host.block(Block::Udp).unwrap();
    for _ in 0..3 {
        world.move_on(Mover::Server);
        let took = answered(&world, &mut echo);
        eprintln!("found by its record after {took:?}");
        assert!(took < secs(5), "{took:?}");
    }
    world.assert_moved(&connection);
}

#[test]
fn both_move_while_the_name_service_is_cut_off_and_meet_when_it_is_back() {
    if !require!() {
        return;
    }
    let world = World::new(Family::V4);
    let connection = world.connect();
    let mut echo = world.client_node().wait(Echo::open(&connection));
    let link: &Link = &world.net.links[2];
    link.set_blackhole(Direction::Both, true);
    world.move_on(Mover::Both);
    // The time itself is what is tested: they look for each other without success, and ever less often.
    std::thread::sleep(secs(8));
    assert!(connection.stats().unreachable.is_some_and(|time| time > secs(7)));
    assert_eq!(connection.close_reason(), None);
    link.set_blackhole(Direction::Both, false);
    let took = answered(&world, &mut echo);
    eprintln!("met {took:?} after the name service could be reached again");
    assert!(took < secs(12), "{took:?}");
    world.assert_moved(&connection);
}

#[test]
fn both_move_while_the_name_service_is_dead_and_meet_when_another_one_took_its_place() {
    if !require!() {
        return;
    }
    let mut world = World::new(Family::V4);
    let connection = world.connect();
    let mut echo = world.client_node().wait(Echo::open(&connection));
    drop(world.names.take());
    world.move_on(Mover::Both);
    // The time itself is what is tested: they look for each other without success, and ever less often.
    std::thread::sleep(secs(5));
    assert!(connection.stats().unreachable.is_some_and(|time| time > secs(4)));
    world.names = Some(Names::start(&world.net.nodes[2]));
    let took = answered(&world, &mut echo);
    eprintln!("met {took:?} after the name service was restarted");
    assert!(took < secs(12), "{took:?}");
    world.assert_moved(&connection);
}
