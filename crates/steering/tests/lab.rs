//! Connections over two networks between which a manager chooses.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lab_support::net::{Family, Multi, Watch};
use lab_support::paths::link;
use lab_support::traffic::{Echo, Server, Transfer, Way};
use lab_support::{ms, secs};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use whimbrel_lab::{Direction, LinkSpec, require};
use whimbrel_multiaccess::protocol::{Answer, Ask, PathReport, Verdict, Wifi};
use whimbrel_multiaccess::{Manager, Radios, Settings};
use whimbrel_steering::{Client, News, Steering};
use whimbrel_transport::{
    CarrierKind, Carriers, Connection, ConnectionEvent, Endpoint, HandoverMode, PathPolicy, PathState,
    Policy, Signal, Timeouts,
};

/// For whatever must come at all, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// More than a test waits for.
const ENDLESS: u64 = 1 << 40;
/// So much says who carries a fast transfer, and so much a slow one.
const MUCH: u64 = 512 << 10;
const LITTLE: u64 = 96 << 10;

/// A client with the networks `up0` and `up1`, of which its routes prefer the first, and a server.
struct World {
    net: Multi,
    server: Server,
    client: Endpoint,
    manager: Option<Manager>,
    folder: TempDir,
    news: Arc<Mutex<Vec<News>>>,
}

impl World {
    fn new(links: &[LinkSpec], carriers: Carriers) -> Self {
        let net = Multi::new(Family::V4, links);
        let server = Server::start(&net.server, net.server.endpoint());
        let client = net.client.endpoint_with(|builder| builder.carriers(carriers));
        let folder = tempfile::tempdir().unwrap();
        Self { net, server, client, manager: None, folder, news: Arc::default() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("access")
    }

    /// A manager with these settings, in the place of the one before.
    fn manage(&mut self, settings: &str) {
        self.manage_with(settings, None);
    }

    /// The same, told of Wi-Fi by these, if they are given.
    fn manage_with(&mut self, settings: &str, radios: Option<Radios>) {
        self.manager = None;
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let settings = Settings::from_toml(settings).unwrap();
        let start = async {
            let listener = UnixListener::bind(socket).unwrap();
            match radios {
                Some(radios) => Manager::with_radios(settings, listener, radios).await.unwrap(),
                None => Manager::start(settings, listener).await.unwrap(),
            }
        };
        self.manager = Some(self.net.client.wait(start));
    }

    fn steer(&self, intents: &str) -> Steering {
        let (manager, intents, news) =
            (Client::at(&self.socket()), intents.parse().unwrap(), self.news.clone());
        let tell = move |told| news.lock().unwrap().push(told);
        self.net.client.wait(Steering::start(&self.client, manager, intents, tell))
    }

    fn connect(&self) -> Connection {
        self.net.client.wait(self.client.connect(self.server.endpoint.addr())).unwrap()
    }

    fn start(&self, connection: &Connection, way: Way) -> Transfer {
        Transfer::start(&self.net.client, connection, &self.server, way, ENDLESS)
    }

    /// Bytes that came to the client by each of its interfaces.
    fn received(&self) -> [u64; 2] {
        let text = self.net.client.host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        let of = |name: &str| {
            let line =
                text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':')).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        [of("up0"), of("up1")]
    }

    /// What comes by each interface until so much has come by both together.
    fn grows(&self, by: u64) -> [u64; 2] {
        let (before, began) = (self.received(), Instant::now());
        loop {
            let now = self.received();
            let grown = [now[0] - before[0], now[1] - before[1]];
            if grown[0] + grown[1] >= by {
                return grown;
            }
            assert!(began.elapsed() < LIMIT, "nothing comes any more: {grown:?}");
            std::thread::sleep(ms(20));
        }
    }

    /// Waits until nearly all of it comes by one interface.
    #[track_caller]
    fn until_carried_by(&self, index: usize, by: u64) {
        let began = Instant::now();
        loop {
            let grown = self.grows(by);
            if grown[index] * 10 >= (grown[0] + grown[1]) * 9 {
                return;
            }
            assert!(began.elapsed() < LIMIT, "up{index} should carry it: {grown:?}");
        }
    }

