//! What routers say of a path over QUIC or TCP (ICMP), truly or not, while one side says something all the
//! time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::lab_support::net::{Family, LIMIT, Node, Routed, Watch};
use crate::lab_support::paths::newest;
use crate::lab_support::{ms, secs};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_lab::{Host, require};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, ConnectionEvent, DownCause, Endpoint, HandoverMode,
    ListenOptions, Listener, PathInfo, Timeouts,
};

/// Who says something all the time, and may be told that it does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talker {
    /// The side that has dialled.
    Client,
    /// The side that has listened.
    Server,
}

/// A connection whose client has two interfaces, of which its path uses one.
struct Talk {
    client: Connection,
    server: Connection,
    talker: Talker,
    path: PathInfo,
    /// What the other side has heard, in bytes.
    heard: Arc<AtomicU64>,
    _listener: Listener,
    _endpoints: [Endpoint; 2],
    net: Routed,
}

impl Talk {
    fn begin(family: Family, kind: CarrierKind, talker: Talker) -> Self {
        let net = Routed::new(family, true);
        let called = net.server.endpoint();
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let mut listener = net.server.wait(called.listen(options)).unwrap();
        let caller = net
            .client
            .endpoint_with(|builder| builder.carriers(Carriers::Only(kind)).handover(HandoverMode::Single));
        let client = net.client.wait(caller.connect(called.addr())).unwrap();
        let server = net.server.wait(listener.accept()).unwrap();
        // No machine is so busy that a path of this test falls silent for it, nor that its client leaves it
        // before the server has noticed that it is silent.
        let least = if talker == Talker::Client { secs(1) } else { secs(4) };
        for (side, suspect_least) in [(&client, least), (&server, secs(1))] {
            side.set_timeouts(Timeouts { suspect_least, ..Timeouts::default() }).unwrap();
        }
        let heard = match talker {
            Talker::Client => talk((&net.client, &client), (&net.server, &server)),
            Talker::Server => talk((&net.server, &server), (&net.client, &client)),
        };
        let path = newest(&client);
        let endpoints = [caller, called];
        Self { client, server, talker, path, heard, _listener: listener, _endpoints: endpoints, net }
    }

    /// The router's interface to which the client's packets come.
    fn inner(&self) -> &'static str {
        if self.path.local.ip() == self.net.client.family.ip(1, 10) { "lan0" } else { "lan1" }
    }

    /// Nothing gets through there any more. Whoever talks is told so if there is a `word` for it, one of
    /// nftables' own.
    fn cut(&self, word: Option<&str>) {
        let inner = self.inner();
        let verdict = word.map_or("drop".into(), |word| format!("reject with icmpx type {word}"));
        let (told, other) = match self.talker {
            Talker::Client => ("iifname", "oifname"),
            Talker::Server => ("oifname", "iifname"),
        };
        let rules = format!(
            "add table inet cut
             add chain inet cut through {{ type filter hook forward priority 0; policy accept; }}
             add rule inet cut through {other} \"{inner}\" meta l4proto {{ tcp, udp }} drop
             add rule inet cut through {told} \"{inner}\" meta l4proto {{ tcp, udp }} {verdict}"
        );
        self.net.router.nft(rules).unwrap();
    }

    /// Why the path ended that was cut so, as whoever talks is told.
    fn cause(&self, word: Option<&str>) -> DownCause {
        let (node, talker) = match self.talker {
            Talker::Client => (&self.net.client, &self.client),
            Talker::Server => (&self.net.server, &self.server),
        };
        let mut watch = Watch::new(talker);
        self.cut(word);
        let is_end = |event: &ConnectionEvent| match event {
            ConnectionEvent::PathDown { path, .. } => *path == self.path.id,
            _ => false,
        };
        let ConnectionEvent::PathDown { cause, .. } = node.wait(watch.next(is_end)) else { panic!("no end") };
        cause
    }

    /// Waits until the other side has heard so much more.
    fn goes_on(&self, bytes: u64) {
        let wanted = self.heard.load(Ordering::Relaxed) + bytes;
        let began = Instant::now();
        while self.heard.load(Ordering::Relaxed) < wanted {
            assert!(began.elapsed() < LIMIT, "nothing is heard");
            std::thread::sleep(ms(5));
        }
    }

    /// The path's ends, as the talker sees them.
    fn ends(&self) -> (SocketAddrV4, SocketAddrV4) {
        let (SocketAddr::V4(client), SocketAddr::V4(server)) = (self.path.local, self.path.remote.address())
        else {
            panic!("a path of IPv4")
        };
        if self.talker == Talker::Client { (client, server) } else { (server, client) }
    }
}

/// One says something all the time; what the other has heard, in bytes. Both end with the connection.
fn talk(from: (&Node, &Connection), to: (&Node, &Connection)) -> Arc<AtomicU64> {
    let mut says = from.0.wait(from.1.open_stream()).unwrap();
    from.0.wait(says.write_all(&[0])).unwrap();
    let mut hears = to.0.wait(to.1.accept_stream()).unwrap();
    let heard = Arc::new(AtomicU64::new(0));
    let counted = heard.clone();
    drop(from.0.runtime.spawn(async move {
        while says.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(ms(5)).await;
        }
    }));
    drop(to.0.runtime.spawn(async move {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = hears.read(&mut bytes).await {
            counted.fetch_add(count as u64, Ordering::Relaxed);
        }
    }));
    heard
}

fn end_of(kind: CarrierKind, talker: Talker, family: Family, word: &str) {
    let talk = Talk::begin(family, kind, talker);
    assert_eq!(talk.cause(Some(word)), DownCause::Unreachable, "{talker:?}, {kind:?}, {family:?}, {word}");
    // By the other interface.
    talk.goes_on(1);
}

