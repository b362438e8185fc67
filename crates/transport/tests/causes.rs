//! An application is told why a path ended.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use whimbrel_base::EndpointAddr;
use whimbrel_transport::{
    AddressMonitor, AddressSet, Allow, CarrierKind, Carriers, Connection, ConnectionEvent, DownCause,
    Endpoint, Events, HandoverMode, ListenOptions, LocalAddress, ManualMonitor, PathState, Watch, Watched,
};

const LIMIT: Duration = Duration::from_secs(30);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 97, last])
}

/// A host whose links and routes are set by hand.
#[derive(Clone)]
struct Host {
    set: Arc<Watched<Arc<AddressSet>>>,
    has_way: Arc<AtomicBool>,
    /// Whether there is one by the address' own interface.
    has_own_way: Arc<AtomicBool>,
    /// How often somebody asked for a way.
    asked: Arc<AtomicU32>,
}

impl Host {
    fn at(ip: IpAddr) -> Self {
        Self::with(LocalAddress { ip, interface: None })
    }

    fn with(address: LocalAddress) -> Self {
        let set = Arc::new(AddressSet { addresses: vec![address], ..AddressSet::default() });
        let (has_way, has_own_way) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
        Self { set: Arc::new(Watched::new(set)), has_way, has_own_way, asked: Arc::default() }
    }

    /// A route is gone, and somebody has asked so often what that means.
    async fn lose_a_route(&self, questions: u32) {
        let before = self.asked.load(Ordering::SeqCst);
        self.change(|set| set.routes_lost += 1);
        wait_until(|| self.asked.load(Ordering::SeqCst) >= before + questions).await;
    }

    fn change(&self, change: impl FnOnce(&mut AddressSet)) {
        self.set.update(|set| {
            let mut changed = AddressSet::clone(set);
            change(&mut changed);
            *set = Arc::new(changed);
        });
    }
}

impl AddressMonitor for Host {
    fn watch(&self) -> Watch<Arc<AddressSet>> {
        self.set.watch()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn has_way(&self, from: &LocalAddress, _: IpAddr) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let way = if from.interface.is_some() { &self.has_own_way } else { &self.has_way };
        way.load(Ordering::SeqCst)
    }
}

async fn endpoint(monitor: impl AddressMonitor) -> Endpoint {
    let builder = Endpoint::builder().monitor(monitor).carriers(Carriers::Only(CarrierKind::Tcp));
    builder.handover(HandoverMode::Single).bind().await.unwrap()
}

/// What keeps a connection alive, and what its client is told of it.
struct Pair {
    client: Connection,
    events: Events,
    _accepted: Connection,
    _endpoints: [Endpoint; 2],
}

/// A connection between two endpoints, dialled at `way`.
async fn connected(client: Endpoint, server: Endpoint, way: SocketAddr) -> Pair {
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let to = EndpointAddr::new(server.id(), [way]);
    let connection = timeout(LIMIT, client.connect(to)).await.expect("not connected").unwrap();
    let accepted = timeout(LIMIT, listener.accept()).await.expect("not accepted").unwrap();
    let events = connection.events();
    Pair { client: connection, events, _accepted: accepted, _endpoints: [client, server] }
}

/// A connection of a client on this host with a server at its own address.
async fn pair(host: &Host, server: u8) -> Pair {
    let server = endpoint(ManualMonitor::new([ip(server)])).await;
    let way = server.addr().addrs[0];
    connected(endpoint(host.clone()).await, server, way).await
}

/// Why the next path that ends has ended. Attempts that were not needed do not count.
async fn cause(pair: &mut Pair) -> DownCause {
    let down = async {
        loop {
            let event = pair.events.next().await.expect("the connection is over");
            if let ConnectionEvent::PathDown { cause, .. } = event
                && cause != DownCause::Retired
            {
                return cause;
            }
        }
    };
    timeout(LIMIT, down).await.expect("no path ended")
}

async fn wait_until(done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, wait).await.expect("not in time");
}