    /// What the manager says to another program that wants to go where the connection goes.
    fn ask(&self, connection: &Connection) -> Verdict {
        let paths = connection.stats().paths;
        let addresses = paths.iter().map(|path| path.remote.address()).collect();
        let ask = Ask { addresses, ..Ask::default() };
        let client = Client::at(&self.socket());
        self.net.client.wait(async move { client.ask(ask).await }).unwrap()
    }

    /// Waits until it says so.
    #[track_caller]
    fn until_said(&self, connection: &Connection, what: &str, is_so: impl Fn(&Verdict) -> bool) {
        let began = Instant::now();
        loop {
            let verdict = self.ask(connection);
            if is_so(&verdict) {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{what}: {verdict:#?}");
            std::thread::sleep(ms(50));
        }
    }

    /// Waits until the manager sees its paths so.
    #[track_caller]
    fn until_seen(&self, what: &str, is_so: impl Fn(&[PathReport]) -> bool) {
        let client = Client::at(&self.socket());
        let mut watcher = self.net.client.wait(client.watch(false)).unwrap();
        let began = Instant::now();
        loop {
            let line = self.net.client.wait(watcher.next()).unwrap();
            let answer: Answer = serde_json::from_str(&line).unwrap();
            if answer.paths.is_some_and(|paths| is_so(&paths)) {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{what}: {line}");
        }
    }

    /// Waits until the connection knows the signal of the first network so, and none of the other one.
    #[track_caller]
    fn until_received(&self, connection: &Connection, dbm: i8, is_weak: bool) {
        let (wifi, began) = (self.net.up(0).ip(), Instant::now());
        loop {
            let paths = connection.stats().paths;
            let known = paths.iter().filter_map(|path| Some((path.local.ip(), path.signal?)));
            let known: Vec<(IpAddr, Signal)> = known.collect();
            assert!(known.iter().all(|(ip, _)| *ip == wifi), "{paths:#?}");
            if let [(_, signal)] = known[..]
                && (signal.dbm, signal.is_weak) == (dbm, is_weak)
            {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{dbm} dBm should be known: {paths:#?}");
            std::thread::sleep(ms(20));
        }
    }

    #[track_caller]
    fn until_told(&self, is_it: impl Fn(&News) -> bool) {
        let began = Instant::now();
        while !self.news.lock().unwrap().iter().any(&is_it) {
            assert!(began.elapsed() < LIMIT, "{:?}", self.news.lock().unwrap());
            std::thread::sleep(ms(20));
        }
    }

    fn alone(&self) -> usize {
        self.news.lock().unwrap().iter().filter(|news| matches!(news, News::Alone { .. })).count()
    }

    fn ends(&self, connection: &Connection) {
        let mut echo = self.net.client.wait(Echo::open(connection));
        self.net.client.wait(echo.say(b"all is well"));
    }
}

fn goes_by(verdict: &Verdict, interface: &str) -> bool {
    !verdict.ways.is_empty() && verdict.ways.iter().all(|way| way.interface == interface)
}

fn equal() -> [LinkSpec; 2] {
    [link(20, 10), link(20, 10)]
}

/// The routes, and the connection's own policy, would have it on `up0`.
#[test]
fn nothing_goes_where_it_costs_and_a_change_of_what_costs_moves_it_while_it_runs() {
    if !require!() {
        return;
    }
    let mut world = World::new(&equal(), Carriers::Auto);
    world.manage("metered = [\"up0\"]");
    let _steering = world.steer("cost=no-expense");
    let before = world.received();
    let connection = world.connect();
    let transfer = world.start(&connection, Way::Down);
    transfer.reach(&world.net.client, 4 << 20);
    let spent = world.received()[0] - before[0];
    assert!(spent < 64 << 10, "{spent} bytes came by what costs money");
    assert_eq!(world.alone(), 0);

    world.manage("metered = [\"up1\"]");
    world.until_carried_by(0, MUCH);
    let costs = world.net.up(1).ip();
    let began = Instant::now();
    while connection.stats().paths.iter().any(|path| path.local.ip() == costs) {
        assert!(began.elapsed() < LIMIT, "{:#?}", connection.stats().paths);
        std::thread::sleep(ms(20));
    }

    // Without a manager what costs money stays so.
    world.manager = None;
    world.until_told(|news| matches!(news, News::Alone { .. }));
    world.until_carried_by(0, MUCH);
    let before = world.received();
    transfer.reach(&world.net.client, transfer.meter.get() + (8 << 20));
    let spent = world.received()[1] - before[1];
    assert!(spent < 64 << 10, "{spent} bytes came by what costs money");
    assert_eq!(world.alone(), 1, "it was away twice, and that is told once");
    world.ends(&connection);
}

/// The kernel knows of no connection: what decides is what the connection itself has measured.
#[test]
fn round_trips_of_quic_are_told_to_the_manager_and_decide() {
    if !require!() {
        return;
    }
    let mut world = World::new(&[link(20, 150), link(20, 10)], Carriers::Only(CarrierKind::Quic));
    world.manage("[policy]\nname = \"lowest-latency\"");
    let _steering = world.steer("");
    let connection = world.connect();
    let transfer = world.start(&connection, Way::Drip);
    world.until_seen("the round trips of both", |paths| {
        let within = |interface: &str, least: f64, most: f64| {
            let path = paths.iter().find(|path| path.interface == interface);
            path.and_then(|path| path.srtt_min_ms).is_some_and(|rtt| (least..most).contains(&rtt))
        };
        within("up0", 290.0, 450.0) && within("up1", 19.0, 150.0)
    });
    world.until_said(&connection, "the nearer network", |verdict| goes_by(verdict, "up1"));
    world.until_carried_by(1, LITTLE);
    // The nearer one becomes the farther one.
    world.net.near[1].set_delay(Direction::Both, ms(300));
    world.until_said(&connection, "the other network", |verdict| goes_by(verdict, "up0"));
    world.until_carried_by(0, LITTLE);
    assert!(!transfer.is_finished());
}

#[test]
fn bulk_goes_over_all_networks_at_once_until_nobody_says_so_any_more() {
    if !require!() {
        return;
    }
    let mut world = World::new(&equal(), Carriers::Auto);
    world.manage("");
    let steering = world.steer("");
    let connection = world.connect();
    steering.intend(&connection, "category=bulk".parse().unwrap());
    let transfer = world.start(&connection, Way::Down);
    let began = Instant::now();
    loop {
        let grown = world.grows(MUCH);
        if grown.iter().all(|bytes| *bytes >= MUCH / 4) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "both should carry it: {grown:?}");
    }
    let control = connection.path_control();
    assert_eq!((control.handover(), control.policy().policy), (HandoverMode::Full, Policy::Cheapest));
    drop(steering);
    assert_eq!((control.handover(), control.policy()), (HandoverMode::Single, PathPolicy::default()));
    let (policy, mode) = world.client.paths();
    assert_eq!((mode, policy), (HandoverMode::Single, PathPolicy::default()));
    assert!(!transfer.is_finished());
    world.ends(&connection);
}

#[test]
fn a_network_that_falls_silent_is_told_to_the_manager_and_left_until_it_works_again() {
    if !require!() {
        return;
    }
    let mut world = World::new(&[link(20, 5), link(20, 50)], Carriers::Auto);
    world.manage("[policy]\nname = \"lowest-latency\"");
    let _steering = world.steer("");
    let connection = world.connect();
    let transfer = world.start(&connection, Way::Drip);
    world.until_carried_by(0, LITTLE);
    world.until_said(&connection, "the nearer network", |verdict| goes_by(verdict, "up0"));
    world.net.near[0].set_blackhole(Direction::Both, true);
    world.until_said(&connection, "the network that works", |verdict| goes_by(verdict, "up1"));
    let seen = transfer.meter.get();
    transfer.reach(&world.net.client, seen + LITTLE);
    world.net.near[0].set_blackhole(Direction::Both, false);
    world.until_carried_by(0, LITTLE);
    assert!(!transfer.is_finished());
}

#[test]
fn without_a_manager_it_goes_its_own_way_and_takes_its_word_when_it_comes_but_not_against_a_hand() {
    if !require!() {
        return;
    }
    let mut world = World::new(&equal(), Carriers::Auto);
    let began = Instant::now();
    let _steering = world.steer("cost=optimise");
    assert!(began.elapsed() < secs(20), "nobody listens there");
    assert_eq!(world.alone(), 1);
    let connection = world.connect();
    assert_eq!(connection.path_control().policy(), PathPolicy::default());
    let transfer = world.start(&connection, Way::Down);
    world.until_carried_by(0, MUCH);

    world.manage("metered = [\"up0\"]");
    world.until_carried_by(1, MUCH);
    let both = |connection: &Connection| {
        let paths = connection.stats().paths;
        paths.iter().filter(|path| path.state == PathState::Active).count() >= 2
    };
    let began = Instant::now();
    while !both(&connection) {
        assert!(began.elapsed() < LIMIT, "what costs money should stand by: {:#?}", connection.stats().paths);
        std::thread::sleep(ms(20));
    }

    let by_hand = PathPolicy { interfaces: vec!["up1".parse().unwrap()], ..PathPolicy::default() };
    connection.path_control().set_policy(by_hand.clone());
    world.manage("metered = [\"up1\"]");
    world.until_told(|news| *news == News::SetOtherwise { connection: connection.id() });
    assert_eq!(connection.path_control().policy(), by_hand);
    world.until_carried_by(1, MUCH);
    assert_eq!(world.alone(), 1, "that it is alone is told once");
    assert!(!transfer.is_finished());
    // New ones take its word.
    let began = Instant::now();
    loop {
        let (policy, _) = world.client.paths();
        let first = policy.interfaces.first().map(|rule| rule.selector.clone());
        if first == Some(whimbrel_transport::Selector::Name("up0".to_owned())) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{policy:?}");
        std::thread::sleep(ms(20));
    }
}

/// What a driver would say of the first network.
fn received(dbm: i8) -> BTreeMap<String, Wifi> {
    BTreeMap::from([("up0".to_owned(), Wifi { signal_dbm: Some(dbm), ..Wifi::default() })])
}

/// The lab has no radio: the test says what a driver would. All that comes after is as in use.
#[test]
fn a_connection_is_told_that_the_wifi_beneath_it_is_weak_and_well_again_as_long_as_the_manager_knows() {
    if !require!() {
        return;
    }
    let mut world = World::new(&equal(), Carriers::Only(CarrierKind::Tcp));
    let (radio, radios) = watch::channel(received(-60));
    // Whatever is heard of it, the first network carries.
    let settings = "rest = 100\n[[interface]]\nname = \"up0\"\n[policy]\nname = \"single\"\npath = 1";
    world.manage_with(settings, Some(radios));
    let _steering = world.steer("");
    let connection = world.connect();
    // No path is replaced because the machine is slow.
    let patient = Timeouts { suspect_least: secs(10), suspect_most: secs(10), ..connection.timeouts() };
    connection.set_timeouts(patient).unwrap();
    let mut events = Watch::new(&connection);
    world.until_received(&connection, -60, false);
    for (dbm, is_weak) in [(-85, true), (-78, true), (-70, false), (-90, true)] {
        radio.send_replace(received(dbm));
        world.until_received(&connection, dbm, is_weak);
    }
    // Then nobody knows.
    world.manager = None;
    let is_signal = |event: &ConnectionEvent| matches!(event, ConnectionEvent::PathSignal { .. });
    for expected in [(Some(-85), true), (Some(-70), false), (Some(-90), true), (None, false)] {
        let told = world.net.client.wait(events.next(is_signal));
        let ConnectionEvent::PathSignal { dbm, is_weak, .. } = told else { unreachable!() };
        assert_eq!((dbm, is_weak), expected);
    }
    world.ends(&connection);
}