#[test]
fn a_path_over_quic_to_which_a_router_has_no_way_is_told_as_unreachable() {
    if !require!() {
        return;
    }
    let words = [
        (Family::V4, "host-unreachable"),
        (Family::V4, "no-route"),
        (Family::V6, "host-unreachable"),
        (Family::V6, "no-route"),
        (Family::V6, "admin-prohibited"),
    ];
    for (family, word) in words {
        end_of(CarrierKind::Quic, Talker::Client, family, word);
    }
}

/// The server's socket is that of all its clients.
#[test]
fn the_side_that_listened_is_told_of_a_path_over_quic_to_which_a_router_has_no_way() {
    if !require!() {
        return;
    }
    let words =
        [(Family::V4, "host-unreachable"), (Family::V6, "no-route"), (Family::V6, "admin-prohibited")];
    for (family, word) in words {
        end_of(CarrierKind::Quic, Talker::Server, family, word);
    }
}

/// The kernel keeps it to itself until it gives up, after minutes, unless it is asked.
#[test]
fn both_sides_are_told_of_a_path_over_tcp_to_which_a_router_has_no_way() {
    if !require!() {
        return;
    }
    for talker in [Talker::Client, Talker::Server] {
        end_of(CarrierKind::Tcp, talker, Family::V4, "host-unreachable");
        end_of(CarrierKind::Tcp, talker, Family::V6, "admin-prohibited");
    }
}

/// Ends what goes on beside a test, however that ends.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why a path ends that falls silent while a router says again and again, so often in a burst, that nobody is
/// reached at the other end's port, or so many ports beside it. Before that it lives, whatever is said.
fn beside_a_liar(talker: Talker, ports_beside: u16, burst: u32) -> DownCause {
    let talk = Talk::begin(Family::V4, CarrierKind::Quic, talker);
    let (from, to) = talk.ends();
    let to = SocketAddrV4::new(*to.ip(), to.port().wrapping_add(ports_beside));
    let (over, said) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let until = Until(&over);
        scope.spawn(|| lie(&talk.net.router, (from, to), burst, &over, &said));
        wait_for(&said, 50 * u64::from(burst));
        talk.goes_on(20);
        assert_eq!(newest(&talk.client).id, talk.path.id, "it lives");
        let cause = talk.cause(None);
        drop(until);
        cause
    })
}

/// Waits until so much is said.
fn wait_for(said: &AtomicU64, count: u64) {
    let began = Instant::now();
    while said.load(Ordering::Relaxed) < count {
        assert!(began.elapsed() < LIMIT, "only {} are said", said.load(Ordering::Relaxed));
        std::thread::sleep(ms(5));
    }
}

/// Says from a router that a datagram did not reach its host, in bursts, until it is over.
fn lie(
    router: &Host,
    (from, to): (SocketAddrV4, SocketAddrV4),
    burst: u32,
    over: &AtomicBool,
    said: &AtomicU64,
) {
    let message = host_unreachable(from, to);
    router.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        let host = SocketAddr::from((IpAddr::from(*from.ip()), 0)).into();
        while !over.load(Ordering::Relaxed) {
            for _ in 0..burst {
                socket.send_to(&message, &host).unwrap();
                said.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(ms(10));
        }
    });
}

/// ICMP's *host unreachable* (RFC 792), of a datagram that went from there to there.
fn host_unreachable(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    // The headers of IPv4 and UDP are quoted, and some of what follows.
    message.extend([0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(from.ip().octets());
    message.extend(to.ip().octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend([0, 24, 0, 0]);
    // A packet of QUIC for somebody whose id is a guess.
    message.extend([0x41; 16]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The first shows that it is believed where it could be true: of a path that is silent, and of its ports.
#[test]
fn a_liar_ends_no_path_over_quic_that_lives_and_of_other_ports_it_is_not_believed_at_all() {
    if require!() {
        assert_eq!(beside_a_liar(Talker::Client, 0, 1), DownCause::Unreachable);
        assert_eq!(beside_a_liar(Talker::Client, 1, 1), DownCause::Silent);
    }
}

/// It knows the ports, but not how the server calls the client. With the burst that is a flood.
#[test]
fn the_side_that_listened_believes_no_liar_who_does_not_see_what_it_sends_and_lives_through_a_flood() {
    if require!() {
        assert_eq!(beside_a_liar(Talker::Server, 0, 1), DownCause::Silent);
        assert_eq!(beside_a_liar(Talker::Server, 0, 64), DownCause::Silent);
    }
}

/// What is said takes the room of what comes in, and a server that is idle does nothing that would bring it
/// to light.
#[test]
fn whoever_dials_an_idle_server_that_is_flooded_with_lies_gets_through() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let called = net.server.endpoint();
    let options = ListenOptions::unnamed().allow(Allow::Any);
    let mut listener = net.server.wait(called.listen(options)).unwrap();
    let IpAddr::V4(ip) = net.server.ip() else { panic!("a server with IPv4") };
    let from = SocketAddrV4::new(ip, called.addr().addrs[0].port());
    let to = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 4433);
    let (over, said) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _until = Until(&over);
        scope.spawn(|| lie(&net.router, (from, to), 64, &over, &said));
        wait_for(&said, 4000);
        let caller = net.client.endpoint_with(|builder| builder.carriers(Carriers::Only(CarrierKind::Quic)));
        let client = net.client.wait(caller.connect(called.addr())).unwrap();
        let server = net.server.wait(listener.accept()).unwrap();
        let heard = talk((&net.client, &client), (&net.server, &server));
        let answered = talk((&net.server, &server), (&net.client, &client));
        wait_for(&heard, 50);
        wait_for(&answered, 50);
    });
}