async fn works_again(pair: &Pair) {
    let works = || pair.client.stats().paths.iter().any(|path| path.state == PathState::Active);
    wait_until(works).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_down_is_told_from_an_address_that_is_gone() {
    let host = Host::at(ip(1));
    let mut pair = pair(&host, 2).await;
    host.change(|set| {
        set.addresses.clear();
        set.without_link = vec![ip(1)];
    });
    assert_eq!(cause(&mut pair).await, DownCause::LinkDown);
    host.change(|set| {
        set.addresses = vec![LocalAddress { ip: ip(1), interface: None }];
        set.without_link.clear();
    });
    works_again(&pair).await;
    host.change(|set| set.addresses = vec![LocalAddress { ip: ip(3), interface: None }]);
    assert_eq!(cause(&mut pair).await, DownCause::AddressGone);
    works_again(&pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_whose_last_route_is_gone_is_down_at_once() {
    let host = Host::at(ip(4));
    let mut pair = pair(&host, 5).await;
    // One of several. Whoever asks for the second time has drawn conclusions from the first.
    for _ in 0..2 {
        host.lose_a_route(1).await;
    }
    no_route_is_missed(&mut pair);
    host.has_way.store(false, Ordering::SeqCst);
    host.change(|set| set.routes_lost += 1);
    assert_eq!(cause(&mut pair).await, DownCause::RouteGone);
    host.has_way.store(true, Ordering::SeqCst);
    host.change(|set| set.routes += 1);
    works_again(&pair).await;
}

/// As of an address of `lo` or a dummy interface, which routes by other interfaces choose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_whose_address_the_routes_choose_needs_none_by_the_address_own_interface() {
    // That is what the routes choose for any place on this host.
    let host = Host::with(LocalAddress { ip: [127, 0, 0, 1].into(), interface: Some("none".into()) });
    let mut pair = pair(&host, 12).await;
    host.has_own_way.store(false, Ordering::SeqCst);
    for _ in 0..2 {
        host.lose_a_route(2).await;
    }
    no_route_is_missed(&mut pair);
    host.has_way.store(false, Ordering::SeqCst);
    host.change(|set| set.routes_lost += 1);
    assert_eq!(cause(&mut pair).await, DownCause::RouteGone);
}

/// No path was given up for that. An attempt that was not needed may have ended.
fn no_route_is_missed(pair: &mut Pair) {
    while let Some(event) = pair.events.try_next() {
        let is_lost = matches!(event, ConnectionEvent::PathDown { cause: DownCause::RouteGone, .. });
        assert!(!is_lost, "{event:?}");
    }
}

/// How a gate between client and server ends what goes through it.
#[derive(Clone, Copy)]
enum Cut {
    Reset,
    Close,
}

/// A gate that passes on what comes to it. What goes through it when that is said is cut.
async fn gate(last: u8, to: SocketAddr, how: Cut) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind((ip(last), 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, told) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let told = told.clone();
            let is_cut = *told.borrow();
            match is_cut {
                true => drop(tokio::spawn(pass_on(client, to))),
                false => drop(tokio::spawn(pass_on_until(client, to, told, how))),
            }
        }
    });
    (at, sender)
}

async fn pass_on(mut client: TcpStream, to: SocketAddr) {
    let mut server = TcpStream::connect(to).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

async fn pass_on_until(mut client: TcpStream, to: SocketAddr, mut told: watch::Receiver<bool>, how: Cut) {
    let mut server = TcpStream::connect(to).await.unwrap();
    let is_cut = async move {
        let _ = told.wait_for(|cut| *cut).await.is_ok();
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        () = is_cut => {}
    }
    match how {
        Cut::Reset => socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap(),
        Cut::Close => {
            // What was not read would make it a reset.
            let _ = client.shutdown().await;
            let _ = timeout(LIMIT, tokio::io::copy(&mut client, &mut tokio::io::sink())).await;
        }
    }
}

async fn cut(client: u8, server: u8, gate_at: u8, how: Cut) -> DownCause {
    let server = endpoint(ManualMonitor::new([ip(server)])).await;
    let (way, sender) = gate(gate_at, server.addr().addrs[0], how).await;
    let client = endpoint(ManualMonitor::new([ip(client)])).await;
    let mut pair = connected(client, server, way).await;
    sender.send_replace(true);
    let cause = cause(&mut pair).await;
    works_again(&pair).await;
    cause
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_told_from_an_orderly_end() {
    assert_eq!(cut(6, 7, 8, Cut::Reset).await, DownCause::Reset);
    assert_eq!(cut(9, 10, 11, Cut::Close).await, DownCause::ClosedByPeer);
}
